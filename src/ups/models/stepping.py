"""Stepping: makes the steps of a rollout, each advance → refine → limit → decode → guard → carry on."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from ups.models.copies import advanced
from ups.models.ensembles import Draws
from ups.models.limits import FARTHEST, FARTHEST_REPAIRED, FARTHEST_TOKEN, ValueRange, known_span
from ups.models.points import Holes, interpolate, seen_from
from ups.models.simulator_like import SimulatorLike
from ups.physics.laws import aims_of, guarding, repaired
from ups.progress import reporter
from ups.tensors import Condition, LatentState, Window
from ups.types import Points


class Stepping:
    """The steps of a simulator after the context of a window, on its grid or at `points (P, n)` of [0, 1)^n."""

    def __init__(self, simulator: SimulatorLike, window: Window, points: Tensor | None = None) -> None:
        self.simulator, self.window, self.points = simulator, window, points
        self.task, self.reference = simulator.codec.task(window.task), window.state
        self.grid = window.grid._replace(corner=simulator.codec.beginning(self.task, window.grid))
        self.laws = guarding(self.task, self.grid.periodic, simulator.config.guard)
        self.aims = aims_of(self.laws, self.reference, self.grid, window.mask)
        self.bounds = [bound for law in self.laws if (bound := law.at_points()) is not None]
        self.bound_aims = aims_of(self.bounds, self.reference, self.grid, window.mask) if points is not None else []
        # Values at points and tokens of predicted frames are made of all cells around, so none may hold just anything.
        whole = bool(self.laws) or points is not None
        self.holes = Holes(window.mask) if window.mask is not None and whole else None
        self._condition = Condition.of(window)
        span = None if self.task.steady else known_span(simulator, window)
        self.values = None if span is None else span.widened(FARTHEST)
        self.repaired_values = None if span is None else span.widened(FARTHEST_REPAIRED)
        self._tokens: ValueRange | None = None
        self.unrepaired: Tensor | None = None  # the last frame as it was before the laws repaired it

    def start(self) -> Tensor:
        """Tokens `(B, K, *G, D)` of the context."""
        z = self.simulator.encode_context(self.window.context, self.condition(0))
        self.keep_near(z)
        return z

    def keep_near(self, start: Tensor) -> None:
        """Keep the tokens of all steps near those of training and those of the context, `start (B, K, *G, D)`."""
        operator = self.simulator.operator
        row = operator.row(self.task.name)
        self._tokens = ValueRange.of(operator.least[row], operator.most[row], start).widened(FARTHEST_TOKEN)

    def condition(self, step: int) -> Condition:
        """What drives a step."""
        return Condition.of(self.window, step) if self.window.dt.ndim > 1 else self._condition

    def frames(self, steps: int, draw: Draws | None = None) -> Tensor:
        """The frames of so many steps, `(B, steps, *S, C)`; with `draw` those of one member of an ensemble."""
        z, frames, tell = self.start(), list[Tensor](), reporter()
        whole: Tensor | None = None  # without gradients each goes to its place at once, for the sake of memory
        for i in range(steps):
            z, frame = self.step(z, i, None if draw is None else draw(i, z[:, -1]))
            if torch.is_grad_enabled():
                frames.append(frame)
            else:
                whole = frame.new_empty(frame.shape[0], steps, *frame.shape[1:]) if whole is None else whole
                whole[:, i] = frame
            tell((i + 1) / steps)
        return torch.stack(frames, 1) if whole is None else whole

    def step(self, z: Tensor, step: int, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The context's tokens after those of `z (B, K, *G, D)`, and the frame `(B, *S, C)` of the last of them, or its
        values at points `(B, P, C)`, in physical units. Parts that draw do so with `noise (B, *G, D)`."""
        predicted = advanced(self.simulator, z, self.condition(step))
        return self.settle(z, self.refine(predicted, z, step, noise), step)

    def refine(self, predicted: Tensor, z: Tensor, step: int, noise: Tensor | None = None) -> Tensor:
        """The operator's tokens `(B, *G, D)` as the other parts correct them."""
        condition = self.condition(step)
        condition = condition if noise is None else dataclasses.replace(condition, noise=noise)
        for part in self.simulator.awake(self.task):
            predicted = part.refine_tokens(predicted, z, condition)
        return predicted

    def settle(self, z: Tensor, after: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """What `step` gives, where `after` are the tokens of the next frame: they are kept near those of training,
        decoded, and the frame is repaired. So a state that a network has never seen leads to none further away."""
        condition = self.condition(step)
        if self.values is not None:
            if self._tokens is None:
                self.start()
            assert self._tokens is not None
            after = self._tokens.keep(after)
        state = LatentState(after, self.grid)
        own = self.simulator.codec.decode(state, self.task)
        own = self.limited(own)
        if self.points is not None and not self.laws and self.holes is None:
            return self._next(z, after), self._at_points(self.points, own, state, condition)
        raw = self.refined(self.simulator.codec.brought_to(own, self.task, state, self.grid.shape), condition)
        self.unrepaired = raw = raw if raw is own else self.limited(raw)  # a curve through values may overshoot them
        frame = repaired(raw, self.laws, self.reference, self.grid, self.window.mask, self.aims)
        if self.laws and self.repaired_values is not None:  # what is given may hold a total that no such frame can have
            frame = self.repaired_values.keep(frame)
        if self.holes is not None:
            raw, frame = self.holes.filled(raw), self.holes.filled(frame)
        values = frame if self.points is None else self._at_points(self.points, own, state, condition, raw, frame)
        return self._next(z, self._carried(after, raw, frame)), values

    def _next(self, z: Tensor, after: Tensor) -> Tensor:
        return torch.cat((z[:, 1:], after.unsqueeze(1)), 1)

    def _carried(self, z: Tensor, raw: Tensor, frame: Tensor) -> Tensor:
        """The tokens to go on from, of a `frame` that was `raw` before its repair: moved by the repair alone, so that
        no error of the codec comes in."""
        if not self.laws:
            return z
        return self.simulator.codec.moved(z, frame - raw, self.task, self.window.grid)

    def _at_points(
        self,
        points: Tensor,
        own: Tensor,
        state: LatentState,
        condition: Condition,
        raw: Tensor | None = None,
        frame: Tensor | None = None,
    ) -> Tensor:
        """Values at points: of a field without holes those between the cells of the codec's `own` grid, moved by what
        the repair moved there; else those between the cells of the repaired `frame`."""
        places = points.expand(len(own), *points.shape)
        there = seen_from(self.grid.corner, places)
        if self.holes is not None:
            assert frame is not None
            values = interpolate(frame, there, self.grid.periodic, local=True)
        else:
            values = interpolate(own, self.simulator.codec.places(places, self.task, state), self.grid.periodic)
            values = self.refined(values, condition)
            if raw is not None and frame is not None and not isinstance(self.grid, Points):
                values = values + interpolate(frame - raw, there, self.grid.periodic)
        return self.bounded(values)

    def bounded(self, values: Tensor) -> Tensor:
        """Values at points `(B, P, C)` kept in their range and within the bounds of the guarding laws, also between
        cells."""
        return repaired(self.limited(values), self.bounds, self.reference, self.grid, aims=self.bound_aims)

    def limited(self, values: Tensor) -> Tensor:
        """Values `(B, …, C)`, none further beyond the range of training than is allowed."""
        return values if self.values is None else self.values.keep(values)

    def refined(self, frame: Tensor, condition: Condition) -> Tensor:
        """A frame, or values at points, as the other parts correct it."""
        for part in self.simulator.awake(self.task):
            frame = part.refine_frame(frame, condition)
        return frame
