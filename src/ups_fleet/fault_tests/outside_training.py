"""Faults outside of the training: in start, data, statistics, caches, between stages, in judgement and report."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ups_fleet.fault_tests.case import (
    DATA,
    Disturbance,
    Draw,
    FaultCase,
    Recipe,
    Recipes,
    Strategy,
    case_of,
    first_start,
)
from ups_fleet.fault_tests.rank_hooks import OF_FIRST, POINTS
from ups_fleet.supervise.fault_plan import Fault, Kind
from ups_fleet.supervise.launchers.launcher import read_pids
from ups_fleet.supervise.proc import stat_of
from ups_fleet.supervise.start_dir import StartDir

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}


def changes_for(point: str) -> dict[str, Any]:
    """What a run must be like to come to a point."""
    if point == "generate":
        return {f"data.a.{name}": value for name, value in DATA.items()}
    return {"cache.use": True} if point == "cache" else {}


@dataclass(frozen=True)
class Struck(Disturbance):
    """A signal to the `parent` of a rank or to the `supervisor`, when the rank comes to a point.

    `helpless`: after all parents were stopped, so that none of them can act any more.
    """

    who: str
    how: str
    point: str
    whose: int

    def at(self, point: str, rank: int) -> None:
        if (point, rank) != (self.point, self.whose) or not first_start():
            return
        if self.who == "parent":
            os.kill(os.getppid(), SIGNALS[self.how])
            return
        if self.who == "helpless":
            for pid in read_pids(StartDir(Path(os.environ["UPS_RUN"]))).values():
                with contextlib.suppress(OSError, IndexError):
                    os.kill(int(stat_of(pid)[1]), signal.SIGSTOP)
        os.kill(int(os.environ["UPS_SUPERVISOR"]), SIGNALS[self.how])


# How the first command ends, and how its first start, if there is a second one.
OF_RANK: dict[str, dict[str, Any]] = {
    "kill": {"first": ("RANK_DIED",), "starts": 2},
    "stop": {"first": ("HANG",), "starts": 2},
    "term": {"endings": ("PREEMPTED", "SUCCESS")},
    "error": {"endings": ("CRASH",), "starts": 1, "output": "a planned fault"},
    # Memory that ran out halves the microbatch where one is known: the same result, to rounding.
    "oom": {"first": ("OOM",), "starts": 2, "bits": False, "close": True},
}
OF_PARENT: dict[str, dict[str, Any]] = {
    "kill": {"first": ("RANK_DIED",), "starts": 2},
    "stop": {},
    "term": {"endings": ("PREEMPTED", "SUCCESS")},
}


def _rank(how: Kind) -> Recipe:
    def recipe(d: Draw, world: int, strategy: Strategy) -> FaultCase:
        point, rank = _where(d, world)
        late = how in ("error", "oom") and point == "import"  # before the first beat nobody can say what went wrong
        if late:
            point, rank = "statistics", 0
        promise = {**OF_RANK[how], "changes": changes_for(point)}
        if how != "term":
            promise["named"] = rank
        return case_of("F20", f"{how} in {point}", world, strategy, Fault(how, rank, point), **promise)

    return recipe


def _parent_of_rank(how: str) -> Recipe:
    def recipe(d: Draw, world: int, strategy: Strategy) -> FaultCase:
        point, rank = _where(d, world)
        promise = {**OF_PARENT[how], "changes": changes_for(point), "around": Struck("parent", how, point, rank)}
        return case_of("F20", f"{how} parent in {point}", world, strategy, **promise)

    return recipe


def _supervisor(how: str, who: str = "supervisor") -> Recipe:
    def recipe(d: Draw, world: int, strategy: Strategy) -> FaultCase:
        point, rank = _where(d, world)
        endings = ("KILLED",) if how == "kill" else ("PREEMPTED", "SUCCESS")
        promise = {"endings": endings, "changes": changes_for(point), "around": Struck(who, how, point, rank)}
        return case_of("F20", f"{how} {who} in {point}", world, strategy, **promise)

    return recipe


def _where(d: Draw, world: int) -> tuple[str, int]:
    """A point, and a rank that comes to it."""
    point = d.choice(POINTS)
    return point, 0 if point in OF_FIRST else d.randrange(world)


KINDS: tuple[Kind, ...] = ("kill", "stop", "term", "error", "oom")
RECIPES: Recipes = {
    **{("F20", f"rank {how}"): _rank(how) for how in KINDS},
    **{("F20", f"parent {how}"): _parent_of_rank(how) for how in OF_PARENT},
    ("F20", "supervisor kill"): _supervisor("kill"),
    ("F20", "supervisor term"): _supervisor("term"),
    ("F20", "helpless"): _supervisor("kill", "helpless"),
}
