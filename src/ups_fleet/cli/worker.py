"""The program of a rank: joins its supervisor, does its part of the run, and exits with the right code."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ups.engine.preemption import STOP
from ups.progress import Screen
from ups.rundir import RunDir
from ups.screen import Saying, following, show, training
from ups.streams import protect
from ups_fleet.supervise.fault_plan import FaultPlan
from ups_fleet.supervise.forked_functions import share_cores
from ups_fleet.supervise.rank_context import RankContext

LOOK = 0.05  # seconds between two looks for what rank 0 prepares


class Seated:
    """A rank's place in its run: rank 0 prepares, and the others wait for it."""

    def __init__(self, seat: RankContext, folder: RunDir) -> None:
        self.rank, self.pulse, self.limit = seat.rank, seat.pulse, seat.limit
        self.folder = folder
        self.ready = folder.prepared(os.environ.get("UPS_GROUP", "0"))

    def prepared(self, prepare: Callable[[], None]) -> None:
        if self.rank == 0:
            self.folder.forget_prepared()
            prepare()
            self.ready.touch()
        with STOP.at_once("data were made"):
            while not self.ready.exists():
                self.pulse.beat("idle")
                time.sleep(LOOK)


def main(folder: Path) -> None:
    """The part of this process in the run of `folder`, whose config the supervisor has left there."""
    STOP.listen()
    protect()
    with RankContext(fire=FaultPlan.from_environment()) as seat:
        seat.pulse.beat("start")
        import torch  # noqa: F401

        from ups.cli.preflight import PREFLIGHT
        from ups.run.run import Run
        from ups.run.start import Start

        share_cores(os.environ)  # a rank that was forked counts threads as its parent, not as its own environment
        saying = Saying()
        with following() as progress:
            screen = Screen(saying, progress, training()) if seat.rank == 0 else Screen.silent()
            with Run.join(folder, screen, Start.of_rank(PREFLIGHT)) as run:
                place = Seated(seat, run.folder)
                finish = run.carry_out(place)
            if finish is not None:
                if finish.table:
                    show(finish.table, saying.new(finish.remarks), run.folder.report)
                place.ready.unlink(missing_ok=True)
                slow = {
                    name: row["stragglers"] for name, row in run.folder.stage_facts().items() if row.get("stragglers")
                }
                facts: dict[str, Any] = {"report": run.folder.report.name} if run.folder.report.is_file() else {}
                facts |= {"stragglers": slow} if slow else {}
                seat.succeed(finish.ending, finish.cause, **facts)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
