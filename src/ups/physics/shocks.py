"""Solves Burgers' equation with resolved shocks by Fourier modes; each sample has its own grid and step."""

from __future__ import annotations

import math
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from ups.lazy_imports import Tensor, torch
from ups.physics.padded import resize_spectrum
from ups.physics.spectral import ETDRK4, dealias_mask, wavenumbers
from ups.types import Grid

VISIBLE = 1e-9  # modes below this part of the largest are not worth a grid point
AT_ONCE = 2**15  # cells solved together on a processor: what its caches hold


def shock_cells(jump: float | Tensor, diffusivity: float, length: float) -> float | Tensor:
    """Cells that resolve the thinnest shock of this jump, tanh(x / δ) with δ = 4 d / jump, to round-off of the result:
    its spectrum has fallen by e^{−28} at the end of such a grid, and by e^{−14} half way."""
    return jump * (5.6 * length / (4 * diffusivity))


class Waves(NamedTuple):
    """Spectrum `(B, K, 1)` without its mean, in the frame that moves with the mean; how far that frame has moved."""

    spectrum: Tensor
    mean: Tensor
    moved: Tensor


@dataclass
class ResolvedBurgers:
    """u_t + (u²/2)_x = d u_xx on a periodic line, by ETDRK4, without any limiter: shocks are resolved.

    Values go in and out on `grid`, the finest grid. Extremes never grow, so those of a sample at a saved time bound
    the shocks of all later ones: until the next, it is solved on the coarsest grid that holds them and all modes there
    are, and in steps of about `pace` d / max|u|², which resolve the passage of a shock. The mean only moves the wave,
    and is taken out. Each sample chooses by itself, from few grids and few steps; those that chose alike go together,
    and on a processor each of its threads takes some of them.
    """

    grid: Grid
    diffusivity: float
    step: float = 1e-3
    pace: float = 0.4
    _grids: dict[tuple[int, torch.dtype], ETDRK4] = field(default_factory=dict, init=False, repr=False)

    def start(self, u0: Tensor) -> Waves:
        mean = u0.mean(1, keepdim=True)
        return Waves(torch.fft.rfft(u0 - mean, dim=1), mean, torch.zeros_like(mean))

    def read(self, state: Waves) -> Tensor:
        (k,) = wavenumbers(self.grid, state.mean.device, state.mean.dtype, real=True)
        angle = -k.unsqueeze(-1) * state.moved
        values: Tensor = torch.fft.irfft(
            state.spectrum * torch.polar(torch.ones_like(angle), angle), n=self.cells, dim=1
        )
        return values.add_(state.mean)

    @property
    def cells(self) -> int:
        return self.grid.shape[0]

    def advance(self, state: Waves, t0: float, t1: float) -> Waves:
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for sample, choice in enumerate(self._choices(state.spectrum, t1 - t0)):
            groups[choice].append(sample)
        spectrum = torch.empty_like(state.spectrum)
        pieces = []
        for (cells, steps), samples in groups.items():
            size = len(samples) if spectrum.is_cuda else max(1, AT_ONCE // cells)
            pieces += [(cells, steps, samples[first : first + size]) for first in range(0, len(samples), size)]
            self._on(cells, state.mean)  # made here, so that no two threads make the same

        def solve(piece: tuple[int, int, list[int]]) -> None:
            cells, steps, samples = piece
            rows = torch.tensor(samples, device=spectrum.device)
            part = resize_spectrum(state.spectrum[rows], (self.cells,), (cells,))
            part = self._on(cells, state.mean).advance_in(steps, part, t1 - t0)
            spectrum[rows] = resize_spectrum(part, (cells,), (self.cells,))

        pieces.sort(key=lambda piece: -piece[0] * piece[1] * len(piece[2]))  # so that no thread begins long work last
        if spectrum.is_cuda:  # whose streams belong to a thread
            for piece in pieces:
                solve(piece)
        else:
            with ThreadPoolExecutor(torch.get_num_threads(), "shocks") as threads:
                list(threads.map(solve, pieces))
        return Waves(spectrum, state.mean, state.moved + state.mean * (t1 - t0))

    def _choices(self, spectrum: Tensor, interval: float) -> list[tuple[int, int]]:
        """Cells and steps of each sample until the next saved time."""
        precision = torch.finfo(spectrum.dtype)
        (k,) = wavenumbers(self.grid, spectrum.device, spectrum.real.dtype, real=True)
        both = torch.cat([spectrum, 1j * k.unsqueeze(-1) * spectrum], dim=2)
        u, slope = torch.fft.irfft(both, n=self.cells, dim=1).unbind(2)
        low, high, steepest = u.amin(1), u.amax(1), -slope.amin(1)
        jump, amplitude = high - low, torch.maximum(-low, high)
        # A falling slope s grows no faster than ds/dt = s², and a shock of jump J is no steeper than J²/(8d).
        growth = (1 - steepest * interval).clamp_min(1e-9)
        shock = torch.minimum(jump, (8 * self.diffusivity * steepest / growth).sqrt())
        size = spectrum.squeeze(-1).abs()
        visible = size > max(VISIBLE, 10 * precision.eps) * size.amax(1, keepdim=True)
        highest = (visible * torch.arange(size.shape[1], device=size.device)).amax(1)
        needed = shock_cells(shock, self.diffusivity, self.grid.lengths[0])
        cells = torch.maximum(torch.as_tensor(needed), 3.0 * highest + 2).tolist()
        ease = (jump / shock.clamp_min(precision.tiny)).clamp_min(1)
        longest = self.pace * self.diffusivity * ease / amplitude.square().clamp_min(precision.tiny)
        counts = (interval / longest.clamp_max(self.step) * (1 - 1e-12)).tolist()
        return [(self._fast(c), _rounded_up(s)) for c, s in zip(cells, counts, strict=True)]

    def _fast(self, least: float) -> int:
        """The smallest of few even grids, of sizes that transform fast, with this many cells; at most the finest."""
        n = 2 * _rounded_up(max(least, 32) / 2)
        return min(n, self.cells)

    def _on(self, cells: int, like: Tensor) -> ETDRK4:
        """The solver on a grid of so many cells."""
        if (cells, like.dtype) not in self._grids:
            grid = Grid((cells,), (True,), self.grid.bounds)
            (k,) = wavenumbers(grid, like.device, like.dtype, real=True)
            factor = (-0.5j * k * dealias_mask(grid, like.device, like.dtype)).unsqueeze(-1)

            def nonlinear(spectrum: Tensor) -> Tensor:
                u: Tensor = torch.fft.irfft(spectrum, n=cells, dim=1)
                square: Tensor = torch.fft.rfft(u.square_(), dim=1)
                return square

            symbol = (-self.diffusivity * k**2).unsqueeze(-1)
            self._grids[cells, like.dtype] = ETDRK4(grid, symbol, nonlinear, self.step, factor=factor)
        return self._grids[cells, like.dtype]


def _rounded_up(least: float) -> int:
    """The smallest of 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24 … that is not below."""
    if least <= 4:
        return max(1, math.ceil(least))
    octave = 1 << math.floor(math.log2(least) + 1e-12)
    return next(n for n in (octave, octave * 5 // 4, octave * 3 // 2, octave * 2) if n >= least)
