"""`ups run` as it is at home: a small config, its command line, and what it leaves behind."""

from __future__ import annotations

import os
import sys
from pathlib import Path

CONFIG = """
name: run
device: cpu
data:
  a: {task: advection1d, scheme: accurate, samples: 16, resolution: 16, frames: 41, device: cpu, reduce: {time: 8}}
model:
  codec: {dim: 3}
  operator: {width: 16, depth: 2, heads: 2}
codec: {batch: 8, train: {steps: 20, checkpoint_steps: 10}}
operator: {batch: 8, train: {steps: STEPS, checkpoint_steps: EVERY, validate_every: 0.5, checkpoint_seconds: null}}
dist: {strategy: ddp, vote_timeout: 30}
limits: {floor: 5, start: 120, first: 20, phase: 10, save: 20, validation: 20, idle: 60, rejoin: 120, echo: 3}
"""
UPS = (sys.executable, "-c", "from ups.cli.app import main; main()")
ENV = {**{k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}, "OMP_NUM_THREADS": "1"}


def command(folder: Path, steps: int, every: int, *words: str) -> list[str]:
    """The words that run so many steps in `folder` and keep a checkpoint so often."""
    config = folder / "config.yaml"
    if not config.exists():  # another node may be reading it
        config.write_text(CONFIG.replace("STEPS", str(steps)).replace("EVERY", str(every)))
    return [*UPS, "run", str(config), "--out", str(folder), *words]


def saved(folder: Path, step: int) -> Path:
    """The checkpoint of a step of the operator."""
    return folder / "run" / "checkpoints" / "operator" / f"step-{step:09d}"


def simulator(folder: Path) -> bytes:
    """What a run has made."""
    return (folder / "run" / "artifacts" / "simulator.safetensors").read_bytes()
