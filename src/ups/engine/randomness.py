"""Saves and restores the state of all global random generators, or derives a new one for another rank."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def random_state(device: torch.device) -> dict[str, Any]:
    """The state of every global generator: torch's as tensors, Python's and numpy's as what JSON can say."""
    version, numbers, gauss = random.getstate()
    kind, keys, position, has, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "cpu": torch.get_rng_state(),
        "python": [version, list(numbers), gauss],
        "numpy": [kind, np.asarray(keys).tolist(), position, has, cached],
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Put every global generator where it was, or, given only a "seed", at that seed's beginning.

    A state from another kind of device leaves the GPU's generator alone.
    """
    if "seed" in state:
        torch.manual_seed(state["seed"])
        random.seed(state["seed"])
        np.random.seed(state["seed"] % 2**32)
        return
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, position, has, cached = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has, cached))


Generators = tuple[Tensor, Tensor | None]


def generators(device: torch.device) -> Generators:
    """The states of torch's generators, from which a repeated attempt draws the same numbers."""
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def set_generators(states: Generators, device: torch.device) -> None:
    """Put the generators of this process where `generators` found them."""
    torch.set_rng_state(states[0])
    if states[1] is not None:
        torch.cuda.set_rng_state(states[1], device)


def derived_state(source: bytes, world: int, rank: int) -> dict[str, Any]:
    """A state for one of `world` ranks that follows from `source` alone, different for every rank and world."""
    return {"seed": seed_of(source + f"|{world}|{rank}".encode())}


def seed_of(source: bytes) -> int:
    """A seed that follows from `source` alone, and has nothing to do with those of others."""
    return int.from_bytes(hashlib.sha256(source).digest()[:7], "big")
