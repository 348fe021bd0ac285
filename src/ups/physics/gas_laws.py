"""The laws of a gas in a periodic box, and one repair for all of them together."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ups.lazy_imports import Tensor, torch
from ups.physics.constraints import Conserved, Law, Mean, Positive, mean_in, quotient
from ups.physics.riemann import GAMMA
from ups.triton_check import runs_triton
from ups.types import Grid

WARMTH = 0.01
LEAST = 2.0**-1022  # the smallest number that a quotient in float64 is divided by
# Cells of a sample that one kernel repairs, at most: it has one program a sample, which reads the cells four times. One
# program gets about 100 GB/s, so that 1 MB in 2D takes 0.04 ms; the launches of plain operations take 0.1 ms, whatever
# the size, and each gives a sample to the whole GPU. Reckoned, not measured.
MOST = 2**16


def gas_laws(ndim: int) -> tuple[Law, ...]:
    """The laws of density, pressure and velocities `(..., 2 + ndim)`: mass, momentum and energy stay, and no density or
    pressure is negative."""
    all_at_once = GasRepair(ndim)
    momenta = tuple(
        Conserved(
            f"momentum {axis}",
            lambda u, i=i: u[..., 0] * u[..., 2 + i],  # type: ignore[misc]
            channel=2 + i,
            scale=fluid_momentum,
            weight=lambda u: u[..., 0],
            together=all_at_once,
        )
        for i, axis in enumerate("xyz"[:ndim])
    )
    return (
        Conserved("mass", lambda u: u[..., 0], channel=0, together=all_at_once),
        Positive("density", 0, keeps_total=True, together=all_at_once),
        *momenta,
        Conserved("energy", energy_of, repair=restore_energy, together=all_at_once),
        Positive("pressure", 1, keeps_total=True, together=all_at_once),
    )


def fluid_momentum(u: Tensor) -> Tensor:
    """ρ (|v| + c) of `(..., C)`: what a drift of momentum is measured against, for a fluid at rest has none."""
    speed = u[..., 2:].square().sum(-1).sqrt()
    return u[..., 0] * speed + (GAMMA * u[..., 1] * u[..., 0]).clamp_min(0).sqrt()


def energy_of(u: Tensor) -> Tensor:
    """p / (Γ − 1) + ρv² / 2 of `(..., C)`."""
    density, pressure, velocity = u[..., :1], u[..., 1], u[..., 2:]
    return pressure / (GAMMA - 1) + 0.5 * (density * velocity * velocity).sum(-1)


def restore_energy(u: Tensor, want: Tensor, mean: Mean) -> Tensor:
    """A gas `(..., C)` with a mean energy of `want`, its mass and momentum as they are: a constant is added to the
    pressure. Where motion alone has more than `want`, it first comes nearer to the mean motion, so that a share of
    `WARMTH` is left for the pressure."""
    density, pressure, velocity = u[..., :1], u[..., 1:2], u[..., 2:]
    want, mass = want.unsqueeze(-1), mean(density)
    drift = quotient(mean(density * velocity), mass)
    swing = velocity - drift
    carried = 0.5 * mass * drift.square().sum(-1, keepdim=True)
    stirred = 0.5 * mean(density * swing.square().sum(-1, keepdim=True))
    room = (want - carried).clamp_min(0)
    calm = torch.where(stirred > room, quotient((1 - WARMTH) * room, stirred), 1.0)
    pressure = pressure + ((GAMMA - 1) * (room - calm * stirred) - mean(pressure))
    return torch.cat([density, pressure, drift + calm.sqrt() * swing], -1)


@dataclass(frozen=True)
class GasRepair:
    """What all laws of `gas_laws` do one after the other, in half as many operations, and on a GPU in one: each step of
    a rollout asks for them, and there the start of an operation is what it costs.

    The same up to round-off. A total that a law before has restored is known, and is not summed again; what is left to
    sum lies in one tensor.
    """

    ndim: int

    @property
    def laws(self) -> int:
        return 4 + self.ndim

    def aim(self, reference: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        """The means of density, momenta and twice the energy, that in D equal parts, `(B, 1, …, 1 + 2 D)`."""
        u = reference.unsqueeze(1).double()
        density, velocity = u[..., :1], u[..., 2:]
        energy = (2 / self.ndim * energy_of(u)).unsqueeze(-1).expand_as(velocity)
        return mean_in(grid, mask)(torch.cat((density, density * velocity, energy), -1))

    def restore(self, u: Tensor, aim: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        """One frame `(B, 1, *S, 2 + D)` that obeys all laws."""
        if mask is None and _fits_a_kernel(u, aim):
            from ups.physics.law_kernels import repair_gas

            return repair_gas(u, aim, self.ndim, WARMTH, LEAST)
        mean, exact, n = mean_in(grid, mask), u.double(), self.ndim
        density, pressure, velocity = exact.tensor_split((1, 2), -1)
        density, mass = _positive(density, mean(density), aim[..., :1], mean)
        flow = density * velocity
        means = mean(torch.cat((flow, flow * velocity, pressure), -1))
        # Momenta and twice the energies, those that there are and those that there should be: without what the mean
        # motion has, what stirs, and the room for it and for the pressure.
        momenta, twice = torch.stack((means[..., : 2 * n], aim[..., 1:])).tensor_split((n,), -1)
        speeds = momenta / mass.clamp_min(LEAST)
        stirred, room = torch.addcmul(twice, momenta, speeds, value=-1).sum(-1, keepdim=True).clamp_min(0)
        calm = ((1 - WARMTH) * room / stirred.clamp_min(LEAST)).masked_fill_(stirred <= room, 1.0)
        warm = torch.addcmul(room, calm, stirred, value=-1) * ((GAMMA - 1) / 2)
        pressure, _ = _positive(pressure, means[..., 2 * n :], warm, mean)
        root = calm.sqrt()
        velocity = torch.addcmul(torch.addcmul(speeds[1], root, speeds[0], value=-1), velocity, root)
        return torch.cat((density, pressure, velocity), -1).to(u.dtype)


def _fits_a_kernel(u: Tensor, aim: Tensor) -> bool:
    """Whether a frame is repaired by `law_kernels`, which give no gradient and are invisible to what traces torch."""
    if not u.is_cuda or type(u) is not torch.Tensor or torch.compiler.is_compiling():
        return False
    learnt = torch.is_grad_enabled() and (u.requires_grad or aim.requires_grad)
    fits = u.dtype in (torch.float32, torch.float64) and math.prod(u.shape[1:-1]) <= MOST
    return fits and not learnt and runs_triton(u.device)


def _positive(values: Tensor, own: Tensor, want: Tensor, mean: Mean) -> tuple[Tensor, Tensor]:
    """Values of the mean `own`, moved to a mean of `want` and never below 0; and the mean that they have then."""
    inside = (values + (want - own)).clamp_min(0)
    middle = mean(inside)
    share = (want / middle.clamp_min(LEAST)).clamp(0, 1)
    return inside * share, middle * share
