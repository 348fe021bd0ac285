"""Stage `operator`: learns to advance tokens by one frame, over one step or a few, judged on decoded fields."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from ups.engine.train import TrainConfig
from ups.lazy_imports import Tensor, torch
from ups.models.config import OperatorConfig
from ups.stages.stage import (
    Stage,
    StageConfig,
    UnrolledConfig,
    context_and_targets,
    encoded,
    learns_images,
    with_images,
)
from ups.stages.terms import raised, share
from ups.tensors import Condition, LatentState, Losses, Window
from ups.types import ConfigError

if TYPE_CHECKING:
    from ups.models import LatentOperator, Simulator


@dataclass(frozen=True)
class OperatorLoss:
    """Weights of the operator's losses (0 leaves a term out), and how the steps in a training window grow in number."""

    increment: float = 1.0
    """Mean square error of the decoded frame, divided by that of "no change": 1 is as bad as persistence usually is."""
    latent: float = 1.0
    """The same for the predicted tokens; used alone it is cheap, for nothing is decoded. Without it, nothing controls
    what tokens hold beyond the field, and rollouts drift."""
    power: Literal["auto"] | float = "auto"
    """Power of a sample's square error in the two above: 1 is the square, 0.5 its root, as in nRMSE, so that hard
    samples dominate less. auto: 0.5 for all tasks if changes are measured by the sample (model.operator.step_scale),
    else 1."""
    noise: float = 0.0
    """Noise added to the tokens of the context, in units of their standard deviation; steadies long rollouts."""
    curriculum: float = 0.5
    """Share of the budget in which the steps in a training window grow from 1 to `unroll`; 0: all from the start."""

    def __post_init__(self) -> None:
        if not 0 <= self.curriculum <= 1:
            raise ConfigError(f"operator.loss.curriculum is {self.curriculum:g}; it is a part of the budget, 0 to 1.")
        for name, weight in {"increment": self.increment, "latent": self.latent, "noise": self.noise}.items():
            if not 0 <= weight < math.inf:
                raise ConfigError(f"operator.loss.{name} is {weight:g}, but must be a number of at least 0.")
        if self.power != "auto" and not 0 < self.power <= 1:
            raise ConfigError(f"operator.loss.power is {self.power:g}, but must be above 0 and at most 1, or auto.")

    @property
    def terms(self) -> list[str]:
        """The names of the terms that count, in the order in which they are added up."""
        return [name for name, weight in (("increment", self.increment), ("latent", self.latent)) if weight]


class OperatorStageConfig(UnrolledConfig):
    """Stage operator."""

    train: TrainConfig = Field(default_factory=lambda: TrainConfig(steps=2000, lr=2e-3))
    """Budget and optimizer."""
    loss: OperatorLoss = Field(default_factory=OperatorLoss)
    """Weights of the losses."""


