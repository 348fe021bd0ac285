"""RK45 for semi-discrete systems u_t = rate(u), as scipy has it, for batches in which each sample has its own clock."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ups.lazy_imports import Tensor, torch
from ups.types import PhysicsError

Rate = Callable[[Tensor], Tensor]

# Dormand & Prince (1980): stages, fifth-order weights, error weights; Shampine's (1986) quartic interpolant.
_STAGES = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
_ERROR = (-71 / 57600, 0, 71 / 16695, -71 / 1920, 17253 / 339200, -22 / 525, 1 / 40)
_DENSE = (
    (1, -8048581381 / 2820520608, 8663915743 / 2820520608, -12715105075 / 11282082432),
    (0, 0, 0, 0),
    (0, 131558114200 / 32700410799, -68118460800 / 10900136933, 87487479700 / 32700410799),
    (0, -1754552775 / 470086768, 14199869525 / 1410260304, -10690763975 / 1880347072),
    (0, 127303824393 / 49829197408, -318862633887 / 49829197408, 701980252875 / 199316789632),
    (0, -282668133 / 205662961, 2019193451 / 616988883, -1453857185 / 822651844),
    (0, 40617522 / 29380423, -110615467 / 29380423, 69997945 / 29380423),
)


def rms(x: Tensor) -> Tensor:
    """Root mean square of each sample, `(B,)`."""
    return x.flatten(1).square().mean(1).sqrt()


def each(value: Tensor, like: Tensor) -> Tensor:
    """A number per sample `(B,)`, shaped to multiply `(B, ...)`."""
    return value.reshape(-1, *[1] * (like.ndim - 1))


def first_step(rate: Rate, u: Tensor, f: Tensor, order: int, rtol: float, atol: float, interval: float) -> Tensor:
    """A first step per sample from the sizes of u, u′ and u″ (Hairer, Nørsett & Wanner, Solving ODEs I, sec. II.4)."""
    scale = atol + rtol * u.abs()
    d0, d1 = rms(u / scale), rms(f / scale)
    h0 = torch.where((d0 < 1e-5) | (d1 < 1e-5), torch.full_like(d0, 1e-6), 0.01 * d0 / d1).clamp_max(interval)
    d2 = rms((rate(u + each(h0, u) * f) - f) / scale) / h0
    still = (d1 <= 1e-15) & (d2 <= 1e-15)
    h1 = torch.where(still, (1e-3 * h0).clamp_min(1e-6), (0.01 / torch.maximum(d1, d2)) ** (1 / (order + 1)))
    return torch.minimum(100 * h0, h1).clamp_max(interval)


def smallest_step(t: Tensor) -> Tensor:
    """Ten spacings of the floating-point numbers at t: a step below it no longer moves the clock."""
    return 10 * (torch.nextafter(t, torch.full_like(t, math.inf)) - t)


def stuck(t: Tensor, where: Tensor) -> PhysicsError:
    """The error for a batch in which the samples `where` cannot go on."""
    first = int(where.nonzero()[0, 0])
    return PhysicsError(
        f"The time step of sample {first} of the batch fell to zero at t = {float(t[first]):g}: "
        "its solution is not finite or not smooth enough; check the initial state and the parameters."
    )


@dataclass
class _Dense:
    """Where each sample stands: its last accepted step from `t_old` to `t`, with the seven slopes taken in it."""

    u: Tensor
    dtype: torch.dtype
    at: float = math.nan
    t: Tensor = field(default_factory=lambda: torch.empty(0))
    h: Tensor = field(default_factory=lambda: torch.empty(0))
    rejected: Tensor = field(default_factory=lambda: torch.empty(0))
    t_old: Tensor = field(default_factory=lambda: torch.empty(0))
    u_old: Tensor = field(default_factory=lambda: torch.empty(0))
    slopes: Tensor = field(default_factory=lambda: torch.empty(0))


@dataclass
class RK45:
    """Dormand–Prince 5(4) with scipy's error norm, step control, first step and quartic dense output, per sample.

    Each sample has its own clock and its own step and takes the very steps `scipy.integrate.solve_ivp(method="RK45")`
    takes for it alone on [t₀, `end`]; saved times are interpolated and do not influence the steps. `rate` maps
    `(B, *S, C)` to its time derivative. Arithmetic is in double precision whatever the dtype of the state, as in scipy.
    Good for rates whose spectral radius ρ is moderate: on diffusion the step is held at about 3.3/ρ by stability,
    however loose the tolerance.
    """

    rate: Rate
    end: float
    rtol: float = 1e-3
    atol: float = 1e-6

    def start(self, u0: Tensor) -> _Dense:
        return _Dense(u0.double(), u0.dtype)

    def _begin(self, state: _Dense, t0: float, interval: float) -> _Dense:
        u = state.u
        f = self.rate(u)
        h = first_step(self.rate, u, f, 4, self.rtol, self.atol, interval)
        t = torch.full_like(h, t0)
        rejected = torch.zeros_like(h, dtype=torch.bool)
        return replace(state, t=t, h=h, rejected=rejected, t_old=t, u_old=u, slopes=torch.stack([f] * 7))

    def advance(self, state: _Dense, t0: float, t1: float) -> _Dense:
        bound = max(self.end, t1)
        s = self._begin(state, t0, bound - t0) if math.isnan(state.at) else state
        while True:
            active = s.t < t1
            dead = active & s.rejected & ~(s.h >= smallest_step(s.t))
            pending, failed = torch.stack([active.any(), dead.any()]).tolist()
            if failed:
                raise stuck(s.t, dead)
            if not pending:
                return replace(s, at=t1)
            s = self._step(s, active, bound)

    def _step(self, s: _Dense, active: Tensor, bound: float) -> _Dense:
        """One attempt of every active sample; the others stay as they are."""
        h = torch.where(s.rejected, s.h, torch.maximum(s.h, smallest_step(s.t)))
        t_new = (s.t + h).clamp_max(bound)
        h = torch.where(active, t_new - s.t, s.h)
        slopes, u_new = self._slopes(s.u, s.slopes[6], each(h, s.u))
        scale = self.atol + torch.maximum(s.u.abs(), u_new.abs()) * self.rtol
        error = rms(combine(_ERROR, slopes) * each(h, s.u) / scale)
        good = error < 1
        factor = (0.9 * error**-0.2).nan_to_num(0.2, 10.0, 0.2).clamp(0.2, 10.0)
        factor = torch.where(s.rejected | ~good, factor.clamp_max(1.0), factor)
        take = active & good
        rejected = torch.where(active, ~good, s.rejected)
        h = torch.where(active, h * factor, s.h)
        if bool(take.all()):  # nothing to keep: no copies
            return _Dense(u_new, s.dtype, s.at, t_new, h, rejected, s.t, s.u, slopes)
        wide = each(take, s.u)
        return _Dense(
            torch.where(wide, u_new, s.u),
            s.dtype,
            s.at,
            torch.where(take, t_new, s.t),
            h,
            rejected,
            torch.where(take, s.t, s.t_old),
            torch.where(wide, s.u, s.u_old),
            torch.where(wide, slopes, s.slopes),
        )

    def _slopes(self, u: Tensor, f: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """The seven slopes of a step of h (the last one at its end), and the state at its end."""
        slopes = u.new_empty((7, *u.shape))
        slopes[0] = f
        stage = u
        for i, row in enumerate(_STAGES, start=1):
            stage = torch.addcmul(u, h, combine(row, slopes[:i]))
            slopes[i] = self.rate(stage)
        return slopes, stage

    def read(self, state: _Dense) -> Tensor:
        """The quartic interpolant of each sample's last step, at the time `advance` was asked for."""
        if math.isnan(state.at):
            return state.u.to(state.dtype)
        h = state.t - state.t_old
        x = torch.where(h > 0, (state.at - state.t_old) / h, torch.zeros_like(h))
        powers = torch.stack([x**i for i in range(1, 5)])
        weights = torch.tensor(_DENSE, dtype=h.dtype, device=h.device) @ powers * h
        dense = (weights.reshape(7, -1, *[1] * (state.u.ndim - 1)) * state.slopes).sum(0)
        return (state.u_old + dense).to(state.dtype)


@functools.lru_cache(maxsize=64)
def _weights(weights: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(weights, dtype=dtype, device=device)


def combine(weights: tuple[float, ...], slopes: Tensor) -> Tensor:
    """Σ weights[i] slopes[i] over the first axis."""
    total: Tensor = torch.tensordot(_weights(weights, slopes.dtype, slopes.device), slopes, dims=1)
    return total
