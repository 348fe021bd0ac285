"""Effective coefficients of a PDE, fitted to stored frames by least squares on its weak form."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ups.physics.balances import BALANCES, Balance, BalanceLine, BalancePart
from ups.types import Array, Params, Trajectory

WINDOWS = (9, 17, 33)  # frames under one bump in time
STARTS = 6  # windows of each length per trajectory
RADII = (0.5, 0.25, 0.125, 0.0625)  # of a bump in space, in lengths of the axis
CELLS = 6  # least radius in cells
POWER = 8
ACCURACY = 1e-3  # of the integrals, as a part of the rate
ROUNDING = 1e-6  # of single precision, with some room
EXPLAINED = 0.02  # a balance that leaves less than this over is as good as it need be


@dataclass(frozen=True)
class Fitted:
    """A coefficient found in the data beside the one claimed.

    `error`: standard error, by leaving out one piece of the data after another, with the accuracy of the integrals
    and of single precision; infinite where the data do not hold the coefficient at all. `floor`: how far the scheme
    may honestly be off. `residual`: the part of the rate that the balance with its *claimed* coefficients leaves over:
    0 where the data obey the claim, about 1 where the claim explains nothing; NaN where there is nothing to measure.
    It is a property of the balance, so coefficients that share one share it.
    """

    name: str
    meaning: str
    value: float
    error: float
    claimed: float
    floor: float
    residual: float


def contradicts(fitted: Fitted) -> bool:
    """Whether the data rule the claim out: further off than five errors, a tenth, and what the scheme may be off.

    A parameter, a time axis or a box that is off by a factor of two, and a flux without its half, are found in files of
    every task at the published parameters, except where the stored frames do not tell:

    - reacdiff1d: ν near 10 and a wrong box then, for the waves are gone after a frame (ρ and the time axis are found);
    - burgers1d, cfd: a viscosity below the scheme's own, a tenth (gas: a twentieth) of dx times the signal speed;
    - cfd2d, cfd3d: where sound crosses a quarter of the box or more between two frames, some or (turbulence at Mach
      0.1) all of it, for what goes that far cannot be told from its aliases;
    - darcy2d: β below 0.05, for PDEBench's fields have not settled;
    - swe2d: anything, for only the height is stored.
    """
    if not math.isfinite(fitted.error):
        return False
    tolerance = max(5 * fitted.error, 0.1 * abs(fitted.claimed), fitted.floor)
    return not abs(fitted.value - fitted.claimed) <= tolerance


def fit(task: str, trajectories: Iterable[Trajectory], params: Params) -> list[Fitted]:
    """Fit every coefficient of `task` to a few trajectories; `params` are the claims.

    The balance u_t = Σ c_j D_j d_j(u) is multiplied with bumps (1 − s²)^p in space and time and integrated by parts,
    so that all derivatives fall on the bumps: shocks, rough initial states and distant frames do no harm, and
    boundaries are never touched. Only windows of at most 33 frames are read at a time. Data that hold nothing (fewer
    than 9 frames of a transient task, frames that are all the same) give NaN with an infinite error; an equation whose
    fields are not all stored (`UNFITTABLE`) gives an empty list.
    """
    if task not in BALANCES:
        return []
    balances = BALANCES[task](params)
    grams: list[dict[BumpSize, list[Array]]] = [{} for _ in balances]
    floors: list[list[list[float]]] = [[[] for _ in balance.coefficients] for balance in balances]
    for trajectory in trajectories:
        for piece in pieces(trajectory):
            for b, balance in enumerate(balances):
                for size, gram in piece.grams(balance):
                    grams[b].setdefault(size, []).append(gram)
                for j, coefficient in enumerate(balance.coefficients):
                    floors[b][j].append(coefficient.floor(piece.values, piece.spacing))
    return [f for b, balance in enumerate(balances) for f in solve_balance(balance, trusted(grams[b]), floors[b])]


class BumpSize(NamedTuple):
    """The radius of bumps, and whether waves go so far between two frames that such bumps may see aliases."""

    radius: float
    fast: bool


def trusted(grams: dict[BumpSize, list[Array]]) -> list[Array]:
    """The Gram matrices of those sizes of bump whose tests one set of coefficients explains.

    A bump much smaller than the way a wave goes between two frames sees aliases of it, and no coefficients fit them.
    Where the fields themselves say that waves go too far, tests must agree with all others as well as need be.
    """
    totals = {size: np.sum(matrices, axis=0) for size, matrices in grams.items()}
    shares = {size: unexplained(t, least_squares(t)[0]) for size, t in totals.items() if not size.fast}
    limit = max(2 * min(shares.values(), default=0.0), EXPLAINED)
    good = [size for size, share in shares.items() if share <= limit]
    for size in sorted((size for size in totals if size.fast), reverse=True):
        values = least_squares(sum(totals[s] for s in good) + totals[size])[0]
        if all(unexplained(totals[s], values) <= EXPLAINED for s in (*good, size)):
            good.append(size)
    return [gram for size in good for gram in grams[size]]


def unexplained(gram: Array, values: Array) -> float:
    """The part of the rate that the terms with these coefficients leave over, 0 to 1."""
    values = np.nan_to_num(values)
    a, y, yy = gram[:-2, :-2], gram[:-2, -2], gram[-2, -2]
    left = max(float(yy - 2 * values @ y + values @ a @ values), 0.0)
    return math.sqrt(left / yy) if yy > 0 else 1.0


def solve_balance(balance: Balance, grams: Sequence[Array], floors: Sequence[Sequence[float]]) -> list[Fitted]:
    """Least squares from the Gram matrices of [terms, rate, noise], one per piece; errors by the jackknife over pieces.

    To these comes what an error of the integrals (a thousandth of the rate) and of rounding would do.
    """
    if not grams:
        return [Fitted(c.name, c.meaning, math.nan, math.inf, c.claimed, 0.0, math.nan) for c in balance.coefficients]
    stack = np.stack(grams)
    total, n = stack.sum(0), len(stack)
    values, reach = least_squares(total)
    rest = np.array([least_squares(total - gram)[0] for gram in stack])
    spread = np.sqrt((n - 1) / n * ((rest - rest.mean(0)) ** 2).sum(0)) if n > 2 else np.full(len(values), math.inf)
    spread = np.where(np.isnan(spread), math.inf, spread)
    errors = np.hypot(spread, reach * math.sqrt(ACCURACY**2 * total[-2, -2] + total[-1, -1]))
    share = unexplained(total, np.array([c.claimed for c in balance.coefficients]))
    return [
        Fitted(c.name, c.meaning, float(value), float(error), c.claimed, float(np.mean(floor)), share)
        for c, value, error, floor in zip(balance.coefficients, values, errors, floors, strict=True)
    ]


def least_squares(gram: Array) -> tuple[Array, Array]:
    """(coefficients, how far a unit of error in the rate moves each) from the Gram matrix of [terms, rate, noise].

    A coefficient whose term is nowhere to be seen is NaN, and moved infinitely far.
    """
    a, y = gram[:-2, :-2], gram[:-2, -2]
    size = np.sqrt(np.diag(a))
    seen = size > 0
    values, reach = np.full(len(y), math.nan), np.full(len(y), math.inf)
    scaled = a[np.ix_(seen, seen)] / np.outer(size[seen], size[seen])
    inverse = np.linalg.pinv(scaled, rcond=1e-13, hermitian=True)
    values[seen] = inverse @ (y[seen] / size[seen]) / size[seen]
    reach[seen] = np.sqrt(np.diag(inverse)) / size[seen]
    return values, reach


@dataclass(frozen=True)
class Piece:
    """Some consecutive frames `(T, *S, C)` of a trajectory, and the bump over them."""

    values: Array
    inputs: Array
    axes: tuple[Array, ...]
    spacing: tuple[float, ...]
    weight: Array  # (T,), the bump times dt
    slope: Array  # (T,), its derivative times dt
    dt: float

    def grams(self, balance: Balance) -> list[tuple[BumpSize, Array]]:
        """(size, Gram matrix of [terms, rate, noise] over the bumps of that size)."""
        grams: list[tuple[BumpSize, Array]] = []
        shortest = min(len(x) * dx for x, dx in zip(self.axes, self.spacing, strict=True))
        travel = balance.pace(self.values) * self.dt / shortest
        for radius in radii(self.axes):
            # Fast: a wave as long as the radius would turn by more than half a period per frame.
            size = BumpSize(radius, travel > radius / 2)
            rows = np.concatenate([self.rows(line, radius) for line in balance.lines], axis=1)
            if balance.lines[0].rate:
                rows = rows[:, np.isfinite(rows[0])]
                grams.append((size, rows @ rows.T))
            else:  # a steady state has no windows to leave out, so it is cut in space
                grams += [(size, part @ part.T) for part in np.array_split(rows, 4, axis=1) if part.size]
        return [(size, gram) for size, gram in grams if gram[-2, -2] > 0]

    def rows(self, line: BalanceLine, radius: float) -> Array:
        """`(terms + 2, tests)`: each term, the rate and its rounding against each bump; NaN where frames may alias."""
        terms = [self.term(parts, radius) for parts in line.terms]
        rate, noise = np.zeros_like(terms[0]), np.zeros_like(terms[0])
        if line.known:
            rate += self.weight @ self.tested(line.known, radius)
        if line.rate:
            values = self.tested(line.rate, radius)
            rate -= self.slope @ values
            noise += ROUNDING * (np.abs(self.slope) @ np.abs(values))
            rate[self.too_fast(values)] = math.nan
        return np.where(np.isnan(rate), math.nan, np.stack([*terms, rate, noise]))

    def term(self, parts: Sequence[BalancePart], radius: float) -> Array:
        """`(tests,)`: a term against each bump, and 0 where it is no more than rounding.

        Rounding in a term that should vanish (the curvature of a field that has become uniform) would otherwise draw
        its coefficient towards 0.
        """
        term = self.weight @ self.tested(parts, radius)
        rounding = ROUNDING * (self.weight @ self.tested(parts, radius, size=True))
        return np.where(np.abs(term) > rounding, term, 0.0)

    def too_fast(self, values: Array) -> Array:
        """Tests whose value `(T, tests)` turns by more than a quarter per frame: such frames may alias."""
        bump = (self.weight / self.weight.max())[:, None]
        moved = bump * (values - (bump * values).sum(0) / bump.sum())
        kinks = np.diff(moved, 2, axis=0)
        return np.asarray((kinks**2).sum(0) > 4.0 * (moved**2).sum(0))

    def tested(self, parts: Sequence[BalancePart], radius: float, size: bool = False) -> Array:
        """`(T, tests)`: ∫ bump · Σ ∂^orders density over space, the derivatives moved onto the bump.

        `size`: the same of absolute values, which is what the sum would be if nothing cancelled.
        """
        total: Array = np.zeros(())
        for part in parts:
            field = part.density(self.values, self.inputs, self.spacing)
            field = np.abs(field) if size else field
            for axis, order in enumerate(part.orders):
                x = self.axes[axis]
                where = x if field.shape[1] == len(x) else (x[1:] + x[:-1]) / 2
                bumps = bump_matrix(x, where, radius * len(x) * self.spacing[axis], order)
                # Each contraction sends its axis to the back, so the next one is always at place 1.
                field = np.tensordot(field, np.abs(bumps) if size else bumps, axes=(1, 1))
            total = total + field
        return total.reshape(total.shape[0], -1)


def bump(s: Array, order: int, power: int = POWER) -> Array:
    """The derivative of (1 − s²)^power of the given order, 0 outside (−1, 1)."""
    polynomial = np.polynomial.Polynomial([1, 0, -1]) ** power
    inside = polynomial.deriv(order)(s) if order else polynomial(s)
    return np.where(np.abs(s) < 1, inside, 0.0)


def bump_matrix(x: Array, where: Array, radius: float, order: int) -> Array:
    """`(tests, len(where))`: (−∂)^order of bumps of this radius, centred every half radius inside `x`; mean 1."""
    first, last = x[0] + radius, x[-1] - radius
    count = 1 + max(0, round((last - first) / (radius / 2)))
    centres = np.linspace(first, last, count)
    s = (where[None, :] - centres[:, None]) / radius
    whole, shape = bump(s, 0), bump(s, order)
    mass = whole.sum(1, keepdims=True)
    if order:  # the derivative of a constant is 0 on the grid as well
        shape = shape - whole * (shape.sum(1, keepdims=True) / mass)
    return np.asarray((-1 / radius) ** order * shape / mass)


def radii(axes: tuple[Array, ...]) -> list[float]:
    """Radii, in lengths of an axis, that span enough cells on every axis; the largest one anyway."""
    least = min(len(x) for x in axes)
    return [r for r in RADII if r * least >= CELLS] or [RADII[0]]


def pieces(trajectory: Trajectory) -> Iterator[Piece]:
    """Windows of several lengths spread evenly over a trajectory; a steady one is a single piece, a short one none."""
    axes = tuple(np.asarray(x, dtype=np.float64) for x in trajectory.grid.coordinates)
    spacing = tuple(float((x[-1] - x[0]) / (len(x) - 1)) for x in axes)
    inputs = np.asarray(trajectory.inputs, dtype=np.float64)

    def piece(first: int, count: int, weight: Array, slope: Array, dt: float = 0.0) -> Piece:
        values = np.asarray(trajectory.values[first : first + count], dtype=np.float64)
        return Piece(values, inputs, axes, spacing, weight, slope, dt)

    frames = len(trajectory.values)
    if trajectory.task.steady:
        yield piece(frames - 1, 1, np.ones(1), np.zeros(1))
        return
    if frames < WINDOWS[0]:
        return
    times = np.asarray(trajectory.times, dtype=np.float64)[:frames]
    dt = float((times[-1] - times[0]) / (frames - 1))
    for length in WINDOWS:
        if length > frames:
            break
        s = np.linspace(-1.0, 1.0, length)
        half = (length - 1) / 2 * dt
        weight, slope = bump(s, 0, 5) * dt / half, bump(s, 1, 5) * dt / half**2
        starts = min(STARTS, max(1, 2 * (frames // length) - 1))
        for first in sorted({round(f) for f in np.linspace(0, frames - length, starts)}):
            window = piece(first, length, weight, slope, dt)
            if np.ptp(window.values) > 1e-6 * np.abs(window.values).max():  # frames that are all the same hold nothing
                yield window
