"""Diffusion with reaction or sorption: reacdiff1d, diffsorp1d, reacdiff2d."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ups.lazy_imports import Tensor, torch
from ups.physics.constraints import HeldFaces, Law, Positive
from ups.physics.initial import normalised, pdebench_points, random_modes
from ups.physics.method_of_lines import RK45
from ups.physics.random import Draw
from ups.physics.ranges import InitialRange
from ups.physics.solver import Equation, Stepper, param
from ups.physics.spectral import ETDRK4, dealias_mask
from ups.physics.stiff import Rodas4
from ups.types import Dynamics, Field, Grid, Storage, TaskSpec

SORPTION_CELLS = 1024


@dataclass(frozen=True)
class ReacDiff1D(Equation):
    """Fisher–KPP: u_t = ν u_xx + ρ u(1 − u), periodic.

    Bumps are flattened within L²/(4π²ν) and the level then rises to u = 1 like a logistic curve; 0 ≤ u ≤ 1 is kept.
    On an infinite line fronts run at speed 2√(νρ) or faster. Published: ν 0.5 … 10, ρ 1 … 10. Below ν ≈ 1e-4 the front
    (width √(ν/ρ)) is thinner than a few cells of 1024 and no scheme here resolves it.

    Both schemes advance the spectrum with ETDRK4 in steps that leave a time error below 1e-8. `accurate` diffuses with
    the exact symbol −ν k². `pdebench` diffuses with −4 ν sin²(k dx/2)/dx², the symbol of the second-order central
    difference: it solves PDEBench's semi-discrete system, whose own explicit steps (four million and more, exact
    logistic step, midpoint, Courant number 0.25) are so small that they add less than 1e-6.
    """

    nu: float = param(0.5, "diffusion coefficient ν", above=0.0)
    rho: float = param(1.0, "reaction rate ρ", at_least=0.0)

    per_sample: ClassVar[Mapping[str, tuple[str, ...]]] = dict.fromkeys(("pdebench", "accurate"), ("nu", "rho"))
    schemes: ClassVar[tuple[str, ...]] = ("pdebench", "accurate")
    isotropic: ClassVar[bool] = True
    task: ClassVar[TaskSpec] = TaskSpec(
        name="reacdiff1d",
        title="1D diffusion-reaction (Fisher–KPP)",
        fields=(Field.scalar("u"),),
        bounds=((0.0, 1.0),),
        periodic=(True,),
        resolution=1024,
        end=1.0,
        frames=101,
        positive=("u",),
        storage=Storage(
            kind="array",
            pattern="ReacDiff_Nu{nu}_Rho{rho}.hdf5",
            aliases=("ReacDiff_react_Nu{nu}_Rho{rho}.hdf5",),
            attrs={"nu": "Nu", "rho": "rho"},
        ),
        dynamics=Dynamics(changes_when_uniform=True),
    )

    def initial(self, draw: Draw, grid: Grid) -> Tensor:
        """PDEBench's random sum of modes, each sample mapped to [0, 1]."""
        u = random_modes(draw, draw.tensor(grid.coordinates[0]), grid.lengths[0])
        return normalised(u).unsqueeze(-1)

    def points(self, scheme: str, grid: Grid) -> Grid:
        return pdebench_points(grid) if scheme == "pdebench" else grid

    def stepper(self, scheme: str, grid: Grid, like: Tensor) -> Graded:
        return self._graded(scheme, grid, like, like.new_tensor([self.nu]), like.new_tensor([self.rho]))

    def stepper_each(self, scheme: str, grid: Grid, values: Mapping[str, Tensor]) -> Stepper:
        nu, rho = values["nu"], values["rho"]
        return MadeAtStart(lambda: self._graded(scheme, grid, nu, nu, rho))

    def _graded(self, scheme: str, grid: Grid, like: Tensor, nu: Tensor, rho: Tensor) -> Graded:
        """A stepper with ν and ρ `(1,)` or one per sample `(B,)`; its steps are those that the fastest sample needs."""
        (n,), (dx,) = grid.shape, grid.spacing
        # The Nyquist mode diffuses like any other, so its wavenumber is not set to zero here.
        k = 2 * math.pi * torch.fft.rfftfreq(n, dx, dtype=torch.float64, device=like.device)
        symbol = k if scheme == "accurate" else 2 / dx * torch.sin(k * dx / 2)
        keep = dealias_mask(grid, like.device, like.dtype)
        mask = (keep if scheme == "accurate" else torch.ones_like(keep)).unsqueeze(-1)
        weight = rho.view(-1, 1, 1) * mask

        def reaction(spectrum: Tensor) -> Tensor:
            u = torch.fft.irfft(spectrum, n=n, dim=1)
            spectrum = torch.fft.rfft(u.addcmul(u, u, value=-1), dim=1)
            return spectrum.mul_(weight)

        fastest = float(nu.max()) * (16 * math.pi / grid.lengths[0]) ** 2  # decay rate of the shortest initial wave
        longest = min(0.01, 0.02 / max(float(rho.max()), 1e-12))
        linear = -nu.double().view(-1, 1, 1) * symbol.square().unsqueeze(-1)
        return Graded(grid, linear, reaction, longest, first=0.1 / fastest)

    def laws(self) -> tuple[Law, ...]:
        return (Positive("u", 0), InitialRange("range of u", 0, within=(0.0, 1.0)))


