"""The repair of all laws of a gas on a GPU as one kernel: what `gas_laws.GasRepair` does where no cell is masked."""

# All that a cell needs to know of the others are means over its sample, so one program repairs one sample. It goes over
# the cells four times: for the means of density and pressure; for mass, momenta and motion, now that the density is
# known but for a factor; for the mean of the new pressure; and to write. Imported only where there is a GPU and Triton.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ups.physics import riemann

BLOCK = 1024  # cells that a program takes at once
WARPS = 16
GAMMA = tl.constexpr(riemann.GAMMA)


@triton.jit
def _at_least(x, bound):
    """What is not a number stays so, as in torch."""
    return tl.maximum(x, bound, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _share(want, mean, LEAST: tl.constexpr):
    """The factor between 0 and 1 that brings values down from their mean to the one they should have."""
    return tl.minimum(_at_least(want / _at_least(mean, LEAST), 0.0), 1.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _cells(first, cells, D: tl.constexpr, BLOCK: tl.constexpr):
    """Where the channels of a block of cells begin, and which of these cells there are."""
    cell = first + tl.arange(0, BLOCK)
    return cell * (2 + D), cell < cells


@triton.jit
def _read(x, at, live):
    return tl.load(x + at, mask=live, other=0.0).to(tl.float64)


@triton.jit
def _moved(x, at, live, shift):
    """Values plus a number, never below 0; 0 where there is no cell."""
    return tl.where(live, _at_least(_read(x, at, live) + shift, 0.0), 0.0)


@triton.jit
def _sums(u, cells, D: tl.constexpr, BLOCK: tl.constexpr):
    """The sums of density and pressure."""
    density, pressure = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    for first in range(0, cells, BLOCK):
        at, live = _cells(first, cells, D, BLOCK)
        density += _read(u, at, live)
        pressure += _read(u + 1, at, live)
    return tl.sum(density, 0), tl.sum(pressure, 0)


@triton.jit
def _moving_sums(u, shift, cells, D: tl.constexpr, BLOCK: tl.constexpr):
    """With a density moved by `shift`: the sums of mass, of three momenta, and of twice the energy of motion."""
    mass, twice = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    x, y, z = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    for first in range(0, cells, BLOCK):
        at, live = _cells(first, cells, D, BLOCK)
        density, velocity = _moved(u, at, live, shift), _read(u + 2, at, live)
        mass += density
        x += density * velocity
        twice += density * velocity * velocity
        if D > 1:
            velocity = _read(u + 3, at, live)
            y += density * velocity
            twice += density * velocity * velocity
        if D > 2:
            velocity = _read(u + 4, at, live)
            z += density * velocity
            twice += density * velocity * velocity
    return tl.sum(mass, 0), tl.sum(x, 0), tl.sum(y, 0), tl.sum(z, 0), tl.sum(twice, 0)


@triton.jit
def _moved_sum(x, shift, cells, D: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of one channel moved by `shift`."""
    total = tl.zeros((BLOCK,), tl.float64)
    for first in range(0, cells, BLOCK):
        at, live = _cells(first, cells, D, BLOCK)
        total += _moved(x, at, live, shift)
    return tl.sum(total, 0)


@triton.jit
def _drift(aim, axis: tl.constexpr, momentum, mass, D: tl.constexpr):
    """Along an axis, the mean velocity that there is and the one that there should be; twice the energy of the first;
    and of twice the energy that there should be, the axis's part without that of the mean velocity."""
    wanted = tl.load(aim + 1 + axis)
    speed, goal = momentum / mass, wanted / mass
    return speed, goal, momentum * speed, tl.load(aim + 1 + D + axis) - wanted * goal


@triton.jit
def _repair_gas(
    u, aim, repaired, cells, D: tl.constexpr, WARMTH: tl.constexpr, LEAST: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The frame `u (B, cells, 2 + D)` with the totals `aim (B, 1 + 2 D)` of `GasRepair.aim`."""
    sample = tl.program_id(0).to(tl.int64)
    u, repaired, aim = u + sample * cells * (2 + D), repaired + sample * cells * (2 + D), aim + sample * (1 + 2 * D)
    want = tl.load(aim)
    density, pressure = _sums(u, cells, D, BLOCK)
    denser = want - density / cells
    mass, x, y, z, twice = _moving_sums(u, denser, cells, D, BLOCK)
    mass = mass / cells
    share = _share(want, mass, LEAST)
    part, mass = share / cells, _at_least(mass * share, LEAST)
    # What stirs is the motion without that of the mean velocity; it must leave room for the pressure.
    sx, gx, carried, room = _drift(aim, 0, x * part, mass, D)
    sy, gy, sz, gz = sx, gx, sx, gx
    stirred = twice * part - carried
    if D > 1:
        sy, gy, carried, more = _drift(aim, 1, y * part, mass, D)
        stirred, room = stirred - carried, room + more
    if D > 2:
        sz, gz, carried, more = _drift(aim, 2, z * part, mass, D)
        stirred, room = stirred - carried, room + more
    stirred, room = _at_least(stirred, 0.0), _at_least(room, 0.0)
    calm = tl.where(stirred <= room, 1.0, (1 - WARMTH) * room / _at_least(stirred, LEAST))
    warm = (room - calm * stirred) * ((GAMMA - 1) / 2)
    warmer, root = warm - pressure / cells, tl.sqrt(calm)
    cut = _share(warm, _moved_sum(u + 1, warmer, cells, D, BLOCK) / cells, LEAST)
    for first in range(0, cells, BLOCK):
        at, live = _cells(first, cells, D, BLOCK)
        tl.store(repaired + at, _moved(u, at, live, denser) * share, mask=live)
        tl.store(repaired + 1 + at, _moved(u + 1, at, live, warmer) * cut, mask=live)
        tl.store(repaired + 2 + at, gx - root * sx + _read(u + 2, at, live) * root, mask=live)
        if D > 1:
            tl.store(repaired + 3 + at, gy - root * sy + _read(u + 3, at, live) * root, mask=live)
        if D > 2:
            tl.store(repaired + 4 + at, gz - root * sz + _read(u + 4, at, live) * root, mask=live)


def repair_gas(u: Tensor, aim: Tensor, ndim: int, warmth: float, least: float) -> Tensor:
    """One frame `(B, 1, *S, 2 + ndim)` in float32 or float64 that obeys all laws of a gas; its totals are `aim`."""
    u, aim = u.contiguous(), aim.contiguous()
    repaired, cells = torch.empty_like(u), u.numel() // max(len(u) * (2 + ndim), 1)
    with torch.cuda.device(u.device):
        _repair_gas[(len(u),)](u, aim, repaired, cells, ndim, warmth, least, BLOCK, num_warps=WARPS)
    return repaired
