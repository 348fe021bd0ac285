"""Advection: shifts a state as far as parameters of its task (a wind, say) carry it, before a network changes it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from ups.models.grids import Patch, patches, unpatch
from ups.models.layers import AXES
from ups.tensors import table
from ups.types import Grid

SHARE = 1 / 16  # the shift, in boxes, of a speed of 1: optimizers take steps of about one size in all weights
NUMBERS, FEW = 2**22, 16  # speeds are fitted on about NUMBERS numbers at most, of at least FEW states and channels
ROUNDS = 10  # of Newton's steps
PARTS = 2  # waves that describe the part of a shift beyond whole tokens
REACH = 2  # the largest shift per step that is looked for, in boxes
CLEARLY = 0.1  # a shift beyond half a box is accepted only if it raises the correlation by this much


class Advection(nn.Module):
    """How far some parameters of a task carry its states along each axis in a step.

    Shift per step = Σ (parameter / `size`) · (dt / `span`) · speed, summed over the parameters. `speeds (P, 3)` are in
    sixteenths of the box (`SHARE`); `size (P,)` and `span` are the largest parameters and dt that they were fitted on.
    Being proportional to both, shifts hold between the values that training saw. Axes that do not wrap are not shifted.

    A shift by a part of a cell (of a token, where tokens are shifted) is wrong for whatever is finer than that. So the
    network is given an embedding `(width,)` of that part, which is zero for whole cells.
    """

    size: Tensor
    span: Tensor

    def __init__(self, count: int, width: int = 1) -> None:
        super().__init__()
        self.register_buffer("size", torch.ones(count))
        self.register_buffer("span", torch.ones(()))
        self.speeds = nn.Parameter(torch.zeros(count, AXES))
        # Embeds the part of a shift beyond whole cells. Its name is a key of saved weights. It begins as zeros, so that
        # all other weights are drawn as they are without a drift.
        self.embed = nn.Parameter(torch.zeros(AXES, 2 * PARTS, width))

    def way(self, params: Tensor, dt: Tensor) -> Tensor:
        """The shift of each state of a batch, `(B, 3)` in boxes, for `params (B, P)` and `dt (B,)`."""
        drive = self._drive(params, dt)
        return (drive.unsqueeze(-1) * self.speeds).sum(1) * SHARE  # no product of matrices, which may round its factors

    def condition(self, way: Tensor, grid: Grid) -> Tensor:
        """The embedding `(B, width)` of a shift `(B, 3)` in boxes: zero for one by whole cells of `grid`."""
        angle = way[:, : grid.ndim].unsqueeze(2) * _parts(grid.shape, grid.periodic, way.device)
        waves = torch.cat((angle.sin(), 1 - angle.cos()), 2)
        return (waves.unsqueeze(-1) * self.embed[: grid.ndim]).sum((1, 2))

    def _drive(self, params: Tensor, dt: Tensor) -> Tensor:
        return params.float() / self.size * (dt.float() / self.span).unsqueeze(1)

    @classmethod
    @torch.no_grad()
    def fitted(cls, params: Tensor, dt: Tensor, frames: Tensor, periodic: tuple[bool, ...]) -> Advection:
        """The drift that shifts each of `frames (B, K, *G, D)`, `dt (B, K - 1)` apart, to where it is most like the
        next.

        A shift beyond half of the box reaches the same place as a shorter one the other way, and only samples with
        other parameters can tell them apart. So such shifts are looked for only if no shorter one fits well, and for at
        most three parameters. Fitted on the CPU, whose least squares also solve for parameters that vary together.
        """
        drift, frames, dt = cls(params.shape[1]), frames.cpu(), dt.cpu()
        size, span = params.abs().amax(0), dt.abs().amax() if dt.numel() else dt.new_zeros(())
        drift.size.copy_(torch.where(size > 0, size, 1.0))
        drift.span.copy_(torch.where(span > 0, span, 1.0))
        drive = drift._drive(params.cpu().repeat_interleave(frames.shape[1] - 1, 0), dt.flatten()).double()
        axes = [axis for axis, wraps in enumerate(periodic) if wraps]
        used = [i for i, own in enumerate(drive.unbind(1)) if own.any()]
        if axes and used and len(drive):
            before, after = frames[:, :-1].flatten(0, 1), frames[:, 1:].flatten(0, 1)
            # Of large grids some states, and some channels, tell as much as all.
            some = max(1, min(len(drive) // FEW, before.numel() // NUMBERS))
            each = max(1, min(before.shape[-1] // FEW, before[::some].numel() // NUMBERS))
            before, after = (x[::some, ..., ::each] for x in (before, after))
            speeds = _fit(drive[::some, used], before, after, periodic, axes)
            for place, axis in enumerate(axes):
                drift.speeds[used, axis] = (speeds[:, place] / SHARE).float()
        return drift


def _fit(drive: Tensor, before: Tensor, after: Tensor, periodic: tuple[bool, ...], axes: Sequence[int]) -> Tensor:
    """The speeds `(P, axes)`, in boxes, of states `before` and `after (B, *G, D)` that are driven so, `(B, P)`."""
    grid, peaks = Grid(tuple(before.shape[1:-1]), periodic), _peaks(before, after, axes)
    near = _between(drive, peaks)
    if near.numel() == 1:
        near = _scanned(_likeness(before, after, axes[0] + 1), drive[:, 0], grid.shape[axes[0]]).reshape(1, 1)
    near = _refined(near, drive, before, after, grid, axes)
    alike = _alike(near, drive, before, after, grid, axes)
    if alike > 1 - CLEARLY or drive.shape[1] > AXES:
        return near
    far = _refined(_beyond(drive, peaks), drive, before, after, grid, axes)
    return far if _alike(far, drive, before, after, grid, axes) > alike + CLEARLY else near


def _ways(speeds: Tensor, drive: Tensor, axes: Sequence[int]) -> Tensor:
    """How far states that are driven so are carried, `(B, 3)`."""
    ways = drive.new_zeros(len(drive), AXES)
    ways[:, axes] = drive @ speeds
    return ways


def _alike(speeds: Tensor, drive: Tensor, before: Tensor, after: Tensor, grid: Grid, axes: Sequence[int]) -> float:
    """How much states that are carried so are like those after them, their means aside, on average: at most 1."""
    mean = tuple(range(1, before.ndim - 1))
    carried = moved(before, _ways(speeds, drive, axes), grid)
    a, b = ((x - x.mean(mean, keepdim=True)).flatten(1).double() for x in (carried, after))
    return torch.cosine_similarity(a, b).mean().item()


def _refined(speeds: Tensor, drive: Tensor, before: Tensor, after: Tensor, grid: Grid, axes: Sequence[int]) -> Tensor:
    """Speeds `(P, axes)` near the best ones, improved by Newton's steps."""
    speeds = speeds.clone()
    for _ in range(ROUNDS):
        for place, axis in enumerate(axes):
            ways = _ways(speeds, drive, axes)
            own = ways[:, axis].clone()
            ways[:, axis] = 0.0
            likeness = _likeness(moved(before, ways, grid), after, axis + 1)
            speeds[:, place] += _nearer(likeness, drive, own, grid.shape[axis])
    return speeds


