"""`ups bench`: speed and accuracy, as ratios to a peer measured in the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

bench = App(name="bench", help="Measure speed, as ratios to a peer measured in the same run.")


@bench.command(name="generate")
def bench_generate(
    *,
    task: list[str] | None = None,
    device: str = "auto",
    seconds: float = 5.0,
    json_out: Annotated[Path | None, Parameter(name="--json")] = None,
) -> None:
    """Trajectories per second of every generator, and the ratio to exponax for Burgers where it is installed.

    Parameters
    ----------
    task
        Only these tasks; may be given several times.
    device
        auto, cpu, cuda or cuda:N.
    seconds
        How long to measure each, roughly.
    json_out
        Also write the numbers, with their provenance, to this file.
    """
    from ups.jobs.bench import bench_generate as job

    job(task, device, seconds, json_out, say=print)
