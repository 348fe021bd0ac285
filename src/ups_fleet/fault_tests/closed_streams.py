"""Cases in which output fails: readers that leave, full devices, closed streams, terminals that hang up."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import termios
import time
from dataclasses import dataclass
from typing import Any

from ups_fleet.fault_tests.case import (
    CaseDir,
    Disturbance,
    Draw,
    FaultCase,
    Recipe,
    Recipes,
    Strategy,
    case_of,
    step_of,
)
from ups_fleet.supervise.fault_plan import Fault
from ups_fleet.supervise.launchers.forked import fork

HOW = ("reader leaves", "full", "half full", "closed", "half closed", "terminal")


@dataclass(frozen=True)
class Streams(Disturbance):
    """Where a run prints to is, or becomes after some seconds, of no use."""

    how: str
    seconds: float

    def streams(self, place: CaseDir) -> None:
        if self.how == "terminal":
            self._hung_up()
        elif self.how == "reader leaves":
            self._left_alone()
        elif self.how.endswith("full"):
            super().streams(place)
            os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
            if self.how == "full":
                os.dup2(1, 2)
        else:
            super().streams(place)
            self._close()

    def _close(self) -> None:
        """As if this process had been started without them."""
        names: Any = sys
        os.close(1)
        names.stdout = names.__stdout__ = None
        if self.how == "closed":
            os.close(2)
            names.stderr = names.__stderr__ = None

    def _left_alone(self) -> None:
        """Both go into a pipe; its reader reads for a while and leaves."""
        reading, writing = os.pipe()

        def read() -> None:
            os.close(writing)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(1, 2)
            os.set_blocking(reading, False)
            end = time.monotonic() + self.seconds
            while time.monotonic() < end:
                with contextlib.suppress(BlockingIOError):
                    if not os.read(reading, 1 << 16):
                        return
                time.sleep(0.01)

        fork(lambda: _leave(fork(read))).wait()
        os.close(reading)
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.close(writing)

    def _hung_up(self) -> None:
        """Both are a terminal of this process's own, which somebody else holds and closes after a while."""
        master, slave = os.openpty()

        def hold() -> None:
            os.close(slave)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(1, 2)
            os.set_blocking(master, False)
            end = time.monotonic() + self.seconds
            while time.monotonic() < end:
                with contextlib.suppress(OSError):
                    os.read(master, 1 << 16)
                time.sleep(0.01)

        fork(lambda: _leave(fork(hold))).wait()
        os.close(master)
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        for number in (0, 1, 2):
            os.dup2(slave, number)
        os.close(slave)


def _leave(_: object) -> None:
    """Its parent leaves at once: it is nobody's child in the run."""


def _printing_to(how: str) -> Recipe:
    """However the run ends, its exit code says it: that of the verdict."""

    def recipe(d: Draw, world: int, strategy: Strategy) -> FaultCase:
        rank, what = d.randrange(world), d.choice(["nothing", "error", "kill", "term"])
        fault = {
            "error": Fault("error", rank, "forward", step_of(d)),
            "kill": Fault("kill", rank, "forward", step_of(d)),
            "term": Fault("term", rank, "forward", step_of(d)),
        }.get(what)
        endings = {"error": ("CRASH",), "term": ("PREEMPTED", "SUCCESS")}.get(what, ("SUCCESS",))
        if how == "terminal":  # SIGHUP is a request to stop
            endings = (*endings, "PREEMPTED")
        around = Streams(how, round(d.uniform(0.05, 1.5), 2))
        name = f"{how}{'' if fault is None else f', {what}'}"
        return case_of(
            "F23", name, world, strategy, *([] if fault is None else [fault]), around=around, endings=endings
        )

    return recipe


RECIPES: Recipes = {("F23", how): _printing_to(how) for how in HOW}
