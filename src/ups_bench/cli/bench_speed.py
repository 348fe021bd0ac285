"""`ups bench speed`: how close training is to the device's limit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ups.screen import say, waiting


def bench_speed(
    *,
    part: list[str] | None = None,
    device: str = "auto",
    seconds: float = 240.0,
    json_out: Annotated[Path | None, Parameter(name="--json")] = None,
    commit: str | None = None,
) -> int:
    """How close training is to the limit of one GPU, as ratios to peers that are timed in turn with it.

    A bare loop, `Trainer` and its CUDA graphs, beside the time of their kernels; protections on over off; validations
    and their share of a run; large operators over the rate of matrix products, and what their steps are made of; two
    ranks and fsdp; torch.compile. On a processor everything is tiny and shows only that it runs. A part that fails is
    named and the others go on; the exit code is 0 where all were measured.

    Parameters
    ----------
    part
        Only small, protections, validation, large, ranks or compiled; may be given several times.
    device
        auto, cpu, cuda or cuda:N.
    seconds
        How long all of it may take; what has not had its turn by then is said not to be measured.
    json_out
        Also write the numbers, with their provenance, to this file; parts in it that are not measured now stay.
    commit
        The commit of this program, where there is no repository that says it.
    """
    with waiting("getting ready"):
        from ups_bench.speed import bench_speed as job

    return job(part, device, seconds, json_out, commit, say=say)
