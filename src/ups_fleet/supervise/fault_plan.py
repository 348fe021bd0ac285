"""Injects faults on purpose: a plan strikes when a rank comes to a certain phase and step."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

VARIABLE = "UPS_FAULTS"
Kind = Literal[
    "oom", "error", "full", "kill", "segv", "bus", "abort", "stop", "leave", "hang", "grip", "term", "usr1", "slow",
    "boss", "orphan", "nan", "inf", "ulp", "seed", "rate",
]  # fmt: skip
SIGNALS = {
    "kill": signal.SIGKILL,
    "segv": signal.SIGSEGV,
    "bus": signal.SIGBUS,
    "abort": signal.SIGABRT,
    "stop": signal.SIGSTOP,
    "term": signal.SIGTERM,
    "usr1": signal.SIGUSR1,
}


@dataclass
class Fault:
    """One fault: on `rank`, the first `times` times it enters `phase` at or after `step`, in start number `attempt`.

    `phase` is a phase of the heartbeat, or a place that a lab watches.

    Out of memory, a full disk and other errors are raised; signals hit the process, `boss` and `orphan` its
    supervisor (SIGTERM, SIGKILL); `leave` exits with code 0 and no word; `hang` sleeps, `grip` sleeps without letting
    go of the interpreter, `slow` is late by half a second. The others change values, where a lab knows which.
    """

    kind: Kind
    rank: int
    phase: str
    step: int = 0
    attempt: int | None = 1
    times: int = 1

    def strike(self) -> None:
        """Do it."""
        if self.kind in SIGNALS:
            os.kill(os.getpid(), SIGNALS[self.kind])
        elif self.kind in ("boss", "orphan"):
            os.kill(int(os.environ["UPS_SUPERVISOR"]), signal.SIGTERM if self.kind == "boss" else signal.SIGKILL)
        elif self.kind == "leave":
            os._exit(0)
        elif self.kind == "hang":
            time.sleep(1e6)
        elif self.kind == "grip":
            ctypes.PyDLL(None).sleep(10**6)
        elif self.kind == "slow":
            time.sleep(0.5)
        elif self.kind == "full":
            raise OSError(errno.ENOSPC, f"no space left (a planned fault in phase '{self.phase}')")
        elif self.kind == "oom":
            import torch

            raise torch.OutOfMemoryError(f"out of memory (a planned fault in phase '{self.phase}')")
        else:
            raise RuntimeError(f"a planned fault in phase '{self.phase}'")


class FaultPlan:
    """The faults of one rank in one start of a run."""

    def __init__(self, faults: list[Fault], rank: int, attempt: int) -> None:
        self.faults = [f for f in faults if f.rank == rank and f.attempt in (None, attempt)]

    @classmethod
    def from_environment(cls) -> FaultPlan | None:
        """What UPS_FAULTS, a JSON list, plans for this rank; None where there is no such variable."""
        text = os.environ.get(VARIABLE)
        if text is None:
            return None
        rank, attempt = int(os.environ.get("RANK", "0")), int(os.environ.get("UPS_ATTEMPT", "1"))
        return cls([Fault(**row) for row in json.loads(text)], rank, attempt)

    def at(self, phase: str) -> bool:
        """Whether anything is planned there."""
        return any(fault.phase == phase for fault in self.faults)

    def due(self, phase: str, step: int) -> Iterator[Fault]:
        """What is to happen now, each counted as it is given."""
        for fault in self.faults:
            if fault.phase == phase and step >= fault.step and fault.times > 0:
                fault.times -= 1
                yield fault

    def __call__(self, phase: str, step: int) -> None:
        for fault in self.due(phase, step):
            fault.strike()
