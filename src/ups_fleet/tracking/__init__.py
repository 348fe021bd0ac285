"""MIRRORS: where a run is shown beside its log, metrics.jsonl, which is always written and is the truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ups.plugins import Table
from ups.types import ConfigError, check_known
from ups_fleet.tracking.delivery import (
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
from ups_fleet.tracking.mirror import Mirror
from ups_fleet.tracking.settings import TrackingConfig

__all__ = [
    "MIRRORS",
    "Delivery",
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

BUILT_IN: dict[str, type[Mirror] | str] = {
    "csv": "ups_fleet.tracking.csv:Csv",
    "tensorboard": "ups_fleet.tracking.tensorboard:TensorBoard",
    "wandb": "ups_fleet.tracking.wandb:Wandb",
    "mlflow": "ups_fleet.tracking.mlflow:Mlflow",
}
MIRRORS: Table[type[Mirror]] = Table("trackers", BUILT_IN)


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
