"""Writes what a benchmark measured to a JSON file, with the device and versions that it depends on."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ups.files import write_named
from ups.version import __version__


def write_numbers(path: Path, numbers: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
    """What was measured, as JSON, with what it depends on."""
    text = json.dumps({**numbers, "provenance": provenance}, indent=1) + "\n"
    write_named(path, text, "choose another --json")


def measured_on(device: torch.device) -> dict[str, str | int]:
    """The device, and the versions of the program and of what it stands on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "version": __version__,
        "torch": torch.__version__,
        "device": name,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
    }
