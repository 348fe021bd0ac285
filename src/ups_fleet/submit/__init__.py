"""Jobs on other machines: one file per engine, one line in BUILT_IN."""

from __future__ import annotations

from ups.plugins import Table
from ups_fleet.submit.job import Engine, LaunchJob, Status

__all__ = ["ENGINES", "Engine", "LaunchJob", "Status"]

BUILT_IN: dict[str, type[Engine] | str] = {
    "local": "ups_fleet.submit.local:Local",
    "slurm": "ups_fleet.submit.slurm:Slurm",
    "sky": "ups_fleet.submit.sky.engine:Sky",
    "vast": "ups_fleet.submit.vast.engine:Vast",
}
ENGINES: Table[type[Engine]] = Table("engines", BUILT_IN)
