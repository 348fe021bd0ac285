"""Incompressible Navier–Stokes with a body force and a passive tracer: nsincom2d."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ups.lazy_imports import Tensor, torch
from ups.physics.constraints import Conserved, Law
from ups.physics.divergence import DivergenceFree
from ups.physics.initial import CUTOFF, smooth_field
from ups.physics.padded import Padded, resize_spectrum, resolving
from ups.physics.random import Draw
from ups.physics.solver import Equation, Stepper, initial_states, param, solve
from ups.physics.spectral import ETDRK4, dealias_mask, wavenumbers
from ups.types import Field, Grid, Storage, TaskSpec

SCHMIDT = 10.0  # ν / κ
SPEED = 3.0
STRAIN = 10.0


@dataclass(frozen=True)
class Incompressible2D(Equation):
    """v_t + v·∇v = −∇p + ν Δv + f, ∇·v = 0, with a passive tracer c_t + v·∇c = κ Δc, κ = ν/10; periodic unit square.

    The force f is steady, smooth, different in every sample, and stored as its input; a mean of it would speed up the
    mean flow, which is carried along, but the random forces have none. Solved in vorticity form: the tendency of the
    vorticity gives that of the velocity, so the velocity has no divergence by construction. Random states: speed at
    most 1, force at most 1, tracer between 0 and 2, all of modes up to 4 per axis; the flow then stays below speed 3
    until t = 5. Good values: ν from 1e-3 to 0.1. It is solved on a grid that resolves the tracer's smallest scale,
    (κ / strain)^½ with a strain of 10: 128 points at ν = 1e-2, 384 at 1e-3, whatever the stored grid. PDEBench's own
    data come from PhiFlow, whose boundaries are not described closely enough to be repeated here.
    """

    nu: float = param(0.01, "kinematic viscosity ν", above=0.0)

    task: ClassVar[TaskSpec] = TaskSpec(
        name="nsincom2d",
        title="2D incompressible Navier–Stokes with forcing",
        fields=(Field.vector("velocity", "Vx", "Vy"), Field.scalar("particles")),
        inputs=(Field.vector("force", "Fx", "Fy"),),
        bounds=((0.0, 1.0), (0.0, 1.0)),
        periodic=(True, True),
        resolution=512,
        end=4.995,
        frames=1000,
        conserved=("particles",),
        divergence_free=("velocity",),
        storage=Storage(
            kind="incompressible",
            pattern="ns_incom_inhom_2d_{resolution}-{number}.h5",
            datasets=("velocity", "particles", "force"),
            attrs={"nu": "nu"},
        ),
    )

    @property
    def kappa(self) -> float:
        return self.nu / SCHMIDT

    def initial(self, draw: Draw, grid: Grid) -> Tensor:
        """Velocity from a random stream function, rescaled to a largest speed U(0.3, 1); tracer 1 + a field in ±1."""
        u, v = smooth_field(draw, grid, "stream", (0, 1)), -smooth_field(draw, grid, "stream", (1, 0))
        scale = draw.uniform("speed", (), 0.3, 1.0) / (u.square() + v.square()).amax((1, 2)).sqrt()
        tracer = smooth_field(draw, grid, "tracer")
        tracer = 1 + tracer / tracer.abs().amax((1, 2)).view(-1, 1, 1)
        scale = scale.view(-1, 1, 1)
        return torch.stack([u * scale, v * scale, tracer], dim=-1)

    def inputs(self, draw: Draw, grid: Grid) -> Tensor:
        """The force `(B, X, Y, 2)`: two smooth fields without mean, rescaled to a largest size U(0.3, 1)."""
        force = torch.stack([smooth_field(draw, grid, f"force{axis}") for axis in "xy"], dim=-1)
        largest = force.square().sum(-1).amax((1, 2)).sqrt()
        return force * (draw.uniform("push", (), 0.3, 1.0) / largest).view(-1, 1, 1, 1)

    def stepper(self, scheme: str, grid: Grid, like: Tensor) -> Stepper:
        """A stepper without force; `forced` takes one."""
        self.check_scheme(scheme)
        return self.forced(grid, like.new_zeros((1, *grid.shape, 2)))

    def forced(self, grid: Grid, force: Tensor, at_least: int | None = None) -> Padded:
        """The stepper under a steady force `(B, X, Y, 2)`, one per sample or one for all.

        It solves on a grid fine enough for the tracer, and no coarser than `at_least`: by default the stored grid,
        less where states and force are known to be smooth. The step follows from that grid and the speed 3 alone: at
        that speed the shortest kept wave turns by two radians per step, which is stable up to 2.8; the waves that
        carry energy are far longer, and turn by far less.
        """
        least = grid.shape if at_least is None else (at_least, at_least)
        fine = resolving(grid, 2.5 * math.sqrt(STRAIN / self.kappa), least)
        kx, ky = wavenumbers(fine, force.device, torch.float64, real=True)
        damping = torch.tensor([self.nu, self.nu, self.kappa], dtype=torch.float64, device=force.device)
        highest = 2 / 3 * math.pi / min(fine.spacing)
        spectrum = resize_spectrum(torch.fft.rfftn(force, dim=(1, 2)), grid.shape, fine.shape)
        decay = -(kx**2 + ky**2).unsqueeze(-1) * damping
        return Padded(grid, ETDRK4(fine, decay, _Tendency(fine, spectrum), step=2.0 / (SPEED * highest)))

    def simulate(self, draw: Draw, grid: Grid, times: Sequence[float], scheme: str) -> Tensor:
        self.check_scheme(scheme)
        # Random states and forces hold 4 waves per axis: a grid of 512 would only repeat what the tracer's grid knows.
        stepper = self.forced(grid, self.inputs(draw, grid), at_least=8 * CUTOFF)
        return solve(stepper, initial_states(self, draw, grid), times)

    def laws(self) -> tuple[Law, ...]:
        return (
            DivergenceFree("velocity", channels=(0, 1)),
            Conserved("particles", lambda u: u[..., 2], channel=2),
        )


class _Tendency:
    """Advection and force in Fourier space: spectra of (v, c) `(B, *K, 3)` to those of their tendencies.

    The curl of the momentum equation, ω_t = (∂yy − ∂xx)(uv) + ∂xy(u² − v²) + curl f, knows no pressure; its velocity
    is (∂y, −∂x) ω / k² up to the mean, which the force's mean drives.
    """

    def __init__(self, grid: Grid, force: Tensor) -> None:
        dtype = force.real.dtype
        kx, ky = wavenumbers(grid, force.device, dtype, real=True)
        keep = dealias_mask(grid, force.device, dtype)
        square = (kx**2 + ky**2).masked_fill_((kx == 0) & (ky == 0), 1.0)
        self.shape = grid.shape
        self.shear, self.normal = (kx**2 - ky**2) * keep, -kx * ky * keep
        self.grad = -1j * torch.stack([kx, ky], dim=-1) * keep.unsqueeze(-1)
        self.velocity = torch.stack([1j * ky, -1j * kx], dim=-1) / square.unsqueeze(-1)
        curl = (1j * kx * force[..., 1] - 1j * ky * force[..., 0]) * keep
        self.force = self.velocity * curl.unsqueeze(-1)
        self.force[:, 0, 0] = force[:, 0, 0]

    def __call__(self, spectrum: Tensor) -> Tensor:
        fields = torch.fft.irfftn(spectrum, s=self.shape, dim=(1, 2))
        u, v, c = fields.unbind(-1)
        products = torch.stack([u * v, u * u - v * v, u * c, v * c], dim=-1)
        hats = torch.fft.rfftn(products, dim=(1, 2))
        vorticity = self.shear * hats[..., 0] + self.normal * hats[..., 1]
        flow = self.velocity * vorticity.unsqueeze(-1) + self.force
        tracer = (self.grad * hats[..., 2:]).sum(-1, keepdim=True)
        return torch.cat([flow, tracer], dim=-1)
