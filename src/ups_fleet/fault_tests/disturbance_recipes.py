"""Recipes for cases in which something around the run is wrong: its clock, memory, log or neighbours."""

from __future__ import annotations

from typing import Any

from ups_fleet.fault_tests.case import (
    BATCH,
    LAST_STAGE,
    Disturbance,
    Draw,
    FaultCase,
    Recipe,
    Recipes,
    Strategy,
    case_of,
    key,
    step_of,
)
from ups_fleet.fault_tests.disturbances import (
    BadLog,
    CappedMemory,
    Crowd,
    Environment,
    Pulses,
    SecondRun,
    SlowRank,
    WrongClock,
)


def _clock(whose: str) -> Recipe:
    """A wall clock that is hours off, or jumps by hours whenever it is read."""

    def recipe(d: Draw, world: int, strategy: Strategy) -> FaultCase:
        rank = None if whose == "supervisor" else d.randrange(world)
        around = WrongClock(rank, d.choice(["ahead", "behind", "jumps"]))
        return case_of("F15", f"clock of {whose}", world, strategy, around=around, starts=1)

    return recipe


def _starved(how: type[Pulses] | type[Crowd], whom: str) -> Recipe:
    """A process that hardly gets the processor, in bursts or beside busy neighbours: slow, and no hang."""

    def recipe(d: Draw, world: int, strategy: Strategy) -> FaultCase:
        who = whom if whom in ("all", "supervisor") else str(d.randrange(world))
        return case_of("F7", f"{how.__name__.lower()} {whom}", world, strategy, around=how(who), starts=1)

    return recipe


def _capped(for_good: bool) -> Recipe:
    """A limit to the memory of one rank, met by a real allocation: for a moment, or for good for large microbatches."""

    def recipe(d: Draw, world: int, strategy: Strategy) -> FaultCase:
        rank, python = d.randrange(world), d.random() < 0.5
        if not for_good:
            promise: dict[str, Any] = {"output": "memory on rank", "starts": 1}
            promise["around"] = CappedMemory(rank, step_of(d), python)
            return case_of("F1", "memory capped", world, strategy, **promise)
        share = BATCH // world
        promise = {"output": f"in microbatches of {share // 2}", "starts": 1}
        promise |= {"around": CappedMemory(rank, 0, python, share)}
        promise |= {"reference_settings": {"train.microbatch": share // 2}}
        return case_of("F3", "memory capped for good", world, strategy, **promise)

    return recipe


def _straggler(d: Draw, world: int, strategy: Strategy) -> FaultCase | None:
    """Named, with what it costs; the bits stay."""
    if world == 1 or strategy != "ddp":
        return None  # sharded ranks wait for each other inside their steps, which hides who is slow
    rank = d.randrange(world)
    changes = {key(LAST_STAGE, "train.steps"): 40, key(LAST_STAGE, "train.checkpoint_steps"): 20}
    promise: dict[str, Any] = {"output": f"rank {rank} on ", "starts": 1, "changes": changes}
    return case_of("F28", "straggler", world, strategy, around=SlowRank(rank), **promise)


def _around(family: str, name: str, around: Disturbance, **promise: Any) -> Recipe:
    def recipe(_: Draw, world: int, strategy: Strategy) -> FaultCase:
        return case_of(family, name, world, strategy, around=around, **promise)

    return recipe


NESTED = Environment((("RANK", "0"), ("WORLD_SIZE", "2"), ("TORCHELASTIC_RUN_ID", "another")))
STALE = Environment((("RANK", "1"), ("WORLD_SIZE", "4")))
ADDRESS = Environment((("MASTER_ADDR", "198.51.100.7"), ("MASTER_PORT", "1"), ("LOCAL_WORLD_SIZE", "8")))
REFUSED: dict[str, Any] = {"endings": ("USER",), "starts": 0}
RECIPES: Recipes = {
    ("F1", "capped"): _capped(for_good=False),
    ("F3", "capped"): _capped(for_good=True),
    **{("F7", f"pulses {who}"): _starved(Pulses, who) for who in ("rank", "all", "supervisor")},
    ("F7", "crowded"): _starved(Crowd, "rank"),
    ("F15", "nested"): _around("F15", "nested", NESTED, **REFUSED, output="another launcher"),
    ("F15", "stale"): _around("F15", "stale", STALE, **REFUSED, output="unset RANK WORLD_SIZE"),
    ("F15", "stale address"): _around("F15", "stale address", ADDRESS, starts=1),
    ("F15", "clock of rank"): _clock("rank"),
    ("F15", "clock of supervisor"): _clock("supervisor"),
    ("F15", "second"): _around("F15", "second", SecondRun(), **REFUSED, output="another process"),
    ("F28", "straggler"): _straggler,
    ("F17", "full"): _around("F17", "log full", BadLog(full=True), starts=1),
    ("F17", "folder"): _around("F17", "log is a folder", BadLog(full=False), starts=1),
}
