"""ConsistencyStep: the student of a flow; it draws in one step what its teacher draws in several."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ups.models.config import ConsistencyConfig
from ups.models.part import Blueprint
from ups.models.residual import ResidualFlow
from ups.tensors import Condition
from ups.types import TaskSpec


class ConsistencyStep(ResidualFlow):
    """The map from noise to where the teacher's flow ends, by one evaluation of a network like the teacher's.

    It takes the teacher's place in a rollout: `replaces`.
    """

    Config: ClassVar[type] = ConsistencyConfig
    replaces: ClassVar[tuple[str, ...]] = ("residual",)

    @classmethod
    def build(cls, config: Any, blueprint: Blueprint) -> Self:
        codec, teacher = blueprint.parts["codec"], blueprint.parts["residual"]
        student = cls(teacher.config, codec.config.dim, blueprint.tasks, codec.config.patch, codec.shapes)
        student.config, student.evaluations = config, 1
        student.connect(blueprint.parts)
        return student

    @torch.no_grad()
    def start_from(self, teacher: ResidualFlow, task: TaskSpec | None = None) -> None:
        """Take over the teacher's weights: then its answer is one step of Euler along the teacher's flow. Of one `task`
        only those that are its own: what the student knows of others stays."""
        weights = teacher.state_dict()
        for name, tensor in self.state_dict().items():  # where the student is a shape without memory, that does nothing
            if task is None or task.name in name.split("."):
                tensor.copy_(weights[name])
            elif name in self.rows:
                tensor[self.row(task.name)] = weights[name][teacher.row(task.name)]

    def sample(self, noise: Tensor | None, z: Tensor, last: Tensor, condition: Condition) -> Tensor:
        if noise is None:
            return super().sample(None, z, last, condition)
        drawn: Tensor = noise + self(noise, z.new_zeros(z.shape[0]), z, last, condition)
        return drawn
