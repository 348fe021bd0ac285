"""Memory that really runs out: control groups in which the kernel kills a rank, or a worker that loads its data."""

from __future__ import annotations

import contextlib
import os
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ups_fleet.fault_tests.case import (
    BATCH,
    CaseDir,
    Disturbance,
    Draw,
    FaultCase,
    Press,
    Recipes,
    Strategy,
    case_of,
)
from ups_fleet.fault_tests.disturbances import beside
from ups_fleet.fault_tests.privileges import MemoryGroup
from ups_fleet.supervise.job import RankStart
from ups_fleet.supervise.launchers.launcher import read_pids
from ups_fleet.supervise.proc import alive, children

LIMIT = 512 << 20  # bytes of a rank, beyond what it shares with the process it is a copy of
SMALL, LARGE = 16 << 20, 16 << 30  # what is left to a group that is to be starved, and what is as good as no limit


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
            if samples >= self.most:
                bytearray(b"\1") * 2 * LIMIT  # written, so that it is really there

        return press

    def problems(self, place: CaseDir) -> list[str]:
        _group(str(place.folder), "rank").remove()
        return []


@dataclass(frozen=True)
class KilledWorker(Disturbance):
    """The kernel kills a worker that loads the data of a rank, in its first start, in the rank's own control group."""

    needs: ClassVar[tuple[str, ...]] = ("memory control groups",)
    whose: int

    def prepare(self, place: CaseDir) -> None:
        _group(str(place.folder), "worker").create(LARGE)

    def start(self, start: RankStart, place: CaseDir) -> None:
        if start.attempt == 1:
            supervisor, group = os.getpid(), _group(str(place.folder), "worker")
            beside(place, lambda: self._follow(start, group, supervisor))

    def _follow(self, start: RankStart, group: MemoryGroup, supervisor: int) -> None:
        """Put the rank into the group, wait for its first worker, and then take all the memory that is left.

        The kernel chooses by what a process holds and by a score, which counts in parts of the group's limit: a file
        in memory, which belongs to no process, makes that large.
        """
        group.add(os.getpid())
        file, rank = os.memfd_create("ballast"), None
        for _ in range(LIMIT // SMALL):
            os.write(file, bytes(SMALL))
        while alive(supervisor):
            if rank is None:
                rank = read_pids(start.files).get(self.whose)
                if rank is not None:
                    group.add(rank)
            workers = [pid for one in (children(rank) if rank else []) for pid in children(one) if _serves(one, pid)]
            if rank and workers:
                _starve(group, rank, workers[0])
                return
            time.sleep(0.005)

    def problems(self, place: CaseDir) -> list[str]:
        _group(str(place.folder), "worker").remove()
        return []


def _serves(server: int, worker: int) -> bool:
    """Whether one is the server from which workers are forked, and the other a worker."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{server}/cmdline").read_bytes()
        return b"multiprocessing.forkserver" in words and Path(f"/proc/{worker}/cmdline").read_bytes() == words
    return False


def _starve(group: MemoryGroup, rank: int, victim: int) -> None:
    """Take memory in the group until the kernel kills, and have it choose the victim; then leave it in peace."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{rank}/oom_score_adj").write_text("0")
        Path(f"/proc/{victim}/oom_score_adj").write_text("1000")
    group.create(group.used() + SMALL)
    taken = bytearray(b"\1") * (2 * SMALL)
    end = time.monotonic() + 5
    while alive(victim) and time.monotonic() < end:
        time.sleep(0.01)
    group.create(LARGE)
    del taken


def _killed_rank(d: Draw, world: int, strategy: Strategy) -> FaultCase:
    """Named, and mended by half the microbatch: the result of a run that had it from the start."""
    rank, share = d.randrange(world), BATCH // world
    promise: dict[str, Any] = {"around": KilledRank(rank, share), "first": ("OOM",), "named": rank, "starts": 2}
    promise |= {"reference_settings": {"train.microbatch": share // 2}}
    return case_of("F26", "kernel kills a rank", world, strategy, **promise)


def _killed_worker(d: Draw, world: int, strategy: Strategy) -> FaultCase:
    """Named as want of memory; the workers are started anew, or the rank is if the kernel took it as well."""
    promise: dict[str, Any] = {
        "around": KilledWorker(d.randrange(world)),
        "output": "memory",
        "bits": False,
        "close": True,
    }
    promise |= {"changes": {"workers": 1}}
    return case_of("F26", "kernel kills a worker", world, strategy, **promise)


RECIPES: Recipes = {("F26", "rank"): _killed_rank, ("F26", "worker"): _killed_worker}
