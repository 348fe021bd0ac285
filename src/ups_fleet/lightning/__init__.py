"""`ups_fleet.lightning`: the stages and windows of a run as a LightningModule and a LightningDataModule."""

from __future__ import annotations

import importlib.util

from ups.types import ConfigError

if importlib.util.find_spec("lightning") is None:
    raise ConfigError(
        "ups_fleet.lightning needs a package that is not installed: pip install 'universal-physics-stack[lightning]'."
    )

from ups_fleet.lightning.stage_data import StageData, trainer_options
from ups_fleet.lightning.stage_module import StageModule, simulator_of

__all__ = ["StageData", "StageModule", "simulator_of", "trainer_options"]
