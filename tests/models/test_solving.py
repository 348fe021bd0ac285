"""Steady states are refined to the tolerance asked for, with residuals that anyone can measure again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_simulators import GRIDS, awaken, simulator

from ups.models import Simulator, build
from ups.models.config import CodecConfig, OperatorConfig
from ups.physics import TASKS
from ups.physics.elliptic import Darcy2D, FiveCell
from ups.physics.random import Draw
from ups.types import ConfigError, Grid, PhysicsError

BOX = Grid((16, 16), (False, False), ((0.0, 1.0), (0.0, 1.0)))


def darcy() -> Simulator:
    sim = simulator("darcy2d", shapes={"darcy2d": (16, 16)})
    sim.operator.fit_ranges("darcy2d", torch.tensor([1.0]), torch.tensor([3.0]))
    awaken(sim)
    return sim


def residual(u: np.ndarray, a: np.ndarray, beta: float) -> np.ndarray:
    """‖b − A u‖ / ‖b‖ of `(B, X, Y, 1)`, measured apart from the solver."""
    flow = FiveCell(torch.tensor(a[..., 0]).double(), BOX, harmonic=True)
    rest = flow(torch.tensor(u[..., 0]).double()).numpy() - beta
    return np.sqrt((rest**2).mean((1, 2))) / beta


def test_a_solution_is_refined_to_the_tolerance_and_tells_what_it_took() -> None:
    sim, a = darcy(), Darcy2D().inputs(Draw(0, range(3)), BOX).float().numpy()
    plain = sim.solve(a, {"beta": 2.0})
    for tolerance in (1e-3, 1e-8):
        got = sim.solution(a, tolerance, {"beta": 2.0})
        assert got.field.dtype == np.float64
        assert got.predicted.dtype == np.float32
        np.testing.assert_array_equal(got.predicted, plain)
        np.testing.assert_allclose(got.residual, residual(got.field, a, 2.0), rtol=1e-3, atol=1e-13)
        np.testing.assert_allclose(got.residual_predicted, residual(plain, a, 2.0), rtol=1e-6)
        assert float(got.residual.max()) <= tolerance
        assert got.iterations.shape == got.iterations_from_zero.shape == (3,)
        assert min(got.iterations_from_zero) > 1
    np.testing.assert_array_equal(sim.solve(a, {"beta": 2.0}, tolerance=1e-8), got.field)
    truth = Darcy2D(beta=2.0).simulate(Draw(0, range(3)), BOX, [0.0], "accurate")[:, 0]
    np.testing.assert_allclose(got.field, truth.numpy(), rtol=1e-5)


def test_a_good_start_needs_fewer_iterations_than_none(monkeypatch: pytest.MonkeyPatch) -> None:
    sim, draw = darcy(), Draw(0, range(2))
    truth = Darcy2D(beta=2.0).simulate(draw, BOX, [0.0], "accurate").float()
    monkeypatch.setattr(sim, "simulate", lambda *_: 1.001 * truth)
    got = sim.solution(Darcy2D().inputs(draw, BOX), 1e-6, {"beta": 2.0})
    assert (got.iterations < got.iterations_from_zero).all()
    assert got.field.dtype == torch.float64


def test_with_images_a_mirrored_or_turned_problem_has_the_mirrored_or_turned_answer() -> None:
    sim, a = darcy(), Darcy2D().inputs(Draw(0, range(2)), BOX).float()
    beta = {"beta": 2.0}
    plain = sim.solve(a, beta)
    sim.config = replace(sim.config, symmetry="rollout")
    answer = sim.solve(a, beta)
    for move in (lambda x: x.flip(1), lambda x: x.flip(2), lambda x: x.transpose(1, 2)):
        torch.testing.assert_close(sim.solve(move(a), beta), move(answer), rtol=1e-4, atol=1e-4)
    assert float((answer - plain).abs().max()) > 1e-3


def test_a_problem_on_the_cells_of_training_that_were_picked_between_walls_has_no_mirror_images() -> None:
    """Whoever asks says of a grid no more than its cells."""
    sim, a = darcy(), Darcy2D().inputs(Draw(0, range(2)), BOX).float()
    sim.config = replace(sim.config, symmetry="rollout")
    sim.learn_corners({"darcy2d": (-1 / 64, -1 / 64)})
    answer = sim.solve(a, {"beta": 2.0})
    torch.testing.assert_close(
        sim.solve(a.transpose(1, 2), {"beta": 2.0}), answer.transpose(1, 2), rtol=1e-4, atol=1e-4
    )
    assert float((sim.solve(a.flip(1), {"beta": 2.0}) - answer.flip(1)).abs().max()) > 1e-3


def test_one_field_and_one_in_xarray_come_back_in_kind() -> None:
    sim, a = darcy(), Darcy2D().inputs(Draw(0, [0]), BOX)[0, ..., 0].float().numpy()
    assert sim.solve(a, {"beta": 2.0}, tolerance=1e-6).shape == (16, 16)
    xarray = pytest.importorskip("xarray")
    got = sim.solution(xarray.DataArray(a, dims=("x", "y")), 1e-8, {"beta": 2.0})
    assert got.field.dims == ("x", "y")
    assert got.field.dtype == np.float64


def test_what_cannot_be_refined_is_refused_in_a_sentence() -> None:
    sim, a = darcy(), Darcy2D().inputs(Draw(0, range(2)), BOX).float().numpy()
    beta = {"beta": 2.0}
    for wrong in (0.0, 1.0, -1e-3, float("nan"), 1e-14, "small", True):
        with pytest.raises(ConfigError, match="must be a relative residual"):
            sim.solve(a, beta, tolerance=wrong)
    with pytest.raises(ConfigError, match="leave points out"):
        sim.solve(a, beta, points=[[0.5, 0.5]], tolerance=1e-3)
    with pytest.raises(ConfigError, match="all draws are one solution"):
        sim.solve(a, beta, ensemble=4, tolerance=1e-3)
    with pytest.raises(ConfigError, match="other boundaries"):
        sim.solve(a, beta, periodic=(True, False), tolerance=1e-3)
    with pytest.raises(PhysicsError, match="permeability must be finite and positive"):
        sim.solve(a - 1, beta, tolerance=1e-3)
    with pytest.raises(ConfigError, match="no part that draws"):
        sim.solve(a, beta, ensemble=4)
    with pytest.raises(ConfigError, match="burgers1d is not steady"):
        simulator("burgers1d").solve(np.zeros(32, np.float32), tolerance=1e-3)
    with pytest.raises(ConfigError, match="darcy2d is steady"):
        sim.rollout(a, 1, beta)


@pytest.mark.parametrize(
    ("change", "match"), [({"equation": ""}, "names no equation"), ({"parameters": ()}, "does not state beta")]
)
def test_a_task_whose_equations_are_not_known_is_refused(change: dict[str, object], match: str) -> None:
    task = replace(TASKS["darcy2d"], **change)  # type: ignore[arg-type]
    network = OperatorConfig(width=16, depth=1, heads=2, modes=4)
    sim = build([task], CodecConfig(dim=16), network, shapes={**GRIDS, "darcy2d": (16, 16)})
    a = np.ones((1, 16, 16, 1), np.float32)
    assert sim.solve(a).shape == a.shape
    with pytest.raises(ConfigError, match=match):
        sim.solve(a, tolerance=1e-6)


@pytest.mark.parametrize(("beta", "tolerance"), [(1e-8, 1e-6), (1e-12, 1e-10), (1e6, 1e-10)])
def test_a_start_that_is_far_away_is_refined_as_far_as_any_other(beta: float, tolerance: float) -> None:
    sim, a = darcy(), Darcy2D().inputs(Draw(0, range(2)), BOX).float().numpy()
    with pytest.warns(UserWarning, match="outside the trained range"):
        got = sim.solution(a, tolerance, {"beta": beta})
    assert float(got.residual.max()) <= tolerance
    assert float(residual(got.field, a, beta).max()) <= 1.01 * tolerance


def test_outside_the_trained_range_only_the_prediction_of_a_refined_solution_is_called_a_guess() -> None:
    sim, a = darcy(), np.ones((1, 16, 16, 1), np.float32)
    with pytest.warns(
        UserWarning, match="lies outside .*; only the prediction, from which refinement starts, is a guess"
    ):
        got = sim.solution(a, 1e-8, {"beta": 3.5})
    assert float(residual(got.field, a, 3.5).max()) <= 1.01e-8
    with pytest.warns(UserWarning, match="lies outside .*; the answer is a guess"):
        sim.solve(a, {"beta": 3.5})


def test_what_is_given_in_double_precision_is_solved_in_it() -> None:
    sim, a = darcy(), np.random.default_rng(0).lognormal(size=(2, 16, 16, 1))
    got = sim.solution(a, 1e-10, {"beta": 2.1})
    np.testing.assert_allclose(residual(got.field, a, 2.1), got.residual, atol=1e-12)
    assert float(residual(got.field, a, 2.1).max()) <= 1e-10


def test_the_smallest_grids_are_solved_too() -> None:
    for cells in (1, 2, 3):
        assert darcy().solve(np.ones((1, cells, cells, 1)), {"beta": 2.0}).shape == (1, cells, cells, 1)


def test_all_images_are_solved_at_points_too() -> None:
    sim = darcy()
    sim.config = replace(sim.config, symmetry="rollout")
    centres = (np.arange(16) + 0.5) / 16
    points = np.stack(np.meshgrid(centres, centres, indexing="ij"), -1).reshape(-1, 2)
    a = Darcy2D().inputs(Draw(0, range(1)), BOX).float().numpy()
    whole, there = sim.solve(a, {"beta": 2.0}), sim.solve(a, {"beta": 2.0}, points=points)
    assert np.allclose(there.reshape(whole.shape), whole, atol=1e-5 * np.abs(whole).max())
