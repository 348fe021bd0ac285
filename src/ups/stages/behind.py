"""BehindOperator: the base of stages that learn from single steps of a frozen operator, in tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ups.lazy_imports import Tensor, torch
from ups.stages.stage import Stage, context_and_targets
from ups.tensors import Condition, Window
from ups.types import ConfigError

if TYPE_CHECKING:
    from ups.models import Simulator


Step = tuple[Tensor, Tensor, Tensor, Condition]  # what the operator makes of the tokens before, these, what it misses


class BehindOperator(Stage):
    """A stage behind a frozen codec and operator that sees tokens alone."""

    def __init__(self, simulator: Simulator, config: Any = None) -> None:
        super().__init__(simulator, config)
        self.codec = simulator.codec

    @property
    def sees(self) -> Literal["frames", "tokens", "both"]:
        return "tokens"

    def _steps(self, window: Window) -> list[Step]:
        """For each step, which begins at true tokens: the operator's prediction, the tokens before it, what it misses,
        and the condition."""
        from ups.models.copies import advanced

        steps = []
        with torch.no_grad():
            context, targets = context_and_targets(self.simulator, window)
            tokens, count = torch.cat((context, targets), 1), context.shape[1]
            before = tokens[:, :count]
            for i in range(window.targets.shape[1]):
                condition, after = Condition.of(window, i), tokens[:, count + i]
                z = advanced(self.simulator, before, condition)
                steps.append((z, before[:, -1], after - z, condition))
                before = torch.cat((before[:, 1:], after.unsqueeze(1)), 1)
        return steps

    @staticmethod
    def _sizes(task: str, missed: list[Tensor], changes: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Rms `(D,)` of what is missed in some steps, and of what changes in them."""
        missed_size, change_size = (
            torch.cat([x.flatten(0, -2) for x in each]).float().square().mean(0).sqrt() for each in (missed, changes)
        )
        if not bool((missed_size + change_size).isfinite().all()):
            raise ConfigError(f"{task}: what is missed in a step is not finite; train the operator anew.")
        return missed_size, change_size
