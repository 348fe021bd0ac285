"""A case: what is done to a run, and what must come of it; the stages and steps of a lab run."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from ups.engine.faults import Fault

Strategy = Literal["single", "ddp", "fsdp"]
# The stages of a lab run in their order: the steps of each, and how often it is saved. The last step is always saved.
STEPS = {"codec": 4, "operator": 8}
SAVED = {"codec": 2, "operator": 3}
LAST_STAGE = list(STEPS)[-1]
LAST = STEPS[LAST_STAGE]
BATCH = 8


@dataclass(frozen=True)
class Case:
    """One disturbed run and its promise.

    `endings`: how the first command may end; any but SUCCESS is followed by a --resume that must succeed. `first`: how
    its first start of the ranks ends, if they are started again; `named`: the rank that is named, `phase`: where.
    `starts`: how often the ranks are started by the first command. `bits`: its artifact is that of the undisturbed run
    to the bit; `close`: to rounding. `said`: words that must be in its output. `skipped`: steps that all ranks leave
    out. `like`: the ranks of the undisturbed run it is compared with, if not as many; `told`: settings of that run
    which this one finds out by itself: their weights are the same, their configs are not.
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
    setting: str = ""  # what is wrong around the run; see disturbances.py
    like: tuple[int, Strategy] | None = None
    told: dict[str, Any] = field(default_factory=dict)


def key(stage: str, name: str) -> str:
    """The config key of a setting of a stage."""
    return f"{stage}.{name}"


def for_all_stages(name: str, value: Any) -> dict[str, Any]:
    """The same value of a setting for every stage, as overrides of a config."""
    return {key(stage, name): value for stage in STEPS}


Draw = random.Random
Recipe = Callable[[Draw, int, Strategy], Case | None]


def case_of(family: str, name: str, world: int, strategy: Strategy, *faults: Fault, **promise: Any) -> Case:
    """A case from its faults and its promise."""
    return Case(family, name, world, strategy, faults, **promise)


def step_of(d: Draw) -> int:
    """Any step at which something is still ahead."""
    return d.randrange(LAST)
