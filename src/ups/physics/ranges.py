"""InitialRange, the maximum principle as a law: a field never leaves the range of its initial values."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from ups.lazy_imports import Tensor, torch
from ups.physics.constraints import Law, mean_in, mean_over, mean_square, with_channel
from ups.types import Grid

# Of the span of a range: what solvers, roundings and what grids of 32 cells hide beyond straight lines add to it.
SOLVER_ERROR = 2e-3
# Of the size of a range: a frame with values beyond has a mean in float64 that rounding changes by 1e-8 and more.
MEAN_IS_LOST = 2.0**26


@dataclass(frozen=True)
class InitialRange(Law):
    """A channel never leaves the range of values that it starts from, nor that of the numbers `within`, if any.

    Cells are samples of a field: between two of them may lie an extremum that comes to lie on one later. So the range
    reaches up to the extrema that are hidden between cells (`extremes`), and by `SOLVER_ERROR` of its span further.

    What `keeps_total` is repaired without a change of its mean: where clipping has changed it, all cells come towards
    one bound in proportion. Of a frame so far beyond the range that rounding has lost its mean, that of the reference
    is taken.
    """

    kind: ClassVar[str] = "range"
    around_masks: ClassVar[bool] = False
    name: str
    channel: int
    within: tuple[float, ...] = ()
    keeps_total: bool = False

    @property
    def says(self) -> str:
        beyond = f" beyond {min(self.within):g} to {max(self.within):g}" if self.within else ""
        return f"{self.name} never widens{beyond}"

    def at_points(self) -> Law:
        return replace(self, keeps_total=False)

    def aim(self, reference: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        """What a repair aims at, `(B, 6)`: the lowest and the highest value that are allowed after `reference
        (B, *S, C)`, its own lowest, highest and mean, and how large values may be before a frame's mean is lost. The
        bounds are numbers of the reference's type, so that no frame of that type rounds to what is beyond."""
        q = filled(reference[..., self.channel], mask)
        bounds = torch.stack((*self._range(q, grid), *torch.aminmax(q.flatten(1), dim=1)), 1).double()
        largest = bounds[:, :2].abs().amax(1, keepdim=True)
        return torch.cat((bounds, q.double().flatten(1).mean(1, keepdim=True), MEAN_IS_LOST * largest), 1)

    def _range(self, q: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
        """The lowest and the highest value that frames after `q (B, *S)` may have, `(B,)` each."""
        low, high = extremes(q, grid)
        for value in self.within:
            low, high = low.clamp_max(value), high.clamp_min(value)
        size = torch.finfo(q.dtype)
        room = SOLVER_ERROR * (high - low) + 16 * size.eps * torch.maximum(high.abs(), low.abs()) + size.tiny
        return low - room, high + room

    def restore(self, u: Tensor, aim: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        q = u[..., self.channel].double()
        low, high, lowest, highest, usual, limit = (x.reshape(-1, *(1,) * (q.ndim - 1)) for x in aim.unbind(1))
        inside = q.clamp(low, high)
        if self.keeps_total:
            mean = mean_in(grid, mask)
            counted = q if mask is None else q.masked_fill(~mask.unsqueeze(1), 0.0)
            size = torch.linalg.vector_norm(counted, math.inf, tuple(range(2, q.ndim)), keepdim=True)
            middle, want = mean(inside), torch.where(size > limit, usual, mean(q)).clamp(lowest, highest)
            # `want` lies between the bounds and on none of them, so that the bound that is chosen is not the middle.
            bound = torch.where(middle > want, low, high)
            inside = torch.lerp(inside, bound, (middle - want) / (middle - bound))
        return with_channel(u, self.channel, inside)

    def _excess(self, u: Tensor, reference: Tensor, grid: Grid, mask: Tensor | None) -> Tensor:
        """How far each cell of frames is beyond the range of a reference, `(B, T, *S)`; 0 where it is not."""
        q = u[..., self.channel]
        bounds = self._range(filled(reference[..., self.channel], mask), grid)
        return q - q.clamp(*(bound.reshape(-1, *(1,) * (q.ndim - 1)) for bound in bounds))

    def residual(self, u: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        excess = self._excess(u, u[:, 0], grid, mask).abs()
        size = u[..., self.channel].abs()
        if mask is not None:
            excess, size = (x.masked_fill(~mask.unsqueeze(1), 0.0) for x in (excess, size))
        return excess.flatten(1).amax(1) / size.flatten(1).amax(1).clamp_min(torch.finfo(u.dtype).tiny)

    def penalty(self, u: Tensor, reference: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        excess = self._excess(u, reference, grid, mask)
        return mean_square(excess, reference[..., self.channel], grid, mask)

    def sampling_error(self, u: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        """What is hidden between the cells of the first frame beyond those that are seen."""
        q = filled(u[:, 0, ..., self.channel].double(), mask)
        low, high = extremes(q, grid)
        lowest, highest = torch.aminmax(q.flatten(1), dim=1)
        size = torch.maximum(highest.abs(), lowest.abs()).clamp_min(torch.finfo(q.dtype).tiny)
        return torch.maximum(lowest - low, high - highest) / size


def filled(q: Tensor, mask: Tensor | None) -> Tensor:
    """`(B, *S)` with the mean of the cells that count in those that do not."""
    space = tuple(range(1, q.ndim))
    return q if mask is None else torch.where(mask, q, mean_over(q, space, mask, keepdim=True))


def extremes(q: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """The lowest and the highest value, `(B,)` each, that a field sampled in cells `(B, *S)` may have between them."""
    low, high = torch.aminmax(q.flatten(1), dim=1)
    below, above = torch.zeros_like(low), torch.zeros_like(high)
    for axis in range(grid.ndim):
        if grid.shape[axis] > 2:
            line = q.movedim(axis + 1, -1).reshape(q.shape[0], -1, grid.shape[axis])
            below = below + (low + summit(-line, grid.periodic[axis])).clamp_min(0)
            above = above + (summit(line, grid.periodic[axis]) - high).clamp_min(0)
    return low - below, high + above


def summit(line: Tensor, periodic: bool) -> Tensor:
    """The largest value `(B,)` that fields sampled along lines `(B, L, N)` may have, as far as straight lines through
    two cells tell.

    A smooth or a kinked maximum between cells i and i+1 lies below both lines that lead there, through i−1 and i and
    through i+1 and i+2; one at the edge of a jump lies below the line of the smooth side, which is the lower one of
    those through i.
    """
    ends = (line[..., -2:], line[..., :2]) if periodic else (line[..., 1:3].flip(-1), line[..., -3:-1].flip(-1))
    wide = torch.cat((ends[0], line, ends[1]), -1)
    inner = 2 * wide[..., 1:-1]
    upwards, downwards = inner - wide[..., :-2], inner - wide[..., 2:]  # on to the next cell, back to the one before
    at_cells, between = torch.minimum(upwards, downwards), torch.minimum(upwards[..., :-1], downwards[..., 1:])
    return torch.cat((at_cells, between), -1).flatten(1).amax(1)
