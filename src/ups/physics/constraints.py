"""The laws a field must obey, each once: a `residual` to read, a `penalty` to choose by, a `project` that repairs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from ups.lazy_imports import Tensor, torch
from ups.tensors import volumes_of
from ups.types import Grid, Points

# The mean square, or the mean size, of a field of which "how much of it" is not asked any more.
NOTHING = 1e-6
# Cells along an axis, below which its two ends are not apart.
FEWEST = 6


class JointRepair(Protocol):
    """One repair for `laws` laws of an equation together, as each of them would be repaired after those before it: in
    float64, whatever type the frames have and keep."""

    @property
    def laws(self) -> int: ...

    def aim(self, reference: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor: ...

    def restore(self, u: Tensor, aim: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor: ...


class Law(ABC):
    """A law over frames `(B, T, *S, C)`; where a `mask (B, *S)` is given, over the cells in which it is true.

    Nothing a law says or does to a sample depends on the others of its batch. `kind` is what laws of its class are
    called together, in `model.simulator.guard` and in the losses; `name` says what is kept, in a word or two.
    """

    kind: ClassVar[str]
    any_boundary: ClassVar[bool] = False  # whether it holds under another boundary than its task's own
    around_masks: ClassVar[bool] = True  # whether it is claimed in a box with a mask
    of_change: ClassVar[bool] = False  # whether it compares frames, of which a steady task has one
    name: str
    together: JointRepair | None = None  # the repair of all laws of its equation, where there is one

    @property
    @abstractmethod
    def says(self) -> str:
        """The law as a sentence without its full stop."""

    @abstractmethod
    def residual(self, u: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        """How much each sample breaks the law, `(B,)`; 0 when it holds, relative to the size of what it measures."""

    @abstractmethod
    def penalty(self, u: Tensor, reference: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        """The mean square by which frames break the law, `(B,)`, over the size that `reference (B, *S, C)` has: smooth
        in the frames, so that a loss can contain it."""

    def project(self, u: Tensor, reference: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        """Frames near `u` that obey the law, given a `reference` state `(B, *S, C)` that does; lawful frames stay."""
        return self.restore(u, self.aim(reference, grid, mask), grid, mask)

    def aim(self, reference: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """What a repair needs to know of the reference, so that a rollout asks for it once."""
        return reference

    @abstractmethod
    def restore(self, u: Tensor, aim: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        """`project`, given what `aim` says of the reference."""

    def at_points(self) -> Law | None:
        """The law for values at points, of which no total is kept; None where it is one of whole fields."""
        return None

    def sampling_error(self, u: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """How much of the residual the grid may explain, `(B,)`."""
        return torch.zeros(u.shape[0], dtype=torch.float64, device=u.device)


def cells_in(grid: Grid, mask: Tensor | None, values: Tensor) -> Tensor | None:
    """What each cell of `values (B, T, *S, …)` counts, `(B, 1, *S)`: whether it does, if there is a mask; of points, as
    much as their volumes; None where all count alike."""
    if isinstance(grid, Points):
        return volumes_of(grid, values.device).reshape(1, 1, -1)
    return None if mask is None else mask.unsqueeze(1)


def mean_over(values: Tensor, space: tuple[int, ...], mask: Tensor | None, keepdim: bool = False) -> Tensor:
    """The mean over the axes `space`, of the cells in which `mask` is true, or which count as much as it says; it
    broadcasts against `values`."""
    if mask is None:
        return values.mean(space, keepdim=keepdim)
    if mask.is_floating_point():
        return (values * mask).sum(space, keepdim=keepdim) / mask.sum(space, keepdim=keepdim)
    count = mask.sum(space, keepdim=keepdim).clamp_min(1)
    return torch.where(mask, values, torch.zeros_like(values)).sum(space, keepdim=keepdim) / count


def with_channel(u: Tensor, channel: int, values: Tensor) -> Tensor:
    """Frames `(…, C)` with other `values (…)` in one channel."""
    if u.shape[-1] == 1:
        return values.to(u.dtype).unsqueeze(-1)
    return torch.cat((u[..., :channel], values.to(u.dtype).unsqueeze(-1), u[..., channel + 1 :]), -1)


# The mean over the cells that count of a density `(B, T, *S)` or `(B, T, *S, D)`, which keeps its axes.
Mean = Callable[[Tensor], Tensor]
# Frames in float64, the integral they should have `(B, 1, …)` and a mean to frames that have it.
Repair = Callable[[Tensor, Tensor, Mean], Tensor]


@dataclass(frozen=True)
class Conserved(Law):
    """The integral of a density over the box stays what it was in the first frame.

    `density` maps `(..., C)` to `(...)`; `scale`, likewise, to what the drift is measured against (|density| if none).
    What restores the integral: a constant added to `channel`, in which the density is linear with the factor `weight`
    (likewise a density; 1 if none), or `repair`, where that is not enough.
    """

    kind: ClassVar[str] = "conserved"
    of_change: ClassVar[bool] = True
    name: str
    density: Callable[[Tensor], Tensor]
    channel: int = -1
    scale: Callable[[Tensor], Tensor] | None = None
    weight: Callable[[Tensor], Tensor] | None = None
    repair: Repair | None = None
    together: JointRepair | None = None

    def __post_init__(self) -> None:
        if self.channel < 0 and self.repair is None:
            raise ValueError(f"nothing is said of how {self.name} is restored: name a channel or a repair")

    @property
    def says(self) -> str:
        return f"{self.name} is conserved"

    def residual(self, u: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        total = self._mean(self.density(u.double()), grid, mask)
        return (total - total[:, :1]).abs().amax(1) / self._size(u, grid, mask)

    def penalty(self, u: Tensor, reference: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        first = reference.unsqueeze(1)
        drift = self._mean(self.density(u) - self.density(first), grid, mask)
        measured = self.scale(first) if self.scale else self.density(first).abs()
        return (drift / self._mean(measured, grid, mask).clamp_min(NOTHING)).square().mean(1)

    def _mean(self, density: Tensor, grid: Grid, mask: Tensor | None) -> Tensor:
        """The mean over space of a density `(B, T, *S)`, `(B, T)`."""
        return mean_over(density, tuple(range(2, 2 + len(grid.shape))), cells_in(grid, mask, density))

    def _size(self, u: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        measured = self.scale(u.double()) if self.scale else self.density(u.double()).abs()
        return self._mean(measured, grid, mask).amax(1).clamp_min(torch.finfo(torch.float64).tiny)

    def sampling_error(self, u: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        """How much of the drift the grid may explain, `(B,)`: point values of a field that the grid does not resolve
        do not sum to its integral. Estimated from the two grids of every other cell."""
        if isinstance(grid, Points):  # which have no neighbours that a field could be told from
            return super().sampling_error(u, grid, mask)
        q = self.density(u.double())
        n = q.shape[2] // 2 * 2
        halves = [(q[:, :, i:n:2], None if mask is None else mask[:, i:n:2]) for i in (0, 1)]
        even, odd = (self._mean(half, grid, cells) for half, cells in halves)
        return (even - odd).abs().amax(1) / self._size(u, grid, mask)

    def aim(self, reference: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        return mean_in(grid, mask)(self.density(reference.unsqueeze(1).double()))

    def restore(self, u: Tensor, aim: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        mean, exact = mean_in(grid, mask), u.double()
        if self.repair is not None:
            return self.repair(exact, aim, mean).to(u.dtype)
        gap = aim - mean(self.density(exact))
        if self.weight is not None:
            gap = quotient(gap, mean(self.weight(exact)))
        return with_channel(u, self.channel, exact[..., self.channel] + gap)


def mean_in(grid: Grid, mask: Tensor | None) -> Mean:
    """The mean over the cells of a box that count, of `(B, T, *S)` or `(B, T, *S, D)`."""
    space = tuple(range(2, 2 + len(grid.shape)))

    def mean(density: Tensor) -> Tensor:
        cells = cells_in(grid, mask, density)
        if cells is None:
            return density.mean(space, keepdim=True)
        return mean_over(density, space, cells.reshape(*cells.shape, *(1,) * (density.ndim - cells.ndim)), keepdim=True)

    return mean


def quotient(above: Tensor, below: Tensor) -> Tensor:
    """`above` over a number that should be positive; 0 where it is not."""
    return above * (below > 0) / below.clamp_min(torch.finfo(below.dtype).tiny)


@dataclass(frozen=True)
class Within(Law):
    """A channel never leaves the interval from `low` to `high`; an infinite end is no bound.

    What `keeps_total` is repaired without a change of its mean: where cells are lifted to the lower bound, those above
    it come down towards it in proportion, and the other way round at the upper bound.
    """

    kind: ClassVar[str] = "positive"
    any_boundary: ClassVar[bool] = True
    name: str
    channel: int
    low: float = -math.inf
    high: float = math.inf
    keeps_total: bool = False
    together: JointRepair | None = None

    @property
    def says(self) -> str:
        if math.isinf(self.high):
            return f"{self.name} is never below {self.low:g}"
        if math.isinf(self.low):
            return f"{self.name} is never above {self.high:g}"
        return f"{self.name} stays between {self.low:g} and {self.high:g}"

    def at_points(self) -> Law:
        return replace(self, keeps_total=False)

    def residual(self, u: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:  # noqa: ARG002
        q = u[..., self.channel].flatten(1)
        if mask is not None:  # in a cell that does not count stands a value that breaks no bound of the others
            cells = mask.unsqueeze(1).expand(u.shape[:-1]).flatten(1)
            q = torch.where(cells, q, q.masked_fill(~cells, -math.inf).amax(1, keepdim=True))
        excess = torch.maximum(self.low - q.amin(1), q.amax(1) - self.high).clamp_min(0)
        return excess / q.abs().amax(1).clamp_min(torch.finfo(q.dtype).tiny)

    def penalty(self, u: Tensor, reference: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        q = u[..., self.channel]
        return mean_square(q - q.clamp(self.low, self.high), reference[..., self.channel], grid, mask)

    def restore(self, u: Tensor, aim: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:  # noqa: ARG002
        q = u[..., self.channel]
        inside = q.clamp(self.low, self.high)
        if not self.keeps_total:
            return with_channel(u, self.channel, inside)
        mean, exact = mean_in(grid, mask), inside.double()
        middle = mean(exact)
        surplus = middle - mean(q.double())
        for bound, excess in ((self.low, surplus), (self.high, -surplus)):
            if math.isfinite(bound):
                part = quotient(excess, (middle - bound).abs()).clamp(0, 1)
                exact = torch.lerp(exact, torch.full_like(part, bound), part)
        return with_channel(u, self.channel, exact)


@dataclass(frozen=True)
class Positive(Within):
    """A channel never falls below `low`, which is 0 unless given."""

    low: float = 0.0


@dataclass(frozen=True)
class HeldFaces(Law):
    """The faces at both ends of some `axes`, or at one end of each, hold a channel at `value`.

    No cell sits on a face, and a layer next to it may be thinner than a cell. What the cells of a resolved field obey,
    whichever way a solver holds the value, is that the outermost one lies between it and the two within. Nothing is
    said of an axis on which the cells of one end would be those within the other.
    """

    kind: ClassVar[str] = "boundary"
    name: str
    channel: int
    value: float
    axes: tuple[int, ...] = (0,)
    ends: tuple[int, ...] = (0, -1)

    @property
    def says(self) -> str:
        return f"{self.name} holds {self.value:g}"

    def _faces(self, grid: Grid) -> list[tuple[int, int]]:
        """Axis and end of every face of which something is said."""
        return [(axis, end) for axis in self.axes if grid.shape[axis] >= FEWEST for end in self.ends]

    @staticmethod
    def _at(cell: int, axis: int, ndim: int) -> tuple[slice | int, ...]:
        """The index of the cells in one place along an axis, in `(B, T, *S)`."""
        return (slice(None),) * (2 + axis) + (cell,) + (slice(None),) * (ndim - axis - 1)

    def _cells(self, q: Tensor, face: tuple[int, int], grid: Grid) -> list[Tensor]:
        """The outermost cells of `(B, T, *S)` at a face and the two within, `(B, T, …)` each."""
        axis, end = face
        places = (0, 1, 2) if end == 0 else (-1, -2, -3)
        return [q[self._at(place, axis, grid.ndim)] for place in places]

    def _allowed(self, u: Tensor, face: tuple[int, int], grid: Grid, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The outermost cells at a face, and the nearest values that they may have, `(B, T, …)` each."""
        q, *inner = self._cells(u[..., self.channel], face, grid)
        near = torch.stack((*inner, torch.full_like(q, self.value)))
        allowed = torch.minimum(torch.maximum(q, near.amin(0)), near.amax(0))
        if mask is not None:
            counts = torch.stack(self._cells(mask.unsqueeze(1), face, grid)).all(0)
            allowed = torch.where(counts, allowed, q)
        return q, allowed

    def _excess(self, u: Tensor, face: tuple[int, int], grid: Grid, mask: Tensor | None) -> Tensor:
        """How far the outermost cells at a face are beyond what they may be, `(B, T, …)`."""
        q, allowed = self._allowed(u, face, grid, mask)
        return q - allowed

    def sampling_error(self, u: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        """The step between the two cells within: what the grid does not resolve next to them is no larger."""
        largest = torch.zeros(len(u), dtype=torch.float64, device=u.device)
        for face in self._faces(grid):
            _, near, far = self._cells(u[..., self.channel].double(), face, grid)
            largest = torch.maximum(largest, (near - far).abs().flatten(1).amax(1))
        return largest / self._largest(u, mask).double()

    def _largest(self, u: Tensor, mask: Tensor | None) -> Tensor:
        q = u[..., self.channel] if mask is None else u[..., self.channel].masked_fill(~mask.unsqueeze(1), 0.0)
        return q.abs().flatten(1).amax(1).clamp_min(torch.finfo(u.dtype).tiny)

    def residual(self, u: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        worst = u.new_zeros(len(u))
        for face in self._faces(grid):
            worst = torch.maximum(worst, self._excess(u, face, grid, mask).abs().flatten(1).amax(1))
        return worst / self._largest(u, mask)

    def penalty(self, u: Tensor, reference: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        total = u.new_zeros(len(u))
        for face in self._faces(grid):
            total = total + self._excess(u, face, grid, mask).square().flatten(1).mean(1)
        return total / mean_square_of(reference[..., self.channel], mask)

    def restore(self, u: Tensor, aim: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:  # noqa: ARG002
        fixed = u.clone()
        faces = self._faces(grid)
        # A second time where faces meet: a corner lies between cells of edges, which the first time has moved.
        for axis, end in faces * (2 if len(self.axes) > 1 else 1):
            place = self._at(end, axis, grid.ndim)
            fixed[..., self.channel][place] = self._allowed(fixed, (axis, end), grid, mask)[1]
        return fixed


def mean_square(gap: Tensor, reference: Tensor, grid: Grid, mask: Tensor | None) -> Tensor:
    """The mean square of `(B, T, *S)` over that of a reference `(B, *S)`, `(B,)`."""
    axes = tuple(range(2, 2 + len(grid.shape)))
    return mean_over(gap.square(), axes, cells_in(grid, mask, gap)).mean(1) / mean_square_of(reference, mask)


def mean_square_of(reference: Tensor, mask: Tensor | None) -> Tensor:
    """The mean square `(B,)` of a field `(B, *S)`, never quite 0."""
    return mean_over(reference.square(), tuple(range(1, reference.ndim)), mask).clamp_min(NOTHING)
