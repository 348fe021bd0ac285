"""Harm done on purpose, to models and by ranks; imported by name in the child processes that run it."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

import torch
from torch import Tensor, nn

from ups_fleet.doctor import rank_exercises

PART = "core.blocks.1.mlp"
# A real simulator, as small as it gets: burgers1d on 32 cells, two blocks with attention.
TINY: dict[str, Any] = {
    "data": {"tiny": {"task": "burgers1d", "samples": 10, "resolution": 32, "frames": 4}},
    "model": {
        "codec": {"dim": 8, "width": 8},
        "operator": {"mixing": "attention", "width": 16, "depth": 2, "heads": 2},
    },
}


def _harm(module: nn.Module, act: Any) -> None:
    """`act(output)` in the place of what the part returns, inside its forward."""
    part = module.get_submodule(PART)
    plain = part.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        return act(plain(*args, **kwargs))

    part.forward = forward  # type: ignore[method-assign]


def _ranks() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _raise(_: Tensor) -> Tensor:
    raise ValueError("this block does not like its input")


def _segfault(out: Tensor) -> Tensor:
    if _ranks() == 2 and os.environ["RANK"] == "1":
        ctypes.string_at(0)
    return out


class _Crash(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # noqa: ARG004
        if _ranks() == 2:
            ctypes.string_at(0)
        return g


def raising(module: nn.Module) -> None:
    _harm(module, _raise)


def crashing(module: nn.Module) -> None:
    _harm(module, _segfault)


def crashing_backward(module: nn.Module) -> None:
    _harm(module, _Crash.apply)


def no_compiler(_: nn.Module) -> None:
    """This machine has no compiler, and nothing that was compiled before."""
    from torch._inductor import config

    config.cpp.cxx = (None, "/no/such/compiler")
    config.force_disable_caches = True


def not_finite(module: nn.Module) -> None:
    _harm(module, lambda out: out / 0.0)


def differing(module: nn.Module) -> None:
    _harm(module, lambda out: out * (1 + 1e-3 * (int(os.environ.get("RANK", "0")))))


def hanging(module: nn.Module) -> None:
    _harm(module, lambda out: time.sleep(1000) if _ranks() == 2 and os.environ["RANK"] == "1" else out)


def complex_parameter(module: nn.Module) -> None:
    """A parameter that FSDP2 cannot cut; it takes part in nothing."""
    module.register_parameter("rotation", nn.Parameter(torch.ones(4, dtype=torch.complex64)))


def collectives(device: str, world: int) -> dict[str, object]:
    found = rank_exercises.collectives(device, world)
    return {**found, "wrong": ["all-reduce of torch.float32"] if os.environ["RANK"] == "1" else []}


def devices() -> dict[str, object]:
    return {"torch": "2.13", "built_for": None, "cuda": [], "gloo": True, "nccl": False}
