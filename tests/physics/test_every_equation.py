"""What every equation promises, checked for each entry of EQUATIONS: a new one is tested by being there."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ups.physics import EQUATIONS, TASKS, initial, reaction
from ups.physics.balances import BALANCES, UNFITTABLE
from ups.physics.finite_volume import FiniteVolume
from ups.physics.fit import contradicts, fit
from ups.physics.method_of_lines import RK45
from ups.physics.padded import Padded
from ups.physics.random import Draw
from ups.physics.shocks import ResolvedBurgers
from ups.physics.solver import Equation, Stepper, initial_states, solve
from ups.physics.spectral import ETDRK4
from ups.physics.stiff import Rodas4
from ups.types import Trajectory

# Parameters under which an equation is quick on a small grid; a new one needs a line only if its own are not.
QUICK: dict[str, dict[str, float]] = {
    "burgers1d": {"nu": 0.1},
    "nsincom2d": {"nu": 0.05},
    "cfd3d": {"eta": 0.02, "zeta": 0.02},
}
CELLS = {1: 32, 2: 16, 3: 6}
COARSE = {1: 24, 2: 12, 3: 3}
SCHEMES = [(name, scheme) for name, kind in EQUATIONS.items() for scheme in kind.schemes]
TRANSIENT = [name for name, task in TASKS.items() if not task.steady]

NOT_REFINED_IN_SPACE = {"reacdiff2d": "white noise is another initial state on another grid"}
NOT_REFINED_IN_TIME = {
    "advection1d": "exact: the initial state is a formula, and is moved",
    "swe2d": "solved in one radial dimension: see test_shallow.py",
}

CANNOT_TELL_TIME = {"cfd3d": "at twelve cells a side, sound goes too far between two frames"}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is fixed for good accuracy and takes long: the extremes of waves in space, the cells of sorption."""
    monkeypatch.setitem(initial.REFERENCE, 3, 8)
    monkeypatch.setattr(reaction, "SORPTION_CELLS", 1)


def quick(name: str) -> Equation:
    return EQUATIONS[name](**QUICK.get(name, {}))


@functools.cache
def stored(name: str) -> tuple[Tensor, list[Trajectory]]:
    """Frames of the default scheme at the task's own times, as a file holds them."""
    equation = quick(name)
    grid, times, draw = equation.grid(2 * CELLS[equation.task.ndim]), equation.times()[:17], Draw(5, range(3))
    frames = equation.simulate(draw, grid, times, equation.schemes[0]).float()
    inputs = equation.inputs(draw, grid).float().numpy()
    facts = (grid, np.asarray(times), equation.params())
    return frames, [Trajectory(str(i), equation.spec(), u.numpy(), *facts, inputs[i]) for i, u in enumerate(frames)]


def difference(a: Tensor, b: Tensor) -> float:
    """Root mean square of a − b over that of b."""
    return float((a - b).square().mean().sqrt() / b.square().mean().sqrt())


def sharper(stepper: Stepper, factor: int) -> Stepper:
    """The same stepper with steps shorter by `factor`, or tolerances smaller by its fifth power."""
    made: Any
    match stepper:
        case Padded():
            made = dataclasses.replace(stepper, inner=sharper(stepper.inner, factor))  # type: ignore[arg-type]
        case reaction.Graded():
            made = dataclasses.replace(stepper, step=stepper.step / factor, pieces=stepper.pieces * factor)
        case ResolvedBurgers():
            made = dataclasses.replace(stepper, step=stepper.step / factor, pace=stepper.pace / factor)
        case ETDRK4():
            made = dataclasses.replace(stepper, step=stepper.step / factor)
        case FiniteVolume():
            made = dataclasses.replace(stepper, cfl=stepper.cfl / factor)
        case RK45():
            made = dataclasses.replace(stepper, rtol=stepper.rtol / factor**5, atol=stepper.atol / factor**5)
        case Rodas4():
            made = Rodas4(stepper.rate, stepper.jacobian, stepper.rtol / factor**5, stepper.atol / factor**5)
        case _:
            pytest.fail(f"say here how a {type(stepper).__name__} takes shorter steps")
    return made


