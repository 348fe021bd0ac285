"""A case: what is done to a run, and what is promised then."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ups.engine.faults import Fault

Strategy = Literal["single", "ddp", "fsdp"]
# Steps of the two stages of a lab run, and how often each is saved; the last step of a stage is always saved.
STEPS = {"codec": 4, "operator": 8}
SAVED = {"codec": 2, "operator": 3}
LAST = STEPS["operator"]
BATCH = 8


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
    `like`: the ranks of the undisturbed run it is compared with, where they are not its own; `told`: what that run is
    told from the start and this one finds out: its weights are the same then, its config is not.
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
    like: tuple[int, Strategy] | None = None
    told: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "faults": [fault.to_dict() for fault in self.faults]}


Draw = random.Random
Recipe = Callable[[Draw, int, Strategy], Case | None]


def case_of(family: str, name: str, world: int, strategy: Strategy, *faults: Fault, **promise: Any) -> Case:
    """A case by its faults and its promise."""
    return Case(family, name, world, strategy, faults, **promise)


def step_of(d: Draw) -> int:
    """Any step at which something is still ahead."""
    return d.randrange(LAST)
