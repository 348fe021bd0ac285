"""What the workshop adds to the config of a run: how it is watched, where it is shown, and where it is copied to."""

from __future__ import annotations

from typing import cast

from pydantic import Field, field_validator

from ups.engine.ranks.dist_config import DistConfig
from ups.run.config import RunConfig
from ups.run.data.data_config import known
from ups.types import UpsError
from ups_fleet.supervise.launchers import LAUNCHERS
from ups_fleet.supervise.limits import Limits
from ups_fleet.sync.remote_run import require_syncable
from ups_fleet.tracking import MIRRORS, TrackingConfig


class FleetConfig(RunConfig):
    """The config of a run with the keys of the workshop."""

    incidental = RunConfig.incidental | {"limits", "tracking", "sync"}

    limits: Limits = Field(default_factory=Limits)
    """How long a process may stand still before it counts as hung, and how often a run is started again."""
    tracking: TrackingConfig = Field(default_factory=TrackingConfig)
    """Where else the log of the run is shown: `[csv, tensorboard, wandb, mlflow]`. metrics.jsonl is always written."""
    sync: str | None = None
    """A store, such as s3://bucket/runs, to which checkpoints, logs, verdict, simulator and report are copied as soon
    as they are final. A machine that lacks the run's folder restores it from there with --resume."""

    @field_validator("tracking")
    @classmethod
    def _trackers_there_are(cls, tracking: TrackingConfig) -> TrackingConfig:
        known("tracker", tracking.to, MIRRORS)
        return tracking

    @field_validator("sync")
    @classmethod
    def _a_store(cls, sync: str | None) -> str | None:
        try:
            if sync is not None:
                require_syncable(sync)
        except UpsError as error:
            raise ValueError(str(error)) from None
        return sync

    @field_validator("dist")
    @classmethod
    def _a_launcher_there_is(cls, dist: DistConfig) -> DistConfig:
        known("launcher", () if dist.launcher is None else (dist.launcher,), LAUNCHERS)
        return dist


def fleet_keys(config: RunConfig) -> FleetConfig:
    """A run's config as the workshop reads it: where the workshop is installed, every one has its keys."""
    return cast("FleetConfig", config)
