"""Plain single-device networks: the codec, the latent operator, and the simulator that parts like these make."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ups.models.codec import Codec
    from ups.models.config import SIZES, CodecConfig, OperatorConfig, SimulatorConfig
    from ups.models.operator import LatentOperator
    from ups.models.part import Blueprint, Part
    from ups.models.simulator import Simulator, assemble
    from ups.models.tokens import CORES
    from ups.models.two_parts import build

# Each name is imported when it is asked for: configs are read without torch.
_HOMES = {
    "codec": ("Codec",),
    "config": ("SIZES", "CodecConfig", "OperatorConfig", "SimulatorConfig"),
    "operator": ("LatentOperator",),
    "part": ("Blueprint", "Part"),
    "simulator": ("Simulator", "assemble"),
    "tokens": ("CORES",),
    "two_parts": ("build",),
}
__all__ = [
    "CORES",
    "SIZES",
    "Blueprint",
    "Codec",
    "CodecConfig",
    "LatentOperator",
    "OperatorConfig",
    "Part",
    "Simulator",
    "SimulatorConfig",
    "assemble",
    "build",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"ups.models.{home}"), name)
    raise AttributeError(f"module 'ups.models' has no attribute '{name}'")
