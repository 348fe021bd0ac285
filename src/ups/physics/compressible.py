"""Compressible Navier–Stokes in one, two and three dimensions: cfd1d, cfd2d, cfd3d."""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from ups.lazy_imports import Tensor, torch
from ups.physics.constraints import Law, Positive
from ups.physics.finite_volume import FiniteVolume, StiffFiniteVolume, flux_sum
from ups.physics.gas import random_gas, turbulent_gas
from ups.physics.gas_laws import gas_laws
from ups.physics.gas_steps import GasSteps
from ups.physics.initial import pdebench_points, random_modes, reference
from ups.physics.random import Draw
from ups.physics.riemann import FLOOR, GAMMA, hllc
from ups.physics.solver import Equation, param
from ups.physics.viscosity import Viscosity
from ups.types import Field, Grid, PhysicsError, Storage, TaskSpec

CFL = 0.3


def conserved(q: Tensor, dim: int = 1) -> Tensor:
    """Density, energy, momenta from density, pressure, velocities, channels along `dim`."""
    density, pressure, velocity = q.tensor_split((1, 2), dim=dim)
    momentum = density * velocity
    energy = pressure / (GAMMA - 1) + 0.5 * (momentum * velocity).sum(dim, keepdim=True)
    return torch.cat([density, energy, momentum], dim=dim)


def primitive(w: Tensor, dim: int = 1) -> Tensor:
    """Density, pressure, velocities from density, energy, momenta; density and pressure not below 1e-4.

    The floor is applied to what is read, never to the state, so it cannot break conservation.
    """
    density, energy, momentum = w.tensor_split((1, 2), dim=dim)
    density = density.clamp_min(FLOOR)
    velocity = momentum / density
    motion = momentum * velocity
    motion = motion if motion.shape[dim] == 1 else motion.sum(dim, keepdim=True)
    pressure = torch.sub(energy, motion, alpha=0.5).mul_(GAMMA - 1).clamp_min_(FLOOR)
    return torch.cat([density, pressure, velocity], dim=dim)


def gas_limit(grid: Grid) -> Callable[[Tensor], Tensor]:
    """min dx / (|v| + c) over cells and axes, `(B,)`, of a gas `(B, 2 + D, *S)` of density, pressure, velocities."""
    spacing = grid.spacing

    def limit(q: Tensor) -> Tensor:
        sound = (q[:, 1] / q[:, 0]).mul_(GAMMA).sqrt_()
        rates = [q[:, 2 + a].abs().add_(sound).mul_(1 / dx) for a, dx in enumerate(spacing)]
        return 1 / functools.reduce(torch.maximum, rates).flatten(1).amax(1)

    return limit


def _task(bounds: tuple[tuple[float, float], ...], resolution: int, frames: int, **storage: Any) -> TaskSpec:
    """Density, pressure and a velocity in a box, each in a data set of its own, until t = 1."""
    ndim, velocity = len(bounds), ("Vx", "Vy", "Vz")[: len(bounds)]
    return TaskSpec(
        name=f"cfd{ndim}d",
        title=f"{ndim}D compressible Navier–Stokes",
        fields=(Field.scalar("density"), Field.scalar("pressure"), Field.vector("velocity", *velocity)),
        bounds=bounds,
        periodic=(True,) * ndim,
        resolution=resolution,
        end=1.0,
        frames=frames,
        positive=("density", "pressure"),
        conserved=("mass", "momentum", "energy"),
        storage=Storage(kind="fields", datasets=("density", "pressure", *velocity), **storage),
    )


