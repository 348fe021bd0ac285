"""Where an equation has a maximum principle, the range of the state it starts from is a law that truth never breaks."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from ups.physics import EQUATIONS, TASKS
from ups.physics.laws import aims_of, guarding, laws_of, repaired
from ups.physics.random import Draw
from ups.physics.ranges import InitialRange, extremes
from ups.types import Field, Grid

NAMED = ("advection1d", "burgers1d", "reacdiff1d", "diffsorp1d")
LAW = InitialRange("range of u", 0, keeps_total=True)
# Cells, frames, trajectories, and the part of the task's time that they last.
TRUE = {
    ("advection1d", "accurate"): (1024, 12, 100, 1.0),
    ("advection1d", "pdebench"): (256, 4, 50, 0.1),
    ("burgers1d", "accurate"): (64, 3, 5, 0.2),
    ("burgers1d", "pdebench"): (128, 4, 20, 0.2),
    ("reacdiff1d", "accurate"): (128, 6, 20, 0.1),
    ("reacdiff1d", "pdebench"): (256, 6, 20, 0.1),
    ("diffsorp1d", "accurate"): (64, 3, 4, 0.5),  # a solver on 1024 cells: not every time
    ("diffsorp1d", "pdebench"): (128, 6, 6, 1.0),
}


def line(cells: int, periodic: bool = True) -> Grid:
    return Grid((cells,), (periodic,), ((0.0, 1.0),))


def waves(cells: int, samples: int = 3) -> Tensor:
    """Smooth states `(B, N, 1)` of different sizes."""
    return EQUATIONS["advection1d"]().initial(Draw(1, range(samples)), line(cells))


def range_of(name: str) -> InitialRange:
    (law,) = (law for law in EQUATIONS[name]().laws() if isinstance(law, InitialRange))
    return law


def check_untouched(name: str, scheme: str, cells: int, frames: int, samples: int, part: float) -> None:
    """True frames are lawful and stay as they are to the bit, on all cells and on every fourth, from any frame on."""
    equation, law = EQUATIONS[name](), range_of(name)
    times = [part * equation.task.end * i / (frames - 1) for i in range(frames)]
    whole = equation.simulate(Draw(11, range(samples)), equation.grid(cells), times, scheme).float()
    for every, first in ((1, 0), (4, 0), (4, 1)):
        u, box = whole[:, first:, ::every], line(cells // every, equation.task.periodic[0])
        assert float(law.residual(u, box).max()) == 0.0
        assert float(law.penalty(u, u[:, 0], box).max()) == 0.0
        assert torch.equal(law.project(u, u[:, 0], box), u)
        if (name, scheme, every) == ("advection1d", "accurate", 4):  # not that the cells themselves were a bound
            assert float((u.amax((1, 2, 3)) - u[:, 0].amax((1, 2))).max()) > 1e-3


@pytest.mark.parametrize(("name", "scheme"), [case for case in TRUE if case != ("diffsorp1d", "accurate")])
def test_no_true_frame_is_touched_however_coarsely_it_is_stored(name: str, scheme: str) -> None:
    check_untouched(name, scheme, *TRUE[name, scheme])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "scheme"), TRUE)
def test_none_of_hundreds_of_whole_trajectories_is_touched(name: str, scheme: str) -> None:
    check_untouched(name, scheme, 256, 41, 200 if EQUATIONS[name]().task.periodic[0] else 50, 1.0)


def test_an_extremum_between_two_cells_is_within_the_range_and_a_jump_does_not_widen_it() -> None:
    x, box = torch.arange(32, dtype=torch.float64) / 32 + 1 / 64, line(32)
    for place in torch.linspace(0.4, 0.5, 21).tolist():
        gap = (x - place).unsqueeze(0)
        for field, hidden in ((-gap.abs(), 1 / 32), (torch.cos(2 * math.pi * gap), 0.04)):
            top = 1.0 if hidden == 0.04 else 0.0
            high = float(extremes(field, box)[1])
            assert top <= high <= top + hidden
            assert float(extremes(-field, box)[0]) == -high
        tooth = (x - place) % 1.0  # rises from 0 to 1, where it jumps: as steep as a cell is wide
        low, high = extremes(tooth.unsqueeze(0), box)
        assert -1.01 / 32 <= float(low) <= 0.0
        assert 1.0 - 1e-9 <= float(high) <= 1.0 + 1.01 / 32
    walls = torch.stack((x, x.square()))
    low, high = extremes(walls, line(32, periodic=False))
    assert bool((high >= 1).all())
    assert bool((low <= 0).all()), "what stands on a wall is half a cell beyond the outermost one"
    assert float(torch.stack((low, high - 1)).abs().max()) < 0.05


def test_what_would_grow_without_end_stays_in_the_range_of_its_start_with_its_mass() -> None:
    state, box = waves(64), line(64)
    laws = laws_of(TASKS["advection1d"], (True,))
    assert [law.name for law in laws] == ["mass", "range of u"]
    aims, u, free = aims_of(laws, state, box), state, state
    generator = torch.Generator().manual_seed(0)
    for step in range(1000):
        kick = 0.1 * torch.randn(state.shape, generator=generator, dtype=state.dtype)
        u = repaired(1.2 * u.roll(1, 1) + kick, laws, state, box, aims=aims)
        free = 1.2 * free.roll(1, 1) + kick if step < 100 else free
    assert float(free.abs().max()) > 1e6
    both = torch.stack((state, u), 1)
    assert all(float(law.residual(both, box).max()) < 1e-14 for law in laws)
    spread = u.amax((1, 2)) - u.amin((1, 2))
    assert bool((spread < 1.2 * (state.amax((1, 2)) - state.amin((1, 2)))).all())
    assert torch.allclose(repaired(u, laws, state, box, aims=aims), u, atol=1e-13), "a lawful frame stays"


@pytest.mark.parametrize("size", [1e6, 1e9, 1e16, 1e30])
def test_the_mass_is_kept_of_frames_whose_own_mean_rounding_has_lost(size: float) -> None:
    state, box = waves(64), line(64)
    laws = laws_of(TASKS["advection1d"], (True,))
    wild = size * torch.randn(state.shape, generator=torch.Generator().manual_seed(0), dtype=state.dtype)
    both = torch.stack((state, repaired(wild, laws, state, box)), 1)
    mass, bounds = (float(law.residual(both, box).max()) for law in laws)
    assert mass < 1e-7
    assert bounds == 0


def test_the_excess_is_measured_beyond_the_range_and_repaired_in_any_company() -> None:
    state, box = waves(256), line(256)
    low, high = LAW.aim(state, box)[:, :2].unbind(1)
    wild = state.clone()
    wild[0, 7], wild[1, 9] = high[0] + 0.5, low[1] - 0.25
    both = torch.stack((state, wild), 1)
    largest = both.abs().amax((1, 2, 3))
    want = torch.tensor([0.5, 0.25, 0.0]) / largest
    assert LAW.residual(both, box).tolist() == pytest.approx(want.tolist(), rel=1e-12)
    assert bool((LAW.sampling_error(both, box) > 0).all())
    fixed = LAW.project(both, state, box)
    assert float(LAW.residual(fixed, box).max()) < 1e-15
    assert torch.allclose(fixed.mean((2, 3)), both.mean((2, 3)), atol=1e-15)
    assert torch.equal(fixed[:, 0], both[:, 0])
    assert torch.equal(LAW.project(both[1:2], state[1:2], box), fixed[1:2])
    spoilt, calm = torch.cat((both[:2], 30 * both[2:])), torch.cat((state[:2], 30 * state[2:]))
    assert torch.equal(LAW.project(spoilt, calm, box)[:2], fixed[:2])


def test_a_step_along_the_gradient_of_its_penalty_reduces_the_excess() -> None:
    state, box = waves(64), line(64)
    u = (1.3 * state.unsqueeze(1)).requires_grad_()
    penalty = LAW.penalty(u, state, box)
    (slope,) = torch.autograd.grad(penalty.sum(), u)
    rate = 0.1 * penalty.detach() / slope.square().flatten(1).sum(1)
    better = u.detach() - rate.view(3, 1, 1, 1) * slope
    assert bool((penalty > 1e-4).all())
    assert bool((LAW.penalty(better, state, box) < 0.95 * penalty).all())
    LAW.project(u, state, box).square().sum().backward()
    assert u.grad is not None
    assert float(u.grad.abs().sum()) > 0


def test_what_is_no_number_stays_visible_and_what_is_infinite_comes_back_to_the_bound() -> None:
    state, box = waves(64), line(64)
    low, high = LAW.aim(state, box)[:, :2].unbind(1)
    wild = state.clone()
    wild[0, 3], wild[1, 5], wild[2, 6] = math.nan, math.inf, -math.inf
    for law in (LAW, dataclasses.replace(LAW, keeps_total=False)):
        fixed = law.project(wild.unsqueeze(1), state, box)[:, 0]
        assert bool(fixed[0, 3].isnan())
        assert bool(fixed[1:].isfinite().all())
        assert float(fixed[1].max()) <= float(high[1])
        assert float(fixed[2].min()) >= float(low[2])
        assert bool(law.residual(torch.stack((state, wild), 1), box)[0].isnan())
    whole = repaired(wild, laws_of(TASKS["advection1d"], (True,)), state, box)
    assert bool(whole.isnan().flatten(1).any(1).all()), "of an infinite frame no total is known"


@pytest.mark.parametrize("level", [0.0, 0.3, -7.0])
def test_a_constant_state_stays_and_a_change_of_it_is_undone(level: float) -> None:
    state, box = torch.full((1, 16, 1), level), line(16)
    for u in (state, state + torch.rand(1, 16, 1, generator=torch.Generator().manual_seed(0)) - 0.5):
        fixed = repaired(u, laws_of(TASKS["burgers1d"], (True,)), state, box)
        assert torch.allclose(fixed, state, rtol=1e-5, atol=1e-30)


def test_the_numbers_that_a_reaction_leads_to_belong_to_its_range() -> None:
    law, box = range_of("reacdiff1d"), line(16)
    assert law.says == "range of u never widens beyond 0 to 1"
    state = torch.tensor([0.2, 3.0]).view(2, 1, 1).expand(2, 16, 1)
    low, high = law.aim(state, box)[:, :2].unbind(1)
    assert low.tolist() == pytest.approx([0.0, 0.0], abs=0.01)
    assert high.tolist() == pytest.approx([1.0, 3.0], rel=0.01)


def test_it_is_claimed_where_it_is_true_and_chosen_by_its_name() -> None:
    claiming = {n for n, t in TASKS.items() if any(isinstance(law, InitialRange) for law in laws_of(t, t.periodic))}
    assert claiming == set(NAMED)
    task = TASKS["advection1d"]
    assert [law.says for law in guarding(task, (True,), ("range",))] == ["range of u never widens"]
    assert laws_of(task, (False,)) == (), "something may come in through an open end"
    masked = dataclasses.replace(task, inputs=(Field.scalar("wet"),), mask="wet")
    assert [law.name for law in laws_of(masked, (True,))] == ["mass"]
    assert [law.name for law in laws_of(TASKS["reacdiff1d"], (False,))] == ["u"]


def test_in_a_box_with_a_mask_the_range_is_that_of_the_cells_that_count() -> None:
    state, box = waves(64), line(64)
    mask = torch.ones(3, 64, dtype=torch.bool)
    mask[:, 20:25] = False
    spoilt = torch.where(mask.unsqueeze(-1), state, torch.full_like(state, 1e6))
    aim = LAW.aim(spoilt, box, mask)
    assert float(aim[:, :5].abs().max()) < 10
    both = torch.stack((spoilt, spoilt), 1)
    assert float(LAW.residual(both, box, mask).max()) == 0.0
    assert float(LAW.penalty(both, spoilt, box, mask).max()) == 0.0
    assert float(LAW.sampling_error(both, box, mask).max()) < 1
    wide = torch.where(mask.unsqueeze(-1), 1.2 * state, torch.full_like(state, 1e20)).unsqueeze(1)
    kept = LAW.restore(wide, aim, box, mask)[:, 0, :, 0]
    assert torch.allclose(kept[mask].reshape(3, -1).mean(1), wide[:, 0, :, 0][mask].reshape(3, -1).mean(1), atol=1e-5)


def test_a_field_on_a_plane_hides_extrema_along_both_axes() -> None:
    box = Grid((16, 16), (True, True), ((0.0, 1.0), (0.0, 1.0)))
    x, y = torch.meshgrid(*(torch.as_tensor(c) for c in box.coordinates), indexing="ij")
    for shift in (0.0, 0.01, 0.02, 1 / 32):
        u = torch.cos(2 * math.pi * (x - shift)) + torch.cos(2 * math.pi * (y - shift))
        low, high = (float(v) for v in extremes(u.unsqueeze(0), box))
        assert 2.0 <= high < 2.4
        assert -2.4 < low <= -2.0
