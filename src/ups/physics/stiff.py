"""One-step methods for stiff semi-discrete systems: RKC2 (explicit, diffusion) and RODAS (linearly implicit, 1D)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ups.physics.method_of_lines import OneStep, Rate, combine, each

# RODAS (Hairer & Wanner, Solving ODEs II, sec. IV.10) in the form without products with the Jacobian.
_RODAS_A = (
    (1.544,),
    (0.9466785280815826, 0.2557011698983284),
    (3.314825187068521, 2.896124015972201, 0.9986419139977817),
    (1.221224509226641, 6.019134481288629, 12.53708332932087, -0.6878860361058950),
    (1.221224509226641, 6.019134481288629, 12.53708332932087, -0.6878860361058950, 1.0),
)
_RODAS_C = (
    (-5.6688,),
    (-2.430093356833875, -0.2063599157091915),
    (-0.1073529058151375, -9.594562251023355, -20.47028614809616),
    (7.496443313967647, -10.24680431464352, -33.99990352819905, 11.70890893206160),
    (8.083246795921522, -7.981132988064893, -31.52159432874371, 16.31930543123136, -6.058818238834054),
)
_RODAS_GAMMA = 0.25


class RKC2(OneStep):
    """Runge–Kutta–Chebyshev of second order (Sommeijer, Shampine & Verwer 1998) with error control per sample.

    For diffusion: eigenvalues of the rate's Jacobian near the negative real axis, of modulus at most `radius`. s
    stages are stable for h·radius ≤ 0.653 (s² − 1), so the cost grows with √h instead of h; each sample takes as many
    as its own step needs, at most `stages`. It breaks for advection (imaginary eigenvalues) and when `radius` is
    too small.
    """

    order = 2

    def __init__(self, rate: Rate, radius: float, rtol: float = 1e-6, atol: float = 1e-8, stages: int = 256) -> None:
        self.rate, self.radius, self.rtol, self.atol = rate, radius, rtol, atol
        self.longest = 0.653 * ((stages - 1) ** 2 - 1) / radius
        self._table = torch.as_tensor(chebyshev_coefficients(stages))

    def attempt(self, u: Tensor, f: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        stages = 1 + (1 + h * self.radius / 0.653).sqrt().ceil().clamp(1, self._table.shape[1] - 2).long()
        table = self._table.to(h.device)[:, stages]  # (4, B, S): rows of finished samples say "stay"
        hf = each(h, u) * f
        before, now = u, torch.addcmul(u, each(table[2, :, 1], u), hf)
        for j in range(2, int(stages.max()) + 1):
            mu, nu, rate_weight, first_weight = (each(c, u) for c in table[:, :, j])
            after = (1 - mu - nu) * u
            after.addcmul_(mu, now).addcmul_(nu, before).addcmul_(first_weight, hf)
            after.addcmul_(rate_weight * each(h, u), self.rate(now))
            before, now = now, after
        rate = self.rate(now)
        error = 0.8 * (u - now) + 0.4 * torch.addcmul(hf, each(h, u), rate)
        return now, rate, error


def chebyshev_coefficients(stages: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """RKC2's μ, ν, μ̃, γ̃ as `(4, stages + 1, stages + 1)`: entry [s, j] for stage j of an s-stage step, 2 ≤ s.

    Beyond j = s stands μ = 1 and zeros elsewhere: the stage repeats the previous one.
    """
    s = np.arange(stages + 1.0).clip(2)
    w0 = 1 + 2 / 13 / s**2
    t, d, dd = (np.zeros((stages + 1, stages + 1)) for _ in range(3))  # T_j(w0), T_j′, T_j″: (j, s)
    t[0], t[1], d[1] = 1, w0, 1
    for j in range(2, stages + 1):
        t[j] = 2 * w0 * t[j - 1] - t[j - 2]
        d[j] = 2 * t[j - 1] + 2 * w0 * d[j - 1] - d[j - 2]
        dd[j] = 4 * d[j - 1] + 2 * w0 * dd[j - 1] - dd[j - 2]
    last = (s.astype(int), np.arange(stages + 1))
    w1 = d[last] / dd[last]
    b = np.empty_like(t)
    b[2:] = dd[2:] / d[2:] ** 2
    b[0] = b[1] = b[2]
    a = 1 - b * t
    table = np.zeros((4, stages + 1, stages + 1))
    table[0] = 1.0
    table[2, 1] = b[1] * w1
    for j in range(2, stages + 1):
        live = s >= j
        weight = 2 * b[j] * w1 / b[j - 1]
        table[0, j] = np.where(live, 2 * b[j] * w0 / b[j - 1], 1.0)
        table[1, j] = np.where(live, -b[j] / b[j - 2], 0.0)
        table[2, j] = np.where(live, weight, 0.0)
        table[3, j] = np.where(live, -a[j - 1] * weight, 0.0)
    return table.transpose(0, 2, 1)


class Rodas4(OneStep):
    """RODAS, linearly implicit Runge–Kutta of order 4(3), L-stable, for stiff scalar systems on a line.

    `jacobian` maps u `(B, N, 1)` to the sub-, main and super-diagonal of ∂rate/∂u, each `(B, N)`. Stiffness costs
    nothing; it breaks when the matrix 1/(γh) − J is far from diagonally dominant (no pivoting), as in advection.
    """

    order = 3

    def __init__(
        self, rate: Rate, jacobian: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]], rtol: float, atol: float
    ) -> None:
        self.rate, self.jacobian, self.rtol, self.atol = rate, jacobian, rtol, atol

    def attempt(self, u: Tensor, f: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        low, main, high = self.jacobian(u)
        system = Tridiagonal(-low, (1 / (_RODAS_GAMMA * h)).unsqueeze(1) - main, -high)
        parts = u.new_empty((6, *u.shape))
        parts[0] = system.solve(f[..., 0]).unsqueeze(-1)
        stage = u
        for i, (a, c) in enumerate(zip(_RODAS_A, _RODAS_C, strict=True), start=1):
            stage = u + combine(a, parts[:i])
            right = self.rate(stage) + combine(c, parts[:i]) / each(h, u)
            parts[i] = system.solve(right[..., 0]).unsqueeze(-1)
        end = stage + parts[5]
        return end, self.rate(end), parts[5]


class Tridiagonal:
    """Tridiagonal systems `(B, N)` by parallel cyclic reduction, about log₂ N vector operations; no pivoting."""

    def __init__(self, low: Tensor, main: Tensor, high: Tensor) -> None:
        """Row i is low[i] x[i−1] + main[i] x[i] + high[i] x[i+1]; low[0] and high[N−1] are not read."""
        low, high = low.clone(), high.clone()
        low[:, 0], high[:, -1] = 0, 0
        self._levels: list[tuple[int, Tensor, Tensor]] = []
        stride = 1
        while stride < main.shape[1]:
            down = -low[:, stride:] / main[:, :-stride]
            up = -high[:, :-stride] / main[:, stride:]
            self._levels.append((stride, down, up))
            next_low, next_main, next_high = torch.zeros_like(low), main.clone(), torch.zeros_like(high)
            next_main[:, stride:].addcmul_(down, high[:, :-stride])
            next_main[:, :-stride].addcmul_(up, low[:, stride:])
            next_low[:, stride:] = down * low[:, :-stride]
            next_high[:, :-stride] = up * high[:, stride:]
            low, main, high = next_low, next_main, next_high
            stride *= 2
        self._main = main

    def solve(self, right: Tensor) -> Tensor:
        x = right
        for stride, down, up in self._levels:
            reduced = x.clone()
            reduced[:, stride:].addcmul_(down, x[:, :-stride])
            reduced[:, :-stride].addcmul_(up, x[:, stride:])
            x = reduced
        return x / self._main
