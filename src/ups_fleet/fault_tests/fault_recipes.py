"""The fault matrix: how each case of a fault is drawn at random."""

from __future__ import annotations

from typing import Any, get_args

from ups_fleet.fault_tests.case import (
    LAST,
    LAST_STAGE,
    SAVED,
    STEPS,
    Draw,
    FaultCase,
    Recipe,
    Recipes,
    Strategy,
    case_of,
    step_of,
)
from ups_fleet.supervise.fault_plan import Fault, Kind

EARLIER = max((steps for stage, steps in STEPS.items() if stage != LAST_STAGE), default=0)  # from it on: the last alone
IN_STEP = ("data", "forward", "backward", "vote", "reduce", "step")
ELSEWHERE = ("start", "log", "validate", "save", "finish")
BY_ALL = ("before shard", "after shard")
BY_FIRST = ("before manifest", "after manifest", "after rename", "before retention", "after retention")


def _memory(phase: str, ranks: str) -> Recipe:
    """Out of memory for a moment: mended in place, in the same start, with the same bits."""

    def recipe(d: Draw, world: int, strategy: Strategy) -> FaultCase | None:
        if phase == "buffer" and (strategy != "fsdp" or world == 1):
            return None
        step, who = step_of(d), d.sample(range(world), 1 if ranks == "one" else world)
        faults = [Fault("oom", rank, phase, step) for rank in who]
        changes = {"train.activations": "recompute"} if phase == "recompute" else {}
        family, name = ("F1" if ranks == "one" else "F3"), f"oom {phase}, {ranks}"
        return case_of(family, name, world, strategy, *faults, starts=1, changes=changes)

    return recipe


def _memory_again(d: Draw, world: int, strategy: Strategy) -> FaultCase:
    """On one rank, and on another in the retry."""
    step = step_of(d)
    one, other = d.randrange(world), d.randrange(world)
    first, second = d.sample(["data", "forward", "backward"], 2)
    faults = (Fault("oom", one, first, step), Fault("oom", other, second, min(step + 2, LAST - 1)))
    return case_of("F3", "oom twice", world, strategy, *faults, starts=1)


def _no_memory(d: Draw, world: int, strategy: Strategy) -> FaultCase:
    rank, phase = d.randrange(world), d.choice(["forward", "backward"])
    fault = Fault("oom", rank, phase, step_of(d), attempt=None, times=99)
    promise = {"endings": ("OOM",), "starts": 1, "named": rank, "phase": phase}
    return case_of("F2", "oom for good", world, strategy, fault, **promise)


def _error(phase: str) -> Recipe:
    def recipe(d: Draw, world: int, strategy: Strategy) -> FaultCase:
        rank = d.randrange(world)
        shown = {"view": "data", "loss": "forward"}.get(phase, phase)
        fault = Fault("error", rank, phase, step_of(d))
        promise = {"endings": ("CRASH",), "starts": 1, "named": rank, "phase": shown, "output": "a planned fault"}
        return case_of("F4", f"error in {phase}", world, strategy, fault, **promise)

    return recipe


def _not_finite(kind: Kind, times: int) -> Recipe:
    def recipe(d: Draw, world: int, strategy: Strategy) -> FaultCase:
        fault = Fault(kind, d.randrange(world), "loss", d.randrange(EARLIER, LAST), times=times)
        if times == 1:
            return case_of("F5", kind, world, strategy, fault, starts=1, bits=False, skipped=1)
        changes = {"train.max_bad": 0}
        promise = {"endings": ("NOT_FINITE",), "starts": 1, "bits": False, "changes": changes}
        return case_of("F5", f"{kind} for good", world, strategy, fault, **promise)

    return recipe


def _killed(kind: Kind) -> Recipe:
    def recipe(d: Draw, world: int, strategy: Strategy) -> FaultCase:
        rank = d.randrange(world)
        phase = d.choice([*IN_STEP, *ELSEWHERE, *(["judge"] if rank == 0 else [])])
        step = 0 if phase in ("start", "judge") else step_of(d)
        family = "F7" if kind in ("hang", "grip") else "F6"
        first = ("HANG",) if kind in ("stop", "hang", "grip") else ("RANK_DIED",)
        fault = Fault(kind, rank, phase, step)
        return case_of(family, f"{kind} in {phase}", world, strategy, fault, first=first, named=rank, starts=2)

    return recipe


def _unlike(kind: Kind) -> Recipe:
    def recipe(d: Draw, world: int, strategy: Strategy) -> FaultCase | None:
        if world == 1:
            return None
        fault = Fault(kind, d.randrange(world), "config")
        return case_of("F8", f"other {kind}", world, strategy, fault, endings=("DIVERGED",), starts=1, output="agree")

    return recipe