class OperatorStage(Stage):
    """Trains a latent operator behind a frozen codec, over as many steps as the windows have targets.

    Every term is a mean over samples of a value that depends on that sample and on constants of its task alone
    (`fit`), so that the loss of a batch is the mean of the losses of its parts, weighted by their samples.
    """

    name: ClassVar[str] = "operator"
    needs: ClassVar[tuple[str, ...]] = ("codec",)
    makes: ClassVar[str] = "operator"
    Config: ClassVar[type[StageConfig]] = OperatorStageConfig
    PartConfig: ClassVar[type] = OperatorConfig
    config: OperatorStageConfig
    module: LatentOperator

    def __init__(self, simulator: Simulator, config: OperatorStageConfig | None = None) -> None:
        super().__init__(simulator, config)
        self.codec, self.operator, self.weights = simulator.codec, self.module, self.config.loss
        usual = 0.5 if self.operator.config.by_sample else 1.0
        self.power = usual if self.weights.power == "auto" else self.weights.power
        # Per task: the share of fields and of tokens that changes in one step, which "no change" gets wrong.
        self.changes: dict[str, tuple[float, float]] = {}

    @staticmethod
    def part() -> type[LatentOperator]:
        from ups.models.operator import LatentOperator

        return LatentOperator

    @property
    def sees(self) -> Literal["frames", "tokens", "both"]:
        if learns_images(self):
            return "frames"
        return "both" if self.weights.increment else "tokens"

    def fit(self, *windows: Window, inherited: Collection[str] = ()) -> None:
        """Measure how much a step changes a task; the losses and the operator count in units of that."""
        with torch.no_grad():
            self._measure(windows, inherited)

    def _measure(self, windows: Sequence[Window], inherited: Collection[str]) -> None:
        task, steps = windows[0].task, windows[0].targets.shape[1]
        frames = [torch.cat((window.state.unsqueeze(1), window.targets), 1) for window in windows]
        tokens = [encoded(self.codec, each, window) for each, window in zip(frames, windows, strict=True)]
        if task.name not in inherited:
            self._fit_scale(windows, tokens)
        if not task.steady:
            self.operator.fit_range(task.name, torch.cat([z.flatten(0, -2) for z in tokens]))
        shares = []
        for window, each, z in zip(windows, frames, tokens, strict=True):
            normal = each / self.codec.statistics_of(task).scale
            mask = None if window.weights is None else window.weights.repeat_interleave(steps, 0)
            pairs = ((normal, mask), (z, None))
            shares.append([share(x.diff(dim=1).flatten(0, 1), x[:, 1:].flatten(0, 1), cells) for x, cells in pairs])
        cells, own = (torch.cat(each).mean().item() for each in zip(*shares, strict=True))
        if not steps or not (math.isfinite(cells) and math.isfinite(own)):
            raise ConfigError(f"{task.name}: a step cannot be measured on windows without targets or finite values.")
        # Not of what is left where states are carried: beside other tasks, that is nearly nothing to learn.
        self.changes[task.name] = (max(cells, 1e-12), max(own, 1e-12))

    def _fit_scale(self, windows: Sequence[Window], tokens: Sequence[Tensor]) -> None:
        """Fit the operator's drift on the grid that most samples have, then the size of what a step changes beyond that
        drift."""
        shown = []
        for window, z in zip(windows, tokens, strict=True):
            steps = [window.step(i) for i in range(z.shape[1] - 1)]
            dt = torch.stack(steps, 1) if steps else z.new_zeros(len(z), 0)
            shown.append((z, Condition.of(window), dt))
        drift = self.operator.fit_drift(*max(shown, key=lambda each: len(each[0])))
        left = [self.operator.increments(*each, drift).square().flatten(1).mean(1) for each in shown]
        self.operator.fit_increments(windows[0].task.name, torch.cat(left).mean().sqrt())

    def _change(self, task: str) -> tuple[float | Tensor, float | Tensor]:
        """The usual square change of a step, of fields and of tokens, as `fit` measured it. Before `fit` it is the
        operator's own scale for both (normalised fields and tokens are near 1)."""
        if task in self.changes:
            return self.changes[task]
        variance = self.operator.scale[self.operator.conditioner.index[task]].square().mean()
        return variance, variance

    def view(self, window: Window, progress: float) -> Window:
        """The window's first targets: 1 at first, all of them once `curriculum` of the budget is used."""
        most, part = window.targets.shape[1], self.weights.curriculum
        grown = 1.0 if part == 0 else min(1.0, progress / part)
        count = 1 + int(grown * (most - 1) + 1e-9)
        return window if count >= most else dataclasses.replace(window, targets=window.targets[:, :count])

    def loss(self, window: Window) -> Losses:
        """Terms averaged over the steps of the unroll."""
        w, task = self.weights, window.task
        window = with_images(self.simulator, window)
        condition, uneven = Condition.of(window), window.dt.ndim > 1
        with torch.no_grad():
            z, wanted = self._tokens(window)
        if w.noise:
            size = z.flatten(1).std(1).reshape(-1, *(1,) * (z.ndim - 1))
            z = z + w.noise * torch.randn_like(z) * size
        totals = dict.fromkeys(w.terms, torch.zeros(len(z), device=z.device))
        for i in range(window.targets.shape[1]):
            z_next = self.operator(z, Condition.of(window, i) if uneven else condition)
            if w.latent:
                error = share(z_next - wanted[:, i], wanted[:, i]) / self._change(task.name)[1]
                totals["latent"] = totals["latent"] + w.latent * raised(error, self.power)
            if w.increment:
                error = self._increment_error(z_next, window, i)
                totals["increment"] = totals["increment"] + w.increment * raised(error, self.power)
            z = torch.cat((z[:, 1:], z_next.unsqueeze(1)), 1)
        return {name: value.mean() / window.targets.shape[1] for name, value in totals.items()}

    def _tokens(self, window: Window) -> tuple[Tensor, Tensor]:
        """Tokens of the context, and of the targets where they are needed."""
        part = window if self.weights.latent else dataclasses.replace(window, targets=window.targets[:, :0])
        tokens = context_and_targets(self.simulator, part)
        if self.weights.increment and not window.targets.shape[-1]:
            raise ConfigError("the loss increment compares fields, and these windows hold tokens alone; give both.")
        return tokens

    def _increment_error(self, z: Tensor, window: Window, step: int) -> Tensor:
        """The square error `(B,)` of the frame that tokens after a step stand for, in units of "no change"."""
        task, truth = window.task, window.targets[:, step]
        state = LatentState(z, window.grid)
        predicted = self.codec.decode(state, task, tuple(truth.shape[1:-1])).float()
        scale = self.codec.statistics_of(task).scale
        predicted, truth = predicted / scale, truth / scale
        return share(predicted - truth, truth, window.weights) / self._change(task.name)[0]
