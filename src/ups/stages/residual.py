"""Stage `residual`: what the operator misses in a step, learnt as a distribution by flow matching."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from ups.engine.train import TrainConfig
from ups.eval.ensembles import crps
from ups.later import Tensor, torch
from ups.models.config import ResidualConfig
from ups.stages.stage import LOST, Stage, StageConfig
from ups.stages.terms import square
from ups.tensors import Condition, Losses, Window
from ups.types import ConfigError

if TYPE_CHECKING:
    from ups.models import Simulator
    from ups.models.residual import ResidualFlow

MEAN = 0.125  # the part of the samples by which it learns the mean
MEMBERS = 4  # of the ensembles that it is judged by while it learns


class ResidualStageConfig(StageConfig):
    """Stage residual."""

    train: TrainConfig = Field(default_factory=lambda: TrainConfig(steps=2000, lr=1e-3))
    """Budget and optimizer."""


class ResidualStage(Stage):
    """Trains the flow behind a frozen codec and operator, on single steps from true tokens.

    At a random time between noise and what was missed it regresses the velocity from one to the other; for some samples
    from zero, where no noise ever is, at time 0: what is asked for where nothing is drawn, the mean. While it
    learns it is judged by the CRPS of small ensembles over whole rollouts: the mean alone would not ask for a spread.
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
        self.codec, self.operator, self.flow = simulator.codec, simulator.operator, self.module

    @staticmethod
    def part() -> type[ResidualFlow]:
        from ups.models.residual import ResidualFlow

        return ResidualFlow

    @property
    def sees(self) -> Literal["frames", "tokens", "both"]:
        return "tokens"

    def fit(self, window: Window, inherited: bool = False) -> None:
        """Measure on a batch what the operator misses, and changes, in a step; the flow counts in units of that."""
        if inherited:
            return
        with torch.no_grad():
            steps = [(missed, z - last) for z, last, missed, _ in self._steps(window)]
        missed, change = (torch.cat([step[i].flatten(0, -2) for step in steps]) for i in (0, 1))
        sizes = [x.float().square().mean(0).sqrt() for x in (missed, change)]
        if not all(bool(size.isfinite().all()) for size in sizes):
            raise ConfigError(f"{window.task.name}: what the operator misses is not finite; train the operator anew.")
        self.flow.fit_scales(window.task.name, *sizes)

    def loss(self, window: Window) -> Losses:
        """Square error of the velocity, over its usual square, averaged over the steps of the window."""
        scale, total = self.flow.scale_of(window.task.name), torch.zeros(len(window), device=window.context.device)
        count = window.targets.shape[1]
        for z, last, missed, condition in self._steps(window):
            wanted, noise = missed / scale, torch.randn_like(z)
            time, still = torch.rand(2, len(z), device=z.device, dtype=z.dtype)
            moving = (still >= MEAN).to(z.dtype)
            at, kept = ((x * moving).reshape(-1, *(1,) * (z.ndim - 1)) for x in (time, torch.ones_like(time)))
            noise, time = kept * noise, time * moving
            velocity = self.flow((1 - at) * noise + at * wanted, time, z, last, condition)
            total = total + square(velocity - (wanted - noise)) / 2
        return {"flow": total.mean() / count}

    def _steps(self, window: Window) -> list[tuple[Tensor, Tensor, Tensor, Condition]]:
        """For each step: the operator's prediction from true tokens, those before it, what it misses, and the
        condition."""
        steps = []
        with torch.no_grad():
            tokens = self._tokens(window)
            context = self.operator.config.context
            for i in range(window.targets.shape[1]):
                before, condition = tokens[:, i : i + context], Condition.of(window, i)
                z = self.operator(before, condition)
                steps.append((z, before[:, -1], tokens[:, i + context] - z, condition))
        return steps

    def _tokens(self, window: Window) -> Tensor:
        """Tokens `(B, K + M, *G, D)` of context and targets: the window's own, or encoded now."""
        if window.tokens is not None:
            return window.tokens
        frames = torch.cat((window.context, window.targets), 1)
        z = torch.unflatten(
            self.codec.encode_alike(frames.flatten(0, 1), window.task, window.periodic), 0, frames.shape[:2]
        )
        count = window.context.shape[1]
        return torch.cat((self.simulator.filled(z[:, :count]), z[:, count:]), 1)

    def evaluate(self, window: Window) -> dict[str, Tensor]:
        """CRPS of whole rollouts, in deviations of the data, `(B,)`."""
        from ups.models.ensembles import members_of

        steps, std = window.targets.shape[1], self.codec.statistics_of(window.task).std
        with torch.no_grad():
            members = members_of(self.simulator.simulate, window, steps, MEMBERS, together=MEMBERS)
            errors = crps(members / std, window.targets / std)
            if window.mask is not None:
                cells = window.mask.unsqueeze(1).unsqueeze(-1)
                errors = torch.where(cells, errors, torch.nan).flatten(1).nanmean(1)
            else:
                errors = errors.flatten(1).mean(1)
        return {f"{window.task.name} CRPS": errors.nan_to_num(LOST, LOST).clamp_max(LOST)}
