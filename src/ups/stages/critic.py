"""Stage `critic`: learns from draws and the truth to estimate how wrong a drawn frame is."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from ups.engine.train import TrainConfig
from ups.lazy_imports import Tensor, torch
from ups.models.config import CriticConfig
from ups.stages.behind import BehindOperator
from ups.stages.stage import StageConfig
from ups.stages.terms import square
from ups.tensors import Condition, Losses, Window
from ups.types import TaskSpec

if TYPE_CHECKING:
    from ups.models.critic import Critic

FIRST = 4  # steps by which it is judged while it learns
GUESS_FLOOR = 1e-3  # a square error, in its units, below which none is told from another


class CriticStageConfig(StageConfig):
    """Stage critic."""

    train: TrainConfig = Field(default_factory=lambda: TrainConfig(steps=1000, lr=1e-3))
    """Budget and optimizer."""


class CriticStage(BehindOperator):
    """Trains a critic on what the frozen flow, or its student, draws from true tokens.

    Of every number of a drawn token it guesses the logarithm of the square error: faint errors count as much as large
    ones, and a sample gives as many lessons as it has numbers.
    """

    name: ClassVar[str] = "critic"
    needs: ClassVar[tuple[str, ...]] = ("codec", "operator", "residual")
    also_uses: ClassVar[tuple[str, ...]] = ("consistency",)
    makes: ClassVar[str] = "critic"
    Config: ClassVar[type[StageConfig]] = CriticStageConfig
    PartConfig: ClassVar[type] = CriticConfig
    module: Critic

    @classmethod
    def learns(cls, task: TaskSpec) -> bool:
        """What steps: a steady state is not searched for."""
        return not task.steady

    @staticmethod
    def part() -> type[Critic]:
        from ups.models.critic import Critic

        return Critic

    def fit(self, *windows: Window, inherited: Collection[str] = ()) -> None:
        """Measure on some windows what draws miss, and what a step changes; the critic counts in units of that."""
        if (task := windows[0].task.name) not in inherited:
            steps = [step for window in windows for step in self._drawn(window, same=True)]
            missed, changes = [step[3] - step[0] for step in steps], [z - last for _, z, last, *_ in steps]
            self.module.fit_scales(task, *self._sizes(task, missed, changes))

    def loss(self, window: Window) -> Losses:
        """Square error of the logarithms, averaged over the steps of the window."""
        return {"guess": self._missed(window).mean()}

    def evaluate(self, window: Window) -> dict[str, Tensor]:
        """The loss of each sample, `(B,)`, on the first steps after the context, with the same draws every time."""
        few = dataclasses.replace(window, targets=window.targets[:, :FIRST])
        with torch.no_grad():
            return {f"{window.task.name} guess": self._missed(few, same=True)}

    def _missed(self, window: Window, same: bool = False) -> Tensor:
        """Mean square error of the guessed logarithms, `(B,)`."""
        total, scale = torch.zeros(len(window), device=window.context.device), self.module.scale_of(window.task.name)
        for drawn, z, last, truth, condition in self._drawn(window, same):
            wanted = (((drawn - truth) / scale).float().square() + GUESS_FLOOR).log()
            total = total + square(self.module(drawn, z, last, condition) - wanted)
        return total / window.targets.shape[1]

    def _drawn(self, window: Window, same: bool = False) -> list[tuple[Tensor, Tensor, Tensor, Tensor, Condition]]:
        """For each step: drawn tokens, the operator's, those before, the true ones, and the condition."""
        from ups.models.ensembles import Draws

        flow: Any = next(part for part in reversed(self.simulator.awake(window.task)) if part.draws)
        steps, scale = [], flow.scale_of(window.task.name)
        for i, (z, last, missed, condition) in enumerate(self._steps(window)):
            with torch.no_grad():
                noise = Draws(0, [0])(i, z) if same else torch.randn_like(z)
                drawn = z + scale * flow.sample(noise, z, last, condition)
            steps.append((drawn, z, last, z + missed, condition))
        return steps
