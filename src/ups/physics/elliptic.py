"""Steady states of diffusion on the unit square: darcy2d, poisson2d."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ups.lazy_imports import Tensor, torch
from ups.physics.constraints import HeldFaces, Law, Positive
from ups.physics.random import Draw
from ups.physics.solver import Equation, Stepper, initial_states, param, solve
from ups.physics.steady import SteadySystem
from ups.physics.stiff import LinearRelaxation
from ups.types import Field, Grid, PhysicsError, Storage, TaskSpec

# Relative residual to which generated fields are solved.
SOLVED = 1e-10
# Cosines along each axis that a random force is made of, and the wavenumber from which they grow weaker.
FORCE_WAVES, FORCE_KNEE = 12, 2.0


@dataclass(frozen=True)
class Darcy2D(Equation):
    """−∇·(a ∇u) = β on the unit square, u = 0 on its boundary, a piecewise constant in {0.1, 1}.

    The pressure u is positive (maximum principle), proportional to β, and largest where a is low: max u/β is 0.07 for
    a ≡ 1 and up to 0.7 for a ≡ 0.1. The permeability a is 1 where the sum of five Gaussians exp(−r²/σ), centres
    U(0, 1)², σ = U(0, 0.5), exceeds its own mean over the square, and 0.1 elsewhere. PDEBench compares with the mean
    over a batch of samples; here no sample may depend on its batch.

    `accurate`: the steady problem, five-point finite volumes with harmonic means of a on the faces and u = 0 on the
    boundary faces, solved to a relative residual of 1e-10. `pdebench`: what PDEBench stores, the state at t = 1.75 of
    the relaxation u_t = ∇·(a∇u) + β from a random start, arithmetic means on the faces, zeros in ghost cells one cell
    beyond the boundary; the semi-discrete system is linear and its exponential is applied at once, in place of 1e5
    explicit steps (the two agree to 1e-6). The start is still seen in it: where a is mostly 0.1 the slowest mode has
    decayed by e^{−3.5} only. The trace is 0.7 % of the solution on average at β = 1 (7 % at worst) and grows as 1/β.
    """

    beta: float = param(1.0, "constant force β", above=0.0)

    schemes: ClassVar[tuple[str, ...]] = ("pdebench", "accurate")
    task: ClassVar[TaskSpec] = TaskSpec(
        name="darcy2d",
        title="2D Darcy flow",
        fields=(Field.scalar("pressure"),),
        inputs=(Field.scalar("permeability"),),
        bounds=((0.0, 1.0), (0.0, 1.0)),
        periodic=(False, False),
        resolution=128,
        end=0.0,
        frames=1,
        steady=True,
        storage=Storage(
            kind="steady",
            pattern="2D_DarcyFlow_beta{beta}_Train.hdf5",
            datasets=("tensor", "nu"),
            attrs={"beta": "beta"},
        ),
    )
    relaxation_time: ClassVar[float] = 1.75
    isotropic: ClassVar[bool] = True

    def inputs(self, draw: Draw, grid: Grid) -> Tensor:
        """The permeability `(B, X, Y, 1)`, 0.1 or 1."""
        draw64 = dataclasses.replace(draw, dtype=torch.float64)  # so that both precisions have the same medium
        centre = draw64.uniform("centre", (5, 2))
        width = draw64.uniform("width", (5,), 0.0, 0.5)
        bell = [
            torch.exp(-((draw64.tensor(axis) - centre[..., i : i + 1]) ** 2) / width.unsqueeze(-1))
            for i, axis in enumerate(grid.coordinates)
        ]
        total = torch.einsum("bgx,bgy->bxy", *bell)
        high = total > total.mean((1, 2), keepdim=True)
        a = torch.full(high.shape, 0.1, dtype=draw.dtype, device=draw.device)
        return a.masked_fill_(high, 1.0).unsqueeze(-1)

    def initial(self, draw: Draw, grid: Grid) -> Tensor:
        """Where the relaxation starts: c (1 + δ w(x)), c ~ U(0.1, 10), δ ~ U(0.01, 0.2).

        w sums the waves cos(2π k·x + φ) with both components of k in ±1 … ±4 and |k| ≤ 4, amplitudes |k|^(−1/2)
        scaled so that they add up to 1: the start is positive.
        """
        size = range(-4, 5)
        waves = [(k, m) for k in range(1, 5) for m in size if m and k * k + m * m <= 16]
        x, y = (2 * math.pi * draw.tensor(axis) for axis in grid.coordinates)
        phase = draw.uniform("phase", (len(waves),), 0.0, 2 * math.pi)
        weights = [math.hypot(*k) ** -0.5 for k in waves]
        field = torch.zeros((len(draw), *grid.shape), dtype=draw.dtype, device=draw.device)
        for i, ((k, m), weight) in enumerate(zip(waves, weights, strict=True)):
            angle = (k * x).unsqueeze(1) + m * y + phase[:, i].reshape(-1, 1, 1)
            field += weight / sum(weights) * angle.cos()
        level, delta = draw.uniform("level", (1, 1), 0.1, 10.0), draw.uniform("delta", (1, 1), 0.01, 0.2)
        return (level * (1 + delta * field)).unsqueeze(-1)

    def stepper(self, scheme: str, grid: Grid, like: Tensor) -> Stepper:
        """There is none without a medium: see `relaxation`."""
        raise PhysicsError(
            f"darcy2d has no stepper for scheme '{scheme}': every sample has its own medium; call simulate, or "
            f"relaxation with a permeability of {grid.shape[0]}x{grid.shape[1]} cells and dtype {like.dtype}."
        )

    def laws(self) -> tuple[Law, ...]:
        return (Positive("pressure", 0), HeldFaces("walls", 0, 0.0, (0, 1)))

    def relaxation(self, a: Tensor, grid: Grid) -> LinearRelaxation:
        """u_t = ∇·(a∇u) + β in the media a ≤ 1, `(B, X, Y, 1)`, with zeros in the ghost cells."""
        flow = FiveCell(a[..., 0].double(), grid, harmonic=False)
        radius = 4 * sum(1 / width**2 for width in grid.spacing)
        return LinearRelaxation(lambda u: flow(u[..., 0]).unsqueeze(-1), self.beta, radius)

    def simulate(self, draw: Draw, grid: Grid, times: Sequence[float], scheme: str) -> Tensor:  # noqa: ARG002
        """The pressure `(B, 1, X, Y, 1)`; `times` has no meaning here."""
        self.check_scheme(scheme)
        a = self.inputs(draw, grid)
        if scheme == "accurate":
            beta = torch.full((len(a),), self.beta, dtype=torch.float64, device=a.device)
            return self.steady_system({"beta": beta}, a, grid).solution(SOLVED).to(a.dtype).unsqueeze(1)
        start = initial_states(self, draw, grid)
        return solve(self.relaxation(a, grid), start, [0.0, self.relaxation_time])[:, 1:]

    @classmethod
    def steady_system(cls, params: Mapping[str, Tensor], inputs: Tensor, grid: Grid) -> SteadySystem:
        if not bool(((inputs > 0) & inputs.isfinite()).all()):
            raise PhysicsError("The permeability must be finite and positive in every cell.")
        force = params["beta"].to(inputs.device, torch.float64).reshape(-1, 1, 1, 1)
        return diffusion_system(inputs, force.expand_as(inputs), grid)


@dataclass(frozen=True)
class Poisson2D(Equation):
    """−Δu = f on the unit square, u = 0 on its boundary, another smooth force f in every sample.

    f sums cosines cos(πkx) cos(πmy), k and m from 0 to 11, with normal amplitudes that fall as 1/(1 + (k² + m²)/4),
    scaled to a mean square of 1 over all samples: it has a mean, is not periodic, and does not vanish on the boundary.
    u is linear in f, at most 0.07 for f = 1, and smoother than f.

    `accurate`: five-point finite volumes with u = 0 on the boundary faces, as `darcy2d` with a = 1. The preconditioner
    of the iteration is then the exact inverse, so one iteration solves it.
    """

    task: ClassVar[TaskSpec] = TaskSpec(
        name="poisson2d",
        title="2D Poisson equation",
        fields=(Field.scalar("potential"),),
        inputs=(Field.scalar("force"),),
        bounds=((0.0, 1.0), (0.0, 1.0)),
        periodic=(False, False),
        resolution=128,
        end=0.0,
        frames=1,
        steady=True,
        storage=Storage(kind="steady", pattern="2D_Poisson_Train.hdf5", datasets=("tensor", "force")),
    )
    isotropic: ClassVar[bool] = True

    def inputs(self, draw: Draw, grid: Grid) -> Tensor:
        """The force `(B, X, Y, 1)`. Summed wave by wave: a matrix product may round differently in another batch."""
        draw64 = dataclasses.replace(draw, dtype=torch.float64)
        k = torch.arange(FORCE_WAVES, dtype=torch.float64, device=draw.device)
        size = 1 / (1 + (k[:, None].square() + k.square()) / FORCE_KNEE**2)
        power = torch.where(k > 0, 0.5, 1.0)
        size = size / (size.square() * power[:, None] * power).sum().sqrt()
        amplitude = size * draw64.normal("force", (FORCE_WAVES, FORCE_WAVES))
        x, y = (torch.cos(math.pi * k[:, None] * draw64.tensor(axis)) for axis in grid.coordinates)
        rows = torch.zeros((len(draw), FORCE_WAVES, len(y[0])), dtype=torch.float64, device=draw.device)
        total = torch.zeros((len(draw), *grid.shape), dtype=torch.float64, device=draw.device)
        for m in range(FORCE_WAVES):
            rows += amplitude[:, :, m, None] * y[m]
        for i in range(FORCE_WAVES):
            total += rows[:, i, None, :] * x[i, :, None]
        return total.unsqueeze(-1).to(draw.dtype)

    def initial(self, draw: Draw, grid: Grid) -> Tensor:
        """Nothing: the solution does not depend on a start."""
        return torch.zeros((len(draw), *grid.shape, 1), dtype=draw.dtype, device=draw.device)

    def stepper(self, scheme: str, grid: Grid, like: Tensor) -> Stepper:  # noqa: ARG002
        """There is none: nothing moves."""
        raise PhysicsError(f"poisson2d has no stepper for scheme '{scheme}': it has no time; call simulate.")

    def simulate(self, draw: Draw, grid: Grid, times: Sequence[float], scheme: str) -> Tensor:  # noqa: ARG002
        """The potential `(B, 1, X, Y, 1)`; `times` has no meaning here."""
        self.check_scheme(scheme)
        system = self.steady_system({}, self.inputs(draw, grid), grid)
        return system.solution(SOLVED).to(draw.dtype).unsqueeze(1)

    @classmethod
    def steady_system(cls, params: Mapping[str, Tensor], inputs: Tensor, grid: Grid) -> SteadySystem:  # noqa: ARG003
        if not bool(inputs.isfinite().all()):
            raise PhysicsError("The force must be finite in every cell.")
        return diffusion_system(torch.ones_like(inputs), inputs, grid)


class FiveCell:
    """u ↦ −∇·(a∇u) on `(B, X, Y)` by fluxes through the faces, u = 0 around the box.

    `harmonic`: face values are harmonic means, the boundary is the outer faces (half a cell from the last centres).
    Otherwise face values are arithmetic means and the boundary values sit in ghost cells, a whole cell from them.
    """

    def __init__(self, a: Tensor, grid: Grid, harmonic: bool) -> None:
        edge = 2.0 if harmonic else 1.0
        self.faces: list[Tensor] = []  # per axis: conductance of the n + 1 faces, over the squared cell width
        self.diagonal = torch.zeros_like(a)
        for axis, width in enumerate(grid.spacing, start=1):
            n = a.shape[axis]
            low, high = a.narrow(axis, 0, n - 1), a.narrow(axis, 1, n - 1)
            inner = 2 * low * high / (low + high) if harmonic else (low + high) / 2
            outer = (edge * a.narrow(axis, 0, 1), inner, edge * a.narrow(axis, n - 1, 1))
            face = torch.cat(outer, dim=axis) / width**2
            self.faces.append(face.narrow(axis, 1, n - 1).contiguous())
            self.diagonal += face.narrow(axis, 0, n) + face.narrow(axis, 1, n)

    def __call__(self, u: Tensor) -> Tensor:
        total = self.diagonal * u
        for axis, face in enumerate(self.faces, start=1):
            n = u.shape[axis]
            total.narrow(axis, 0, n - 1).addcmul_(face, u.narrow(axis, 1, n - 1), value=-1)
            total.narrow(axis, 1, n - 1).addcmul_(face, u.narrow(axis, 0, n - 1), value=-1)
        return total


def diffusion_system(a: Tensor, force: Tensor, grid: Grid) -> SteadySystem:
    """−∇·(a∇u) = force, u = 0 on the boundary, in double precision; a > 0 and force are `(B, X, Y, 1)`.

    Iterations grow with √(max a / min a): about 40 to 1e-10 for a ratio of 10 at every resolution.
    """
    flow = FiveCell(a[..., 0].double(), grid, harmonic=True)
    return SteadySystem(flow, inverse_laplacian(grid, a.device), force[..., 0].double())


def inverse_laplacian(grid: Grid, device: torch.device) -> Callable[[Tensor], Tensor]:
    """(−Δ)⁻¹ on `(B, X, Y)` for u = 0 on the outer faces, exact for the five-point stencil, by fast sine transforms."""
    total = torch.zeros(grid.shape, dtype=torch.float64, device=device)
    for axis, (n, width) in enumerate(zip(grid.shape, grid.spacing, strict=True)):
        k = torch.arange(1, n + 1, dtype=torch.float64, device=device)
        eigen = (2 / width * torch.sin(math.pi * k / (2 * n))) ** 2
        total = total + eigen.reshape([-1 if i == axis else 1 for i in range(grid.ndim)])

    def solve_poisson(r: Tensor) -> Tensor:
        spectrum = sine_transform(sine_transform(r).transpose(1, 2)) / total.T
        return inverse_sine_transform(inverse_sine_transform(spectrum).transpose(1, 2))

    return solve_poisson


def sine_transform(u: Tensor) -> Tensor:
    """S_k = Σ_i u_i sin(π k (i + ½)/n), k = 1 … n, along the last axis: a cosine transform of u_i (−1)^i, backwards."""
    n = u.shape[-1]
    ordered = torch.cat([u[..., ::2], -u[..., 1::2].flip(-1)], dim=-1)
    half = torch.fft.rfft(ordered)
    turn = _turn(n, u.device)
    low = half * turn[: n // 2 + 1]
    rest = (half[..., 1 : (n + 1) // 2].conj().flip(-1) * turn[n // 2 + 1 :]).real
    return torch.cat([low.real, rest], dim=-1).flip(-1)


def inverse_sine_transform(spectrum: Tensor) -> Tensor:
    """u with `sine_transform(u) = spectrum`."""
    n = spectrum.shape[-1]
    cosines = spectrum.flip(-1)
    mirrored = torch.cat([torch.zeros_like(cosines[..., :1]), cosines[..., 1:].flip(-1)], dim=-1)
    full = torch.complex(cosines, -mirrored) * _turn(n, spectrum.device).conj()
    ordered = torch.fft.irfft(full[..., : n // 2 + 1], n=n)
    u = torch.empty_like(spectrum)
    u[..., ::2] = ordered[..., : (n + 1) // 2]
    u[..., 1::2] = -ordered[..., (n + 1) // 2 :].flip(-1)
    return u


@functools.lru_cache(maxsize=8)
def _turn(n: int, device: torch.device) -> Tensor:
    """e^{−iπk/(2n)}, k = 0 … n − 1."""
    return torch.exp(-0.5j * math.pi / n * torch.arange(n, dtype=torch.float64, device=device))
