"""export_run: checks what is asked for, and has the format write it, whole or not at all."""

from __future__ import annotations

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
    simulator = load(run).requires_grad_(False)
    tasks = (simulator.codec.task(task),) if task is not None else simulator.tasks
    if len(tasks) > 1:
        raise ConfigError(f"the simulator knows {', '.join(simulator.codec.tasks)}; say which with --task.")
    name = simulator.provenance.get("name") or (run.name if run.is_dir() else run.stem)
    path = out or Path(f"{name}-{tasks[0].name}.{to}")
    if path.exists() and not overwrite:
        raise ConfigError(f"{path}: is there already; choose another --out, or replace it with --overwrite.")
    check_writing(path, "choose another --out")
    with writing(path, "choose another --out") as beside:
        FORMATS[to](Export(simulator, tasks, beside, say))
    return path
