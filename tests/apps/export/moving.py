"""Small simulators that change states though they have learnt nothing, of every kind of task."""

from __future__ import annotations

from dataclasses import replace

import torch

from ups.models import CodecConfig, OperatorConfig, Simulator, build
from ups.models.config import SimulatorConfig
from ups.physics import TASKS
from ups.tensors import TaskStatistics, numeric_params
from ups.types import Field


def moving(
    name: str, cells: int, context: int = 1, config: SimulatorConfig | None = None, masked: bool = False
) -> Simulator:
    """A simulator of one task, its weights moved away from those that change nothing."""
    task = TASKS[name]
    if masked:
        task = replace(task, inputs=(*task.inputs, Field.scalar("solid")), mask="solid", equation="")
    operator = OperatorConfig(width=16, depth=1, heads=2, modes=4, context=context)
    sim = build([task], CodecConfig(dim=16, patch=(4, 2, 2)), operator, config, {name: (cells,) * task.ndim}).eval()
    channels, given, params = len(task.channels), len(task.given), len(numeric_params(task))
    one, driven = torch.ones(channels), torch.ones(given)
    low, high = torch.full((params,), 0.5), torch.full((params,), 2.0)
    sim.learn_statistics(task, TaskStatistics(one, one, one - 3, one + 3, 0 * driven, driven, low, high, (0.05, 0.05)))
    generator = torch.Generator().manual_seed(0)
    for p in sim.operator.parameters():
        p.data += 0.1 * torch.randn(p.shape, generator=generator)
    return sim.requires_grad_(False)
