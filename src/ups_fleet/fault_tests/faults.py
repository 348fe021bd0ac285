"""The table of faults: what is done to whom and when, and what must come of it; cases are drawn from its rows."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from ups_fleet.fault_tests import case as places
from ups_fleet.fault_tests import disturbances as around_it
from ups_fleet.fault_tests import strangers
from ups_fleet.fault_tests.case import BATCH, DATA, LAST, LAST_STAGE, POINTS, SAVED, STEPS, FaultCase, Strategy
from ups_fleet.fault_tests.damage import (
    NAME,
    ChangedCache,
    CheckpointDisk,
    Damaged,
    NoSecondPlace,
    Replaced,
    SmallDisk,
    Swapped,
    TurnsReadOnly,
)
from ups_fleet.supervise.fault_plan import Fault, Kind

EARLIER = max((steps for stage, steps in STEPS.items() if stage != LAST_STAGE), default=0)  # from it on: the last alone
IN_STEP = ("data", "forward", "backward", "vote", "reduce", "step")
ANYWHERE = (*IN_STEP, "start", "log", "validate", "save", "finish")
STOPPED = (*IN_STEP, "start", "log", "validate", "save")
BY_ALL = ("before shard", "after shard")
BY_FIRST = ("before manifest", "after manifest", "after rename", "before retention", "after retention")
SAVING = (*BY_ALL, "before manifest", "after rename")
OF_FIRST = {"judge", *BY_FIRST, *places.OF_FIRST}  # places to which rank 0 alone comes
AT_ONCE = {"start", "judge", "config", "teardown", "before retention", "after retention", *POINTS}  # at any step
NAMELESS = "nothing"


@dataclass(frozen=True)
class Drawn:
    """What was drawn for a case: where and when its fault strikes, and more from `d`."""

    d: random.Random
    world: int
    strategy: Strategy
    kind: Any
    rank: int
    phase: str
    step: int

    @property
    def share(self) -> int:
        """Samples of a rank in each batch."""
        return BATCH // self.world

    @property
    def python(self) -> bool:
        """Whether Python or torch asks for memory."""
        return self.d.random() < 0.5

    @property
    def twin(self) -> bool:
        """Whether there is a replicated run whose bits are those of this one."""
        return self.strategy == "fsdp" and self.world == 2

    def fault(self, kind: Kind, step: int, **more: Any) -> Fault:
        """Another fault, at any rank."""
        return Fault(kind, self.d.randrange(self.world), self.d.choice(IN_STEP), step, **more)


@dataclass(frozen=True)
class FaultRow:
    """A fault: of `kinds` and `phases` one is drawn, as are a rank and a step; `whom` of the ranks it strikes.

    `promise`: fields of FaultCase, what must come of it above all; functions are given what was drawn. In the name
    {kind}, {phase} and {around} are filled in. `fits`: on which ranks and strategies there is such a fault; `ranks`:
    another number of them.
    """

    family: str
    name: str
    kinds: tuple[Any, ...] = (NAMELESS,)
    phases: tuple[str, ...] = ("forward",)
    steps: tuple[int, int] = (0, LAST)
    whom: Literal["one", "all", "first"] = "one"
    attempt: int | None = 1
    times: int = 1
    fits: Callable[[int, Strategy], bool] = lambda world, strategy: True  # noqa: ARG005
    ranks: Callable[[random.Random, int], int] = lambda d, world: world  # noqa: ARG005
    promise: Mapping[str, Any] = field(default_factory=dict)

    def case(self, d: random.Random, world: int, strategy: Strategy) -> FaultCase | None:
        """One of its cases; None where there is none on these ranks."""
        if not self.fits(world, strategy):
            return None
        world, phase = self.ranks(d, world), d.choice(self.phases)
        rank = 0 if self.whom == "first" or phase in OF_FIRST else d.randrange(world)
        step = 0 if phase in AT_ONCE else d.randrange(*self.steps)
        drawn = Drawn(d, world, strategy, d.choice(self.kinds), rank, phase, step)
        promise = {name: value(drawn) if callable(value) else value for name, value in self.promise.items()}
        struck = () if drawn.kind == NAMELESS else range(world) if self.whom == "all" else (rank,)
        faults = tuple(Fault(drawn.kind, r, phase, step, self.attempt, self.times) for r in struck)
        name = self.name.format(kind=drawn.kind, phase=phase, around=promise.get("around"))
        return FaultCase(self.family, name, world, strategy, **{"faults": faults, **promise})


RANK, PHASE = attrgetter("rank"), attrgetter("phase")
OWN = set(FaultRow.__dataclass_fields__) - {"promise"}


def row(*words: str, **more: Any) -> FaultRow:
    """A row as it is written below: family, name, kinds in one text, phases; fields of the row and of its promise."""
    family, name, kinds, *phases = (*words, NAMELESS)[: max(3, len(words))]
    own = {key: more.pop(key) for key in OWN & more.keys()}
    return FaultRow(family, name, tuple(kinds.split()), tuple(phases) or ("forward",), promise=more, **own)


def _several(world: int, strategy: Strategy) -> bool:  # noqa: ARG001
    return world > 1


def _sharded(world: int, strategy: Strategy) -> bool:
    return world > 1 and strategy == "fsdp"


def _replicated(world: int, strategy: Strategy) -> bool:
    """Each holds what the others hold, and none hides in its steps how slow another is."""
    return world > 1 and strategy == "ddp"


def _capped(t: Drawn) -> around_it.CappedMemory:
    return around_it.CappedMemory(t.rank, t.step, t.python)


def _others(t: Drawn) -> int:
    """Another number of ranks."""
    return t.d.choice([n for n in (1, 2, 3, 4) if n != t.world])


def _half(t: Drawn) -> dict[str, Any]:
    return {"train.microbatch": t.share // 2}


def _oom_again(t: Drawn) -> tuple[Fault, ...]:
    """Too little memory on one rank, and on another in the retry."""
    first, second = t.d.sample(["data", "forward", "backward"], 2)
    other = t.d.randrange(t.world)
    return Fault("oom", t.rank, first, t.step), Fault("oom", other, second, min(t.step + 2, LAST - 1))


def _one_after_another(t: Drawn) -> tuple[Fault, ...]:
    """Each after some progress."""
    steps = sorted(t.d.sample(range(1, LAST), 2))
    kinds: list[Kind] = ["kill", "segv", "leave", "abort"]
    return tuple(t.fault(t.d.choice(kinds), step, attempt=n) for n, step in enumerate(steps, 1))


def _guilty(t: Drawn) -> str:
    return f"rank {t.rank} holds other values" if t.world > 2 else "ranks 0 and 1 hold different values"


def _uneven(t: Drawn) -> dict[str, Any]:
    """Batches that ranks cannot share evenly, cut so that some run out of samples before the others."""
    return {"batch": t.d.choice([n for n in (5, 7, 9) if n % t.world]), "train.microbatch": t.d.choice([1, 2])}


def _stopped(t: Drawn) -> tuple[str, ...]:
    """How a run ends that is asked to stop, perhaps after its last vote."""
    late = t.phase in ("log", "validate", "save", "step") or t.step >= LAST - 1
    return ("PREEMPTED", "SUCCESS") if late else ("PREEMPTED",)


def _second_save(t: Drawn) -> str:
    """What is said where no checkpoint can be saved any more: the training stops at the second save that fails.

    Unless that of the last step of a stage, which has to succeed, is the first.
    """
    stage = next(stage for stage, steps in STEPS.items() if t.step <= steps)
    saves = {n for n in range(1, STEPS[stage] + 1) if n >= t.step and n % SAVED[stage] == 0} | {STEPS[stage]}
    return "2 times in a row" if len(saves) > 1 else ""


def _changes(t: Drawn) -> dict[str, Any]:
    """What a run must be like to come to a point."""
    if t.phase == "generate":
        return {f"data.a.{name}": value for name, value in DATA.items()}
    return {"cache.use": True} if t.phase == "cache" else {}


def _struck(how: str) -> Callable[[Drawn], Any]:
    return lambda t: around_it.Struck(how, t.phase, t.rank)


def _starved(how: Callable[[str], Any], whom: str) -> Callable[[Drawn], Any]:
    return lambda t: how(whom or str(t.rank))


def _clock(whose: Callable[[Drawn], int | None]) -> Callable[[Drawn], Any]:
    return lambda t: around_it.WrongClock(whose(t), t.d.choice(["ahead", "behind", "jumps"]))


def _container(same_path: bool, killed: bool) -> Callable[[Drawn], Any]:
    seconds = (0.5, 2.0) if killed else (0.0, 0.0)
    return lambda t: strangers.Container(t.world, t.strategy, same_path, round(t.d.uniform(*seconds), 2))


def _besieged(who: str) -> Callable[[Drawn], Any]:
    return lambda t: strangers.Strangers(who, t.d.choice(sorted(strangers.messages(Path()))), t.world)


def _printing(how: str) -> dict[str, Any]:
    """However the run ends, its exit code says it: that of the verdict."""
    endings = {"error": ("CRASH",), "term": ("PREEMPTED", "SUCCESS")}
    # SIGHUP is a request to stop.
    hung_up = ("PREEMPTED",) if how == "terminal" else ()
    return {
        "around": lambda t: around_it.Streams(how, round(t.d.uniform(0.05, 1.5), 2)),
        "endings": lambda t: (*endings.get(t.kind, ("SUCCESS",)), *hung_up),
    }


def _filled(t: Drawn) -> SmallDisk:
    return SmallDisk(point=t.phase, whose=t.rank)


def _cache(how: str) -> Callable[[Drawn], Any]:
    return lambda t: ChangedCache(how, t.step, t.rank)


def _replaced(file: str) -> Callable[[Drawn], Any]:
    return lambda t: Replaced(file, t.d.choice(CONTENTS))


# Any file of a run, and any of its newest checkpoint, is replaced by any of these while it is stopped.
CONTENTS = ("pickle", "folder", "list", "number", "nest", "link", "dangling", "pipe")
FILES = (
    *("config.yaml", "environment.json", "statistics.json", "data.json", "ledger.json", "verdict.json", "phases.json"),
    *(".job.yaml", ".success.json", ".reserve", ".hashes.json", ".lock", ".secret"),
    *("stages.json", "metrics.jsonl", "logs/stays-0.json", "csv/codec.csv"),
    *(f"checkpoint/{name}" for name in ("manifest.json", "facts.json", "own-0.json", "index.json", "largest")),
)
GIVEN_UP: dict[str, Any] = {"first": ("RANK_DIED",), "starts": 2}
DIED: dict[str, Any] = {"first": ("RANK_DIED",), "named": RANK, "starts": 2}
HUNG: dict[str, Any] = {"first": ("HANG",), "named": RANK, "starts": 2}
CRASHED: dict[str, Any] = {"endings": ("CRASH",), "starts": 1, "named": RANK, "output": "a planned fault"}
STOPPED_AT_ONCE: dict[str, Any] = {"endings": ("PREEMPTED",)}
MAY_STOP: dict[str, Any] = {"endings": ("PREEMPTED", "SUCCESS")}
NO_ROOM: dict[str, Any] = {"endings": ("STORAGE",)}
REFUSED: dict[str, Any] = {"endings": ("USER",), "starts": 0}
ROUNDED: dict[str, Any] = {"bits": False, "close": True}
ROWS: tuple[FaultRow, ...] = (
    # Memory: mended in place, in the same start, with the same bits; or with smaller microbatches; or named.
    *(row("F1", f"oom {p}, one", "oom", p, starts=1) for p in ("data", "forward", "loss", "backward", "block")),
    row("F1", "oom recompute, one", "oom", "recompute", starts=1, changes={"train.activations": "recompute"}),
    row("F1", "oom buffer, one", "oom", "buffer", fits=_sharded, starts=1),
    row("F1", "memory capped", around=_capped, output="memory on rank", starts=1),
    row(
        *("F2", "oom for good", "oom", "forward", "backward"),
        **{"attempt": None, "times": 99, "endings": ("OOM",), "starts": 1, "named": RANK, "phase": PHASE},
    ),
    *(row("F3", f"oom {p}, all", "oom", p, whom="all", starts=1) for p in ("forward", "backward", "block")),
    row("F3", "oom twice", faults=_oom_again, starts=1),
    row(
        *("F3", "memory capped for good"),
        around=lambda t: around_it.CappedMemory(t.rank, 0, t.python, t.share),
        output=lambda t: f"in microbatches of {t.share // 2}",
        reference_settings=_half,
        starts=1,
    ),
    # Errors and numbers.
    *(
        row("F4", f"error in {p}", "error", p, **CRASHED, phase={"view": "data", "loss": "forward"}.get(p, p))
        for p in ("data", "view", "loss", "backward", "validate", "log", "save", "step")
    ),
    *(row("F5", k, k, "loss", steps=(EARLIER, LAST), starts=1, bits=False, skipped=1) for k in ("nan", "inf")),
    row(
        *("F5", "nan for good", "nan", "loss"),
        **{"steps": (EARLIER, LAST), "times": 99, "changes": {"train.max_bad": 0}},
        **{"endings": ("NOT_FINITE",), "starts": 1, "bits": False},
    ),
    # Ranks that are gone, or stand still; and those that are only slow.
    *(row("F6", f"{k} in {{phase}}", k, *ANYWHERE, "judge", **DIED) for k in ("kill", "segv", "bus", "abort", "leave")),
    row("F6", "kill after a save", "kill", *IN_STEP, steps=(EARLIER + 1, LAST), **DIED),
    row("F6", "stop in {phase}", "stop", *ANYWHERE, "judge", **HUNG),
    *(row("F7", f"{k} in {{phase}}", k, *ANYWHERE, "judge", **HUNG) for k in ("hang", "grip")),
    row("F7", "pulses rank", around=_starved(around_it.Pulses, ""), starts=1),
    row("F7", "pulses all", around=_starved(around_it.Pulses, "all"), starts=1),
    row("F7", "pulses supervisor", around=_starved(around_it.Pulses, "supervisor"), starts=1),
    row("F7", "crowded", around=_starved(around_it.Crowd, ""), starts=1),
    # Ranks that are not of one mind, or have shares of other sizes: the result of one process; sharded on two ranks
    # that of replicated ones to the bit, also after a kill.
    *(
        row("F8", f"other {k}", k, "config", fits=_several, endings=("DIVERGED",), starts=1, output="agree")
        for k in ("seed", "rate")
    ),
    row(
        *("F8", "uneven shares"),
        like=lambda t: (2, "ddp") if t.twin else (1, "single"),
        bits=lambda t: t.twin,
        close=lambda t: not t.twin,
        **{"fits": _several, "changes": _uneven, "starts": 1},
    ),
    row("F8", "uneven and killed", "kill", *IN_STEP, fits=_several, changes=_uneven, **DIED),
    # Requests to stop.
    row("F9", "stop one", "term usr1", *STOPPED, endings=_stopped, starts=1),
    row("F9", "stop all", "term usr1", *STOPPED, whom="all", endings=_stopped, starts=1),
    row("F9", "stop supervisor", "boss", *STOPPED, endings=_stopped, starts=1),
    # Checkpoints: saved in spite of it, damaged, taken up by another number of ranks.
    row("F10", "kill in save", "kill", *BY_ALL, *BY_FIRST, **DIED),
    row("F10", "full disk in save", "full", *BY_ALL, *BY_FIRST, endings=("SUCCESS", "STORAGE")),
    row(
        *("F10", "full for good", "full", "before shard"),
        **{"steps": (1, LAST), "attempt": None, "times": 99, **NO_ROOM, "starts": 1, "output": _second_save},
    ),
    row(
        *("F10", "small disk"),
        around=lambda t: CheckpointDisk(f"{t.d.randrange(40, 700)}k"),
        **{"endings": ("STORAGE", "SUCCESS"), "starts": 1},
    ),
    row("F10", "read-only disk", around=CheckpointDisk(writable=False), starts=1, **NO_ROOM),
    *(
        row("F11", how, "kill", steps=(5, LAST), around=Damaged(how), output="is damaged", **DIED)
        for how in ("flip", "truncate", "missing", "foreign", "manifest")
    ),
    row(
        *("F12", "resized", "term"),
        onto=_others,
        **{"steps": (EARLIER, LAST - 1), **STOPPED_AT_ONCE, **ROUNDED},
    ),
    row(
        *("F12", "resized past a turned bit", "term"),
        onto=_others,
        **{"around": Damaged("flip", stopped=True), "output": "is damaged"},
        **{"steps": (EARLIER, LAST - 1), **STOPPED_AT_ONCE, **ROUNDED},
    ),
    row("F13", "undisturbed", starts=1),
    # One weight of one rank is another by one ulp: of three ranks or more the guilty one is named, or mended.
    row(
        *("F14", "one ulp", "ulp", "view"),
        ranks=lambda d, world: d.choice([2, 3]) if world == 2 else world,
        **{"output": _guilty, "fits": _replicated, "endings": ("DIVERGED",), "starts": 1},
    ),
    row(
        *("F14", "one ulp, mended", "ulp", "view"),
        ranks=lambda d, world: max(world, 3),  # noqa: ARG005
        **{"fits": _replicated, "changes": {"train.on_drift": "mend"}, "starts": 1, "output": "has taken over"},
        **ROUNDED,
    ),
    # What is around a run: other launchers, clocks, a second run, no supervisor any more.
    row("F15", "supervisor killed", "orphan", *ANYWHERE, steps=(0, 1), endings=("KILLED",)),
    row("F15", "nested", around=around_it.NESTED, output="another launcher", **REFUSED),
    row("F15", "stale", around=around_it.STALE, output="unset RANK WORLD_SIZE", **REFUSED),
    row("F15", "stale address", around=around_it.ADDRESS, starts=1),
    row("F15", "clock of rank", around=_clock(RANK), starts=1),
    row("F15", "clock of supervisor", around=_clock(lambda t: None), starts=1),  # noqa: ARG005
    row("F15", "second", around=around_it.SecondRun(), output="another process", **REFUSED),
    row(
        *("F16", "every start", "kill segv leave", *IN_STEP),
        **{"steps": (1, 2), "attempt": None, "endings": ("NO_PROGRESS",), "starts": 3},
    ),
    row("F16", "one after another", faults=_one_after_another, first=("RANK_DIED",), starts=3),
    row("F17", "log slow", "slow", "log", whom="first", times=2, starts=1),
    row("F17", "log full", around=around_it.BadLog(full=True), starts=1),
    row("F17", "log is a folder", around=around_it.BadLog(full=False), starts=1),
    row("F18", "{kind} in teardown", "abort segv kill", "teardown", whom="first", starts=1),
    # Strangers: the same bits, or at most an honest restart.
    *(row("F19", f"{{around.what}} from {who}", around=_besieged(who)) for who in strangers.NEEDS),
    # Outside of the training: in start, data, statistics, caches, between stages, in judgement and report. Before the
    # first beat nobody can say what went wrong. Memory that ran out halves the microbatch where one is known.
    row("F20", "kill in {phase}", "kill", *POINTS, changes=_changes, **DIED),
    row("F20", "stop in {phase}", "stop", *POINTS, changes=_changes, **HUNG),
    row("F20", "term in {phase}", "term", *POINTS, changes=_changes, **MAY_STOP),
    row("F20", "error in {phase}", "error", *POINTS[1:], changes=_changes, **CRASHED),
    row(
        *("F20", "oom in {phase}", "oom", *POINTS[1:]),
        **{"changes": _changes, "first": ("OOM",), "named": RANK, "starts": 2, **ROUNDED},
    ),
    *(
        row("F20", f"{how} parent in {{phase}}", NAMELESS, *POINTS, around=_struck(how), changes=_changes, **ends)
        for how, ends in (("kill", GIVEN_UP), ("stop", {}), ("term", MAY_STOP), ("helpless", {"endings": ("KILLED",)}))
    ),
    row("F20", "kill supervisor in {phase}", "orphan", *POINTS, changes=_changes, endings=("KILLED",)),
    row("F20", "term supervisor in {phase}", "boss", *POINTS, changes=_changes, **MAY_STOP),
    # A second run in a container: the first is not disturbed, whose last act is to wait, and the second neither.
    *(
        row(
            *("F21", f"container{', same path' if path else ''}{', killed' if killed else ''}"),
            around=_container(path, killed),
            changes={"limits.judge": 2 * strangers.WAIT, "limits.still": 2 * strangers.WAIT},
            starts=1,
        )
        for path in (False, True)
        for killed in (False, True)
    ),
    # A disk that is full or read-only from a point on: said in a sentence; mended, it goes on to the same bits.
    *(row("F22", f"full in {p}", NAMELESS, p, around=_filled, changes=_changes, **NO_ROOM) for p in (*POINTS, *SAVING)),
    row(
        *("F22", "read-only in {phase}", NAMELESS, *POINTS, *SAVING),
        around=lambda t: TurnsReadOnly(t.phase, t.rank),
        **{"changes": _changes, **NO_ROOM, "refused": ("STORAGE",), "output": "the verdict could not be written"},
    ),
    row("F22", "too small", around=lambda t: SmallDisk(f"{t.d.randrange(250, 2500)}k"), endings=("STORAGE", "SUCCESS")),
    *(
        row("F23", f"{how}, {{kind}}", f"{NAMELESS} error kill term", **_printing(how))
        for how in ("reader leaves", "full", "half full", "closed", "half closed", "terminal")
    ),
    # Data that are swapped while a run is stopped, between starts, between stages: refused by name; once they are back,
    # the same bits. A cache that changes: nothing that was learnt from it is saved. A copy is no change.
    *(
        row("F24", f"{how}, {when}", kind, steps=(0, LAST - 1), around=Swapped(how, when), output=f"{NAME}:", **ends)
        for how in ("replaced", "edited", "cut")
        for when, kind, ends in (
            ("stop", "term", {"endings": ("PREEMPTED",), "refused": ("USER",)}),
            ("starts", "kill", {"endings": ("USER",), **GIVEN_UP}),
            ("stages", NAMELESS, {"endings": ("USER",)}),
        )
    ),
    *(
        row("F24", f"cache {how}", around=_cache(how), changes={"cache.use": True}, starts=1, **ends)
        for how, ends in (
            ("edited", {"endings": ("USER",), "refused": ("USER",), "output": "while it was in use"}),
            ("replaced", {"endings": ("USER",), "refused": ("USER",), "output": "while it was in use"}),
            ("copied", {}),
        )
    ),
    # Passed over or refused, with a sentence either way; with the file as it was, the same bits.
    *(
        row(
            *("F25", f"{{around.content}} for {file}", "term"),
            around=_replaced(file),
            **{"steps": (5, LAST - 1), **STOPPED_AT_ONCE, "refused": ("SUCCESS", "USER", "CORRUPT")},
        )
        for file in FILES
    ),
    # The kernel kills: a rank, which is mended by half the microbatch, the result of a run that had it from the start;
    # a worker, which is started anew, or its rank is if the kernel took it as well.
    row(
        *("F26", "kernel kills a rank"),
        around=lambda t: around_it.KilledRank(t.rank, t.share),
        **{"first": ("OOM",), "named": RANK, "starts": 2, "reference_settings": _half},
    ),
    row(
        *("F26", "kernel kills a worker"),
        around=lambda t: around_it.KilledWorker(t.rank),
        **{"output": "memory", "changes": {"workers": 1}, **ROUNDED},
    ),
    # The second copy is taken, which is said, and no step is made again; where there can be none, that is said.
    *(
        row(
            *("F27", f"first place: {how}", "term"),
            around=Damaged(how, stopped=True, copied=True),
            **{"steps": (1, LAST - 1), **STOPPED_AT_ONCE, "output": "its second copy"},
        )
        for how in ("newest gone", "stage gone", "all gone", "flip", "truncate", "missing", "manifest")
    ),
    row("F27", "no second place", around=NoSecondPlace(), output="second copy of checkpoint", starts=1),
    row(
        *("F28", "straggler"),
        around=lambda t: around_it.SlowRank(t.rank),
        output=lambda t: f"rank {t.rank} on ",
        changes={f"{LAST_STAGE}.train.steps": 40, f"{LAST_STAGE}.train.checkpoint_steps": 20},
        **{"fits": _replicated, "starts": 1},
    ),
)
FAULTS = {(fault.family, fault.name): fault for fault in ROWS}
FAMILIES = sorted({fault.family for fault in ROWS}, key=lambda name: int(name[1:]))


def draw(
    count: int, seed: int, worlds: Sequence[int], strategies: Sequence[Strategy], only: Sequence[str] = ()
) -> list[FaultCase]:
    """`count` cases, as many of each family (to one), in an order drawn from the seed.

    Within a family every row comes on every kind of world once, in another order each time, and all over again.
    """
    kinds = [(w, s) for w in worlds for s in strategies if (w == 1) is (s == "single") or (w == 1 and s == "fsdp")]
    endless = [_of_family(family, seed, kinds) for family in FAMILIES if not only or family in only]
    streams = [itertools.chain([first], rest) for rest in endless if (first := next(rest, None)) is not None]
    random.Random(f"{seed}/families").shuffle(streams)
    cases = [next(stream) for stream in itertools.islice(itertools.cycle(streams), count)]
    random.Random(f"{seed}/order").shuffle(cases)
    return cases


def _of_family(family: str, seed: int, kinds: Sequence[tuple[int, Strategy]]) -> Iterator[FaultCase]:
    for turn in itertools.count():
        order = [(fault, *kind) for fault in ROWS if fault.family == family for kind in kinds]
        random.Random(f"{seed}/{turn}/{family}").shuffle(order)
        made = 0
        for fault, world, strategy in order:
            d = random.Random(f"{seed}/{turn}/{family}/{fault.name}/{world}/{strategy}")
            if (case := fault.case(d, world, strategy)) is not None:
                made += 1
                yield case
        if not made:
            return
