"""A run under its supervisor: this process owns the folder and the verdict, others do the work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from ups.config import dump
from ups.engine.manifest import newest_verified
from ups.files import write_atomic
from ups.jobs.run import STAGES, open_run
from ups.jobs.settings import RunConfig
from ups.launch.job import Job
from ups.launch.launchers import Launcher
from ups.launch.supervisor import Supervisor
from ups.rundir import RunDir
from ups.verdict import Ending


def _say(sentence: str) -> None:
    print(f"ups: {sentence}", file=sys.stderr, flush=True)


def supervise(
    config: RunConfig,
    *,
    command: str,
    resume: bool = False,
    overwrite: bool = False,
    node: int = 0,
    rendezvous: str = "",
    say: Callable[[str], None] = _say,
    launcher: Launcher | None = None,
) -> Ending:
    """Run `config` in processes of the module `command` until it has succeeded, or truthfully failed; how it ended."""
    folder = open_run(config, resume=resume, overwrite=overwrite)
    try:
        write_atomic(folder.job, dump(config))
        d = config.dist
        words = (sys.executable, "-m", command, str(folder.folder.resolve()))
        job = Job(words, d.ranks, d.nodes, d.min_nodes or d.nodes, node, rendezvous, config.name)
        verdict = Supervisor(
            job, folder.folder, config.limits, say, progress=lambda: progress(folder), launcher=launcher, relay=_relay
        ).supervise()
    finally:
        folder.close()
    if verdict.ending != Ending.SUCCESS:
        say(f"{verdict.ending.name}: {verdict.cause}")
        say(f"{folder.verdict} has the details; the logs of the ranks are in {folder.folder / 'logs'}.")
    return verdict.ending


def progress(folder: RunDir) -> int:
    """Steps that are safe: those of the newest verified checkpoint of every stage, together."""
    found = [newest_verified(folder.checkpoints(name)) for name in STAGES]
    return sum(int(path.name.removeprefix("step-")) for path in found if isinstance(path, Path))


def _relay(text: bytes) -> None:
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()