@dataclass
class Graded(ETDRK4):
    """ETDRK4 in steps that grow with time: `pieces` up to `first`, then `pieces` to every doubling of t, until `step`.

    Where diffusion is strong the initial waves die one after the other, the shortest first. A step longer than the life
    of a wave integrates it exactly but not its products, and the exponential method is down to first order; steps
    in proportion to t resolve each wave while it lives.
    """

    first: float = 1e-4
    pieces: int = 20

    def advance(self, state: Tensor, t0: float, t1: float) -> Tensor:
        longest, t = self.step, t0
        while t < t1:
            end = min(t1, max(2 * t, self.first))
            self.step = min(longest, max(t, self.first) / self.pieces)
            state, t = super().advance(state, t, end), end
        self.step = longest
        return state


@dataclass
class MadeAtStart:
    """A stepper that is made anew for each batch, of the numbers that its samples have."""

    make: Callable[[], Stepper]

    def start(self, u0: Tensor) -> Any:
        self._stepper = self.make()
        return self._stepper.start(u0)

    def advance(self, state: Any, t0: float, t1: float) -> Any:
        return self._stepper.advance(state, t0, t1)

    def read(self, state: Any) -> Tensor:
        return self._stepper.read(state)


@dataclass(frozen=True)
class DiffSorp1D(Equation):
    """R(u) u_t = D u_xx, R = 1 + ((1−φ)/φ) ρ_s k n (u + 1e-6)^{n−1}; u = 1 at the left, u = −D u_x at the right.

    A solute enters from the left and creeps through a sorbing medium: 3.2 ≤ R ≤ 13.3, D = 5e-4, φ = 0.29, ρ_s = 2880,
    k = 3.5e-4, n = 0.874. It starts from a constant drawn from U(0, 0.2) and does not fall below 0; a front that
    is steep at first spreads like √t over half of the box by t = 500; the right end is held near zero.

    `pdebench`: ghost cells one cell beyond the ends hold u = 1 and D(u_{N−1} − u_N)/dx. `accurate`: the same equation
    with the conditions imposed on the end faces to second order. The two differ by about half a cell in the place of
    the left end: 1 % in the first frame, less later. Both semi-discrete systems are integrated with RODAS to a time
    error below 1e-6 and 1e-7. (PDEBench takes RK45 at scipy's default tolerances, whose hundred thousand steps, held
    by stability near 0.005 at 1024 cells, add errors of 4e-4 on average and 7e-3 at worst.)
    """

    schemes: ClassVar[tuple[str, ...]] = ("pdebench", "accurate")
    task: ClassVar[TaskSpec] = TaskSpec(
        name="diffsorp1d",
        title="1D diffusion-sorption",
        fields=(Field.scalar("u"),),
        bounds=((0.0, 1.0),),
        periodic=(False,),
        resolution=1024,
        end=500.0,
        frames=101,
        positive=("u",),
        storage=Storage(kind="groups", pattern="1D_diff-sorp_NA_NA.h5", datasets=("data",)),
        dynamics=Dynamics(changes_when_uniform=True),
    )

    def initial(self, draw: Draw, grid: Grid) -> Tensor:
        """Constant in space, U(0, 0.2)."""
        return draw.uniform("level", (1, 1), 0.0, 0.2).expand(-1, grid.shape[0], 1).clone()

    def stepper(self, scheme: str, grid: Grid, like: Tensor) -> Stepper:  # noqa: ARG002
        cells = Sorption(grid, faces=scheme == "accurate")
        rtol, atol = (1e-7, 1e-8) if scheme == "accurate" else (1e-6, 1e-7)
        return Rodas4(cells.rate, cells.jacobian, rtol, atol)

    def refinement(self, scheme: str, grid: Grid) -> int:
        """`accurate` solves on 1024 cells or more, whose space error is 5e-5 in the first frame and 2e-6 later."""
        return 1 if scheme == "pdebench" else math.ceil(SORPTION_CELLS / grid.shape[0])

    def laws(self) -> tuple[Law, ...]:
        # Both ends of the box, held at 1 and drawn to 0, belong to the range; what the last law moves stays in it.
        left = HeldFaces("left end", 0, 1.0, ends=(0,))
        return (Positive("u", 0), InitialRange("range of u", 0, within=(0.0, 1.0)), left)


