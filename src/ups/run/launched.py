"""A run by the ranks that `torchrun`, or whatever sets its variables, has started: rank 0 opens the folder for all."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from ups.config import dump
from ups.engine.preemption import STOP
from ups.engine.ranks.meeting import launcher_store
from ups.files import write_atomic
from ups.heartbeat import Pulse
from ups.progress import Screen
from ups.run.config import RunConfig, run_config
from ups.run.judging.conclusion import Finish
from ups.run.run import Run, finished
from ups.run.start import ANEW, Start
from ups.rundir import RunDir
from ups.verdict import classify

LONG = timedelta(days=7)  # rank 0 makes the data of all; if it dies, the launcher ends the others


def ranks_here(environ: Mapping[str, str] = os.environ) -> int:
    """How many ranks the launcher of this process has started; 1 where there is none."""
    words = [environ.get(name, "") for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR")]
    return int(words[0]) if all(words) and words[0].isdecimal() else 1


class Launched:
    """A rank's place among those of a launcher: rank 0 prepares, and the others wait for its word."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self.rank, self.world = int(environ["RANK"]), ranks_here(environ)
        self.again = int(environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
        self.pulse = Pulse(None, self.rank)
        self.store: Any = launcher_store(environ)

    def limit(self) -> int | None:
        return None

    def prepared(self, prepare: Callable[[], None]) -> None:
        def work() -> str:
            prepare()
            return ""

        self.first("prepared", work)

    def first(self, key: str, work: Callable[[], str]) -> str:
        """What `work` gives on rank 0, on every rank. Where it fails, the others leave without a word."""
        if self.rank == 0:
            word: str | None = None
            try:
                word = work()
            finally:
                error = sys.exception()
                self.store.set(key, f"+{word}" if error is None else f"-{int(classify(error).ending)}")
            return word
        with STOP.at_once("another rank has begun the run"):
            self.store.wait([key], LONG)
        word = self.store.get(key).decode()
        if word.startswith("-"):
            raise SystemExit(int(word[1:]))
        return str(word[1:])


def finish_launched(
    config: RunConfig,
    screen: Screen,
    start: Start = ANEW,
) -> tuple[RunDir, Finish | None]:
    """The phases of a start on the ranks that a launcher has started; how it ended is known on rank 0.

    A rank that the launcher starts again goes on with what the first start has left.
    """
    STOP.listen()
    rank = Launched()
    ranks = dataclasses.replace(config.dist, ranks=rank.world, nodes=1)
    config = run_config().model_validate({**config.model_dump(), "dist": dataclasses.asdict(ranks)})
    again = rank.again and RunDir(Path(config.out) / config.name).known() is not None
    start = dataclasses.replace(start, resume=start.resume or again, overwrite=start.overwrite and not again)
    opened: list[Run] = []

    def opening() -> str:
        opened.append(Run.open(config, screen, start))
        write_atomic(opened[0].folder.job, dump(config))
        return str(opened[0].folder.folder.resolve())

    folder = RunDir(Path(rank.first("opened", opening)))
    if rank.rank:
        with Run.join(folder.folder, Screen.silent(), start) as run:
            run.carry_out(rank)
        return folder, None
    return finished(opened[0], rank)
