"""`ups run` as the lab runs it: the real command in a process of its own, its ranks forked with hooks in them."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ups.config import dump, load
from ups.run.config import RunConfig, run_config
from ups.verdict import Ending
from ups_fleet.fault_tests.case import BATCH, SAVED, STEPS, CaseDir, Disturbance, FaultCase
from ups_fleet.fault_tests.rank_hooks import install
from ups_fleet.running import supervised
from ups_fleet.supervise.children import fork
from ups_fleet.supervise.fault_plan import VARIABLE
from ups_fleet.supervise.launchers.forked import ForkLauncher
from ups_fleet.supervise.limits import Limits
from ups_fleet.supervise.proc import alive, children
from ups_fleet.supervise.rank_parent import die_with_parent

LEFT = 2.0  # seconds in which everybody is gone whose supervisor was killed
CONFIG: dict[str, Any] = {
    "name": "run",
    "device": "cpu",
    "data.a.task": "burgers1d",
    "model.codec.dim": 3,
    "model.operator.width": 16,
    "model.operator.depth": 2,
    "model.operator.heads": 2,
    "dist.vote_timeout": 60.0,
    "limits.echo": 1.0,
    "limits.teardown": 5.0,
    **{f"{stage}.train.steps": steps for stage, steps in STEPS.items()},
    **{f"{stage}.train.checkpoint_steps": every for stage, every in SAVED.items()},
    "batch": BATCH,
    "train.validate_every": 3,
    "train.log_every": 1,
    "train.drift_every": 2,
}


def limits(pace: float) -> dict[str, float]:
    """Time limits for a run that takes `pace` seconds undisturbed: short, and never too short."""
    wait = max(4.0, 2 * pace)
    short = dict.fromkeys(("first", "phase", "still"), wait)
    long = dict.fromkeys(("save", "validation", "judge", "grace", "start", "idle"), 2 * wait)
    return {name: value for name, value in {"floor": wait / 2, **short, **long}.items() if name in Limits.model_fields}


def configured(case: FaultCase, place: CaseDir, world: int, pace: float) -> RunConfig:
    """The config of a case on so many ranks."""
    strategy = {"single": "ddp"}.get(case.strategy, case.strategy)
    changes = {**CONFIG, **{f"limits.{name}": value for name, value in limits(pace).items()}}
    changes |= {"out": str(place.folder), "dist.ranks": world, "dist.strategy": strategy, **case.changes}
    if not any(name.startswith("data.a.") for name in case.changes):
        changes["data.a.file"] = str(case.around.data(place))
    return load(run_config(), None, {**changes, **case.around.settings(place)})


def run_command(config: RunConfig, place: CaseDir, limit: float, resume: bool, case: FaultCase | None = None) -> str:
    """Run `ups run`, disturbed as `case` says; how it ended, or KILLED, or HUNG, or the code that nobody knows."""
    case_process = os.getpid()
    process = fork(lambda: be_command(config, place, resume, case, case_process))
    end = time.monotonic() + limit
    while (code := process.poll()) is None and time.monotonic() < end:
        time.sleep(0.01)
    if code is None:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        return "HUNG"
    return "KILLED" if code < 0 else Ending(code).name if code in Ending._value2member_map_ else f"code {code}"


def be_command(config: RunConfig, place: CaseDir, resume: bool, case: FaultCase | None, parent: int) -> None:
    """Be `ups run` from its first line to the exit code of its process; dies with `parent`."""
    die_with_parent(signal.SIGKILL, parent)
    process: Any = multiprocessing.current_process()
    process._config["daemon"] = False  # it is no process of the lab any more: its ranks may have workers
    around = case.around if case is not None else Disturbance()
    file = place.folder / "config.yaml"
    file.write_text(dump(config))
    os.environ.pop(VARIABLE, None)
    if case is not None:
        os.environ[VARIABLE] = json.dumps([asdict(fault) for fault in case.faults])
    around.streams(place)
    around.command(place)
    names: Any = supervised
    begin = partial(around.start, place=place)
    names._launcher = lambda job, config: ForkLauncher(partial(install, around), begin)  # noqa: ARG005
    from ups.cli.app import main

    code = _exit_code(lambda: main(["run", str(file), *(["--resume"] if resume else [])]))
    os._exit(code)


def _exit_code(work: Callable[[], None]) -> int:
    """What the interpreter would make of it: 120 where the last of the output cannot be written."""
    code: Any = 0
    try:
        work()
    except SystemExit as error:
        code = error.code
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except (OSError, ValueError):
        return 120
    return code if isinstance(code, int) else int(code is not None)


def left_over() -> list[int]:
    """Processes that a command has left: no rank, no parent of one, no worker may be there after `LEFT` seconds."""
    end = time.monotonic() + LEFT
    while (left := list(filter(alive, children(os.getpid())))) and time.monotonic() < end:
        time.sleep(0.02)
    return left


def printed(place: CaseDir) -> str:
    """All that the commands of a case and their ranks have printed."""
    paths: list[Path] = [place.console, *place.run.logs.glob("*/rank-*.log")]
    return "".join(path.read_text(errors="replace") for path in paths if path.exists())
