"""Stepping: what a simulator does in one step of a window: advance → refine → decode → guard → carry on."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import torch
from torch import Tensor

from ups.models.codec import Codec
from ups.models.config import SimulatorConfig
from ups.models.operator import LatentOperator
from ups.models.part import Part
from ups.models.points import Holes, interpolate
from ups.physics.constraints import Within
from ups.physics.laws import repairable_laws, repaired
from ups.tensors import Condition, LatentState, Window
from ups.types import Domain, TaskSpec


class Parts(Protocol):
    """What steps are made by: a simulator."""

    codec: Codec
    operator: LatentOperator
    config: SimulatorConfig

    def awake(self) -> list[Part]: ...

    def encode_context(self, context: Tensor, task: TaskSpec, periodic: tuple[bool, ...]) -> Tensor: ...


class Stepping:
    """The steps of a simulator after the context of a window, on its grid or at `points (P, n)` of [0, 1)^n."""

    def __init__(self, simulator: Parts, window: Window, points: Tensor | None = None) -> None:
        self.simulator, self.window, self.points = simulator, window, points
        self.task, self.periodic = simulator.codec.task(window.task), window.periodic
        self.grid, self.reference = tuple(window.context.shape[2:-1]), window.state
        self.domain = Domain.box(self.task.bounds, self.grid, self.periodic)
        self.reencode = simulator.config.reencode
        self.laws = repairable_laws(self.task, self.periodic) if simulator.config.guard else ()
        self.bounds = [law for law in self.laws if isinstance(law, Within)]
        # Values at points and tokens of predicted frames are made of all cells around, so none may hold just anything.
        whole = self.reencode or points is not None
        self.holes = Holes(window.mask) if window.mask is not None and whole else None
        self._condition = Condition.of(window)

    def start(self) -> Tensor:
        """Tokens `(B, K, *G, D)` of the context."""
        return self.simulator.encode_context(self.window.context, self.task, self.periodic)

    def condition(self, step: int) -> Condition:
        """What drives a step."""
        return Condition.of(self.window, step) if self.window.dt.ndim > 1 else self._condition

    def step(self, z: Tensor, step: int, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The context's tokens after those of `z (B, K, *G, D)`, and the frame `(B, *S, C)` of the last of them, or its
        values at points `(B, P, C)`, in physical units. Parts that draw do so with `noise (B, *G, D)`."""
        condition = self.condition(step)
        after: Tensor = self.simulator.operator(z, condition)
        condition = condition if noise is None else dataclasses.replace(condition, noise=noise)
        for part in self.simulator.awake():
            after = part.refine_tokens(after, z, condition)
        state, frame = LatentState(after, self.periodic), None
        if self.points is None or self.reencode or self.holes is not None:
            frame = self.refined(self.simulator.codec.decode(state, self.task, self.grid), condition)
            frame = repaired(frame, self.laws, self.reference, self.domain, self.window.mask)
            frame = frame if self.holes is None else self.holes.filled(frame)
        values = frame if self.points is None else self._at_points(self.points, state, frame, condition)
        if self.reencode:
            assert frame is not None
            state = self.simulator.codec.encode(frame, self.task, self.periodic)
        assert values is not None
        return torch.cat((z[:, 1:], state.z.unsqueeze(1)), 1), values

    def _at_points(self, points: Tensor, state: LatentState, frame: Tensor | None, condition: Condition) -> Tensor:
        places = points.expand(len(state.z), *points.shape)
        if self.holes is None:
            values = self.refined(self.simulator.codec.query(state, self.task, places), condition)
        else:
            assert frame is not None
            values = interpolate(frame, places, self.periodic, local=True)
        return repaired(values, self.bounds, self.reference, self.domain)

    def refined(self, frame: Tensor, condition: Condition) -> Tensor:
        """A frame, or values at points, as the other parts correct it."""
        for part in self.simulator.awake():
            frame = part.refine_frame(frame, condition)
        return frame
