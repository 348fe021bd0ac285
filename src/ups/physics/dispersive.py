"""Kuramoto–Sivashinsky and Korteweg–de Vries: ks1d, kdv1d."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ups.lazy_imports import Tensor, torch
from ups.physics.constraints import Conserved, Law, Mean, Repair, quotient, with_channel
from ups.physics.initial import low_modes
from ups.physics.padded import Padded
from ups.physics.random import Draw
from ups.physics.semilinear import Semilinear
from ups.physics.solver import param
from ups.types import Field, Grid, Storage, TaskSpec

SOLITONS = 4


@dataclass(frozen=True)
class KuramotoSivashinsky1D(Semilinear):
    """u_t + u u_x + u_xx + ν u_xxxx = 0, periodic on (0, 64): spatiotemporal chaos.

    Long waves grow at the rate k² − ν k⁴, u u_x hands their energy to short ones. On the attractor |u| < 4/√ν with
    wavelengths near 9√ν and times of order ν. Good values: ν from 0.1 to 10; beyond (64/2π)² ≈ 104 everything decays.
    The first stored frame is the random smooth state itself (six low modes, mean zero, |u| ≤ 3): a trajectory shows
    the transient (about 20 ν), then chaos. Nearby trajectories part about tenfold every 12 ν: for ν = 1 the error of
    the time stepping is 1e-7 at t = 10, 2e-6 at t = 50 and 2e-4 at t = 100 (median; the worst of 32 samples is a
    hundred times that), single precision is lost by t = 100, and double precision keeps nine digits.
    """

    nu: float = param(1.0, "hyperviscosity ν", above=0.0)

    stored: ClassVar[type[Padded]] = Padded
    isotropic: ClassVar[bool] = True
    vectors: ClassVar[tuple[tuple[str, ...], ...]] = (("u",),)
    task: ClassVar[TaskSpec] = TaskSpec(
        name="ks1d",
        title="1D Kuramoto–Sivashinsky",
        fields=(Field.scalar("u"),),
        bounds=((0.0, 64.0),),
        periodic=(True,),
        resolution=256,
        end=100.0,
        frames=201,
        conserved=("mean",),
        storage=Storage(kind="array", pattern="1D_KS_Sols_Nu{nu}.hdf5", attrs={"nu": "Nu"}),
    )

    def initial(self, draw: Draw, grid: Grid) -> Tensor:
        return low_modes(draw, grid, amplitude=3.0).unsqueeze(-1)

    # In units of √ν (length) and ν (time) the attractor is the same for every ν; so are these two bounds.
    @property
    def highest(self) -> float:
        return 8.0 / math.sqrt(self.nu)

    @property
    def step(self) -> float:
        return 0.0125 * min(self.nu, 1.0)

    def symbol(self, k: Tensor) -> Tensor:
        return k[0] ** 2 - self.nu * k[0] ** 4

    def nonlinear(self, u: Tensor) -> Tensor:
        return u.square()

    def outer(self, k: Tensor) -> Tensor:
        return -0.5j * k[0]

    def laws(self) -> tuple[Law, ...]:
        return (Conserved("mean", lambda u: u[..., 0], channel=0),)


@dataclass(frozen=True)
class KortewegDeVries1D(Semilinear):
    """u_t + 6 u u_x + δ² u_xxx = 0, periodic on (0, 64): solitons 2δ²κ² sech²(κ (x − 4δ²κ² t)) that pass each other.

    Mass ∫u, momentum ∫u² and energy ∫(u³ − δ² u_x²/2) are conserved. Half of the samples start as one to four
    solitons of amplitude 0.2 to 1, apart from each other; the other half as six low modes (mean zero, |u| ≤ 1) that
    break up into solitons and radiation. No soliton born of such states exceeds twice their maximum, so |u| ≤ 2.
    Good values: δ from 0.3 to 3 at 256 points; a smaller δ makes solitons narrower than the stored cells
    (width √2 δ), which are then solved for finely and stored as what the stored grid can hold.
    """

    delta: float = param(1.0, "dispersion δ", above=0.0)

    stored: ClassVar[type[Padded]] = Padded
    task: ClassVar[TaskSpec] = TaskSpec(
        name="kdv1d",
        title="1D Korteweg–de Vries",
        fields=(Field.scalar("u"),),
        bounds=((0.0, 64.0),),
        periodic=(True,),
        resolution=256,
        end=20.0,
        frames=201,
        conserved=("mean", "energy"),
        storage=Storage(kind="array", pattern="1D_KdV_Sols_delta{delta}.hdf5", attrs={"delta": "delta"}),
    )

    def initial(self, draw: Draw, grid: Grid) -> Tensor:
        waves = low_modes(draw, grid, amplitude=1.0)
        return torch.where(draw.chance("solitons", 0.5).unsqueeze(1), self._solitons(draw, grid), waves).unsqueeze(-1)

    def _solitons(self, draw: Draw, grid: Grid) -> Tensor:
        """`(B, N)` one to four solitons, each in its own quarter of the box, with their nearest periodic images."""
        x, length = draw.tensor(grid.coordinates[0]), grid.lengths[0]
        count = 1 + draw.integers("count", (), SOLITONS)
        amplitude = draw.uniform("height", (SOLITONS,), 0.2, 1.0)
        place = draw.uniform("shift") * length
        jitter = draw.uniform("place", (SOLITONS,), -0.2, 0.2)
        u = torch.zeros((len(draw), len(x)), dtype=draw.dtype, device=draw.device)
        for i in range(SOLITONS):
            height = (amplitude[:, i] * (count > i)).unsqueeze(1)
            centre = (place + length * (i + jitter[:, i]) / SOLITONS).unsqueeze(1)
            distance = torch.remainder(x - centre + length / 2, length) - length / 2
            for image in (-length, 0.0, length):
                u += height / torch.cosh((height / 2).sqrt() / self.delta * (distance + image)).square()
        return u

    @property
    def highest(self) -> float:
        """The spectrum of a soliton of height 2 (κ = 1/δ) falls as exp(−πk/2κ): it is 1e-11 there."""
        return 16.0 / self.delta

    @property
    def step(self) -> float:
        return 0.5 / (6 * 2.0 * self.highest)

    def symbol(self, k: Tensor) -> Tensor:
        return 1j * self.delta**2 * k[0] ** 3

    def nonlinear(self, u: Tensor) -> Tensor:
        return u.square()

    def outer(self, k: Tensor) -> Tensor:
        return -3j * k[0]

    def laws(self) -> tuple[Law, ...]:
        return (
            Conserved("mean", lambda u: u[..., 0], channel=0),
            Conserved("energy", lambda u: u[..., 0].square(), repair=stretched(0)),
        )


def stretched(channel: int) -> Repair:
    """Restores ∫u² of a channel by scaling its deviation from its mean, which stays."""

    def repair(u: Tensor, want: Tensor, mean: Mean) -> Tensor:
        middle = mean(u[..., channel])
        swing = u[..., channel] - middle
        factor = quotient((want - middle.square()).clamp_min(0), mean(swing.square())).sqrt()
        return with_channel(u, channel, middle + factor * swing)

    return repair
