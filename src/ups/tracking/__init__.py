"""MIRRORS: where a run is shown beside its log, metrics.jsonl, which is always written and is the truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ups.tracking.csv import Csv
from ups.tracking.delivery import (
    Delivery,
    TroubleWatch,
    deliver,
    deliver_by_the_way,
    deliveries,
    is_live,
    mirrored,
    settings_of,
    write_settings,
)
from ups.tracking.jsonl import Jsonl
from ups.tracking.mirror import Mirror
from ups.tracking.mlflow import Mlflow
from ups.tracking.settings import TrackingConfig
from ups.tracking.tensorboard import TensorBoard
from ups.tracking.wandb import Wandb
from ups.types import ConfigError, check_known

__all__ = [
    "MIRRORS",
    "Delivery",
    "Jsonl",
    "Mirror",
    "TrackingConfig",
    "TroubleWatch",
    "deliver",
    "deliver_by_the_way",
    "deliveries",
    "mirrored",
    "require",
    "show_to",
]

MIRRORS: dict[str, type[Mirror]] = {"csv": Csv, "tensorboard": TensorBoard, "wandb": Wandb, "mlflow": Mlflow}


def require(settings: TrackingConfig, say: Callable[[str], None]) -> None:
    """Refuse unknown names, and what could never work; say what to install, or what is missing for a login."""
    check_known("tracker", settings.to, MIRRORS)
    for name in settings.to:
        MIRRORS[name].require(settings, say)


def show_to(folder: Path, names: Sequence[str], project: str | None, say: Callable[[str], None]) -> None:
    """Have further mirrors show a run that nobody carries out; `deliver` then feeds them."""
    if is_live(folder):
        raise ConfigError(f"{folder}: is being carried out; stop it, and --resume it with these trackers.")
    before = settings_of(folder) or TrackingConfig()
    changes = {"to": (*before.to, *names), **({"project": project} if project else {})}
    settings = TrackingConfig.model_validate({**before.model_dump(), **changes})
    require(settings, say)
    write_settings(folder, settings)