def _uneven(ranks: str) -> Recipe:
    """Batches that ranks cannot share evenly, cut so that some run out of samples before the others.

    Their result is that of one process; sharded on two ranks that of replicated ones to the bit, also after a kill.
    """

    def recipe(d: Draw, world: int, strategy: Strategy) -> FaultCase | None:
        if world == 1:
            return None
        size, micro = d.choice([n for n in (5, 7, 9) if n % world]), d.choice([1, 2])
        changes = {"batch": size, "train.microbatch": micro}
        if ranks == "killed":
            fault = Fault("kill", d.randrange(world), d.choice(IN_STEP), step_of(d))
            promise: dict[str, Any] = {"first": ("RANK_DIED",), "named": fault.rank, "starts": 2}
            return case_of("F8", "uneven and killed", world, strategy, fault, changes=changes, **promise)
        twin = strategy == "fsdp" and world == 2
        promise = {"like": (2, "ddp") if twin else (1, "single"), "bits": twin, "close": not twin}
        return case_of("F8", "uneven shares", world, strategy, changes=changes, starts=1, **promise)

    return recipe


def _stopped(whom: str) -> Recipe:
    def recipe(d: Draw, world: int, strategy: Strategy) -> FaultCase:
        phase, step = d.choice([*IN_STEP, "start", "log", "validate", "save"]), step_of(d)
        rank = d.randrange(world)
        kind: Kind = "boss" if whom == "supervisor" else d.choice(["term", "usr1"])
        ranks = range(world) if whom == "all" else [rank]
        faults = [Fault(kind, r, phase, 0 if phase == "start" else step) for r in ranks]
        late = phase in ("log", "validate", "save", "step") or step >= LAST - 1  # perhaps after the last vote
        endings = ("PREEMPTED", "SUCCESS") if late else ("PREEMPTED",)
        return case_of("F9", f"stop {whom}", world, strategy, *faults, endings=endings, starts=1)

    return recipe


def _interrupted_save(kind: Kind) -> Recipe:
    def recipe(d: Draw, world: int, strategy: Strategy) -> FaultCase:
        point = d.choice([*BY_ALL, *BY_FIRST])
        rank = d.randrange(world) if point in BY_ALL else 0
        fault = Fault(kind, rank, point, 0 if "retention" in point else step_of(d))
        if kind == "kill":
            return case_of("F10", "kill in save", world, strategy, fault, first=("RANK_DIED",), named=rank, starts=2)
        endings = ("SUCCESS", "STORAGE")  # only the last save of a stage has to succeed
        return case_of("F10", "full disk in save", world, strategy, fault, endings=endings)

    return recipe


def _no_space(d: Draw, world: int, strategy: Strategy) -> FaultCase:
    """No checkpoint can be saved any more: the training stops at the second save that fails."""
    fault = Fault("full", d.randrange(world), "before shard", d.randrange(1, LAST), attempt=None, times=99)
    output = "2 times in a row" if _saves_from(fault.step) > 1 else ""  # else the last of a stage may be the first
    return case_of("F10", "full for good", world, strategy, fault, endings=("STORAGE",), starts=1, output=output)


def _saves_from(step: int) -> int:
    """How many saves are still to come, at a step of the first stage that has any."""
    stage = next(stage for stage, steps in STEPS.items() if step <= steps)
    return len({n for n in range(1, STEPS[stage] + 1) if n >= step and n % SAVED[stage] == 0} | {STEPS[stage]})


def _damaged(damage: str) -> Recipe:
    def recipe(d: Draw, world: int, strategy: Strategy) -> FaultCase:
        fault = Fault("kill", d.randrange(world), "forward", d.randrange(5, LAST))
        promise = {"first": ("RANK_DIED",), "starts": 2, "damage": damage, "output": "is damaged"}
        return case_of("F11", damage, world, strategy, fault, **promise)

    return recipe


def _resized(d: Draw, world: int, strategy: Strategy) -> FaultCase:
    others = [n for n in (1, 2, 3, 4) if n != world]
    fault = Fault("term", d.randrange(world), "forward", d.randrange(EARLIER, LAST - 1))
    promise = {"endings": ("PREEMPTED",), "bits": False, "close": True, "onto": d.choice(others)}
    return case_of("F12", "resized", world, strategy, fault, **promise)


def _proved(_: Draw, world: int, strategy: Strategy) -> FaultCase:
    return case_of("F13", "undisturbed", world, strategy, starts=1)


