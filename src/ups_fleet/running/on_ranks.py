"""The run of the demo as `ups run` carries it out: under a supervisor, on two ranks where there are two cores."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

from ups.progress import Screen
from ups.run.config import RunConfig, run_config
from ups.run.judging.conclusion import Finish
from ups.run.phases import STARTED
from ups.run.run import finish_alone
from ups.rundir import RunDir
from ups.verdict import Verdict
from ups_fleet.running.supervised import supervise


def on_ranks(config: RunConfig, screen: Screen, *, overwrite: bool, before: tuple[str, float]) -> tuple[RunDir, Finish]:
    """Through all phases: on the ranks that the config asks for, else on two; in this process on one core."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    folder = RunDir(Path(config.out) / config.name)
    if cores < 2 and config.dist.ranks < 2:
        return finish_alone(config, screen, overwrite=overwrite, before=before)
    # Not forked: this process has made data, and the threads that helped with it would be missing in its children.
    several = dataclasses.replace(config.dist, ranks=max(2, config.dist.ranks), launcher="processes")
    ranks = run_config().model_validate({**config.model_dump(), "dist": dataclasses.asdict(several)})
    os.environ[STARTED] = str(time.time())  # what came before is not the run's
    ending = supervise(ranks, command="ups_fleet.cli.worker", overwrite=overwrite)
    verdict = Verdict.read(folder.verdict)
    return folder, Finish(ending, verdict.cause if verdict is not None else "")
