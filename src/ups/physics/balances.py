"""The balance laws that data of each equation must obey, with the coefficients that a fit can find."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ups.types import Array, Params, PhysicsError

# Numerical viscosity as these fits see it, in cells times speed: one twelfth of the jump for cell averages of a bare
# shock of Burgers' equation; below 0.025 of the signal speed for gas.
SMEAR, GAS_SMEAR = 0.1, 0.05

Density = Callable[[Array, Array, tuple[float, ...]], Array]


@dataclass(frozen=True)
class BalancePart:
    """∂^orders of a density, `orders` per axis.

    `density(u, inputs, spacing)` maps frames `(T, *S, C)` to `(T, *S)`; where it is one shorter along an axis, its
    values sit on the faces between the cells of that axis. `orders` must stay below 6 in total per axis.
    """

    density: Density
    orders: tuple[int, ...]


@dataclass(frozen=True)
class Coefficient:
    """A number that the file's name, or the equation itself, claims.

    `floor(u, spacing)`: how far a truthful file of a shock-capturing scheme may be from it (numerical viscosity).
    """

    name: str
    meaning: str
    claimed: float
    floor: Callable[[Array, tuple[float, ...]], float] = lambda u, spacing: 0.0  # noqa: ARG005


@dataclass(frozen=True)
class BalanceLine:
    """(Σ rate)_t + Σ known = Σ_j c_j Σ terms[j]; without `rate` the balance is steady."""

    rate: tuple[BalancePart, ...]
    terms: tuple[tuple[BalancePart, ...], ...]
    known: tuple[BalancePart, ...] = ()


@dataclass(frozen=True)
class Balance:
    """One or more lines (components of a vector equation) that share their coefficients.

    `pace(u)`: the mean speed of the signals in some frames, where the fields themselves tell it; 0 where unknown.
    """

    coefficients: tuple[Coefficient, ...]
    lines: tuple[BalanceLine, ...]
    pace: Callable[[Array], float] = lambda u: 0.0  # noqa: ARG005


def channel(c: int, factor: float = 1.0) -> Density:
    """The density that is a channel, times a factor."""
    return lambda u, inputs, spacing: factor * u[..., c]  # noqa: ARG005


def of(function: Callable[[Array], Array]) -> Density:
    """A density that needs nothing but the frames."""
    return lambda u, inputs, spacing: function(u)  # noqa: ARG005


def along(axis: int, ndim: int, order: int = 1) -> tuple[int, ...]:
    """The orders of ∂^order along one axis."""
    return tuple(order if a == axis else 0 for a in range(ndim))


def laplacian(c: int, ndim: int) -> tuple[BalancePart, ...]:
    """The Laplacian of a channel, an order per axis."""
    return tuple(BalancePart(channel(c), along(axis, ndim, 2)) for axis in range(ndim))


def number(params: Params, name: str) -> float:
    """A parameter that must be a number."""
    value = params.get(name)
    if isinstance(value, int | float):
        return float(value)
    raise PhysicsError(f"The claimed coefficients need the parameter {name}; give it a number.")


def advection(params: Params) -> tuple[Balance, ...]:
    """u_t + β u_x = 0."""
    beta = Coefficient("beta", "velocity β", number(params, "beta"))
    return (
        Balance((beta,), (BalanceLine((BalancePart(channel(0), (0,)),), ((BalancePart(channel(0, -1.0), (1,)),),)),)),
    )


def burgers(params: Params) -> tuple[Balance, ...]:
    """u_t + (u²/2)_x = (ν/π) u_xx, as PDEBench scales ν."""

    def floor(u: Array, spacing: tuple[float, ...]) -> float:
        return float(SMEAR * spacing[0] * np.abs(u).max())

    flux = Coefficient("flux", "factor of (u²/2)_x", 1.0)
    diffusion = Coefficient("diffusion", "diffusion ν/π", number(params, "nu") / math.pi, floor)
    parts = ((BalancePart(of(lambda u: -0.5 * u[..., 0] ** 2), (1,)),), laplacian(0, 1))
    return (Balance((flux, diffusion), (BalanceLine((BalancePart(channel(0), (0,)),), parts),)),)


def reaction_diffusion(params: Params) -> tuple[Balance, ...]:
    """u_t = ν u_xx + ρ u (1 − u)."""
    claimed = number(params, "nu")
    # The slowest wave decays by exp(−0.4 ν) between two frames, so that a fast diffusion is over before it is seen.
    nu = Coefficient("nu", "diffusion ν", claimed, lambda u, spacing: 0.02 * claimed**2)  # noqa: ARG005
    rho = Coefficient("rho", "reaction rate ρ", number(params, "rho"))
    logistic = (BalancePart(of(lambda u: u[..., 0] * (1 - u[..., 0])), (0,)),)
    return (Balance((nu, rho), (BalanceLine((BalancePart(channel(0), (0,)),), (laplacian(0, 1), logistic)),)),)


def sorption(params: Params) -> tuple[Balance, ...]:  # noqa: ARG001
    """R(u) u_t is the rate of its primitive, u + ((1−φ)/φ) ρ_s k (u + 1e-6)^n."""
    porosity, solid, isotherm, power = 0.29, 2880.0, 3.5e-4, 0.874
    factor = (1 - porosity) / porosity * solid * isotherm
    content = of(lambda u: u[..., 0] + factor * (u[..., 0] + 1e-6).clip(0.0) ** power)
    diffusion = Coefficient("D", "effective diffusion D", 5e-4)
    return (Balance((diffusion,), (BalanceLine((BalancePart(content, (0,)),), (laplacian(0, 1),)),)),)


def fitzhugh_nagumo(params: Params) -> tuple[Balance, ...]:  # noqa: ARG001
    """An activator and an inhibitor that diffuse and react."""
    du = Coefficient("Du", "activator diffusion D_u", 1e-3)
    dv = Coefficient("Dv", "inhibitor diffusion D_v", 5e-3)
    k = Coefficient("k", "threshold k", 5e-3, lambda u, spacing: 1e-3)  # noqa: ARG005
    reaction = Coefficient("reaction", "factor of u − u³ − v", 1.0)
    relaxation = Coefficient("relaxation", "factor of u − v", 1.0)
    zero = (0, 0)
    cubic = (BalancePart(of(lambda u: u[..., 0] - u[..., 0] ** 3 - u[..., 1]), zero),)
    constant = (BalancePart(of(lambda u: 0 * u[..., 0] - 1.0), zero),)
    linear = (BalancePart(of(lambda u: u[..., 0] - u[..., 1]), zero),)
    activator = BalanceLine((BalancePart(channel(0), zero),), (laplacian(0, 2), cubic, constant))
    inhibitor = BalanceLine((BalancePart(channel(1), zero),), (laplacian(1, 2), linear))
    return (Balance((du, reaction, k), (activator,)), Balance((dv, relaxation), (inhibitor,)))


def kuramoto_sivashinsky(params: Params) -> tuple[Balance, ...]:
    """u_t + (u²/2)_x + u_xx + ν u_xxxx = 0."""
    parts = tuple(
        (BalancePart(density, (order,)),)
        for density, order in ((of(lambda u: -0.5 * u[..., 0] ** 2), 1), (channel(0, -1.0), 2), (channel(0, -1.0), 4))
    )
    coefficients = (
        Coefficient("flux", "factor of (u²/2)_x", 1.0),
        Coefficient("growth", "factor of u_xx", 1.0),
        Coefficient("nu", "hyperviscosity ν", number(params, "nu")),
    )
    return (Balance(coefficients, (BalanceLine((BalancePart(channel(0), (0,)),), parts),)),)


def korteweg_de_vries(params: Params) -> tuple[Balance, ...]:
    """u_t + 6 u u_x + δ² u_xxx = 0."""
    parts = ((BalancePart(of(lambda u: -0.5 * u[..., 0] ** 2), (1,)),), (BalancePart(channel(0, -1.0), (3,)),))
    coefficients = (
        Coefficient("flux", "factor of (u²/2)_x", 6.0),
        Coefficient("dispersion", "dispersion δ²", number(params, "delta") ** 2),
    )
    return (Balance(coefficients, (BalanceLine((BalancePart(channel(0), (0,)),), parts),)),)


def gas(ndim: int) -> Callable[[Params], tuple[Balance, ...]]:
    """Mass, and momentum with σ = ρ [η (∇v + ∇vᵀ − ⅔ ∇·v) + ζ ∇·v], of density, pressure and `ndim` velocities."""

    def slope(u: Array, c: int, axis: int, spacing: tuple[float, ...]) -> Array:
        return np.asarray(np.gradient(u[..., c], spacing[axis], axis=1 + axis))

    def divergence(u: Array, spacing: tuple[float, ...]) -> Array:
        return np.asarray(sum(slope(u, 2 + a, a, spacing) for a in range(ndim)))

    def shear(i: int, j: int) -> Density:
        def stress(u: Array, inputs: Array, spacing: tuple[float, ...]) -> Array:  # noqa: ARG001
            sides = slope(u, 2 + i, j, spacing) + slope(u, 2 + j, i, spacing)
            return np.asarray(u[..., 0] * (sides - (2 / 3 * divergence(u, spacing) if i == j else 0.0)))

        return stress

    def bulk(u: Array, inputs: Array, spacing: tuple[float, ...]) -> Array:  # noqa: ARG001
        return np.asarray(u[..., 0] * divergence(u, spacing))

    def signal(u: Array) -> Array:
        """|v| + c, cell by cell."""
        return np.asarray(np.sqrt(5 / 3 * np.abs(u[..., 1] / u[..., 0])) + np.abs(u[..., 2:]).max(-1))

    def pace(u: Array) -> float:
        return float(signal(u).mean())

    def floor(u: Array, spacing: tuple[float, ...]) -> float:
        return float(GAS_SMEAR * max(spacing) * signal(u).max())

    def inertia(i: int, j: int) -> Density:
        return of(lambda u: -u[..., 0] * u[..., 2 + i] * u[..., 2 + j] - (u[..., 1] if i == j else 0.0))

    def flux(a: int) -> Density:
        return of(lambda u: -u[..., 0] * u[..., 2 + a])

    def momentum(i: int) -> BalanceLine:
        advective = tuple(BalancePart(inertia(i, j), along(j, ndim)) for j in range(ndim))
        viscous = tuple(BalancePart(shear(i, j), along(j, ndim)) for j in range(ndim))
        # On a line shear and bulk are the same term: ρ (4η/3 + ζ) v_x.
        split = ((BalancePart(bulk, along(0, 1)),),) if ndim == 1 else (viscous, (BalancePart(bulk, along(i, ndim)),))
        return BalanceLine((BalancePart(of(lambda u: u[..., 0] * u[..., 2 + i]), (0,) * ndim),), (advective, *split))

    def balances(params: Params) -> tuple[Balance, ...]:
        eta, zeta = number(params, "eta"), number(params, "zeta")
        mass = BalanceLine(
            (BalancePart(channel(0), (0,) * ndim),), (tuple(BalancePart(flux(a), along(a, ndim)) for a in range(ndim)),)
        )
        on_a_line = (Coefficient("viscosity", "viscosity 4η/3 + ζ", 4 / 3 * eta + zeta, floor),)
        in_space = (
            Coefficient("eta", "shear viscosity η", eta, floor),
            Coefficient("zeta", "bulk viscosity ζ", zeta, floor),
        )
        stress = Coefficient("momentum flux", "factor of ∇·(ρ v⊗v + p)", 1.0)
        return (
            Balance((Coefficient("mass flux", "factor of ∇·(ρv)", 1.0),), (mass,), pace),
            Balance((stress, *(on_a_line if ndim == 1 else in_space)), tuple(momentum(i) for i in range(ndim)), pace),
        )

    return balances


def incompressible(params: Params) -> tuple[Balance, ...]:
    """The curl of the momentum equation, free of pressure: ω_t = (∂yy − ∂xx)(uv) + ∂xy(u² − v²) + νΔω + curl f."""
    nu = Coefficient("nu", "viscosity ν", number(params, "nu"))
    flux = Coefficient("flux", "factor of v·∇v", 1.0)
    force = Coefficient("force", "factor of the force", 1.0)

    def given(c: int, sign: float) -> Density:
        return lambda u, inputs, spacing: sign * inputs[..., c] + 0 * u[..., 0]  # noqa: ARG005

    curl = (BalancePart(channel(1), (1, 0)), BalancePart(channel(0, -1.0), (0, 1)))
    advective = (
        BalancePart(of(lambda u: u[..., 0] * u[..., 1]), (0, 2)),
        BalancePart(of(lambda u: -u[..., 0] * u[..., 1]), (2, 0)),
        BalancePart(of(lambda u: u[..., 0] ** 2 - u[..., 1] ** 2), (1, 1)),
    )
    viscous = tuple(
        BalancePart(part.density, (part.orders[0] + a, part.orders[1] + b))
        for part in curl
        for a, b in ((2, 0), (0, 2))
    )
    driven = (BalancePart(given(1, 1.0), (1, 0)), BalancePart(given(0, -1.0), (0, 1)))
    return (Balance((flux, nu, force), (BalanceLine(curl, (advective, viscous, driven)),)),)


def darcy(params: Params) -> tuple[Balance, ...]:
    """−∇·(a∇u) = β, the flux taken on the faces with harmonic means of a."""

    def flux(axis: int) -> Density:
        def through(u: Array, inputs: Array, spacing: tuple[float, ...]) -> Array:
            place = axis - 2
            a = np.moveaxis(inputs[..., 0], place, -1)
            jump = np.diff(np.moveaxis(u[..., 0], place, -1)) / spacing[axis]
            face = 2 * a[..., 1:] * a[..., :-1] / (a[..., 1:] + a[..., :-1])
            return np.moveaxis(face * jump, -1, place)

        return through

    # What PDEBench stores has not quite settled: the rest of its random start is worth up to 0.03 of force.
    beta = Coefficient("beta", "force β", number(params, "beta"), lambda u, spacing: 0.03)  # noqa: ARG005
    known = tuple(BalancePart(flux(axis), along(axis, 2)) for axis in range(2))
    source = (BalancePart(of(lambda u: 0 * u[..., 0] - 1.0), (0, 0)),)
    return (Balance((beta,), (BalanceLine((), (source,), known),)),)


def poisson(params: Params) -> tuple[Balance, ...]:  # noqa: ARG001
    """−Δu = f, f as stored."""
    force = Coefficient("force", "factor of the force", 1.0)
    source = (BalancePart(lambda u, inputs, spacing: 0 * u[..., 0] - inputs[..., 0], (0, 0)),)  # noqa: ARG005
    return (Balance((force,), (BalanceLine((), (source,), laplacian(0, 2)),)),)


BALANCES: dict[str, Callable[[Params], tuple[Balance, ...]]] = {
    "advection1d": advection,
    "burgers1d": burgers,
    "reacdiff1d": reaction_diffusion,
    "diffsorp1d": sorption,
    "cfd1d": gas(1),
    "cfd2d": gas(2),
    "cfd3d": gas(3),
    "darcy2d": darcy,
    "poisson2d": poisson,
    "reacdiff2d": fitzhugh_nagumo,
    "nsincom2d": incompressible,
    "ks1d": kuramoto_sivashinsky,
    "kdv1d": korteweg_de_vries,
}

UNFITTABLE: dict[str, str] = {
    "swe2d": "only the water height is stored, and its balance needs the discharge",
}
