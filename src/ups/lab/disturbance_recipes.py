"""Recipes for cases in which something around the run is wrong: its clock, memory, disk or neighbours."""

from __future__ import annotations

from typing import Any

from ups.lab.case import BATCH, Case, Draw, Recipe, Strategy, case_of, for_all_stages, step_of
from ups.lab.disturbances import can_mount


def _clock(whose: str) -> Recipe:
    """A wall clock that is hours off, or jumps by hours whenever it is read."""

    def recipe(d: Draw, world: int, strategy: Strategy) -> Case:
        who = "supervisor" if whose == "supervisor" else str(d.randrange(world))
        setting = f"clock of {who} {d.choice(['ahead', 'behind', 'jumps'])}"
        return case_of("F15", f"clock of {whose}", world, strategy, setting=setting, starts=1)

    return recipe


def _starved(how: str, whom: str) -> Recipe:
    """A process that hardly gets the processor, in bursts or beside busy neighbours: slow, and no hang."""

    def recipe(d: Draw, world: int, strategy: Strategy) -> Case:
        who = whom if whom in ("all", "supervisor") else str(d.randrange(world))
        return case_of("F7", f"{how} {whom}", world, strategy, setting=f"{how} of {who}", starts=1)

    return recipe


def _capped(for_good: bool) -> Recipe:
    """A limit to the memory of one rank, met by a real allocation: for a moment, or for good for large microbatches."""

    def recipe(d: Draw, world: int, strategy: Strategy) -> Case:
        rank, kind = d.randrange(world), d.choice(["torch", "python"])
        if not for_good:
            promise: dict[str, Any] = {"said": "out of host memory on rank", "starts": 1}
            promise["setting"] = f"cap of {rank} {step_of(d)} {kind}"
            return case_of("F1", "memory capped", world, strategy, **promise)
        share = BATCH // world
        promise = {"said": f"in microbatches of {share // 2}", "starts": 1}
        promise |= {"setting": f"cap of {rank} 0 {kind} {share} for good"}
        promise |= {"told": for_all_stages("train.microbatch", share // 2)}
        return case_of("F3", "memory capped for good", world, strategy, **promise)

    return recipe


def _disk(setting: str) -> Recipe:
    def recipe(d: Draw, world: int, strategy: Strategy) -> Case | None:
        if not can_mount():
            return None
        size = f" {d.randrange(40, 700)}k" if setting == "disk of" else ""
        endings = ("STORAGE", "SUCCESS") if size else ("STORAGE",)
        return case_of("F10", setting, world, strategy, setting=setting + size, endings=endings, starts=1)

    return recipe


def _with_setting(family: str, setting: str, **promise: Any) -> Recipe:
    def recipe(_: Draw, world: int, strategy: Strategy) -> Case:
        return case_of(family, setting, world, strategy, setting=setting, **promise)

    return recipe


REFUSED: dict[str, Any] = {"endings": ("USER",), "starts": 0}
RECIPES: dict[tuple[str, str], Recipe] = {
    ("F1", "capped"): _capped(for_good=False),
    ("F3", "capped"): _capped(for_good=True),
    **{("F7", f"pulses {who}"): _starved("pulses", who) for who in ("rank", "all", "supervisor")},
    ("F7", "crowded"): _starved("crowd", "rank"),
    ("F10", "small"): _disk("disk of"),
    ("F10", "read-only"): _disk("disk that is read-only"),
    ("F15", "nested"): _with_setting("F15", "nested", **REFUSED, said="another launcher"),
    ("F15", "stale"): _with_setting("F15", "stale", **REFUSED, said="unset RANK WORLD_SIZE"),
    ("F15", "stale address"): _with_setting("F15", "stale address", starts=1),
    ("F15", "clock of rank"): _clock("rank"),
    ("F15", "clock of supervisor"): _clock("supervisor"),
    ("F15", "second"): _with_setting("F15", "second", **REFUSED, said="another process"),
    ("F17", "full"): _with_setting("F17", "log full", starts=1),
    ("F17", "folder"): _with_setting("F17", "log is a folder", starts=1),
}