def _peaks(before: Tensor, after: Tensor, axes: Sequence[int]) -> Tensor:
    """The shift of each state along the axes, `(B, axes)` in boxes, that makes it most like the one after it; to whole
    tokens."""
    along = [axis + 1 for axis in axes]
    a, b = (torch.fft.fftn(x.double(), dim=along) for x in (before, after))
    alike = torch.fft.ifftn(a.conj() * b, dim=along).real
    alike = alike.movedim(along, list(range(1, len(along) + 1))).flatten(1 + len(along)).sum(-1)
    shape = alike.shape[1:]
    places = torch.stack(torch.unravel_index(alike.flatten(1).argmax(1), shape), 1)
    sizes = torch.tensor(shape)
    return torch.where(2 * places >= sizes, places - sizes, places) / sizes


def _between(drive: Tensor, ways: Tensor) -> Tensor:
    """Fits speeds `(P, axes)` so that `drive (B, P)` times them is near the shifts `ways (B, axes)`, by least absolute
    deviations (reweighted least squares): wrong shifts, as of waves that look alike from crest to crest, count
    little."""
    ways = ways.to(drive.dtype)
    weights = torch.ones_like(ways)
    for _ in range(20):
        columns = [
            torch.linalg.lstsq(drive * w.unsqueeze(1), (y * w).unsqueeze(1)).solution
            for y, w in zip(ways.unbind(1), weights.unbind(1), strict=True)
        ]
        speeds = torch.cat(columns, 1)
        weights = (ways - drive @ speeds).abs().clamp_min(1e-2).rsqrt()
    return speeds


def _beyond(drive: Tensor, ways: Tensor) -> Tensor:
    """Fits speeds `(P, axes)` to shifts `ways (B, axes)` that are known but for whole boxes: takes the best of a grid
    of speeds, for which it compares few states, and improves it."""
    ways, few = ways.to(drive.dtype), slice(None, None, math.ceil(len(drive) / 64))
    tried = torch.cartesian_prod(*[torch.linspace(-REACH, REACH, 16 * REACH + 1, dtype=drive.dtype)] * drive.shape[1])
    tried = tried.reshape(-1, drive.shape[1])
    fits = (2 * torch.pi * ((drive[few] @ tried.T).unsqueeze(-1) - ways[few].unsqueeze(1))).cos().sum(0)
    speeds = tried[fits.argmax(0)].T
    for _ in range(3):
        speeds = _between(drive, ways + (drive @ speeds - ways).round())
    return speeds


