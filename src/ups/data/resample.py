"""Samples of a grid with uneven axes, interpolated by cubic splines to a uniform one."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ups.data.axes import bounds_of, uneven_axes
from ups.data.source import Source, View, is_uniform
from ups.types import Array, DataError, Grid

# Samples on which the error of interpolation is measured.
MEASURED = 8


class Resampled(View):
    """Another source on uniform axes: as many cells, from the first to the last coordinate of each uneven axis."""

    def __init__(self, source: Source) -> None:
        if source.task.mask:
            raise DataError(f"{source.path}: has cells that do not count, which cannot be resampled; leave it out.")
        self.source = source
        self._plans: dict[int, ResamplePlan] = {}
        domain = self._plan(source.domain).domain
        problems = tuple(text for text in source.problems if not uneven_axes([text]))
        task = dataclasses.replace(source.task, bounds=domain.bounds)
        super().__init__(source, domain=domain, problems=problems, task=task)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plans": {}}

    def _plan(self, domain: Grid) -> ResamplePlan:
        if id(domain) not in self._plans:
            self._plans[id(domain)] = ResamplePlan(domain)
        return self._plans[id(domain)]

    def domain_of(self, index: int) -> Grid:
        return self._plan(self.source.domain_of(index)).domain

    def _values(self, index: int, frames: slice) -> Array:
        return self._plan(self.source.domain_of(index)).forth(self.source.read(index, frames))

    def _inputs(self, index: int) -> Array:
        given: Array = self._plan(self.source.domain_of(index)).forth(self.source.inputs(index)[None])[0]
        return given

    def error(self) -> float:
        """The largest relative difference over a few samples between values and what is left of them after going to
        the uniform grid and back."""
        worst = 0.0
        for i in map(int, np.unique(np.linspace(0, len(self) - 1, min(MEASURED, len(self))).astype(int))):
            last = len(self.times_of(i)) - 1
            plan = self._plan(self.source.domain_of(i))
            for t in {0, last}:
                values = self.source.read(i, slice(t, t + 1)).astype(np.float64)
                difference = plan.back(plan.forth(values)) - values
                size = float(np.linalg.norm(values)) or 1.0
                worst = max(worst, float(np.linalg.norm(difference)) / size)
        return worst


class ResamplePlan:
    """What to do with arrays on one domain: a matrix per uneven axis, there and back."""

    def __init__(self, domain: Grid) -> None:
        from scipy.interpolate import make_interp_spline

        self.original = domain  # keeps the domain, and with it its id, alive
        self._matrices: dict[int, tuple[Array, Array]] = {}
        axes, bounds = list(domain.coordinates), list(domain.bounds)
        for i, x in enumerate(domain.coordinates):
            if len(x) < 3 or is_uniform(x.astype(np.float32)):
                continue
            even, degree = np.linspace(x[0], x[-1], len(x)), min(3, len(x) - 1)
            there, back = (make_interp_spline(a, np.eye(len(x)), degree)(b) for a, b in ((x, even), (even, x)))
            self._matrices[i] = (there, back)
            axes[i], bounds[i] = even, bounds_of(even)
        self.domain = Grid.along(tuple(axes), domain.periodic, tuple(bounds)) if self._matrices else domain

    def forth(self, values: Array) -> Array:
        """`(T, *S, C)` on the uniform grid."""
        return self._applied(values, 0)

    def back(self, values: Array) -> Array:
        return self._applied(values, 1)

    def _applied(self, values: Array, which: int) -> Array:
        for i, matrices in self._matrices.items():
            moved = np.moveaxis(values, i + 1, -1) @ matrices[which].T
            values = np.moveaxis(moved, -1, i + 1)
        return values
