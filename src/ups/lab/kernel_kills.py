"""Memory that really runs out: control groups in which the kernel kills a rank, or a worker that loads its data."""

from __future__ import annotations

import os
import time
import zlib
from dataclasses import dataclass
from typing import Any, ClassVar

from ups.lab.case import (
    BATCH,
    Case,
    CaseDir,
    Disturbance,
    Draw,
    Press,
    Recipes,
    Strategy,
    case_of,
    for_all_stages,
)
from ups.lab.disturbances import beside
from ups.lab.privileges import MemoryGroup
from ups.supervise.job import Start
from ups.supervise.launchers.launcher import read_pids
from ups.supervise.proc import alive, descendants

LIMIT = 512 << 20  # bytes of a rank, beyond what it shares with the process it is a copy of
SMALL = 1 << 20  # of a worker that has begun: whatever it takes next is too much


def _group(place: str, kind: str) -> MemoryGroup:
    """The control group of a case, named by its folder."""
    return MemoryGroup(f"ups-lab-{kind}-{zlib.crc32(place.encode())}")


@dataclass(frozen=True)
class KilledRank(Disturbance):
    """The kernel kills a rank whenever it takes `most` samples at once, and not with half as many."""

    needs: ClassVar[tuple[str, ...]] = ("memory control groups",)
    whose: int
    most: int

    def prepare(self, place: CaseDir) -> None:
        os.environ["UPS_LAB_GROUP"] = str(place.folder)
        _group(str(place.folder), "rank").create(LIMIT)

    def rank(self, rank: int) -> Press:
        if rank != self.whose:
            return super().rank(rank)
        _group(os.environ["UPS_LAB_GROUP"], "rank").add(os.getpid())

        def press(step: int, samples: int) -> None:  # noqa: ARG001
            size = int(1.2 * LIMIT * samples / self.most)
            bytearray(b"\1") * size  # written, so that it is really there

        return press

    def problems(self, place: CaseDir) -> list[str]:
        _group(str(place.folder), "rank").remove()
        return []


@dataclass(frozen=True)
class KilledWorker(Disturbance):
    """The kernel kills the workers that load the data of a rank, in its first start, once they have begun."""

    needs: ClassVar[tuple[str, ...]] = ("memory control groups",)
    whose: int

    def prepare(self, place: CaseDir) -> None:
        _group(str(place.folder), "worker").create(SMALL)

    def start(self, start: Start, place: CaseDir) -> None:
        if start.attempt == 1:
            supervisor, group = os.getpid(), _group(str(place.folder), "worker")
            beside(place, lambda: self._follow(start, group, supervisor))

    def _follow(self, start: Start, group: MemoryGroup, supervisor: int) -> None:
        while alive(supervisor):
            pid = read_pids(start.files).get(self.whose)
            workers = descendants(pid) if pid else []
            if workers:
                for worker in workers:
                    group.add(worker)
                return
            time.sleep(0.01)

    def problems(self, place: CaseDir) -> list[str]:
        _group(str(place.folder), "worker").remove()
        return []


def _killed_rank(d: Draw, world: int, strategy: Strategy) -> Case:
    """Named, and mended by half the microbatch: the result of a run that had it from the start."""
    rank, share = d.randrange(world), BATCH // world
    promise: dict[str, Any] = {"around": KilledRank(rank, share), "first": ("OOM",), "named": rank, "starts": 2}
    promise |= {"told": for_all_stages("train.microbatch", share // 2)}
    return case_of("F26", "kernel kills a rank", world, strategy, **promise)


def _killed_worker(d: Draw, world: int, strategy: Strategy) -> Case:
    """Named; the workers are started anew, and the bits stay."""
    promise: dict[str, Any] = {"around": KilledWorker(d.randrange(world)), "said": "memory"}
    promise |= {"changes": for_all_stages("workers", 1)}
    return case_of("F26", "kernel kills a worker", world, strategy, **promise)


RECIPES: Recipes = {("F26", "rank"): _killed_rank, ("F26", "worker"): _killed_worker}
