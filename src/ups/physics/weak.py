"""The weak form of an equation between two frames, as a loss: the residual that a prediction leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ups.later import Tensor, torch
from ups.physics.balances import BALANCES, Balance, Part
from ups.physics.fit import bump_matrix, bumps_at, radii
from ups.tensors import table
from ups.types import Domain, TaskSpec

# Of the square of a density: a change that is smaller than that counts as if it were as large.
EXACT = 1e-6


def round_bumps(n: int, length: float, radius: float, order: int) -> np.ndarray[Any, Any]:
    """`(tests, n)`: as `bump_matrix`, around an axis that wraps; centred every half radius."""
    x = (np.arange(n) + 0.5) * length / n
    count = max(1, round(2 * length / radius))
    gap = x[None, :] - np.arange(count)[:, None] * length / count
    return bumps_at((gap - length * np.round(gap / length)) / radius, radius, order)


@table
def _bumps(
    n: int, length: float, periodic: bool, radius: float, order: int, faces: bool, device: torch.device
) -> Tensor:
    """Bumps along one axis, read in its n cells or on the faces between them, as a tensor `(tests, cells)`."""
    if periodic:
        matrix = round_bumps(n, length, radius * length, order)
    else:
        x = (np.arange(n) + 0.5) * length / n
        matrix = bump_matrix(x, (x[1:] + x[:-1]) / 2 if faces else x, radius * length, order)
    return torch.as_tensor(matrix, dtype=torch.float64, device=device)


@dataclass(frozen=True)
class WeakForm:
    """The balances of an equation against bumps of several sizes, each line in units of its own.

    In time the trapezoidal rule stands for the integral, so that what moves by more than a bump between two frames
    leaves something over even where it is true.
    """

    equation: str

    @classmethod
    def of(cls, task: TaskSpec) -> WeakForm | None:
        """That of the equation a task obeys; None where it has none, or none that its stored fields close, or where a
        mask leaves cells out."""
        known = task.equation in BALANCES and not task.mask
        return cls(task.equation) if known else None

    def remainder(
        self,
        before: Tensor,
        after: Tensor,
        inputs: Tensor,
        params: Mapping[str, Tensor],
        dt: Tensor,
        domain: Domain,
        truth: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """The mean square `(B,)` that a step from `before` to `after (B, *S, C)` in the time `dt (B,)` leaves over, 1
        for "no change". Where a `truth` of both frames is given, what that leaves over on this grid and in this step
        is no error: the distance from it counts. `params` holds `(B,)` for each name; of a steady task `before` is
        zero."""
        balances: tuple[Balance, ...] = BALANCES[self.equation](params)  # type: ignore[arg-type]
        frames = [before, after, *(truth or ())]
        u, many = torch.cat(frames).double(), len(frames)
        given, dt = torch.cat([inputs] * many).double(), dt.double().unsqueeze(-1)
        shares = []
        for balance in balances:
            claims: list[Any] = [c.claimed for c in balance.coefficients]
            factors = [torch.cat([c] * many).double() if isinstance(c, Tensor) else c for c in claims]
            for line in balance.lines:
                rate = _densities([(1.0, line.rate)], u, given, domain)
                right = [(-1.0, line.known), *zip(factors, line.terms, strict=True)]
                change = _densities(right, u, given, domain)
                squares = []
                for radius in radii(domain.coordinates):
                    changes = _tested(change, domain, radius).chunk(many)
                    rates = _tested(rate, domain, radius).chunk(many) if rate else ()
                    squares.append(_squares(rates, changes, dt if rate else None))
                left, size = torch.stack(squares).sum(0)
                shares.append(left / size.clamp_min(torch.finfo(torch.float64).tiny).detach())
        return torch.stack(shares).mean(0).to(after.dtype)


# Densities by the orders of their derivatives, and by whether they sit on faces: the shape of `(B, *S)`.
Fields = dict[tuple[tuple[int, ...], tuple[int, ...]], Tensor]


def _densities(
    terms: Sequence[tuple[float | Tensor, Sequence[Part]]], u: Tensor, inputs: Tensor, domain: Domain
) -> Fields:
    """The sum of some terms of a balance, each with its factor, a number or `(B,)`."""
    fields: Fields = {}
    for factor, parts in terms:
        each = factor.reshape(-1, *(1,) * domain.ndim) if isinstance(factor, Tensor) else factor
        for part in parts:
            density = each * part.density(u, inputs, domain.spacing)
            key = (part.orders, tuple(density.shape))
            fields[key] = fields[key] + density if key in fields else density
    return fields


def _tested(fields: Fields, domain: Domain, radius: float) -> Tensor:
    """∫ bump · Σ ∂^orders density over space against bumps of one radius, `(B, tests)`, the derivatives moved onto the
    bump."""
    tested = []
    for (orders, _), field in fields.items():
        for axis, order in enumerate(orders):
            n, length = domain.shape[axis], domain.lengths[axis]
            bumps = _bumps(n, length, domain.periodic[axis], radius, order, field.shape[1] != n, field.device)
            # Each contraction sends its axis to the back, so the next one is always at place 1.
            field = torch.tensordot(field, bumps, dims=([1], [1]))
        tested.append(field.flatten(1))
    return torch.stack(tested).sum(0)


def _squares(rates: Sequence[Tensor], changes: Sequence[Tensor], dt: Tensor | None) -> Tensor:
    """The mean squares `(2, B)` that a step and "no change" leave over. For (before, after), and the true two where
    they are known: what there is of a density, and by how much it should change in unit time. Without `dt` nothing may
    change."""

    def rest(first: int, last: int) -> Tensor:
        if dt is None:
            return changes[last]
        return rates[last] - rates[first] - 0.5 * dt * (changes[last] + changes[first])

    true = rest(2, 3) if len(changes) == 4 else torch.zeros_like(changes[0])
    size = (rest(0, 0) - true).square().mean(1)
    floor = torch.zeros_like(size) if dt is None else EXACT * rates[0].square().mean(1)
    return torch.stack(((rest(0, 1) - true).square().mean(1), torch.maximum(size, floor)))
