"""The fault matrix: what is done to a run, where it is drawn at random, and what is promised then."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from ups.engine.faults import Fault, Kind
from ups.lab.disks import can_mount

Strategy = Literal["single", "ddp", "fsdp"]
# Steps of the two stages of a lab run, and how often each is saved; the last step of a stage is always saved.
STEPS = {"codec": 4, "operator": 8}
SAVED = {"codec": 2, "operator": 3}
LAST = STEPS["operator"]
IN_STEP = ("data", "forward", "backward", "vote", "reduce", "step")
ELSEWHERE = ("start", "log", "validate", "save", "finish")
BY_ALL = ("before shard", "after shard")
BY_FIRST = ("before manifest", "after manifest", "after rename", "before retention", "after retention")


@dataclass(frozen=True)
class Case:
    """One disturbed run and its promise.

    `endings`: how the first command may end; any but SUCCESS is followed by a --resume that must succeed. `first`: how
    its first start of the ranks ends, where it is started again; `named`: the rank that is named, `phase`: where.
    `starts`: how often the ranks are started by the first command. `bits`: the artifact of the undisturbed run, to the
    bit; `close`: to rounding. `said`: words that must be said. `skipped`: steps that are left out by all ranks.
    """

    family: str
    name: str
    world: int
    strategy: Strategy
    faults: tuple[Fault, ...] = ()
    endings: tuple[str, ...] = ("SUCCESS",)
    first: tuple[str, ...] = ()
    named: int | None = None
    phase: str = ""
    starts: int | None = None
    bits: bool = True
    close: bool = False
    said: str = ""
    skipped: int | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    damage: str = ""  # to the newest checkpoint, before the second start
    onto: int | None = None  # ranks that go on after the first command
    setting: str = ""  # what surrounds the run

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "faults": [fault.to_dict() for fault in self.faults]}


Draw = random.Random
Recipe = Callable[[Draw, int, Strategy], Case | None]


def draw(
    count: int, seed: int, worlds: Sequence[int], strategies: Sequence[Strategy], only: Sequence[str] = ()
) -> Iterator[Case]:
    """`count` cases: every recipe on every kind of world once, in an order drawn from the seed, then all over again."""
    kinds = [(w, s) for w in worlds for s in strategies if (w == 1) is (s == "single") or (w == 1 and s == "fsdp")]
    recipes = [(f, n, r) for (f, n), r in RECIPES.items() if not only or f in only]
    made, turn = 0, 0
    while made < count and kinds and recipes:
        order = [(*recipe, *kind) for recipe in recipes for kind in kinds]
        random.Random(f"{seed}/{turn}").shuffle(order)
        before = made
        for family, name, recipe, world, strategy in order:
            case = recipe(random.Random(f"{seed}/{turn}/{family}/{name}/{world}/{strategy}"), world, strategy)
            if case is not None and made < count:
                made += 1
                yield case
        turn += 1
        if made == before:
            return


def _case(family: str, name: str, world: int, strategy: Strategy, *faults: Fault, **promise: Any) -> Case:
    return Case(family, name, world, strategy, faults, **promise)


def _step(d: Draw) -> int:
    return d.randrange(LAST)


def _memory(phase: str, ranks: str) -> Recipe:
    """Out of memory for a moment: mended in place, in the same start, with the same bits."""

    def recipe(d: Draw, world: int, strategy: Strategy) -> Case | None:
        if phase == "buffer" and (strategy != "fsdp" or world == 1):
            return None
        step, who = _step(d), d.sample(range(world), 1 if ranks == "one" else world)
        faults = [Fault("oom", rank, phase, step) for rank in who]
        changes: dict[str, Any] = {}
        if phase == "recompute":
            changes = {"codec.train.activations": "recompute", "operator.train.activations": "recompute"}
        family, name = ("F1" if ranks == "one" else "F3"), f"oom {phase}, {ranks}"
        return _case(family, name, world, strategy, *faults, starts=1, changes=changes)

    return recipe


def _memory_again(d: Draw, world: int, strategy: Strategy) -> Case:
    """On one rank, and on another in the retry."""
    step = _step(d)
    one, other = d.randrange(world), d.randrange(world)
    first, second = d.sample(["data", "forward", "backward"], 2)
    faults = (Fault("oom", one, first, step), Fault("oom", other, second, min(step + 2, LAST - 1)))
    return _case("F3", "oom twice", world, strategy, *faults, starts=1)


def _no_memory(d: Draw, world: int, strategy: Strategy) -> Case:
    rank, phase = d.randrange(world), d.choice(["forward", "backward"])
    fault = Fault("oom", rank, phase, _step(d), attempt=None, times=99)
    promise = {"endings": ("OOM",), "starts": 1, "named": rank, "phase": phase}
    return _case("F2", "oom for good", world, strategy, fault, **promise)


def _error(phase: str) -> Recipe:
    def recipe(d: Draw, world: int, strategy: Strategy) -> Case:
        rank = d.randrange(world)
        shown = {"view": "data", "loss": "forward"}.get(phase, phase)
        fault = Fault("error", rank, phase, _step(d))
        promise = {"endings": ("CRASH",), "starts": 1, "named": rank, "phase": shown, "said": "a planned fault"}
        return _case("F4", f"error in {phase}", world, strategy, fault, **promise)

    return recipe


def _not_finite(kind: Kind, times: int) -> Recipe:
    def recipe(d: Draw, world: int, strategy: Strategy) -> Case:
        fault = Fault(kind, d.randrange(world), "loss", d.randrange(STEPS["codec"], LAST), times=times)
        if times == 1:
            return _case("F5", kind, world, strategy, fault, starts=1, bits=False, skipped=1)
        changes = {"operator.train.max_bad": 0, "codec.train.max_bad": 0}
        promise = {"endings": ("NOT_FINITE",), "starts": 1, "bits": False, "changes": changes}
        return _case("F5", f"{kind} for good", world, strategy, fault, **promise)

    return recipe


def _killed(kind: Kind) -> Recipe:
    def recipe(d: Draw, world: int, strategy: Strategy) -> Case:
        rank = d.randrange(world)
        phase = d.choice([*IN_STEP, *ELSEWHERE, *(["judge"] if rank == 0 else [])])
        step = 0 if phase in ("start", "judge") else _step(d)
        family = "F7" if kind in ("hang", "grip") else "F6"
        first = ("HANG",) if kind in ("stop", "hang", "grip") else ("RANK_DIED",)
        fault = Fault(kind, rank, phase, step)
        return _case(family, f"{kind} in {phase}", world, strategy, fault, first=first, named=rank, starts=2)

    return recipe


def _unlike(kind: Kind) -> Recipe:
    def recipe(d: Draw, world: int, strategy: Strategy) -> Case | None:
        if world == 1:
            return None
        fault = Fault(kind, d.randrange(world), "config")
        return _case("F8", f"other {kind}", world, strategy, fault, endings=("DIVERGED",), starts=1, said="agree")

    return recipe


def _asked(whom: str) -> Recipe:
    def recipe(d: Draw, world: int, strategy: Strategy) -> Case:
        phase, step = d.choice([*IN_STEP, "start", "log", "validate", "save"]), _step(d)
        rank = d.randrange(world)
        kind: Kind = "boss" if whom == "supervisor" else d.choice(["term", "usr1"])
        ranks = range(world) if whom == "all" else [rank]
        faults = [Fault(kind, r, phase, 0 if phase == "start" else step) for r in ranks]
        late = phase in ("log", "validate", "save", "step") or step >= LAST - 1  # perhaps after the last vote
        endings = ("PREEMPTED", "SUCCESS") if late else ("PREEMPTED",)
        return _case("F9", f"stop {whom}", world, strategy, *faults, endings=endings, starts=1)

    return recipe


def _interrupted_save(kind: Kind) -> Recipe:
    def recipe(d: Draw, world: int, strategy: Strategy) -> Case:
        point = d.choice([*BY_ALL, *BY_FIRST])
        rank = d.randrange(world) if point in BY_ALL else 0
        fault = Fault(kind, rank, point, 0 if "retention" in point else _step(d))
        if kind == "kill":
            return _case("F10", "kill in save", world, strategy, fault, first=("RANK_DIED",), named=rank, starts=2)
        endings = ("SUCCESS", "STORAGE")  # only the last save of a stage has to succeed
        return _case("F10", "full disk in save", world, strategy, fault, endings=endings)

    return recipe


def _no_space(d: Draw, world: int, strategy: Strategy) -> Case:
    """No checkpoint can be saved any more: the training goes on to its end, which cannot be kept."""
    fault = Fault("full", d.randrange(world), "before shard", d.randrange(1, LAST), attempt=None, times=99)
    return _case("F10", "full for good", world, strategy, fault, endings=("STORAGE",), starts=1)


def _disk(setting: str) -> Recipe:
    def recipe(d: Draw, world: int, strategy: Strategy) -> Case | None:
        if not can_mount():
            return None
        size = f" {d.randrange(40, 700)}k" if setting == "disk of" else ""
        endings = ("STORAGE", "SUCCESS") if size else ("STORAGE",)
        return _case("F10", setting, world, strategy, setting=setting + size, endings=endings, starts=1)

    return recipe


def _damaged(damage: str) -> Recipe:
    def recipe(d: Draw, world: int, strategy: Strategy) -> Case:
        fault = Fault("kill", d.randrange(world), "forward", d.randrange(5, LAST))
        promise = {"first": ("RANK_DIED",), "starts": 2, "damage": damage, "said": "is damaged"}
        return _case("F11", damage, world, strategy, fault, **promise)

    return recipe


def _resized(d: Draw, world: int, strategy: Strategy) -> Case | None:
    others = [n for n in (1, 2, 3, 4) if n != world]
    fault = Fault("term", d.randrange(world), "forward", d.randrange(STEPS["codec"], LAST - 1))
    promise = {"endings": ("PREEMPTED",), "bits": False, "close": True, "onto": d.choice(others)}
    return None if strategy == "single" and not others else _case("F12", "resized", world, strategy, fault, **promise)


def _proved(_: Draw, world: int, strategy: Strategy) -> Case:
    return _case("F13", "undisturbed", world, strategy, starts=1)


def _drifting(d: Draw, world: int, strategy: Strategy) -> Case | None:
    if world == 1 or strategy != "ddp":
        return None  # nobody holds what another holds
    rank = d.randrange(world)
    fault = Fault("ulp", rank, "view", _step(d))
    promise = {"endings": ("DIVERGED",), "starts": 1, "said": f"rank {rank if world > 2 else 1} holds other values"}
    return _case("F14", "one ulp", world, strategy, fault, **promise)


def _surrounded(family: str, setting: str, **promise: Any) -> Recipe:
    def recipe(_: Draw, world: int, strategy: Strategy) -> Case:
        return _case(family, setting, world, strategy, setting=setting, **promise)

    return recipe


def _orphaned(d: Draw, world: int, strategy: Strategy) -> Case:
    """The supervisor itself is killed: its ranks go with it."""
    fault = Fault("orphan", d.randrange(world), d.choice([*IN_STEP, *ELSEWHERE]), 0)
    return _case("F15", "supervisor killed", world, strategy, fault, endings=("KILLED",))


def _storm(d: Draw, world: int, strategy: Strategy) -> Case:
    fault = Fault(d.choice(["kill", "segv", "leave"]), d.randrange(world), d.choice(IN_STEP), 1, attempt=None)
    return _case("F16", "every start", world, strategy, fault, endings=("NO_PROGRESS",), starts=3)


def _series(d: Draw, world: int, strategy: Strategy) -> Case:
    """One fault after the other, each after some progress."""
    kinds: list[Kind] = ["kill", "segv", "leave", "abort"]
    steps = sorted(d.sample(range(1, LAST), 2))
    faults = [
        Fault(d.choice(kinds), d.randrange(world), d.choice(IN_STEP), s, attempt=i + 1) for i, s in enumerate(steps)
    ]
    return _case("F16", "one after another", world, strategy, *faults, first=("RANK_DIED",), starts=3)


def _slow_log(d: Draw, world: int, strategy: Strategy) -> Case:
    fault = Fault("slow", 0, "log", _step(d), times=2)
    return _case("F17", "log slow", world, strategy, fault, starts=1)


def _teardown(d: Draw, world: int, strategy: Strategy) -> Case:
    kind: Kind = d.choice(["abort", "segv", "kill"])
    return _case("F18", f"{kind} in teardown", world, strategy, Fault(kind, 0, "teardown"), starts=1)


REFUSED: dict[str, Any] = {"endings": ("USER",), "starts": 0}
RECIPES: dict[tuple[str, str], Recipe] = {
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
    ("F8", "seed"): _unlike("seed"),
    ("F8", "rate"): _unlike("rate"),
    **{("F9", w): _asked(w) for w in ("one", "all", "supervisor")},
    ("F10", "kill"): _interrupted_save("kill"),
    ("F10", "full"): _interrupted_save("full"),
    ("F10", "full for good"): _no_space,
    ("F10", "small"): _disk("disk of"),
    ("F10", "read-only"): _disk("disk that is read-only"),
    **{("F11", k): _damaged(k) for k in ("flip", "truncate", "missing", "foreign", "manifest")},
    ("F12", "resized"): _resized,
    ("F13", "undisturbed"): _proved,
    ("F14", "ulp"): _drifting,
    ("F15", "nested"): _surrounded("F15", "nested", **REFUSED, said="another launcher"),
    ("F15", "second"): _surrounded("F15", "second", **REFUSED, said="another process"),
    ("F15", "supervisor"): _orphaned,
    ("F16", "storm"): _storm,
    ("F16", "series"): _series,
    ("F17", "full"): _surrounded("F17", "log full", starts=1),
    ("F17", "folder"): _surrounded("F17", "log is a folder", starts=1),
    ("F17", "slow"): _slow_log,
    ("F18", "teardown"): _teardown,
}
