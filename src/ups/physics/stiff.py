"""Time steppers for stiff semi-discrete systems: RODAS on a line, the matrix exponential of a linear relaxation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from ups.lazy_imports import Tensor, torch
from ups.physics.method_of_lines import Rate, combine, each, first_step, rms, smallest_step, stuck

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


@dataclass
class _March:
    """Where each sample stands: state, its rate, clock, next step."""

    u: Tensor
    dtype: torch.dtype
    f: Tensor = field(default_factory=lambda: torch.empty(0))
    t: Tensor = field(default_factory=lambda: torch.empty(0))
    h: Tensor = field(default_factory=lambda: torch.empty(0))


class Rodas4:
    """RODAS, linearly implicit Runge–Kutta of order 4(3), L-stable, for stiff scalar systems on a line.

    Each sample has its own clock, step and error control (error measured as scipy does) and lands on the saved times.
    `jacobian` maps u `(B, N, 1)` to the sub-, main and super-diagonal of ∂rate/∂u, each `(B, N)`. Stiffness costs
    nothing; it breaks when the matrix 1/(γh) − J is far from diagonally dominant (no pivoting), as in advection.
    Arithmetic is in double precision whatever the dtype of the state.
    """

    def __init__(
        self, rate: Rate, jacobian: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]], rtol: float, atol: float
    ) -> None:
        self.rate, self.jacobian, self.rtol, self.atol = rate, jacobian, rtol, atol

    def start(self, u0: Tensor) -> _March:
        return _March(u0.double(), u0.dtype)

    def read(self, state: _March) -> Tensor:
        return state.u.to(state.dtype)

    def advance(self, state: _March, t0: float, t1: float) -> _March:
        s = state
        if s.h.numel() == 0:
            f = self.rate(s.u)
            h = first_step(self.rate, s.u, f, 3, self.rtol, self.atol, t1 - t0)
            s = replace(s, f=f, h=h, t=torch.full_like(h, t0))
        while True:
            active = s.t < t1
            dead = active & ~(s.h >= smallest_step(s.t))
            pending, failed = torch.stack([active.any(), dead.any()]).tolist()
            if failed:
                raise stuck(s.t, dead)
            if not pending:
                return s
            s = self._step(s, active, t1)

    def _step(self, s: _March, active: Tensor, t1: float) -> _March:
        """One attempt of every active sample, in equal steps up to t1; the others stay as they are."""
        count = ((t1 - s.t) / s.h).ceil().clamp_min(1)
        h = torch.where(active, (t1 - s.t) / count, s.h)
        u, f, error = self.attempt(s.u, s.f, h)
        size = rms(error / (self.atol + self.rtol * torch.maximum(s.u.abs(), u.abs())))
        good = size <= 1
        factor = (0.85 * size ** (-1 / (4))).nan_to_num(0.2, 5.0, 0.2).clamp(0.2, 5.0)
        proposal = torch.where(good, h * factor, h * factor.clamp_max(0.85))
        # A step cut short by t1 says nothing against the longer one that was planned.
        proposal = torch.where(good & (count == 1), torch.maximum(proposal, s.h), proposal)
        take, wide = active & good, each(active & good, u)
        clock = torch.where(count == 1, torch.full_like(h, t1), s.t + h)
        return _March(
            torch.where(wide, u, s.u),
            s.dtype,
            torch.where(wide, f, s.f),
            torch.where(take, clock, s.t),
            torch.where(active, proposal, s.h),
        )

    def attempt(self, u: Tensor, f: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """State, rate and estimated error after a step of h `(B,)` from u, whose rate is f."""
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


@dataclass
class LinearRelaxation:
    """u_t = force − A u with A symmetric, 0 ≤ A ≤ `radius`: u(t + h) = u + h φ₁(−hA)(force − A u), φ₁(z) = (e^z − 1)/z.

    φ₁ is summed in Chebyshev polynomials of A, about 8 √(h·radius / 2) applications of `operator` on `(B, ...)`, until
    the coefficients are round-off: no time error, no stability limit. Breaks (grows without bound) when `radius` is
    too small. Arithmetic is in double precision whatever the dtype of the state.
    """

    operator: Callable[[Tensor], Tensor]
    force: float
    radius: float

    def start(self, u0: Tensor) -> tuple[Tensor, torch.dtype]:
        return u0.double(), u0.dtype

    def read(self, state: tuple[Tensor, torch.dtype]) -> Tensor:
        return state[0].to(state[1])

    def advance(self, state: tuple[Tensor, torch.dtype], t0: float, t1: float) -> tuple[Tensor, torch.dtype]:
        u, dtype = state
        h = t1 - t0
        first, second, *rest = phi_coefficients(h * self.radius)
        before = self.force - self.operator(u)
        now = before - (2 / self.radius) * self.operator(before)
        total = first * before + second * now
        for c in rest:  # T_{k+1}(B) = 2 B T_k(B) − T_{k−1}(B) with B = 1 − 2A/radius
            after = self.operator(now).mul_(-4 / self.radius).add_(now, alpha=2).sub_(before)
            total.add_(after, alpha=c)
            before, now = now, after
        return u + h * total, dtype


def phi_coefficients(extent: float) -> list[float]:
    """Chebyshev coefficients, in cos θ = 1 − 2x/extent, of φ₁(−x) = (1 − e^{−x})/x on 0 ≤ x ≤ extent, to 1e-14."""
    from scipy.fft import dct  # slow to import

    points = 1 << max(6, math.ceil(math.log2(24 * math.sqrt(extent + 1))))
    x = extent * np.sin(np.pi * (np.arange(points) + 0.5) / (2 * points)) ** 2
    coefficients = dct(-np.expm1(-x) / x, type=2) / points
    coefficients[0] /= 2
    significant = np.nonzero(np.abs(coefficients) > 1e-15)[0]
    return [float(c) for c in coefficients[: max(2, int(significant[-1]) + 1)]]