@dataclass(frozen=True)
class Compressible(Equation):
    """ρ_t + ∇·(ρv) = 0, (ρv)_t + ∇·(ρ v⊗v + p) = ∇·σ, E_t + ∇·((E + p) v) = ∇·(v·σ), E = p/(Γ−1) + ρv²/2, Γ = 5/3.

    σ = ρ [η (∇v + ∇vᵀ) + (ζ − 2η/3) (∇·v) I]: η and ζ are kinematic, as in PDEBench. No heat conduction.
    `pdebench`: MUSCL with the MC limiter on primitive variables, HLLC, midpoint steps at CFL 0.3, viscosity in stages
    of its own; second order where smooth, first at shocks. `accurate`: the same on a grid `finer` times as fine; mass,
    momentum and energy are averaged down. Density and pressure are read not below 1e-4: where that happens, near
    vacuum, the stored frames no longer conserve.
    """

    eta: float = param(0.01, "shear viscosity η", at_least=0.0)
    zeta: float = param(0.01, "bulk viscosity ζ", at_least=0.0)
    boundary: str = param("periodic", "boundary", choices=("periodic", "trans"))

    schemes: ClassVar[tuple[str, ...]] = ("pdebench", "accurate")
    finer: ClassVar[int] = 2
    isotropic: ClassVar[bool] = True

    @property
    @abstractmethod
    def pace(self) -> float:
        """About the fastest signal in these initial states: for it, viscosity shall not be what limits the step."""

    def refinement(self, scheme: str, grid: Grid) -> int:  # noqa: ARG002
        return self.finer if scheme == "accurate" else 1

    def stepper(self, scheme: str, grid: Grid, like: Tensor) -> FiniteVolume:  # noqa: ARG002
        viscosity = Viscosity(grid, self.eta, self.zeta, CFL * min(grid.spacing) / self.pace)
        # dw/dt of the inviscid gas: limited primitive slopes, HLLC, all axes at once.
        tendency, free, most = flux_sum(grid, hllc), gas_limit(grid), viscosity.limit / CFL
        kernels = functools.partial(GasSteps, viscosity, CFL)
        if not viscosity.active:
            return FiniteVolume(
                grid, tendency, free, CFL, encode=conserved, decode=primitive, variables=primitive, kernels=kernels
            )

        def limit(q: Tensor) -> Tensor:
            return free(q).clamp_max(most)

        return StiffFiniteVolume(
            grid,
            tendency,
            limit,
            CFL,
            encode=conserved,
            decode=primitive,
            variables=primitive,
            kernels=kernels,
            stiff=viscosity.change,
        )

    def coarsen(self, frames: Tensor, factor: int) -> Tensor:
        if factor == 1:
            return frames
        return primitive(super().coarsen(conserved(frames, dim=-1), factor), dim=-1)

    def laws(self) -> tuple[Law, ...]:
        if self.boundary != "periodic":
            return (Positive("density", 0), Positive("pressure", 1))
        return gas_laws(self.task.ndim)


@dataclass(frozen=True)
class Compressible1D(Compressible):
    """Compressible Navier–Stokes on (−1, 1): sound waves, shocks and contacts; see `Compressible`.

    Good values: η = ζ from 1e-8 (shocks as thin as the grid) to 0.1. `Rand`: density b + m f, f a random sum of modes
    between 0 and 1, m and b log-uniform in (1, 10); pressure likewise in (10, 100); velocity the sum of modes itself;
    101 frames to t = 1. `Shock`: each variable jumps once, in the middle half; density log-uniform in (1, 10), pressure
    in (10, 100), velocity exp(U(−½, ½)), always to the right; saved every 0.005 to t = 0.4, hence 81 frames. `Shock`
    goes with the boundary `trans` (outgoing): in a ring the ends would meet in a second jump.
    """

    eta: float = param(0.1, "shear viscosity η", at_least=0.0)
    zeta: float = param(0.1, "bulk viscosity ζ", at_least=0.0)
    init: str = param("Rand", "initial states", choices=("Rand", "Shock"))

    finer: ClassVar[int] = 4
    task: ClassVar[TaskSpec] = _task(
        bounds=((-1.0, 1.0),),
        resolution=1024,
        frames=101,
        pattern="1D_CFD_{init}_Eta{eta}_Zeta{zeta}_{boundary}_Train.hdf5",
        aliases=("Sod*.hdf5",),
        attrs={"eta": "eta", "zeta": "zeta"},
        spelling="short",
    )

    @property
    def pace(self) -> float:
        return 10.0

    def times(self) -> list[float]:
        return [0.005 * i for i in range(81)] if self.init == "Shock" else super().times()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.init == "Shock" and self.boundary == "periodic":
            raise PhysicsError("cfd1d: a shock tube has open ends; with init Shock use boundary trans.")

    def points(self, scheme: str, grid: Grid) -> Grid:
        return pdebench_points(grid) if scheme == "pdebench" and self.init == "Rand" else grid

    def initial(self, draw: Draw, grid: Grid) -> Tensor:
        x = draw.tensor(grid.coordinates[0])
        channel = self._jump if self.init == "Shock" else self._modes
        logs = {"density": (1.0, 10.0), "pressure": (10.0, 100.0)}
        return torch.stack([channel(draw, x, grid, n, logs.get(n)) for n in ("density", "pressure", "Vx")], dim=-1)

    def _modes(self, draw: Draw, x: Tensor, grid: Grid, name: str, size: tuple[float, float] | None) -> Tensor:
        length = grid.lengths[0]
        u = random_modes(draw, x, length, modes=3, window=0.5, name=name)
        if size is None:
            return u
        everywhere = draw.tensor(reference(grid).coordinates[0])
        range_of = random_modes(draw, everywhere, length, modes=3, window=0.5, name=name)
        low, high = range_of.amin(1, keepdim=True), range_of.amax(1, keepdim=True)
        unit = ((u - low) / (high - low).clamp_min(1e-12)).clamp(0, 1)
        return draw.log_uniform(f"{name}.scale", (1,), *size) * unit + draw.log_uniform(f"{name}.base", (1,), *size)

    def _jump(self, draw: Draw, x: Tensor, grid: Grid, name: str, size: tuple[float, float] | None) -> Tensor:
        low, high = size if size is not None else (math.exp(-0.5), math.exp(0.5))
        (lo, _), length = grid.bounds[0], grid.lengths[0]
        place = draw.uniform(f"{name}.jump", (1,), lo + 0.25 * length, lo + 0.75 * length)
        sides = draw.log_uniform(f"{name}.sides", (2,), low, high)
        return torch.where(x < place, sides[:, :1], sides[:, 1:])


