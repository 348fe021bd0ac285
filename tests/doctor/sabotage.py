"""Harm done on purpose, to models and by ranks; imported by name in the child processes that run it."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

import torch
from torch import Tensor, nn

from ups.doctor import exercises

COLLECTIVES = exercises.collectives  # the true one
PART = "core.blocks.1.mlp"


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


def not_finite(module: nn.Module) -> None:
    _harm(module, lambda out: out / 0.0)


def differing(module: nn.Module) -> None:
    _harm(module, lambda out: out * (1 + 1e-3 * (int(os.environ.get("RANK", "0")))))


def hanging(module: nn.Module) -> None:
    _harm(module, lambda out: time.sleep(1000) if _ranks() == 2 and os.environ["RANK"] == "1" else out)


def complex_parameter(module: nn.Module) -> None:
    """A parameter that FSDP2 cannot cut; it takes part in nothing."""
    module.register_parameter("rotation", nn.Parameter(torch.ones(4, dtype=torch.complex64)))


def misbehave(how: str) -> str:
    if os.environ["RANK"] == "1":
        if how == "crash":
            ctypes.string_at(0)
        elif how == "raise":
            raise ValueError("no")
        elif how == "hang":
            time.sleep(1000)
        elif how == "leave":
            os._exit(0)
    return os.environ["WORLD_SIZE"]


def wrong_sum(device: str, world: int) -> dict[str, object]:
    found = COLLECTIVES(device, world)
    return {**found, "wrong": ["all-reduce of torch.float32"] if os.environ["RANK"] == "1" else []}


def no_gpu() -> dict[str, object]:
    return {"torch": "2.13", "built_for": None, "cuda": [], "gloo": True, "nccl": False}
