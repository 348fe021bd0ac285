"""Checkpoints: whole or absent, hashed, verified before they are trusted, and resumed from bit by bit."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from ups.files import sync_folder
from ups.types import DataError

FORMAT = 1
TENSORS, FACTS, MANIFEST = "tensors.safetensors", "state.json", "manifest.json"
NAME = re.compile(r"step-(\d{9})")


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds: tensors by name (on the CPU) and facts (whatever JSON can say)."""

    step: int
    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors under `prefix/`, without it."""
        return {n.removeprefix(f"{prefix}/"): t for n, t in self.tensors.items() if n.startswith(f"{prefix}/")}


class Store(Protocol):
    """Where a trainer keeps its state between lives."""

    def save(self, saved: Saved) -> None: ...
    def latest(self) -> Saved | None: ...


class Nowhere:
    """No checkpoints: nothing is saved, nothing is found."""

    def save(self, saved: Saved) -> None:
        """Forget it."""

    def latest(self) -> Saved | None:
        return None


@dataclass
class Checkpoints:
    """The checkpoints of one stage in `folder`, one folder `step-N` each; at least `keep` verified ones stay.

    A checkpoint appears under its name only when all its files and a manifest of their SHA-256 are on disk, and is
    never written again; a kill at any moment leaves the older ones untouched. One process writes.
    """

    folder: Path
    keep: int = 2
    say: Callable[[str], None] = field(default=lambda sentence: None)  # noqa: ARG005

    def save(self, saved: Saved) -> None:
        """Publish a checkpoint, then drop what `keep` newer verified ones outdate. OSError if the disk refuses."""
        self.folder.mkdir(parents=True, exist_ok=True)
        final = self.folder / f"step-{saved.step:09d}"
        if verify(final) is None:  # never overwrite: the same step of the same run is there already
            return
        beside = self.folder / f"{final.name}.tmp-{uuid.uuid4().hex[:8]}"
        try:
            beside.mkdir()
            _write(beside, saved)
            if final.exists():  # only one that failed its verification is written anew
                final.rename(self.folder / f"{final.name}.damaged-{uuid.uuid4().hex[:8]}")
            beside.rename(final)
            sync_folder(self.folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        problem = verify(final)
        if problem:
            raise OSError(5, f"checkpoint {final.name} did not read back as written ({problem})")
        self._retain()

    def latest(self) -> Saved | None:
        """The newest checkpoint that verifies; damaged ones are passed over with a sentence."""
        for path in self._paths():
            problem = verify(path)
            if problem is None:
                return _read(path)
            self.say(f"checkpoint {path.name} is damaged ({problem}) and was passed over for the one before it.")
        return None

    def _paths(self) -> list[Path]:
        """Newest first."""
        if not self.folder.is_dir():
            return []
        return sorted((p for p in self.folder.iterdir() if NAME.fullmatch(p.name)), reverse=True)

    def _retain(self) -> None:
        good = 0
        for path in self._paths():
            if good >= self.keep:
                shutil.rmtree(path, ignore_errors=True)
            elif verify(path) is None:
                good += 1
        for left in self.folder.glob("step-*.*-*"):  # of a killed save, or set aside as damaged
            shutil.rmtree(left, ignore_errors=True)


def verify(path: Path) -> str | None:
    """None if every file of a checkpoint is what its manifest says; otherwise what is wrong."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        if manifest["format"] > FORMAT:
            return f"its format {manifest['format']} is newer than this version knows"
        for name, expected in manifest["files"].items():
            if hashlib.sha256((path / name).read_bytes()).hexdigest() != expected:
                return f"{name} is not what was written"
        return None if {TENSORS, FACTS} <= set(manifest["files"]) else "its manifest names too few files"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "its manifest cannot be read"


def _write(folder: Path, saved: Saved) -> None:
    waves = sorted(name for name, t in saved.tensors.items() if t.is_complex())
    tensors = {n: torch.view_as_real(t) if t.is_complex() else t for n, t in saved.tensors.items()}
    plain = {n: t.detach().to("cpu", copy=True).contiguous() for n, t in tensors.items()}
    files = {
        TENSORS: safetensors.torch.save(plain),
        FACTS: json.dumps({"step": saved.step, "complex": waves, "facts": saved.facts}).encode(),
    }
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    files[MANIFEST] = json.dumps({"format": FORMAT, "step": saved.step, "files": sums}, indent=2).encode()
    for name, content in files.items():
        with (folder / name).open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    sync_folder(folder)


def _read(path: Path) -> Saved:
    try:
        held = json.loads((path / FACTS).read_bytes())
        tensors = safetensors.torch.load((path / TENSORS).read_bytes())
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise DataError(f"{path}: verified, but cannot be read ({error}); remove it to use the one before.") from error
    waves = {name: torch.view_as_complex(tensors[name]) for name in held["complex"]}
    return Saved(held["step"], {**tensors, **waves}, held["facts"])


def random_state(device: torch.device) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of every global generator: torch's as tensors, Python's and numpy's as facts."""
    tensors = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        tensors["cuda"] = torch.cuda.get_rng_state(device)
    version, numbers, gauss = random.getstate()
    kind, keys, position, has, cached = np.random.get_state(legacy=True)
    facts = {
        "python": [version, list(numbers), gauss],
        "numpy": [kind, np.asarray(keys).tolist(), position, has, cached],
    }
    return tensors, facts


def set_random_state(tensors: Mapping[str, Tensor], facts: Mapping[str, Any], device: torch.device) -> None:
    """Put every global generator where it was; a checkpoint from another kind of device leaves the GPU's alone."""
    torch.set_rng_state(tensors["cpu"])
    if device.type == "cuda" and "cuda" in tensors:
        torch.cuda.set_rng_state(tensors["cuda"], device)
    version, numbers, gauss = facts["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, position, has, cached = facts["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has, cached))
