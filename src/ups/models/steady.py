"""SteadyFlow: steady states as a distribution around the operator's answer."""

from __future__ import annotations

from typing import ClassVar

from ups.models.config import SteadyConfig
from ups.models.residual import ResidualFlow
from ups.types import TaskSpec


class SteadyFlow(ResidualFlow):
    """The flow of what is missed of a steady state. It refines steady tasks alone, in the place of a flow for all."""

    Config: ClassVar[type] = SteadyConfig
    replaces: ClassVar[tuple[str, ...]] = ("residual", "consistency")

    def acts_on(self, task: TaskSpec) -> bool:
        return task.steady