def _drifting(mended: bool) -> Recipe:
    """One weight of one rank is another by one ulp: of three ranks or more the guilty one is named, or mended."""

    def recipe(d: Draw, world: int, strategy: Strategy) -> FaultCase | None:
        if world == 1 or strategy != "ddp":
            return None  # nobody holds what another holds
        world = d.choice([2, 3]) if world == 2 and not mended else max(world, 3)
        rank = d.randrange(world)
        fault = Fault("ulp", rank, "view", step_of(d))
        guilty = f"rank {rank} holds other values" if world > 2 else "ranks 0 and 1 hold different values"
        if not mended:
            promise: dict[str, Any] = {"endings": ("DIVERGED",), "starts": 1, "output": guilty}
            return case_of("F14", "one ulp", world, strategy, fault, **promise)
        promise = {"starts": 1, "output": "has taken over", "bits": False, "close": True}
        promise["changes"] = {"train.on_drift": "mend"}
        return case_of("F14", "one ulp, mended", world, strategy, fault, **promise)

    return recipe


def _orphaned(d: Draw, world: int, strategy: Strategy) -> FaultCase:
    """The supervisor itself is killed: its ranks go with it."""
    fault = Fault("orphan", d.randrange(world), d.choice([*IN_STEP, *ELSEWHERE]), 0)
    return case_of("F15", "supervisor killed", world, strategy, fault, endings=("KILLED",))


def _storm(d: Draw, world: int, strategy: Strategy) -> FaultCase:
    fault = Fault(d.choice(["kill", "segv", "leave"]), d.randrange(world), d.choice(IN_STEP), 1, attempt=None)
    return case_of("F16", "every start", world, strategy, fault, endings=("NO_PROGRESS",), starts=3)


def _series(d: Draw, world: int, strategy: Strategy) -> FaultCase:
    """One fault after the other, each after some progress."""
    kinds: list[Kind] = ["kill", "segv", "leave", "abort"]
    steps = sorted(d.sample(range(1, LAST), 2))
    faults = [
        Fault(d.choice(kinds), d.randrange(world), d.choice(IN_STEP), s, attempt=i + 1) for i, s in enumerate(steps)
    ]
    return case_of("F16", "one after another", world, strategy, *faults, first=("RANK_DIED",), starts=3)


def _slow_log(d: Draw, world: int, strategy: Strategy) -> FaultCase:
    fault = Fault("slow", 0, "log", step_of(d), times=2)
    return case_of("F17", "log slow", world, strategy, fault, starts=1)


def _teardown(d: Draw, world: int, strategy: Strategy) -> FaultCase:
    kind: Kind = d.choice(["abort", "segv", "kill"])
    return case_of("F18", f"{kind} in teardown", world, strategy, Fault(kind, 0, "teardown"), starts=1)


RECIPES: Recipes = {
    **{
        ("F1", f"oom {p}"): _memory(p, "one")
        for p in ("data", "forward", "loss", "backward", "block", "recompute", "buffer")
    },
    ("F2", "oom for good"): _no_memory,
    **{("F3", f"oom {p}"): _memory(p, "all") for p in ("forward", "backward", "block")},
    ("F3", "oom twice"): _memory_again,
    **{("F4", p): _error(p) for p in ("data", "view", "loss", "backward", "validate", "log", "save", "step")},
    ("F5", "nan"): _not_finite("nan", 1),
    ("F5", "inf"): _not_finite("inf", 1),
    ("F5", "nan for good"): _not_finite("nan", 99),
    **{("F6", k): _killed(k) for k in get_args(Kind) if k in ("kill", "segv", "bus", "abort", "stop", "leave")},
    ("F7", "hang"): _killed("hang"),
    ("F7", "grip"): _killed("grip"),
    ("F8", "uneven"): _uneven("well"),
    ("F8", "uneven, killed"): _uneven("killed"),
    ("F8", "seed"): _unlike("seed"),
    ("F8", "rate"): _unlike("rate"),
    **{("F9", w): _stopped(w) for w in ("one", "all", "supervisor")},
    ("F10", "kill"): _interrupted_save("kill"),
    ("F10", "full"): _interrupted_save("full"),
    ("F10", "full for good"): _no_space,
    **{("F11", k): _damaged(k) for k in ("flip", "truncate", "missing", "foreign", "manifest")},
    ("F12", "resized"): _resized,
    ("F13", "undisturbed"): _proved,
    ("F14", "ulp"): _drifting(mended=False),
    ("F14", "mended"): _drifting(mended=True),
    ("F15", "supervisor"): _orphaned,
    ("F16", "storm"): _storm,
    ("F16", "series"): _series,
    ("F17", "slow"): _slow_log,
    ("F18", "teardown"): _teardown,
}
