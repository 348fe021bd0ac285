"""Shallow water: the radial dam break, swe2d."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ups.lazy_imports import Tensor, torch
from ups.physics.constraints import Conserved, Law, Positive
from ups.physics.finite_volume import FiniteVolume, divergence, face_states, flux_sum
from ups.physics.random import Draw
from ups.physics.riemann import roe_shallow
from ups.physics.solver import Equation, Stepper, initial_states, solve
from ups.types import Field, Grid, PhysicsError, Storage, TaskSpec

CFL = 0.45
INNER, OUTER = 2.0, 1.0
SMALLEST, LARGEST = 0.3, 0.7
FRONT_SPEED = 1.34  # the planar bore of this dam runs at 1.3356; the round one starts so and slows down
RADIAL_CELLS = 32  # per cell of the stored grid


def disc_in_corner(x: NDArray[Any], y: NDArray[Any], r: NDArray[Any]) -> NDArray[Any]:
    """Area of the disc of radius r around 0 inside the rectangle between 0 and (x, y); odd in x and in y."""
    w, h = np.minimum(np.abs(x), r), np.minimum(np.abs(y), r)
    flat = np.minimum(w, np.sqrt((r - h) * (r + h)))

    def under_arc(s: NDArray[Any]) -> Any:
        up = np.sqrt((r - s) * (r + s))
        return 0.5 * (s * up + r * r * np.arctan2(s, up))  # arctan: an arcsine near 1 keeps half the digits

    area: NDArray[Any] = np.sign(x) * np.sign(y) * (h * flat + under_arc(w) - under_arc(flat))
    return area


def disc_in_cells(grid: Grid, r: NDArray[Any]) -> NDArray[Any]:
    """The part of each cell `(X, Y, ...)` inside the disc of radius r; `r` broadcasts against `(X, Y, 1)`."""
    (dx, dy), (x, y) = grid.spacing, grid.coordinates
    x0, x1 = (x[:, None, None] + s * dx / 2 for s in (-1, 1))
    y0, y1 = (y[None, :, None] + s * dy / 2 for s in (-1, 1))
    x0, x1, y0, y1, r = np.broadcast_arrays(x0, x1, y0, y1, r)
    corners = disc_in_corner(x1, y1, r) - disc_in_corner(x0, y1, r)
    corners += disc_in_corner(x0, y0, r) - disc_in_corner(x1, y0, r)
    part: NDArray[Any] = corners / (dx * dy)
    return part


def ring_weights(grid: Grid, dr: float, count: int, like: Tensor) -> Tensor:
    """Sparse `(X·Y, count)`: the part of each cell that lies in each ring of width dr. Averages, and conserves mass."""
    corner = np.hypot(*np.meshgrid(*(np.abs(x) for x in grid.coordinates), indexing="ij"))
    half = 0.5 * math.hypot(*grid.spacing)
    first = np.floor(np.maximum(corner - half, 0) / dr).astype(int)[..., None]
    rings = first + np.arange(math.ceil(2 * half / dr) + 2)
    edges = np.concatenate([rings, rings[..., -1:] + 1], axis=-1) * dr
    part = np.diff(disc_in_cells(grid, edges), axis=-1)
    keep = (rings < count) & (part > 0)
    rows = np.broadcast_to(np.arange(first.size).reshape(first.shape), rings.shape)
    index = torch.as_tensor(np.stack([rows[keep], rings[keep]]))
    weights = torch.sparse_coo_tensor(index, torch.as_tensor(part[keep]), (first.size, count), check_invariants=False)
    return weights.to(device=like.device, dtype=like.dtype).coalesce()


@dataclass
class RadialDam:
    """The round dam in one radial dimension, on rings much thinner than the cells of `grid`, averaged to its cells.

    (rh)_t + (r h u)_r = 0 by areas, so mass is conserved; (hu)_t + (h u² + h²/2)_r = −h u²/r, so water at rest stays at
    rest exactly. True until the bore reaches the edge of the box; beyond the last ring the water is at rest.
    """

    grid: Grid
    radius: Tensor

    def start(self, u0: Tensor) -> Tensor:
        reach = min(min(-lo, hi) for lo, hi in self.grid.bounds)
        count = RADIAL_CELLS * round(reach / self.grid.spacing[0])
        dr = reach / count
        self._weights = ring_weights(self.grid, dr, count, u0)
        edges = torch.arange(count + 1, device=u0.device, dtype=torch.float64) * dr
        inside = (self.radius.double().unsqueeze(1).square() - edges[:-1].square()) / edges.square().diff()
        h = OUTER + (INNER - OUTER) * inside.clamp(0, 1)
        self._solver = radial_solver(edges.to(u0.dtype), dr)
        return torch.stack([h, torch.zeros_like(h)], dim=1).to(u0.dtype)

    def advance(self, state: Tensor, t0: float, t1: float) -> Tensor:
        return self._solver.advance(state, t0, t1)

    def read(self, state: Tensor) -> Tensor:
        above: Tensor = torch.sparse.mm(self._weights, (state[:, 0] - OUTER).T.contiguous())
        return (OUTER + above.T).reshape(-1, *self.grid.shape, 1)


def radial_solver(edges: Tensor, dr: float) -> FiniteVolume:
    """Shallow water `(B, 2, N)` of h and hu on rings between `edges`: mirror at r = 0, open at the last."""
    centres = 0.5 * (edges[1:] + edges[:-1])
    mirror = torch.tensor([1.0, -1.0], device=edges.device, dtype=edges.dtype).view(1, 2, 1)

    def tendency(w: Tensor) -> Tensor:
        padded = torch.cat([mirror * w[:, :, :2].flip(2), w], dim=2)
        left, right = face_states(padded, 2, periodic=False)
        flux = roe_shallow(left[:, :, 2:], right[:, :, 2:], 0)
        mass = divergence(edges * flux[:, 0], 1, -dr) / centres
        force = divergence(flux[:, 1], 1, -dr) - w[:, 1].square() / (w[:, 0] * centres)
        return torch.stack([mass, force], dim=1)

    line = Grid((len(centres),), (False,), ((0.0, float(dr * len(centres))),))
    return FiniteVolume(line, tendency, wave_limit((dr,)), cfl=CFL)


def wave_limit(spacing: tuple[float, ...]) -> Callable[[Tensor], Tensor]:
    """min dx / (|v| + √h) over cells and axes, `(B,)`, of a state of h and h v."""

    def limit(w: Tensor) -> Tensor:
        sound = w[:, 0].sqrt()
        rates = [((w[:, 1 + a] / w[:, 0]).abs() + sound) / dx for a, dx in enumerate(spacing)]
        return 1 / functools.reduce(torch.maximum, rates).flatten(1).amax(1)

    return limit


@dataclass(frozen=True)
class ShallowWater2D(Equation):
    """h_t + ∇·(h v) = 0, (h v)_t + ∇·(h v⊗v + g h²/2) = 0, g = 1: a round dam breaks; open boundaries.

    h = 2 inside the radius R ~ U(0.3, 0.7), 1 outside, at rest; only h is stored. `pdebench`: second-order Godunov with
    Roe's flux, entropy fix and MC limiter on a grid where a cell is inside if its centre is. `accurate`: the flow is
    radial until the bore meets the wall (not before t = 1.3), so it is solved in r with 32 rings per cell, and cells
    hold exact averages of it; the first frame is the exact average of the dam.
    """

    schemes: ClassVar[tuple[str, ...]] = ("pdebench", "accurate")
    isotropic: ClassVar[bool] = True
    task: ClassVar[TaskSpec] = TaskSpec(
        name="swe2d",
        title="2D shallow water, radial dam break",
        fields=(Field.scalar("height"),),
        bounds=((-2.5, 2.5), (-2.5, 2.5)),
        periodic=(False, False),
        resolution=128,
        end=1.0,
        frames=101,
        positive=("height",),
        conserved=("mass",),
        storage=Storage(kind="groups", pattern="2D_rdb_NA_NA.h5", datasets=("data",)),
    )

    def radius(self, draw: Draw) -> Tensor:
        return draw.uniform("radius", (), SMALLEST, LARGEST)

    def initial(self, draw: Draw, grid: Grid) -> Tensor:
        x, y = (draw.tensor(c) for c in grid.coordinates)
        inside = (x.square()[:, None] + y.square()).sqrt() <= self.radius(draw).view(-1, 1, 1)
        return torch.where(inside, INNER, OUTER).to(draw.dtype).unsqueeze(-1)

    def stepper(self, scheme: str, grid: Grid, like: Tensor) -> Stepper:
        """`accurate` takes the radius from the volume of `like`, a dam `(B, X, Y, 1)`."""
        if scheme == "accurate":
            volume = (like.double() - OUTER).flatten(1).mean(1) * math.prod(grid.lengths)
            return RadialDam(grid, (volume / (math.pi * (INNER - OUTER))).sqrt())

        def at_rest(u: Tensor) -> Tensor:
            return torch.cat([u, torch.zeros_like(u), torch.zeros_like(u)], dim=1)

        # dw/dt of h and h v `(B, 1 + D, *S)`: limited slopes, Roe's flux.
        tendency, limit = flux_sum(grid, roe_shallow), wave_limit(grid.spacing)
        return FiniteVolume(grid, tendency, limit, CFL, encode=at_rest, decode=lambda w: w[:, :1])

    def simulate(self, draw: Draw, grid: Grid, times: Sequence[float], scheme: str) -> Tensor:
        if scheme != "accurate":
            return super().simulate(draw, grid, times, scheme)
        reach = min(min(-lo, hi) for lo, hi in grid.bounds)
        if LARGEST + FRONT_SPEED * times[-1] > reach:
            raise PhysicsError(
                f"swe2d: the accurate scheme ends at t = {times[-1]:g}, after the bore can reach the wall; "
                f"end before {(reach - LARGEST) / FRONT_SPEED:.2f} or take pdebench."
            )
        u0 = initial_states(RoundDam(), draw, grid)
        return solve(self.stepper(scheme, grid, u0), u0, times)

    def laws(self) -> tuple[Law, ...]:
        return (Conserved("mass", lambda u: u[..., 0], channel=0), Positive("height", 0, keeps_total=True))


@dataclass(frozen=True)
class RoundDam(ShallowWater2D):
    """A round dam whose initial state is the exact average over each cell instead of the value at its centre."""

    def initial(self, draw: Draw, grid: Grid) -> Tensor:
        part = disc_in_cells(grid, self.radius(draw).double().cpu().numpy())
        return draw.tensor(OUTER + (INNER - OUTER) * np.moveaxis(part, -1, 0)).unsqueeze(-1)
