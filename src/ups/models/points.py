"""Interpolates frames between the cells of their grid, and fills cells that do not count."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch._guards import detect_fake_mode

from ups.masks import nearest

AT_ONCE = 2**24  # numbers that an interpolation holds in between
WIDTH = 6  # cells that a local interpolation reads along an axis, fewer next to a wall
WALL = 4


def interpolate(x: Tensor, points: Tensor, periodic: tuple[bool, ...], local: bool = False) -> Tensor:
    """The values `(B, P, C)` of frames `(B, *S, C)` at `points (B, P, n)`, in units of the box.

    Periodic axes: the trigonometric interpolant, exact for all that the grid resolves. Bounded axes, and all where
    `local` says so (a field with holes is not smooth): the polynomial through the six nearest cell centres, or the four
    nearest next to a wall, where more would enlarge the error of what they read.
    """
    batch, count, ndim = points.shape
    size = max(1, AT_ONCE // max(1, batch * math.prod(x.shape[2:])))
    if count > size:
        return torch.cat([interpolate(x, part, periodic, local) for part in torch.split(points, size, 1)], 1)
    values = x.flatten(2)
    for axis in range(ndim):
        n, at = x.shape[axis + 1], points[..., axis].double()
        weights = _local(at, n, periodic[axis]) if local or not periodic[axis] else _waves(at, n)
        weights = weights.to(x.dtype)
        if axis == 0:
            values = torch.matmul(weights, values)  # (B, P, the axes after it and the channels)
        else:
            values = torch.einsum("bpn,bpnr->bpr", weights, torch.unflatten(values, -1, (n, -1)))
    return values


def _waves(at: Tensor, n: int) -> Tensor:
    """The weights `(…, n)` of n cell centres in the trigonometric interpolant at `at (…)`."""
    centres = (torch.arange(n, device=at.device, dtype=at.dtype) + 0.5) / n
    turn = torch.pi * (at.unsqueeze(-1) - centres)
    below = n * (turn.sin() if n % 2 else turn.tan())
    on = turn.sin().abs() < 1e-12
    return torch.where(on, 1.0, (n * turn).sin() / torch.where(on, 1.0, below))


def _local(at: Tensor, n: int, periodic: bool) -> Tensor:
    """The weights `(…, n)` of n cell centres in the polynomial through the nearest ones to `at (…)`."""
    x = at * n - 0.5
    wide, near = min(WIDTH, n), min(WALL, n)
    first = x.floor().long() - wide // 2 + 1
    weights = _lagrange(x, first, wide)
    if not periodic:
        inside = (first >= 0) & (first <= n - wide)
        start = (x.floor().long() - near // 2 + 1).clamp(0, n - near)
        narrow = torch.nn.functional.pad(_lagrange(x, start, near), (0, wide - near))
        # The weights of a narrow stencil fill the first places of a wide one that begins at most where it fits.
        weights = torch.where(inside.unsqueeze(-1), weights, narrow)
        first = torch.where(inside, first, start)
        if n > 1:  # beyond the last cell it goes on in a straight line
            beyond, end = (x < -0.5) | (x > n - 0.5), x.floor().long().clamp(0, n - 2)
            straight = torch.nn.functional.pad(_lagrange(x, end, 2), (0, wide - 2))
            weights = torch.where(beyond.unsqueeze(-1), straight, weights)
            first = torch.where(beyond, end, first)
    cells = first.unsqueeze(-1) + torch.arange(wide, device=at.device)
    # Places beyond the last cell of a wall have weight 0, wherever they are counted.
    return torch.zeros(*at.shape, n, dtype=at.dtype, device=at.device).scatter_add_(-1, cells % n, weights)


def _lagrange(x: Tensor, first: Tensor, width: int) -> Tensor:
    """The weights `(…, width)` at `x` of the polynomial through the places `first` … `first + width − 1`."""
    gap = x.unsqueeze(-1) - first.unsqueeze(-1) - torch.arange(width, device=x.device, dtype=x.dtype)
    columns = []
    for i in range(width):
        below = math.prod(i - j for j in range(width) if j != i)
        columns.append(torch.cat((gap[..., :i], gap[..., i + 1 :]), -1).prod(-1) / below)
    return torch.stack(columns, -1)


def seen_from(corner: tuple[float, ...], points: Tensor) -> Tensor:
    """Points `(…, n)` in units of a box, counted from the corner of a grid in it; as they are where it is not known."""
    if not any(corner):
        return points
    # By numbers, not by a tensor of them: that could not be copied to a GPU while a graph is captured.
    return torch.stack([x - at for x, at in zip(points.unbind(-1), corner, strict=True)], -1)


def cells_at(mask: Tensor, points: Tensor, periodic: tuple[bool, ...]) -> Tensor:
    """Whether the cell that each of `points (P, n)` lies in counts, `(B, P)`, by `mask (B, *S)`."""
    sizes = torch.tensor(mask.shape[1:], device=points.device)
    points = torch.where(torch.tensor(periodic, device=points.device), points % 1.0, points)
    cell = (points * sizes).floor().long().clamp_min(0).minimum(sizes - 1)
    strides = torch.tensor([math.prod(mask.shape[axis + 2 :]) for axis in range(mask.ndim - 1)], device=points.device)
    return mask.flatten(1)[:, (cell * strides).sum(-1)]


class Holes:
    """The cells of a batch that do not count, and where the nearest one lies that does."""

    def __init__(self, mask: Tensor) -> None:
        shape = mask.shape[1:]
        if detect_fake_mode() is not None:  # shape inference knows no places; any of them costs the same
            self.index = torch.zeros(mask.shape[0], math.prod(shape), dtype=torch.long, device=mask.device)
            return
        places = [np.ravel_multi_index(nearest(cells), tuple(shape)).ravel() for cells in mask.cpu().numpy()]
        self.index = torch.as_tensor(np.stack(places), device=mask.device)

    def filled(self, frames: Tensor) -> Tensor:
        """Frames `(B, *S, C)` with the value of the nearest cell that counts in those that do not."""
        flat = frames.flatten(1, -2)
        index = self.index.unsqueeze(-1).expand(-1, -1, flat.shape[-1])
        return flat.gather(1, index).reshape(frames.shape)


def frames_at(frames: Tensor, points: Tensor, periodic: tuple[bool, ...], mask: Tensor | None = None) -> Tensor:
    """Frames `(B, T, *S, C)` at `points (P, n)` of [0, 1)^n, between their cells: `(B, T, P, C)`."""
    holes, places = None if mask is None else Holes(mask), points.expand(len(frames), *points.shape)
    steps = (frame if holes is None else holes.filled(frame) for frame in frames.unbind(1))
    return torch.stack([interpolate(frame, places, periodic, local=holes is not None) for frame in steps], 1)
