"""Stage `residual`: learns by flow matching the distribution of what the operator misses in a step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from ups.engine.train import TrainConfig
from ups.eval.ensembles import crps
from ups.eval.nrmse import capped, over_cells
from ups.lazy_imports import Tensor, torch
from ups.models.config import ResidualConfig
from ups.stages.behind import BehindOperator, Step
from ups.stages.stage import StageConfig
from ups.stages.terms import square
from ups.tensors import Losses, Window

if TYPE_CHECKING:
    from ups.models import Simulator
    from ups.models.residual import ResidualFlow

MEAN = 0.125  # the part of the samples by which it learns the mean
MEMBERS = 4  # of the ensembles that it is judged by while it learns


class ResidualStageConfig(StageConfig):
    """Stage residual."""

    train: TrainConfig = Field(default_factory=lambda: TrainConfig(steps=2000, lr=1e-3))
    """Budget and optimizer."""


class ResidualStage(BehindOperator):
    """Trains the flow behind a frozen codec and operator, on single steps from true tokens.

    At a random time between noise and what was missed it regresses the velocity from one to the other. One sample in
    eight starts from zeros at time 0 and learns the mean. Rollouts without draws use this. While it learns it is judged
    by the CRPS of small ensembles over whole rollouts: the mean alone would not ask for a spread.
    """

    name: ClassVar[str] = "residual"
    needs: ClassVar[tuple[str, ...]] = ("codec", "operator")
    makes: ClassVar[str] = "residual"
    Config: ClassVar[type[StageConfig]] = ResidualStageConfig
    PartConfig: ClassVar[type] = ResidualConfig
    rollouts: ClassVar[float] = MEMBERS
    module: ResidualFlow

    def __init__(self, simulator: Simulator, config: Any = None) -> None:
        super().__init__(simulator, config)
        self.flow = self.module

    @staticmethod
    def part() -> type[ResidualFlow]:
        from ups.models.residual import ResidualFlow

        return ResidualFlow

    def fit(self, *windows: Window, inherited: Collection[str] = ()) -> None:
        """Measure what the operator misses, and changes, in a step; the flow counts in units of that."""
        if (task := windows[0].task.name) not in inherited:
            self._fit_scales(task, [step for window in windows for step in self._steps(window)])

    def _fit_scales(self, task: str, steps: Sequence[Step]) -> None:
        missed, changes = [step[2] for step in steps], [z - last for z, last, *_ in steps]
        self.flow.fit_scales(task, *self._sizes(task, missed, changes))

    def loss(self, window: Window) -> Losses:
        """Square error of the velocity, over its usual square, averaged over the steps of the window."""
        scale, total = self.flow.scale_of(window.task.name), torch.zeros(len(window), device=window.context.device)
        count = window.targets.shape[1]
        for z, last, missed, condition in self._steps(window):
            wanted, noise = missed / scale, torch.randn_like(z)
            time, still = torch.rand(2, len(z), device=z.device, dtype=z.dtype)
            moving = (still >= MEAN).to(z.dtype)
            at, noisy = ((x * moving).reshape(-1, *(1,) * (z.ndim - 1)) for x in (time, torch.ones_like(time)))
            noise, time = noisy * noise, time * moving
            velocity = self.flow((1 - at) * noise + at * wanted, time, z, last, condition)
            total = total + square(velocity - (wanted - noise)) / 2
        return {"flow": total.mean() / count}

    def evaluate(self, window: Window) -> dict[str, Tensor]:
        """CRPS of whole rollouts, in deviations of the data, `(B,)`."""
        from ups.models.ensembles import members_of

        steps, std = window.targets.shape[1], self.codec.statistics_of(window.task).scale
        with torch.no_grad():
            members = members_of(self.simulator.simulate, window, steps, MEMBERS, together=MEMBERS)
            errors = crps(members / std, window.targets / std)
        return {f"{window.task.name} CRPS": capped(over_cells(errors, window.weights).mean((1, 2)))}
