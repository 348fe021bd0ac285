"""Transport by a given or by its own velocity: advection1d, burgers1d."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ups.lazy_imports import Tensor, torch
from ups.physics.constraints import Conserved, Law
from ups.physics.diffusion import PeriodicDiffusion
from ups.physics.finite_volume import FiniteVolume, PerSample, StiffFiniteVolume, divergence, face_states
from ups.physics.initial import pdebench_points, random_modes
from ups.physics.random import Draw
from ups.physics.ranges import InitialRange
from ups.physics.riemann import windward
from ups.physics.shocks import ResolvedBurgers, shock_cells
from ups.physics.solver import Equation, Stepper, initial_states, param
from ups.physics.spectral import wavenumbers
from ups.types import Dynamics, Field, Grid, Storage, TaskSpec

# The largest amplitude that the random states reach in practice.
STRONGEST = 3.2


@dataclass
class SpectralShift:
    """u(x − β t), exactly, for what the grid can hold: every Fourier mode is turned by its own angle."""

    grid: Grid
    beta: float

    def start(self, u0: Tensor) -> Tensor:
        spectrum: Tensor = torch.fft.rfft(u0, dim=1)
        return spectrum

    def advance(self, state: Tensor, t0: float, t1: float) -> Tensor:
        (k,) = wavenumbers(self.grid, state.device, torch.float64, real=True)
        return state * torch.exp(-1j * k * (self.beta * (t1 - t0))).unsqueeze(-1).to(state.dtype)

    def read(self, state: Tensor) -> Tensor:
        u: Tensor = torch.fft.irfft(state, n=self.grid.shape[0], dim=1)
        return u


@dataclass(frozen=True)
class Transport(Equation):
    """What both have: random sums of modes on a line, whose mass is conserved and whose range never widens."""

    schemes: ClassVar[tuple[str, ...]] = ("pdebench", "accurate")

    def initial(self, draw: Draw, grid: Grid) -> Tensor:
        return random_modes(draw, draw.tensor(grid.coordinates[0]), grid.lengths[0]).unsqueeze(-1)

    def points(self, scheme: str, grid: Grid) -> Grid:
        return pdebench_points(grid) if scheme == "pdebench" else grid

    def laws(self) -> tuple[Law, ...]:
        return (Conserved("mass", lambda u: u[..., 0], channel=0), InitialRange("range of u", 0, keeps_total=True))


@dataclass(frozen=True)
class Advection1D(Transport):
    """u_t + β u_x = 0, periodic on the unit interval: the initial state moves with speed β and keeps its shape.

    Good values: |β| from 0.1 to 7. `pdebench` smears with time (relative error at t = 2: 1.5e-3 at β = 0.1, 1.6e-2 at
    β = 4 on average over random states, most of it in the few with kinks and steep edges); `accurate` evaluates the
    initial state at x − βt, exact to round-off.
    """

    beta: float = param(0.4, "velocity β")

    per_sample: ClassVar[Mapping[str, tuple[str, ...]]] = {"pdebench": ("beta",)}
    task: ClassVar[TaskSpec] = TaskSpec(
        name="advection1d",
        title="1D advection",
        fields=(Field.scalar("u"),),
        bounds=((0.0, 1.0),),
        periodic=(True,),
        resolution=1024,
        end=2.0,
        frames=201,
        conserved=("mass",),
        storage=Storage(kind="array", pattern="1D_Advection_Sols_beta{beta}.hdf5", attrs={"beta": "beta"}),
        dynamics=Dynamics(advected_by=("beta",)),
    )

    def stepper(self, scheme: str, grid: Grid, like: Tensor) -> Stepper:
        return SpectralShift(grid, self.beta) if scheme == "accurate" else self._finite_volume(grid, like)

    def stepper_each(self, scheme: str, grid: Grid, values: Mapping[str, Tensor]) -> Stepper:  # noqa: ARG002
        dx, beta = grid.spacing[0], PerSample(values["beta"])

        def tendency(u: Tensor) -> Tensor:
            left, right = face_states(u, 2, periodic=True)
            speed = beta.wide(3)
            return divergence(torch.lerp(right, left, windward(speed)).mul_(speed), 2, -dx)

        def limit(u: Tensor) -> Tensor:  # noqa: ARG001
            return dx / beta.current.abs().clamp_min(1e-12)

        return FiniteVolume(grid, tendency, limit, cfl=0.4, numbers=beta)

    def _finite_volume(self, grid: Grid, like: Tensor) -> FiniteVolume:
        dx = grid.spacing[0]

        def tendency(u: Tensor) -> Tensor:
            left, right = face_states(u, 2, periodic=True)
            return divergence(self.beta * (left if self.beta > 0 else right), 2, -dx)

        longest = like.new_tensor(dx / max(abs(self.beta), 1e-12))
        return FiniteVolume(grid, tendency, lambda u: longest.expand(u.shape[0]), cfl=0.4)

    def simulate(self, draw: Draw, grid: Grid, times: Sequence[float], scheme: str) -> Tensor:
        if scheme != "accurate":
            return super().simulate(draw, grid, times, scheme)
        # The state is a formula, so it is moved by moving the points, for all times at once: nothing is interpolated.
        lo, length = grid.bounds[0][0], grid.lengths[0]
        moved = [(grid.coordinates[0] - lo - self.beta * t) % length + lo for t in times]
        states = initial_states(self, draw, Grid.along((np.concatenate(moved),), grid.periodic, grid.bounds))
        return torch.unflatten(states, 1, (len(times), -1))


@dataclass(frozen=True)
class Burgers1D(Transport):
    """u_t + (u²/2)_x = (ν/π) u_xx, periodic on the unit interval: waves steepen into viscous shocks.

    Good values: ν from 0.001 (shocks thinner than a cell of 1024) to 4 (diffusion wins within a frame). `pdebench` is
    PDEBench's second-order finite volumes, whose central diffusion is solved exactly in time, so that no ν is dearer
    than another; `accurate` is spectral with an exponential integrator, each sample as fine as its own shocks need, so
    at small ν it is the slower one; its relative error is 1e-5 or less, most of it from the kinks of states that are
    absolute values.
    """

    nu: float = param(0.01, "viscosity ν; the diffusion coefficient is ν/π", above=0.0)

    per_sample: ClassVar[Mapping[str, tuple[str, ...]]] = {"pdebench": ("nu",)}
    isotropic: ClassVar[bool] = True
    vectors: ClassVar[tuple[tuple[str, ...], ...]] = (("u",),)
    task: ClassVar[TaskSpec] = TaskSpec(
        name="burgers1d",
        title="1D Burgers",
        fields=(Field.scalar("u"),),
        bounds=((0.0, 1.0),),
        periodic=(True,),
        resolution=1024,
        end=2.0,
        frames=201,
        conserved=("mass",),
        storage=Storage(kind="array", pattern="1D_Burgers_Sols_Nu{nu}.hdf5", attrs={"nu": "Nu"}),
    )

    @property
    def diffusivity(self) -> float:
        return self.nu / math.pi

    def stepper(self, scheme: str, grid: Grid, like: Tensor) -> Stepper:
        if scheme == "accurate":
            return ResolvedBurgers(grid, self.diffusivity)
        return self._finite_volume(grid, like, lambda: self.diffusivity)

    def stepper_each(self, scheme: str, grid: Grid, values: Mapping[str, Tensor]) -> Stepper:  # noqa: ARG002
        nu = PerSample(values["nu"])
        solver = self._finite_volume(grid, nu.values, lambda: nu.current / math.pi)
        return replace(solver, numbers=nu)

    def _finite_volume(self, grid: Grid, like: Tensor, diffusivity: Callable[[], float | Tensor]) -> StiffFiniteVolume:
        dx, diffusion = grid.spacing[0], PeriodicDiffusion(grid, like, diffusivity)

        def tendency(u: Tensor) -> Tensor:
            left, right = face_states(u, 2, periodic=True)
            # Roe's flux, ¼(l² + r²) − ¼|l + r|(r − l), is the flux of the side that the wind comes from.
            side = torch.lerp(right, left, windward(left + right))
            return divergence(side.square_(), 2, -2 * dx)

        def limit(u: Tensor) -> Tensor:
            # Half the Courant step, or the whole where diffusion is weak: more than with explicit diffusion, yet the
            # error in time stays a hundredth of that in space.
            courant = dx / u.abs().amax((1, 2)).clamp_min(1e-8)
            gentle = 0.25 * dx * dx / diffusivity()
            return torch.minimum(courant, (0.5 * courant).clamp_min(gentle))

        return StiffFiniteVolume(grid, tendency, limit, cfl=0.25, stiff=diffusion.change)

    def refinement(self, scheme: str, grid: Grid) -> int:
        """Odd, so that stored cell centres are among the fine ones; enough for the thinnest shock."""
        if scheme == "pdebench":
            return 1
        cells = 0.5 * shock_cells(STRONGEST, self.diffusivity, grid.lengths[0])
        return next(f for f in (1, 3, 5, 9, 15, 27, 45, 81, 135, 243, 405, 729) if f * grid.shape[0] >= cells)

    def coarsen(self, frames: Tensor, factor: int) -> Tensor:
        """Values at the stored cell centres, not averages: the accurate scheme gives point values."""
        return frames[:, :, factor // 2 :: factor]
