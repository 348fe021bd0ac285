"""Steps of a gas on a GPU by kernels of our own: what they work in, and in which order they are launched."""

from __future__ import annotations

import math
from typing import Any

from ups.later import Tensor, torch
from ups.physics.finite_volume import GraphedSteps
from ups.physics.viscosity import Viscosity


class GasSteps(GraphedSteps):
    """The steps of `StiffFiniteVolume` for a gas with this viscosity, of `FiniteVolume` where it is none: the same to
    round-off, in three kernels, and two more and one for each stage that viscosity takes. A sample that has arrived
    costs nothing. States `(B, 2 + D, *S)` of density, energy, momenta."""

    STEPS = 16

    def __init__(self, viscosity: Viscosity, cfl: float, w: Tensor) -> None:
        super().__init__(w)
        ndim, self.viscosity = len(viscosity.shape), viscosity
        cells = viscosity.shape + (1,) * (3 - ndim)
        #: What all kernels are told of the grid, at their end.
        self.grid = (ndim, *cells)
        self.wraps = sum(int(wraps) << axis for axis, wraps in enumerate(viscosity.periodic))
        scales = [1 / dx for dx in viscosity.spacing] + [0.0] * (3 - ndim)
        eta, zeta = viscosity.eta, viscosity.zeta
        constants = [*scales, 4 / 3 * eta + zeta, eta, zeta - 2 / 3 * eta, cfl, viscosity.limit / cfl]
        self.numbers = w.new_tensor(constants)
        self.coefficients = w.new_tensor(viscosity.coefficients)
        self.dt, self.rates = torch.zeros_like(self.left), torch.zeros_like(self.left)
        self.half = torch.empty_like(self.w)
        rows = self.w if viscosity.active else self.w[:0]
        self.middle, self.change = torch.empty_like(rows), rows[:, 1:].clone()
        self.z = [rows[:, 2:].clone() for _ in range(2)]
        self.capture(self._first)

    def begin(self) -> None:
        from ups.physics import gas_kernels

        self.rates.zero_()
        self._launch(gas_kernels.measure, self.w, self.rates, self.numbers, *self.grid)

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

        viscous, words, numbers = self.viscosity.active, (*self.grid, self.wraps), self.numbers
        samples = len(self.w)
        gas.choose[(-(-samples // gas.BLOCK),)](self.rates, self.left, self.dt, numbers, samples, gas.BLOCK)
        z, before = self.z
        half, dt, coefficients = self.half, self.dt, self.coefficients
        self._launch(gas.predict, self.w, half, z, dt, numbers, coefficients, *words, viscous)
        if viscous:
            for j in range(1, len(coefficients)):
                self._launch(stress.stage, half, z, before, dt, numbers, coefficients[j], *words, j == 1)
                z, before = before, z
            self._launch(stress.push, half, z, self.change, dt, numbers, *words)
            self._launch(stress.heat, half, z, self.change, self.middle, dt, numbers, *words)
            half = self.middle
        self._launch(gas.correct, half, self.w, self.change, self.rates, dt, numbers, *words, viscous)

    def _launch(self, kernel: Any, *arguments: Any) -> None:
        from ups.physics.gas_kernels import BLOCK

        blocks = -(-math.prod(self.viscosity.shape) // BLOCK)
        kernel[(blocks * len(self.w),)](*arguments, BLOCK)
