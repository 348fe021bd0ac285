"""Small flows behind an operator of no change, and data of which all that it misses is known."""

from __future__ import annotations

from dataclasses import replace

import torch

from grids import grid_of
from ups.models import CodecConfig, OperatorConfig, Simulator, assemble
from ups.models.config import ConsistencyConfig, CriticConfig, ResidualConfig
from ups.models.consistency import ConsistencyStep
from ups.models.critic import Critic
from ups.models.residual import ResidualFlow
from ups.models.simulator import CORE
from ups.physics import TASKS
from ups.tensors import Window
from ups.types import UNKNOWN

KINDS = {**CORE, "residual": ResidualFlow, "consistency": ConsistencyStep, "critic": Critic}
TASK = replace(TASKS["advection1d"], dynamics=UNKNOWN)  # nothing is known to move it
SMALL = ResidualConfig(width=16, depth=1, heads=2, modes=4)


def simulator(config: ResidualConfig = SMALL, parts: tuple[str, ...] = ("codec", "operator", "residual")) -> Simulator:
    configs = {
        "codec": CodecConfig(dim=8),
        "operator": OperatorConfig(width=16, depth=1, heads=2, modes=4),
        "residual": config,
        "consistency": ConsistencyConfig(),
        "critic": CriticConfig(width=16, depth=1, heads=2, modes=4),
    }
    return assemble([TASK], {name: configs[name] for name in parts}, shapes={TASK.name: (16,)}, kinds=KINDS)


def window(batch: int, targets: int = 1, cells: int = 16) -> Window:
    frames = torch.randn(batch, 1 + targets, cells, 1)
    return Window(
        task=TASK,
        context=frames[:, :1],
        targets=frames[:, 1:],
        inputs=torch.zeros(batch, 0),
        params=torch.ones(batch, 1),
        dt=torch.full((batch,), 0.1),
        grid=grid_of(frames[:, 0], (True,), (1.0,)),
        ids=tuple(str(i) for i in range(batch)),
    )


class Noisy:
    """Windows whose tokens follow each other by a shift and noise of known sizes: what an operator of no change misses
    is N(shift, spread²)."""

    SHIFT, SPREAD = 0.5, 0.2

    def batch(self, step: int) -> Window:
        torch.manual_seed(step)
        first = torch.randn(32, 1, 4, 8)
        after = first + self.SHIFT + self.SPREAD * torch.randn_like(first)
        return replace(window(32), tokens=torch.cat((first, after), 1))

    def count(self, step: int) -> int:  # noqa: ARG002
        return 32

    def frames(self) -> tuple[int, int]:
        return 1, 1

    def validation(self, step: int) -> list[Window]:  # noqa: ARG002
        return [window(2, targets=2)]


class Bent(Noisy):
    """What is missed is far from normal, one of two values: the flow is bent, and one straight step goes astray."""

    def batch(self, step: int) -> Window:
        torch.manual_seed(step)
        first = torch.randn(32, 1, 4, 8)
        sign = torch.randint(0, 2, (32, 1, 1, 1)) * 2 - 1
        after = first + 0.5 * sign + 0.05 * torch.randn_like(first)
        return replace(window(32), tokens=torch.cat((first, after), 1))
