"""The artifact: one safetensors file with the weights and, as JSON in its header, all that is needed to build them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ups.files import draft
from ups.types import DataError, Field, Param, Storage, TaskSpec

FILE_NAME = "simulator.safetensors"
FORMAT = "ups-simulator"
VERSION = 2


def digest(tensors: Mapping[str, Tensor]) -> str:
    """A hash of names, types, shapes and bytes."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name]
        total.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        total.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def write(path: Path, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write the artifact whole or not at all."""
    held = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    full = {"format": FORMAT, "version": VERSION, "digest": digest(held), **header}
    path.parent.mkdir(parents=True, exist_ok=True)
    with draft(path) as beside:
        save_file(held, beside, metadata={"ups": json.dumps(full, sort_keys=True)})


def read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(header, tensors) of an artifact; `path` is the file or the folder it lies in."""
    path = path / FILE_NAME if path.is_dir() else path
    if not path.exists():
        raise DataError(f"{path}: there is no such simulator; name a file written by `Simulator.save`, or its folder.")
    try:
        with safe_open(path, "pt") as file:
            header = _header(path, file.metadata())
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path}: is cut short or no simulator at all ({error}); save it again.") from None
    if digest(tensors) != header.get("digest"):
        raise DataError(f"{path}: its weights do not match its digest, so the file is damaged; save it again.")
    return header, tensors


def _header(path: Path, metadata: Mapping[str, str] | None) -> dict[str, Any]:
    try:
        header = json.loads((metadata or {}).get("ups", ""))
    except json.JSONDecodeError:
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise DataError(f"{path}: holds tensors but no simulator of this project; name a file saved by it.")
    version = header.get("version")
    if version != VERSION:
        old = isinstance(version, int) and version < VERSION
        remedy = "train it again, or load it with the program that wrote it" if old else "update the program"
        raise DataError(f"{path}: has format version {version}, and this program reads {VERSION}; {remedy}.")
    return header


def task_from(data: Mapping[str, Any]) -> TaskSpec:
    """A TaskSpec from what `dataclasses.asdict` and JSON made of it."""

    def fields(items: list[dict[str, Any]]) -> tuple[Field, ...]:
        return tuple(Field(f["name"], tuple(f["channels"]), f["rank"]) for f in items)

    storage: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data["storage"].items()}
    plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
    special: dict[str, Any] = {
        "fields": fields(data["fields"]),
        "inputs": fields(data["inputs"]),
        "bounds": tuple((lo, hi) for lo, hi in data["bounds"]),
        "storage": Storage(**storage),
        "parameters": tuple(Param(**{**p, "choices": tuple(p["choices"])}) for p in data["parameters"]),
    }
    return TaskSpec(**{**plain, **special})
