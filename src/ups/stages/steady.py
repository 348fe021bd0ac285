"""Stage `steady`: learns the distribution of steady states around the operator's prediction."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from ups.engine.train import TrainConfig
from ups.lazy_imports import Tensor, torch
from ups.models.config import SteadyConfig
from ups.stages.residual import ResidualStage
from ups.stages.stage import Stage, StageConfig, learns_images, with_images
from ups.stages.terms import raised, share, square
from ups.tensors import Losses, Window
from ups.types import TaskSpec

if TYPE_CHECKING:
    from ups.models import Simulator
    from ups.models.steady import SteadyFlow


class SteadyStageConfig(StageConfig):
    """Stage steady."""

    train: TrainConfig = Field(default_factory=lambda: TrainConfig(steps=2000, lr=1e-3))
    """Budget and optimizer."""
    mean: float = Field(default=0.75, gt=0, lt=1)
    """Share of the samples from which it learns the mean; from the others it learns to draw."""


class SteadyStage(ResidualStage):
    """Trains the flow of stage `residual` on steady tasks alone, most of all for its mean.

    The mean counts as nRMSE does: the error of each sample over the size of its solution. Weights are chosen by the
    nRMSE of the mean.
    """

    name: ClassVar[str] = "steady"
    makes: ClassVar[str] = "steady"
    Config: ClassVar[type[StageConfig]] = SteadyStageConfig
    PartConfig: ClassVar[type] = SteadyConfig
    rollouts: ClassVar[float] = 1
    config: SteadyStageConfig
    module: SteadyFlow

    def __init__(self, simulator: Simulator, config: Any = None) -> None:
        super().__init__(simulator, config)
        # Per task: the error of the operator's tokens over their size, in the mean over samples.
        self.errors: dict[str, float] = {}

    @staticmethod
    def part() -> type[SteadyFlow]:
        from ups.models.steady import SteadyFlow

        return SteadyFlow

    @classmethod
    def learns(cls, task: TaskSpec) -> bool:
        return task.steady

    @property
    def sees(self) -> Literal["frames", "tokens", "both"]:
        return "frames" if learns_images(self) else "tokens"

    def fit(self, *windows: Window, inherited: Collection[str] = ()) -> None:
        """The scales of stage `residual`, and the usual error of the operator."""
        task, steps = windows[0].task.name, [step for window in windows for step in self._steps(window)]
        if task not in inherited:
            self._fit_scales(task, steps)
        errors = torch.cat([share(missed, z + missed).sqrt() for z, _, missed, _ in steps])
        self.errors[task] = max(errors.mean().item(), 1e-9)

    def loss(self, window: Window) -> Losses:
        """By chance for each sample either the error of the mean over its usual one, or the velocity's square error."""
        window = with_images(self.simulator, window)
        ((z, last, missed, condition),) = self._steps(window)
        scale, usual = self.flow.scale_of(window.task.name), self.errors.get(window.task.name, 1.0)
        wanted, noise = missed / scale, torch.randn_like(z)
        time, chance = torch.rand(2, len(z), device=z.device, dtype=z.dtype)
        drawn = chance >= self.config.mean
        rows = drawn.reshape(-1, *(1,) * (z.ndim - 1))
        time, noise = time * drawn, noise * rows
        at = time.reshape(rows.shape)
        velocity = self.flow((1 - at) * noise + at * wanted * rows, time, z, last, condition)
        flow = square(velocity - (wanted - noise)) / 2
        mean = raised(share(scale * (velocity - wanted), z + missed), 0.5) / usual
        return {"steady": torch.where(drawn, flow, mean).mean()}

    def evaluate(self, window: Window) -> dict[str, Tensor]:
        """nRMSE of the mean, in physical units, `(B,)`."""
        return Stage.evaluate(self, window)
