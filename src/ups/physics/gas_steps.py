"""Steps a gas on a GPU by kernels of our own: their working memory, and the order of their launches."""

from __future__ import annotations

import math
from typing import Any

from ups.lazy_imports import Tensor, torch
from ups.physics.finite_volume import GraphedSteps
from ups.physics.viscosity import Viscosity

# By the number of axes, how many cells of the first one a thread does: with more, too few threads would be at work.
RUNS = {1: 2, 2: 8, 3: 8}


class GasSteps(GraphedSteps):
    """The steps of `StiffFiniteVolume` for a gas with this viscosity, of `FiniteVolume` where it is none: the same to
    round-off, in three kernels; viscosity takes two more, and one for each of its stages but the first. A sample that
    has arrived costs nothing. States `(B, 2 + D, *S)` of density, energy, momenta."""

    STEPS = 16

    def __init__(self, viscosity: Viscosity, cfl: float, w: Tensor) -> None:
        super().__init__(w)
        ndim, self.viscosity = len(viscosity.shape), viscosity
        shape = viscosity.shape + (1,) * (3 - ndim)
        #: What all kernels are told of the grid, at their end.
        self.grid = (ndim, *shape)
        self.wraps = sum(int(wraps) << axis for axis, wraps in enumerate(viscosity.periodic))
        self.cells = RUNS[ndim]
        scales = [1 / dx for dx in viscosity.spacing] + [0.0] * (3 - ndim)
        eta, zeta = viscosity.eta, viscosity.zeta
        constants = [*scales, 4 / 3 * eta + zeta, eta, zeta - 2 / 3 * eta, cfl, viscosity.limit / cfl]
        constants += [viscosity.coefficients[0][2]]
        self.numbers = w.new_tensor(constants)
        self.coefficients = w.new_tensor(viscosity.coefficients)
        self.dt, self.rates = torch.zeros_like(self.left), torch.zeros_like(self.left)
        self.q, self.half = torch.empty_like(self.w), torch.empty_like(self.w)
        rows = self.w if viscosity.active else self.w[:0]
        self.middle, self.change = torch.empty_like(rows), rows[:, 1:].clone()
        self.z = [rows[:, 2:].clone() for _ in range(2)]
        self.capture(self._first)

    def begin(self) -> None:
        from ups.physics import gas_kernels

        self.rates.zero_()
        blocks = -(-math.prod(self.viscosity.shape) // gas_kernels.BLOCK)
        everything = self.w, self.q, self.rates, self.numbers, *self.grid, gas_kernels.BLOCK
        gas_kernels.measure[(blocks * len(self.w),)](*everything)

    def _first(self) -> None:
        """All kernels once, in a step of length 0 of each sample."""
        self.begin()
        self.step()

    def steps(self) -> None:
        for _ in range(self.STEPS):
            self.step()

    def step(self) -> None:
        """One step of each sample, never past its remaining time."""
        from ups.physics import gas_kernels as gas
        from ups.physics import stress_kernels as stress

        samples, dt, numbers, coefficients = len(self.w), self.dt, self.numbers, self.coefficients
        viscous, grid = self.viscosity.active, (*self.grid, self.wraps)
        gas.choose[(-(-samples // gas.BLOCK),)](self.rates, self.left, dt, numbers, samples, gas.BLOCK)
        half, change, middle = self.half, self.change, self.middle
        rest = self.rates, dt, numbers, *grid, viscous
        self._launch(gas.advance, self.q, self.w, half, change, *rest, False)
        if viscous:
            z, channels = half[:, 2:], len(self.w[0])
            for stage in range(2, len(coefficients) + 1):
                target, words = self.z[stage % 2], (*grid, channels, stage if stage < 4 else 4)
                self._launch(stress.stage, half, z, target, dt, numbers, coefficients[stage - 1], *words)
                z, channels = target, self.grid[0]
            self._launch(stress.push, half, z, change, middle, dt, numbers, *grid, channels)
            self._launch(stress.heat, half, z, change, middle, dt, numbers, *grid, channels)
            half = middle
        self._launch(gas.advance, half, self.w, self.q, change, *rest, True)

    def _launch(self, kernel: Any, *arguments: Any) -> None:
        """A kernel whose threads do some cells of the first axis each."""
        from ups.physics.gas_kernels import BLOCK

        first, *others = self.viscosity.shape
        threads = -(-first // self.cells) * math.prod(others)
        kernel[(-(-threads // BLOCK) * len(self.w),)](*arguments, self.cells, BLOCK)