def _likeness(before: Tensor, after: Tensor, axis: int) -> Tensor:
    """The cross-spectrum of two states along an axis over the norms of both, `(B, waves)` complex, without the uniform
    wave. The sum of its real part is greatest where one state is shifted onto the other."""
    a, b = (torch.fft.rfft(x.double(), dim=axis).movedim(axis, 1).flatten(2)[:, 1:] for x in (before, after))
    size = (a.abs().square().sum((1, 2)) * b.abs().square().sum((1, 2))).sqrt()
    alike: Tensor = (a.conj() * b).sum(2) / size.clamp_min(torch.finfo(size.dtype).tiny).unsqueeze(1)
    if before.shape[axis] % 2 == 0:
        alike[:, -1] = 0.0  # the wave that alternates between tokens cannot tell where it is
    return alike


def _scanned(likeness: Tensor, drive: Tensor, tokens: int) -> Tensor:
    """The one speed at which states that are driven so, `(B,)`, are most alike together, out of many that differ by a
    part of a token. Looks at all states at once: alone, one could not tell which crest has become which."""
    tried = torch.arange(-2 * tokens, 2 * tokens + 1, dtype=drive.dtype) / (4 * tokens * drive.abs().max())
    tried = tried[tried.abs().argsort()]  # of those that are all alike the slowest
    alike = torch.stack([(likeness * _turns(x * drive, tokens)[:, 1:].conj()).real.sum() for x in tried])
    return tried[alike.argmax()]


def _nearer(likeness: Tensor, drive: Tensor, ways: Tensor, tokens: int) -> Tensor:
    """Newton's step for the speeds, `(P,)`: how much faster makes states that are shifted by `ways (B,)` more alike."""
    angles = _angles(tokens, ways.dtype, ways.device)[1:]
    alike = likeness * _turns(ways, tokens)[:, 1:].conj()
    slope, bend = -(angles * alike.imag).sum(1), (angles.square() * alike.real.abs()).sum(1)
    faster: Tensor = torch.linalg.lstsq(drive.T @ (bend.unsqueeze(1) * drive), drive.T @ slope).solution
    return faster


@table
def _parts(shape: tuple[int, ...], periodic: tuple[bool, ...], device: torch.device) -> Tensor:
    """What the first waves of a place turn by on a way through the box, `(n, PARTS)`; nothing along walls."""
    grid = Grid(shape, periodic)
    tokens = [n if wraps else 0 for n, wraps in zip(grid.shape, grid.periodic, strict=True)]
    return 2 * torch.pi * torch.tensor([[n * (i + 1.0) for i in range(PARTS)] for n in tokens], device=device)


@table
def _angles(tokens: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The angle by which each wave that so many tokens hold turns on its way through the box."""
    return 2 * torch.pi * torch.arange(tokens // 2 + 1, dtype=dtype, device=device)


def _turns(way: Tensor, tokens: int) -> Tensor:
    """What waves of an axis, `(B, waves)`, are multiplied by where a state is moved by `way (B,)` boxes."""
    angle = -way.unsqueeze(1) * _angles(tokens, way.dtype, way.device)
    return torch.polar(torch.ones_like(angle), angle)


def carry(z: Tensor, way: Tensor, grid: Grid, patch: Patch | None) -> Tensor:
    """Tokens `(B, *G, D)` moved by `way (B, 3)` boxes: by the waves that the cells of their patches hold, and what
    tokens say besides by their own."""
    if patch is None:
        return moved(z, way, grid)
    with torch.autocast(z.device.type, enabled=False):
        held = cells_of(z, patch)
        there = patches(moved(held, way, patch.cells(grid)), patch.size, 0, grid.periodic)
        besides = z.float() - _product(patches(held, patch.size, 0, grid.periodic), patch.write)
        return (moved(besides, way, grid) + _product(there, patch.write)).to(z.dtype)


def cells_of(z: Tensor, patch: Patch) -> Tensor:
    """The cells `(B, *S, C)` that tokens `(B, *G, D)` hold."""
    ndim = z.ndim - 2
    values = torch.unflatten(_product(z.float(), patch.read), -1, (-1, patch.size**ndim))
    return unpatch(values.transpose(-1, -2), (patch.size,) * ndim)


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """A linear layer that no GPU rounds the factors of, as it may for a network: they are a state."""
    exact = torch.float64 if x.is_cuda else torch.float32
    return functional.linear(x.to(exact), weight.to(exact)).float()


def moved(z: Tensor, way: Tensor, grid: Grid) -> Tensor:
    """A state `(B, *G, D)` moved by `way (B, 3)` boxes along the axes that wrap, by the waves that it holds."""
    with torch.autocast(z.device.type, enabled=False):
        y = z.float()
        for axis, (n, wraps) in enumerate(zip(grid.shape, grid.periodic, strict=True), start=1):
            if wraps:
                turns = _turns(way[:, axis - 1].float(), n)
                turns = turns.reshape(z.shape[0], *(turns.shape[1] if a == axis else 1 for a in range(1, z.ndim)))
                y = torch.fft.irfft(torch.fft.rfft(y, dim=axis) * turns, n, dim=axis)
        return y.to(z.dtype)