@dataclass(frozen=True)
class Compressible2D(Compressible):
    """Compressible Navier–Stokes on the unit square; see `Compressible`.

    Good values: η = ζ from 1e-8 to 0.1, M from 0.1 to 1. `Rand`: waves of wavelength ≥ ¼ around a uniform gas of random
    density and temperature (`random_gas`). `Turb`: a divergence-free flow of mean speed 1 in a uniform gas
    (`turbulent_gas`). Steps follow sound and flow together: a tenth of the Mach number does not cost ten times more.
    """

    mach: float = param(0.1, "initial Mach number M", above=0.0)
    init: str = param("Rand", "initial states", choices=("Rand", "Turb"))

    task: ClassVar[TaskSpec] = _task(
        bounds=((0.0, 1.0), (0.0, 1.0)),
        resolution=128,
        frames=21,
        pattern="2D_CFD_{init}_M{mach}_Eta{eta}_Zeta{zeta}_{boundary}_{resolution}_Train.hdf5",
        aliases=("KH_M*_dk*_Re*.hdf5", "OTVortex*.hdf5", "2D_shock*.hdf5"),
        attrs={"eta": "eta", "zeta": "zeta", "mach": "M"},
    )

    @property
    def pace(self) -> float:
        return 4 * (1 + 2 * self.mach) if self.init == "Rand" else 2 + 1 / self.mach

    def initial(self, draw: Draw, grid: Grid) -> Tensor:
        return (random_gas if self.init == "Rand" else turbulent_gas)(draw, grid, self.mach, GAMMA)


@dataclass(frozen=True)
class Compressible3D(Compressible2D):
    """Compressible Navier–Stokes on the unit cube; as `Compressible2D`, with amplitudes inverse to the wavenumber."""

    mach: float = param(1.0, "initial Mach number M", above=0.0)
    eta: float = param(1e-8, "shear viscosity η", at_least=0.0)
    zeta: float = param(1e-8, "bulk viscosity ζ", at_least=0.0)

    task: ClassVar[TaskSpec] = _task(
        bounds=((0.0, 1.0), (0.0, 1.0), (0.0, 1.0)),
        resolution=64,
        frames=21,
        pattern="3D_CFD_{init}_M{mach}_Eta{eta}_Zeta{zeta}_{boundary}_Train.hdf5",
        aliases=("BlastWave*.hdf5", "Turb_M*.hdf5"),
        attrs={"eta": "eta", "zeta": "zeta", "mach": "M"},
    )
