"""The Universal Physics Stack: trajectories of a physical system become a fast, trustworthy neural simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ups.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from ups.models import Simulator

__all__ = ["__version__", "load"]


def load(path: str | Path, device: str = "cpu") -> Simulator:
    """The simulator of a run folder (or of an artifact): `ups.load("runs/demo").rollout(u0, steps=100)`."""
    from ups.run.load import load as load_simulator

    return load_simulator(path, device)
