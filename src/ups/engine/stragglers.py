"""Ranks that hold the others up: each rank's own work per step compared, and the slowest named with what it costs."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from statistics import median
from types import TracebackType
from typing import Any

import torch

from ups.engine.ranks.dist import Dist
from ups.heartbeat import Pulse

WORK = ("data", "forward", "backward", "reduce", "step")  # phases of a step; waiting for peers in them does not count
COMPUTE = "compute"  # a GPU's forward and backward, which the host only orders
LEAST, READINGS = 20, 3  # steps that are looked back on, in so many readings or more, and readings that must agree
COST = 0.05  # of a step's time: what costs less is not worth a word
CHANGE = 1.5  # times as much or as little as was said is worth another word

Sums = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Straggler:
    """A rank whose own work takes longer than the others': where most of it, and what part of every step it costs."""

    rank: int
    host: str
    phase: str
    factor: float  # times the others' median in this phase
    excess: float  # of all its work over the others', as a part of theirs
    lost: float  # part of a step's time in which the others wait for it
    seconds: float  # a step, in this phase
    usual: float  # the others'

    def sentence(self) -> str:
        return (
            f"rank {self.rank} on {self.host} takes {self.factor:.1f} times as long in {self.phase} as the others "
            f"({1e3 * self.seconds:.3g} instead of {1e3 * self.usual:.3g} ms a step): "
            f"{100 * self.lost:.0f} % of every step is spent waiting for it."
        )


class DeviceClock(AbstractContextManager["DeviceClock"]):
    """Seconds a GPU has worked inside the context, without making the host wait; nothing for the host or one rank."""

    def __init__(self, dist: Dist) -> None:
        self.counts = dist.device.type == "cuda" and dist.world > 1
        self._open: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._began: torch.cuda.Event | None = None

    def __enter__(self) -> DeviceClock:
        self._began = self._mark()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        done = self._mark() if error is None else None
        if self._began is not None and done is not None:
            self._open.append((self._began, done))

    def seconds(self) -> float:
        """The seconds of all that is over and was not counted yet."""
        over = [pair for pair in self._open if pair[1].query()]  # type: ignore[no-untyped-call]
        self._open = [pair for pair in self._open if pair not in over]
        return float(sum(a.elapsed_time(b) for a, b in over)) / 1e3

    def _mark(self) -> torch.cuda.Event | None:
        if not self.counts:
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


class Stragglers:
    """Compares the ranks at every line of the log, through the exchange that is made for it anyway.

    `mine` is what this rank adds to it, `judge` what comes of all. A rank that is `share` slower than the median of the
    others for long enough is named once, and again when that has changed.
    """

    def __init__(self, dist: Dist, pulse: Pulse, share: float, say: Callable[[str], None]) -> None:
        self.dist, self.pulse, self.share, self.say = dist, pulse, share, say
        self.clock = DeviceClock(dist)
        self.hosts: list[str] = []
        self.named: list[dict[str, Any]] = []  # whom it has named, with the step
        self._before: dict[str, float] = {}
        self._counted = (0, 0.0)  # steps and seconds of them
        self._rows: deque[tuple[float, float, list[dict[str, float]]]] = deque()  # steps, seconds, each rank's by phase
        # Who was too slow (-1: nobody) and whether that is new; readings on end.
        self._streak = ((-1, False), 0)
        self._reported: Straggler | None = None

    def start(self, step: int) -> None:
        """All ranks must ask. What was measured before, such as a probe of memory, does not count."""
        self.hosts = self.dist.gather(socket.gethostname())
        self._counted = (step, 0.0)
        self._spent()

    def mine(self, step: int, seconds: float) -> dict[str, tuple[float, float]]:
        """This rank's own work since it was last asked, by phase; `seconds` is what all steps have taken so far."""
        (before, earlier), self._counted = self._counted, (step, seconds)
        if self.dist.world == 1 or step == before:
            return {}
        rows = {**self._spent(), "": seconds - earlier}
        return {f"{self.dist.rank}/{phase}": (spent, float(step - before)) for phase, spent in rows.items()}

    def judge(self, sums: Sums, step: int) -> dict[str, float]:
        """Numbers for the log from what all ranks have said; a sentence where one holds the others up."""
        if not sums:
            return {}
        work: list[dict[str, float]] = [{} for _ in range(self.dist.world)]
        for name, (seconds, _) in sums.items():
            rank, _, phase = name.partition("/")
            work[int(rank)][phase] = seconds
        seconds, steps = sums["0/"]
        for row in work:
            row.pop("", None)
        self._rows.append((steps, seconds, work))
        while len(self._rows) > READINGS and self._steps() - self._rows[0][0] >= LEAST:
            self._rows.popleft()
        slowest = self._slowest()
        self._tell(slowest, step)
        return {"slowest_rank": slowest.rank, "waiting_for_it": slowest.lost}

    def _spent(self) -> dict[str, float]:
        busy = {phase: self.pulse.busy.get(phase, 0.0) for phase in WORK}
        spent = {phase: seconds - self._before.get(phase, 0.0) for phase, seconds in busy.items()}
        self._before = busy
        if self.clock.counts:
            return {"data": spent["data"], COMPUTE: self.clock.seconds()}
        return spent

    def _slowest(self) -> Straggler:
        """The rank with the most work of its own over the window, against the median of the others."""
        steps, wall = self._steps(), sum(row[1] for row in self._rows)
        phases = dict.fromkeys(phase for _, _, work in self._rows for row in work for phase in row)
        ranks = range(self.dist.world)
        per_step = [{p: sum(work[r].get(p, 0.0) for _, _, work in self._rows) / steps for p in phases} for r in ranks]
        slow = max(ranks, key=lambda rank: sum(per_step[rank].values()))
        others = [per_step[rank] for rank in ranks if rank != slow]
        usual = {phase: median(row[phase] for row in others) for phase in phases}
        phase = max(phases, key=lambda name: per_step[slow][name] - usual[name])
        theirs = median(sum(row.values()) for row in others)
        more = max(0.0, sum(per_step[slow].values()) - theirs)
        spent, expected = per_step[slow][phase], max(usual[phase], 1e-6)
        lost, excess = min(1.0, more * steps / max(wall, 1e-9)), more / max(theirs, 1e-9)
        return Straggler(slow, self.hosts[slow], phase, spent / expected, excess, lost, spent, expected)

    def _tell(self, slowest: Straggler, step: int) -> None:
        """Say what is new, once all that is looked back on has shown it."""
        reported = self._reported
        slow = self.share > 0 and slowest.excess > self.share and slowest.lost > COST
        same = reported is not None and (reported.rank, reported.phase) == (slowest.rank, slowest.phase)
        new = slow and not (reported is not None and same and 1 / CHANGE < slowest.lost / reported.lost < CHANGE)
        state = (slowest.rank if slow else -1, new)
        self._streak = (state, self._streak[1] + 1 if state == self._streak[0] else 1)
        if self._streak[1] < len(self._rows) or self._streak[1] < READINGS or self._steps() < LEAST:
            return
        if new:
            self._reported = slowest
            self.named.append({"step": step, **asdict(slowest)})
            self.say(slowest.sentence())
        elif not slow and reported is not None:
            self._reported = None
            self.say(f"rank {reported.rank} on {reported.host} is no longer slower than the others.")

    def _steps(self) -> float:
        return sum(row[0] for row in self._rows)
