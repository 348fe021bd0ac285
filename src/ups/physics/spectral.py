"""Fourier tools on periodic boxes, and the exponential time stepper for stiff semilinear equations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from ups.lazy_imports import Tensor, torch
from ups.types import Grid

LARGE = 2**20


def wavenumbers(grid: Grid, device: torch.device, dtype: torch.dtype, real: bool = False) -> tuple[Tensor, ...]:
    """Angular wavenumbers 2π m / L per axis, broadcastable over the grid; `real`: the last axis holds m ≥ 0 only.

    The Nyquist mode of an even axis is 0: a real field has no derivative there.
    """
    axes = []
    for axis, (n, length) in enumerate(zip(grid.shape, grid.lengths, strict=True)):
        half = real and axis == grid.ndim - 1
        m = torch.fft.rfftfreq(n, 1 / n) if half else torch.fft.fftfreq(n, 1 / n)
        m = torch.where(m.abs() * 2 == n, torch.zeros_like(m), m).to(device=device, dtype=dtype)
        view = [1] * grid.ndim
        view[axis] = -1
        axes.append((2 * math.pi / length * m).reshape(view))
    shape = tuple(k.numel() for k in axes)
    return tuple(k.expand(shape) for k in axes)


def dealias_mask(grid: Grid, device: torch.device, dtype: torch.dtype) -> Tensor:
    """1 for modes below two thirds of the Nyquist wavenumber on every axis of a real transform, else 0."""
    ks = wavenumbers(grid, device, dtype, real=True)
    keep = torch.ones_like(ks[0])
    for axis, (k, n, length) in enumerate(zip(ks, grid.shape, grid.lengths, strict=True)):
        keep = keep * (k.abs() < 2 / 3 * math.pi * n / length)
        if n % 2 == 0:  # the Nyquist mode, whose k is 0 here
            keep.select(axis, n // 2).zero_()
    return keep


@dataclass
class ETDRK4:
    """Exponential Runge–Kutta of fourth order (Cox & Matthews 2002) for u_t = L u + N(u) on a periodic box.

    `linear` is L's symbol `(*K, C)` or `(*K, 1)` (complex or real); `nonlinear` maps a spectrum `(B, *K, C)` to that
    of N, up to `factor`, a symbol that N has in common (a derivative, say): taken out, it costs nothing. The spectrum
    is the real transform over the axes of the box. L is solved exactly, so stiffness costs nothing; the step must
    resolve N: `step` is the longest allowed. Coefficients by contour means (Kassam & Trefethen 2005).
    """

    grid: Grid
    linear: Tensor
    nonlinear: Callable[[Tensor], Tensor]
    step: float
    factor: Tensor | None = None
    _coefficients: dict[tuple[float, torch.dtype], tuple[Tensor, ...]] = field(default_factory=dict, init=False)

    def start(self, u0: Tensor) -> Tensor:
        spectrum: Tensor = torch.fft.rfftn(u0, dim=self._axes)
        return spectrum

    def read(self, state: Tensor) -> Tensor:
        u: Tensor = torch.fft.irfftn(state, s=self.grid.shape, dim=self._axes)
        return u

    @property
    def _axes(self) -> tuple[int, ...]:
        return tuple(range(1, 1 + self.grid.ndim))

    def advance(self, state: Tensor, t0: float, t1: float) -> Tensor:
        return self.advance_in(max(1, math.ceil((t1 - t0) / self.step * (1 - 1e-12))), state, t1 - t0)

    def advance_in(self, count: int, state: Tensor, time: float) -> Tensor:
        """The state after `time`, in `count` equal steps of whatever length; several threads may call it at once."""
        h = round(time / count, 15)
        key = (h, state.dtype)
        if key not in self._coefficients:
            self._coefficients[key] = etdrk4_coefficients(self.linear, h, state.dtype, self.factor)
        e, e2, q, q2, f1, f2, f3 = self._coefficients[key]
        n, u = self.nonlinear, state.clone()
        # Three buffers serve all steps: on a processor, fresh memory costs more than the arithmetic.
        half, a, b = (torch.empty_like(u) for _ in range(3))
        for _ in range(count):
            nu = n(u)
            torch.mul(e2, u, out=half)
            torch.addcmul(half, q, nu, out=a)
            na = n(a)
            torch.addcmul(half, q, na, out=b)
            nb = n(b)
            torch.sub(nb, nu, alpha=0.5, out=b)
            c = a.mul_(e2).addcmul_(q2, b)
            nc = n(c)
            u.mul_(e).addcmul_(f1, nu).addcmul_(f2, na.add_(nb)).addcmul_(f3, nc)
        return u


def etdrk4_coefficients(
    linear: Tensor, h: float, dtype: torch.dtype, factor: Tensor | None = None
) -> tuple[Tensor, ...]:
    """(e^{hL}, e^{hL/2}, Q, 2Q, f1, 2 f2, f3) of ETDRK4, each φ-function a mean over a circle around hL.

    All but the exponentials are multiplied by `factor`. They are complex also where L is real: a real number times a
    complex one would be converted in every step.
    """
    if factor is None and linear.shape[0] > 1 and linear.numel() > LARGE:  # a circle of points for each takes memory
        parts = [etdrk4_coefficients(part, h, dtype) for part in linear.tensor_split(2)]
        return tuple(torch.cat(pair) for pair in zip(*parts, strict=True))
    points = 32
    z = torch.exp(2j * math.pi * (torch.arange(points, dtype=torch.float64, device=linear.device) + 0.5) / points)
    hl = (h * linear.to(torch.complex128)).unsqueeze(-1)
    lr = hl + z
    exp, half = lr.exp(), (lr / 2).exp()
    q = h * ((half - 1) / lr).mean(-1)
    f1 = h * ((-4 - lr + exp * (4 - 3 * lr + lr**2)) / lr**3).mean(-1)
    f2 = h * 2 * ((2 + lr + exp * (-2 + lr)) / lr**3).mean(-1)
    f3 = h * ((-4 - 3 * lr - lr**2 + exp * (4 - lr)) / lr**3).mean(-1)
    scale = 1.0 if factor is None else factor.to(torch.complex128)
    coefficients = (hl.squeeze(-1).exp(), (hl.squeeze(-1) / 2).exp(), *(c * scale for c in (q, 2 * q, f1, f2, f3)))
    return tuple(c.to(dtype) for c in coefficients)
