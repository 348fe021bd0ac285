"""export_run: checks what is asked for, and has the format write it, whole or not at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from ups.files import check_writing, writing
from ups.run.load import load
from ups.types import ConfigError, check_known
from ups_apps.export.formats import FORMATS
from ups_apps.export.job import Export


def export_run(
    run: Path, to: str, task: str | None, out: Path | None, overwrite: bool, say: Callable[[str], None]
) -> Path:
    """Write the simulator of a run in a format, and return the file; ConfigError or DataError where that cannot be."""
    check_known("format", (to,), FORMATS)
    form = FORMATS[to]
    simulator = load(run).requires_grad_(False)
    tasks = (simulator.codec.task(task),) if task is not None else simulator.tasks
    if len(tasks) > 1 and not form.several:
        raise ConfigError(f"the simulator knows {', '.join(simulator.codec.tasks)}; say which with --task.")
    job = Export(simulator, run, tasks, out or Path(), say)
    path = out or Path(f"{job.name}.{to}" if form.several else f"{job.name}-{job.task.name}.{to}")
    if path.exists() and not overwrite:
        raise ConfigError(f"{path}: is there already; choose another --out, or replace it with --overwrite.")
    check_writing(path, "choose another --out")
    with writing(path, "choose another --out") as beside:
        form.write(dataclasses.replace(job, out=beside))
    return path
