"""Jobs on other machines: one file per engine, one line in ENGINES."""

from __future__ import annotations

from ups.submit.job import Engine, Job, Status
from ups.submit.local import Local
from ups.submit.sky import Sky
from ups.submit.slurm import Slurm
from ups.submit.vast.engine import Vast

__all__ = ["ENGINES", "Engine", "Job", "Status"]

ENGINES: dict[str, type[Engine]] = {"local": Local, "slurm": Slurm, "sky": Sky, "vast": Vast}
