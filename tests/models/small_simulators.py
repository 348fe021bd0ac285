"""Small tasks and simulators that the tests of the models share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ups.models import CodecConfig, OperatorConfig, Simulator, build
from ups.physics import TASKS
from ups.tensors import Condition, Window, numeric_params
from ups.types import Grid

GRIDS = {"burgers1d": (32,), "diffsorp1d": (32,), "reacdiff2d": (16, 24), "cfd2d": (16, 16), "cfd3d": (8, 8, 8)}
VARIANTS = [("transformer", "attention"), ("transformer", "fourier"), ("unet", "attention"), ("unet", "fourier")]


def simulator(
    *names: str, seed: int = 0, shapes: dict[str, tuple[int, ...]] | None = None, **operator: object
) -> Simulator:
    """A small simulator of the named tasks on the grids above."""
    small = {"width": 32, "depth": 2, "heads": 4, "levels": 1, "windows": (4, 2, 2), **operator}
    chosen = names or tuple(GRIDS)
    return build(
        [TASKS[name] for name in chosen],
        CodecConfig(dim=64, width=16),
        OperatorConfig(**small),  # type: ignore[arg-type]
        shapes={**GRIDS, **(shapes or {})},
        seed=seed,
    ).eval()


def awaken(module: nn.Module, seed: int = 1) -> None:
    """Move every parameter a little, so that nothing that starts at zero hides what lies behind it."""
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=noise)


def frames(name: str, batch: int = 2, context: int = 1, seed: int = 0) -> Tensor:
    """Random frames `(B, K, *S, C)` of a task."""
    noise = torch.Generator().manual_seed(seed)
    return torch.randn(batch, context, *GRIDS[name], len(TASKS[name].channels), generator=noise)


def condition(name: str, batch: int = 2, periodic: tuple[bool, ...] | None = None, dt: float = 0.05) -> Condition:
    task = TASKS[name]
    params = torch.full((batch, len(numeric_params(task))), 0.5)
    return Condition(
        params, torch.full((batch,), dt), Grid(GRIDS.get(name, (32,) * task.ndim), periodic or task.periodic), name
    )


def window(context: Tensor, driven: Condition) -> Window:
    """Frames `(B, K, *S, C)` and what drives the steps after them."""
    task = TASKS[driven.task]
    return Window(
        task=task,
        context=context,
        targets=context[:, :0],
        inputs=context.new_zeros(len(context), 0) if driven.inputs is None else driven.inputs,
        params=driven.params,
        dt=driven.dt,
        grid=Grid(tuple(context.shape[2:-1]), driven.grid.periodic, driven.grid.bounds or task.bounds),
    )
