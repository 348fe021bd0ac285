"""Damages the newest checkpoint of a run, as disks and people do."""

from __future__ import annotations

import os
import random
from pathlib import Path

from ups.engine.checkpoint.manifest import listing
from ups.rundir import RunDir
from ups_fleet.fault_tests.case import STEPS


def newest(run: RunDir) -> Path | None:
    """The newest checkpoint of a run."""
    checkpoints = [listing(run.checkpoints(stage)) for stage in reversed(STEPS)]
    return next((paths[0] for paths in checkpoints if paths), None)


def damage(kind: str, run: RunDir) -> None:
    """Do it to the newest checkpoint, where there is one."""
    checkpoint = newest(run)
    if checkpoint is None:
        return
    largest = max((p for p in checkpoint.iterdir()), key=lambda p: p.stat().st_size)
    if kind == "flip":
        content = bytearray(largest.read_bytes())
        content[random.Random(len(content)).randrange(len(content))] ^= 4
        largest.write_bytes(content)
    elif kind == "truncate":
        os.truncate(largest, largest.stat().st_size // 2)
    elif kind == "missing":
        largest.unlink()
    elif kind == "foreign":
        (checkpoint / "another").write_bytes(b"of another run")
    else:
        (checkpoint / "manifest.json").write_text("{}")
