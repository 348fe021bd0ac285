"""SteadyFlow: steady states as a distribution around the operator's answer, and their mean by one pass or several."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from ups.models.config import SteadyConfig
from ups.models.residual import ResidualFlow
from ups.tensors import Condition
from ups.types import TaskSpec


class SteadyFlow(ResidualFlow):
    """The flow of what is missed of a steady state; its mean may be given back to it, to be bettered again.

    It refines steady tasks alone, in the place of a flow for all tasks.
    """

    Config: ClassVar[type] = SteadyConfig
    replaces: ClassVar[tuple[str, ...]] = ("residual", "consistency")

    def acts_on(self, task: TaskSpec) -> bool:
        return task.steady

    def refine_tokens(self, z: Tensor, before: Tensor, condition: Condition) -> Tensor:
        """A draw of the solution's tokens where the condition brings noise, and their mean where it does not."""
        scale = self.scale_of(condition.task)
        for _ in range(self.config.passes - 1):
            z = z + scale * self.sample(None, z, before[:, -1], condition)
        return super().refine_tokens(z, before, condition)