@dataclass(frozen=True)
class Sorption:
    """The semi-discrete sorption system on N cells: u_t = D (δ²u + boundary) / R(u), and its tridiagonal Jacobian.

    `faces`: boundary conditions on the end faces (second order), otherwise in ghost cells as PDEBench has them.
    `capacity` is the factor of (u + 1e-6)^{n−1} in R; with 0 the system is the linear heat equation.
    """

    grid: Grid
    faces: bool
    capacity: float = (1 - 0.29) / 0.29 * 2880 * 3.5e-4 * 0.874
    exponent: float = 0.874 - 1
    diffusion: float = 5e-4

    def retardation(self, u: Tensor) -> Tensor:
        """R(u); negative u, which only a rejected trial step has, counts as 0."""
        # exp(n log u) is three times as fast as the general power, and as exact here.
        return (u.clamp_min(0) + 1e-6).log_().mul_(self.exponent).exp_().mul_(self.capacity).add_(1)

    def _ends(self) -> tuple[float, float, float, float]:
        """Left main and source, right sub- and main entries of dx² δ²."""
        ratio = self.diffusion / self.grid.spacing[0]
        if self.faces:
            return -3.0, 2.0, 1.0, -2.0 + (ratio - 0.5) / (ratio + 0.5)
        return -2.0, 1.0, 1.0 + ratio, -2.0 - ratio

    def rate(self, u: Tensor) -> Tensor:
        """`(B, N, 1)` to its time derivative."""
        left, source, below, right = self._ends()
        curve = torch.empty_like(u)
        torch.add(u[:, 2:], u[:, :-2], out=curve[:, 1:-1])
        curve[:, 1:-1].sub_(u[:, 1:-1], alpha=2)
        curve[:, 0] = left * u[:, 0] + u[:, 1] + source
        curve[:, -1] = below * u[:, -2] + right * u[:, -1]
        return curve.div_(self.retardation(u)).mul_(self.diffusion / self.grid.spacing[0] ** 2)

    def jacobian(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sub-, main and super-diagonal of ∂rate/∂u, each `(B, N)`."""
        left, _, below, right = self._ends()
        retardation = self.retardation(u)[..., 0]
        slope = self.exponent * (retardation - 1) / (u[..., 0].clamp_min(0) + 1e-6)
        weight = self.diffusion / self.grid.spacing[0] ** 2 / retardation
        low, main = weight.clone(), -2 * weight
        low[:, -1] *= below
        main[:, 0], main[:, -1] = left * weight[:, 0], right * weight[:, -1]
        return low, main - self.rate(u)[..., 0] * slope / retardation, weight


@dataclass(frozen=True)
class ReacDiff2D(Equation):
    """FitzHugh–Nagumo: u_t = D_u Δu + u − u³ − k − v, v_t = D_v Δv + u − v, no flux through the walls.

    Activator u and inhibitor v start as white noise, N(0, 1) per cell. Diffusion smooths it (std of u: 1 at t = 0, 0.2
    at t = 1), then patches of either sign grow (0.35 at t = 5, |u| < 0.7). D_u = 1e-3, D_v = 5e-3, k = 5e-3. Coarser
    than about 32 cells the patches are not resolved.

    White noise belongs to its grid: at another resolution it is another initial state, not a finer picture of the same
    one. So both schemes solve the same semi-discrete system (second-order finite volumes), and `accurate` refers to
    time: `pdebench` is RK45 at scipy's default tolerances (relative error about 4e-5), `accurate` RK45 at 1e-9 (1e-9).
    """

    schemes: ClassVar[tuple[str, ...]] = ("pdebench", "accurate")
    isotropic: ClassVar[bool] = True
    task: ClassVar[TaskSpec] = TaskSpec(
        name="reacdiff2d",
        title="2D diffusion-reaction (FitzHugh–Nagumo)",
        fields=(Field.scalar("activator"), Field.scalar("inhibitor")),
        bounds=((-1.0, 1.0), (-1.0, 1.0)),
        periodic=(False, False),
        resolution=128,
        end=5.0,
        frames=101,
        storage=Storage(kind="groups", pattern="2D_diff-react_NA_NA.h5", datasets=("data",)),
    )

    def initial(self, draw: Draw, grid: Grid) -> Tensor:
        """White noise, N(0, 1) per cell and field."""
        return torch.stack([draw.normal(name, grid.shape) for name in self.task.channels], dim=-1)

    def stepper(self, scheme: str, grid: Grid, like: Tensor) -> Stepper:  # noqa: ARG002
        rtol, atol = (1e-9, 1e-10) if scheme == "accurate" else (1e-3, 1e-6)
        return RK45(lambda w: fitzhugh_nagumo(w, grid.spacing), self.task.end, rtol, atol)


def fitzhugh_nagumo(
    w: Tensor, spacing: tuple[float, ...], diffusion: tuple[float, float] = (1e-3, 5e-3), k: float = 5e-3
) -> Tensor:
    """Time derivative of `(B, X, Y, 2)`: activator, inhibitor."""
    u, v = w[..., 0].contiguous(), w[..., 1].contiguous()
    rate = torch.empty_like(w)
    rate[..., 0] = no_flux_laplacian(u, spacing, diffusion[0]).add_(u).addcmul_(u * u, u, value=-1).sub_(v).sub_(k)
    rate[..., 1] = no_flux_laplacian(v, spacing, diffusion[1]).add_(u).sub_(v)
    return rate


def no_flux_laplacian(u: Tensor, spacing: tuple[float, ...], diffusion: float = 1.0) -> Tensor:
    """D Δu of `(B, X, Y)` by fluxes through the faces, none through the walls: it sums to zero over the box."""
    total = torch.zeros_like(u)
    for axis, width in enumerate(spacing, start=1):
        n = u.shape[axis]
        flux = (u.narrow(axis, 1, n - 1) - u.narrow(axis, 0, n - 1)).mul_(diffusion / width**2)
        total.narrow(axis, 0, n - 1).add_(flux)
        total.narrow(axis, 1, n - 1).sub_(flux)
    return total
