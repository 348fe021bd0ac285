"""Stage `consistency`: trains a student to draw in one step what the flow draws in several."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from ups.engine.train import TrainConfig
from ups.lazy_imports import torch
from ups.models.config import ConsistencyConfig
from ups.stages.residual import MEAN, ResidualStage
from ups.stages.stage import StageConfig
from ups.stages.terms import square
from ups.tensors import Losses, Window

if TYPE_CHECKING:
    from ups.models import Simulator
    from ups.models.consistency import ConsistencyStep


class ConsistencyStageConfig(StageConfig):
    """Stage consistency."""

    train: TrainConfig = Field(default_factory=lambda: TrainConfig(steps=1000, lr=5e-4))
    """Budget and optimizer."""


class ConsistencyStage(ResidualStage):
    """Trains a student, which starts as a copy of its teacher, to end in one step where the teacher's flow ends.

    Teacher and student begin at the same noise, so that the answer is a map and no average: a student that gives
    nothing, or always the same, is as far from it as the draws are wide. For some samples, without noise, it learns the
    teacher's mean.
    """

    name: ClassVar[str] = "consistency"
    needs: ClassVar[tuple[str, ...]] = ("codec", "operator", "residual")
    makes: ClassVar[str] = "consistency"
    Config: ClassVar[type[StageConfig]] = ConsistencyStageConfig
    PartConfig: ClassVar[type] = ConsistencyConfig
    module: ConsistencyStep

    def __init__(self, simulator: Simulator, config: Any = None) -> None:
        super().__init__(simulator, config)
        self.teacher: Any = simulator.parts["residual"]

    @staticmethod
    def part() -> type[ConsistencyStep]:
        from ups.models.consistency import ConsistencyStep

        return ConsistencyStep

    def fit(self, *windows: Window, inherited: Collection[str] = ()) -> None:
        """The student starts as its teacher; one that knew other tasks, in what is a new task's own alone."""
        task = windows[0].task
        if task.name not in inherited:
            self.module.start_from(self.teacher, task if inherited else None)

    def loss(self, window: Window) -> Losses:
        """Square distance of the student's draw to the teacher's from the same noise, in units of what is missed."""
        total = torch.zeros(len(window), device=window.context.device)
        for z, last, _, condition in self._steps(window):
            noise, still = torch.randn_like(z), torch.rand(len(z), device=z.device) < MEAN
            rows = still.reshape(-1, *(1,) * (z.ndim - 1))
            with torch.no_grad():
                mean = self.teacher.sample(None, z, last, condition)
                wanted = torch.where(rows, mean, self.teacher.sample(noise, z, last, condition))
            noise = noise.masked_fill(rows, 0.0)  # from no noise the student's step is its mean
            total = total + square(self.module.sample(noise, z, last, condition) - wanted)
        return {"distance": total.mean() / window.targets.shape[1]}
