"""BehindOperator: the base of stages that learn from single steps of a frozen operator, in tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ups.later import Tensor, torch
from ups.stages.stage import Stage
from ups.tensors import Condition, Window
from ups.types import ConfigError

if TYPE_CHECKING:
    from ups.models import Simulator
    from ups.models.residual import ResidualFlow


Step = tuple[Tensor, Tensor, Tensor, Condition]  # what the operator makes of the tokens before, these, what it misses


class BehindOperator(Stage):
    """A stage behind a frozen codec and operator that sees tokens alone."""

    def __init__(self, simulator: Simulator, config: Any = None) -> None:
        super().__init__(simulator, config)
        self.codec, self.operator = simulator.codec, simulator.operator

    @property
    def sees(self) -> Literal["frames", "tokens", "both"]:
        return "tokens"

    def _steps(self, window: Window, flow: ResidualFlow | None = None, noise: float = 0.0) -> list[Step]:
        """For each step: the operator's prediction, the tokens before it, what it misses, and the condition.

        The first begins at true tokens, with some `noise` in units of what is missed; and so does each after it, unless
        a `flow` draws where it begins."""
        from ups.models.copies import advanced

        steps, count = [], window.targets.shape[1]
        context = self.operator.config.looks_back(window.task.name)
        with torch.no_grad():
            tokens = self._tokens(window)
            before = tokens[:, :context]
            if noise and flow is not None:
                size = noise * torch.rand(len(before), *(1,) * (before.ndim - 1), device=before.device)
                before = before + size * flow.scale_of(window.task.name) * torch.randn_like(before)
            for i in range(count):
                condition, after = Condition.of(window, i), tokens[:, i + context]
                z = advanced(self.simulator, before, condition)
                steps.append((z, before[:, -1], after - z, condition))
                if flow is not None and i + 1 < count:
                    drawn = flow.sample(torch.randn_like(z), z, before[:, -1], condition)
                    after = z + flow.scale_of(window.task.name) * drawn
                before = torch.cat((before[:, 1:], after.unsqueeze(1)), 1)
        return steps

    def _tokens(self, window: Window) -> Tensor:
        """Tokens `(B, K + M, *G, D)` of context and targets: the window's own, or encoded now."""
        if window.tokens is not None:
            return window.tokens
        frames = torch.cat((window.context, window.targets), 1)
        z = torch.unflatten(
            self.codec.encode_alike(frames.flatten(0, 1), window.task, window.periodic, window.corner),
            0,
            frames.shape[:2],
        )
        count = window.context.shape[1]
        return torch.cat((self.simulator.pad_context(z[:, :count], Condition.of(window)), z[:, count:]), 1)

    @staticmethod
    def _sizes(task: str, missed: list[Tensor], changes: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Rms `(D,)` of what is missed in some steps, and of what changes in them."""
        missed_size, change_size = (
            torch.cat([x.flatten(0, -2) for x in each]).float().square().mean(0).sqrt() for each in (missed, changes)
        )
        if not bool((missed_size + change_size).isfinite().all()):
            raise ConfigError(f"{task}: what is missed in a step is not finite; train the operator anew.")
        return missed_size, change_size
