"""A rank's life: it takes its seat under the supervisor, does its part of the run, and leaves with the right word."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from ups.engine.faults import Plan
from ups.engine.preemption import STOP
from ups.screen import following, show, training
from ups.supervise.seat import Seat

LOOK = 0.05  # seconds between two looks for what rank 0 prepares


def main(folder: Path) -> None:
    """The part of this process in the run of `folder`, whose config the supervisor has left there."""
    STOP.listen()
    with Seat(fire=Plan.from_environment()) as seat:
        seat.pulse.beat("start")
        from ups.config import load
        from ups.engine.dist import Dist
        from ups.jobs.run import assess, prepare, train
        from ups.jobs.sets import Screen
        from ups.jobs.settings import RunConfig
        from ups.rundir import RunDir

        run = RunDir.at(folder)
        config = load(RunConfig, run.job)
        with following() as report:
            screen = Screen(print, report, training()) if seat.rank == 0 else Screen.silent()
            ready = run.prepared(os.environ.get("MASTER_PORT", "0"))
            if seat.rank == 0:
                run.forget_prepared()
                with STOP.at_once("data were made"):
                    prepare(config, run, screen)
                ready.touch()
            with STOP.at_once("data were made"):
                while not ready.exists():
                    seat.pulse.beat("idle")
                    time.sleep(LOOK)
            seat.pulse.beat("start")
            with Dist.start(config.device, config.dist) as dist:
                train(config, run, screen, dist, seat.pulse, seat.limit())
            if seat.rank == 0:
                seat.pulse.beat("judge")
                with STOP.at_once("the simulator was judged"):
                    found = assess(config, run, screen)
                show(found.headline(), found.said(), run.report)
                ready.unlink(missing_ok=True)
                seat.succeed(report=run.report.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