@pytest.mark.parametrize("name", EQUATIONS)
def test_its_description_is_complete(name: str) -> None:
    kind, task = EQUATIONS[name], TASKS[name]
    assert vars(kind).get("__doc__"), "it has a docstring of its own"
    above = [vars(base)["__doc__"] for base in kind.__mro__ if base is not Equation and issubclass(base, Equation)]
    assert any(" = " in text.split("\n")[0] for text in above), "a docstring begins with the equation"
    assert dataclasses.is_dataclass(kind)
    assert task.name == name
    assert task.title
    assert len(task.bounds) == len(task.periodic)
    assert task.resolution >= 9
    assert task.steady or (task.end > 0 and task.frames > 1)
    assert "accurate" in kind.schemes
    assert all(p.help for p in task.parameters)
    in_name = set(re.findall(r"{(\w+)}", task.storage.pattern)) - {"resolution", "number"}
    assert in_name | set(task.storage.attrs) == {p.name for p in task.parameters}, "a file tells its parameters"
    says = [law.says for law in kind().laws()]
    for facts in (task.conserved, task.positive, task.divergence_free):
        assert all(any(law.startswith(fact) for law in says) for fact in facts), "a fact of the task is a law"
    assert (name in BALANCES) != (name in UNFITTABLE), "balances.py says what its data obey, or why that is not known"


@pytest.mark.parametrize(("name", "scheme"), SCHEMES)
def test_a_sample_obeys_the_laws_and_depends_on_neither_batch_nor_precision(name: str, scheme: str) -> None:
    equation = quick(name)
    grid, times = equation.grid(CELLS[equation.task.ndim]), [0.0, equation.task.dt / 5]
    many, one = (Draw(5, samples) for samples in ([4, 7, 2], [7]))
    together = equation.simulate(many, grid, times, scheme)
    alone = equation.simulate(one, grid, times, scheme)
    assert torch.equal(equation.inputs(many, grid)[1], equation.inputs(one, grid)[0])
    if not equation.task.steady:
        assert torch.equal(together[1, 0], alone[0, 0])
    # Vectorised transforms round differently with the place in memory, so later frames agree to round-off.
    torch.testing.assert_close(together[1], alone[0], rtol=1e-12, atol=1e-12)
    single = equation.simulate(dataclasses.replace(one, dtype=torch.float32), grid, times, scheme)
    assert single.dtype == torch.float32
    assert difference(single.double(), alone) < 1e-4
    for law in equation.laws():
        explained = 2 * law.sampling_error(together, grid)
        assert bool((law.residual(together, grid) <= 1e-12 + explained).all()), law.says


@pytest.mark.parametrize("name", [name for name in EQUATIONS if name not in NOT_REFINED_IN_SPACE])
def test_the_accurate_error_falls_when_cells_double(name: str) -> None:
    equation = quick(name)
    cells, times = COARSE[equation.task.ndim], [0.0, equation.task.dt / 5]
    coarse, middle, fine = (
        equation.simulate(Draw(5, [7]), equation.grid(cells * factor), times, "accurate")[:, -1:]
        for factor in (1, 2, 4)
    )
    before, after = (difference(u, Equation.coarsen(equation, fine, f)) for u, f in ((coarse, 4), (middle, 2)))
    assert before < 0.5
    assert after < max(0.6 * before, 1e-4), (before, after)


@pytest.mark.parametrize("name", [name for name in TRANSIENT if name not in NOT_REFINED_IN_TIME])
def test_the_accurate_error_falls_with_the_time_step(name: str) -> None:
    equation = quick(name)
    grid = equation.grid(CELLS[equation.task.ndim])
    u0 = initial_states(equation, Draw(5, [7]), grid)
    stepper = equation.stepper("accurate", grid, u0)
    runs = [
        solve(s, u0, [0.0, equation.task.dt / 5])[:, 1] for s in (stepper, sharper(stepper, 2), sharper(stepper, 4))
    ]
    before, after = difference(runs[0], runs[1]), difference(runs[1], runs[2])
    assert before < 1e-2
    assert after < max(0.6 * before, 1e-10), (before, after)


@pytest.mark.parametrize("name", EQUATIONS)
def test_its_data_obey_its_laws_and_give_its_coefficients_back(name: str) -> None:
    equation = quick(name)
    frames, samples = stored(name)
    for law in equation.laws():
        assert float(law.residual(frames, samples[0].grid).max()) < 1e-3, law.says
    found = fit(name, samples, equation.params())
    assert not [f for f in found if contradicts(f)]
    sure = [f for f in found if f.error < 0.1 * abs(f.claimed)]
    assert sure or name in UNFITTABLE, "17 frames are enough to find a coefficient"
    if name in TRANSIENT and found and name not in CANNOT_TELL_TIME:
        slowed = [dataclasses.replace(s, times=2 * np.asarray(s.times)) for s in samples]
        assert any(contradicts(f) for f in fit(name, slowed, equation.params())), "a doubled time axis is noticed"
