"""How far a rollout can be believed: known relations are recovered, members stretched as told, rollouts stopped."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from small_simulators import awaken

from ups.models import CodecConfig, OperatorConfig, Simulator, artifact, assemble
from ups.models.calibration import Calibration, calibrated, ensemble_of
from ups.models.config import ResidualConfig
from ups.models.ensembles import members_of
from ups.models.questions import window_of
from ups.models.residual import ResidualFlow
from ups.models.simulator import CORE
from ups.models.trust import WATCHERS, ErrorModel, Trust, relative_spread, signs_of
from ups.physics import TASKS
from ups.physics.constraints import Conserved, Within
from ups.physics.laws import laws_of
from ups.tensors import Window
from ups.types import ConfigError, DataError

KINDS = {**CORE, "residual": ResidualFlow}
NET = {"width": 16, "depth": 1, "heads": 2, "modes": 4}
CONFIGS = {"codec": CodecConfig(dim=8), "operator": OperatorConfig(**NET), "residual": ResidualConfig(**NET)}  # type: ignore[arg-type]
BY_TIME = ErrorModel(("time",), (1.0,), 1.0, 0.0)  # the estimate is the time itself: 0.01 a step
TWICE = Calibration("residual", ((2.0,),))


def simulator(name: str = "advection1d", draws: bool = True, trust: Trust | None = None) -> Simulator:
    """One that draws, untrained: what it draws is noise of the size 0.1 in tokens."""
    parts = ("codec", "operator", "residual")[: 2 + draws]
    task = TASKS[name]
    grids = {name: (16,) * task.ndim}
    made = assemble([task], {part: CONFIGS[part] for part in parts}, shapes=grids, kinds=KINDS).eval()
    if draws:
        made.parts["residual"].scale.fill_(0.1)
    made.trust = {} if trust is None else {name: trust}
    return made


def states(count: int = 3) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, 16, 1)).astype(np.float32)


def window(sim: Simulator, u0: torch.Tensor, steps: int, params: dict[str, float]) -> Window:
    (task,) = sim.tasks
    return window_of(
        u0.unsqueeze(1), u0.new_zeros(len(u0), 0), steps, params, None, None, task, sim.ranges()[task.name], []
    )[0]


def test_a_known_relation_of_errors_to_their_signs_is_recovered() -> None:
    rng = np.random.default_rng(1)
    spread, time, other = np.exp(rng.normal(size=(3, 4000)))
    errors = 0.3 * spread**0.7 * time**0.5 * np.exp(0.1 * rng.normal(size=4000))
    model = ErrorModel.fit({"spread": spread, "time": time, "other": other, "against": 1 / time}, errors)
    assert model is not None
    assert model.powers == pytest.approx((0.7, 0.5, 0.0, 0.0), abs=0.02)
    assert model.constant == pytest.approx(0.3, rel=0.02)
    assert model.scatter == pytest.approx(0.1, rel=0.1)
    signs = {name: torch.tensor([2.0]) for name in model.signs}
    assert model(signs).item() == pytest.approx(0.3 * 2**1.2, rel=0.03)
    assert model({**signs, "spread": torch.tensor([torch.nan])}).item() == math.inf, "what is lost has no small error"
    assert ErrorModel.fit({"time": time}, np.full(4000, np.nan)) is None


def test_signs_are_time_laws_before_their_repair_and_the_spread_of_the_first_members() -> None:
    sim = simulator()
    awaken(sim.operator)
    with torch.no_grad():
        given = window(sim, torch.from_numpy(states()), 4, {"beta": 1.0})
        rows = list(signs_of(sim, given, 4, seed=5))
        drawn = members_of(sim.simulate, given, 4, WATCHERS, 5)
        again = list(signs_of(sim, given, 4, members=drawn))
    dt = sim.ranges()["advection1d"]["dt"][0]
    assert [row["time"][0].item() for row in rows] == pytest.approx([dt * (i + 1) for i in range(4)])
    assert {"time", "spread"} < set(rows[0])
    for i, (row, other) in enumerate(zip(rows, again, strict=True)):
        assert torch.allclose(row["spread"], relative_spread(drawn[:, :, i], None))
        assert all(torch.allclose(row[name], other[name]) for name in row)
    sim.trust = {"advection1d": Trust(Calibration("residual", ((2.0,), (0.5,))))}
    with torch.no_grad():
        wide = list(signs_of(sim, given, 4, members=drawn))
    ratios = [float((a["spread"] / b["spread"]).mean()) for a, b in zip(wide, rows, strict=True)]
    assert ratios == pytest.approx([2, 0.5, 0.5, 0.5], rel=1e-5)
    laws = [name for name in rows[0] if name.startswith("law ")]
    assert laws
    assert all(float(rows[-1][name].max()) > 1e-7 for name in laws), "measured before the guard has repaired it"


def test_cells_that_do_not_count_have_no_spread() -> None:
    members = torch.randn(4, 2, 8, 1)
    mask = torch.ones(2, 8, dtype=torch.bool)
    mask[:, 5:] = False
    wild = members.clone()
    wild[:, :, 5:] = torch.nan
    assert torch.allclose(relative_spread(wild, mask), relative_spread(members[:, :, :5], None))


def test_a_rollout_carries_its_estimate_and_is_the_same_to_the_bit() -> None:
    sim, u0 = simulator(trust=Trust(None, BY_TIME)), states()
    words = {"steps": 4, "params": {"beta": 1.0}}
    frames, errors = sim.rollout(u0, error=True, **words)
    assert np.array_equal(frames, sim.rollout(u0, **words))
    dt = sim.ranges()["advection1d"]["dt"][0]
    assert errors == pytest.approx(np.tile(dt * np.arange(1, 5), (3, 1)))
    draws, same = sim.rollout(u0, ensemble=2, error=True, **words)
    assert draws.shape == (2, 3, 4, 16, 1)
    assert np.array_equal(same, errors)
    frame, error = sim.rollout(torch.from_numpy(u0[0]), error=True, **words)
    assert isinstance(error, torch.Tensor)
    assert (frame.shape, error.shape) == ((4, 16, 1), (4,))


def test_an_estimate_for_an_xarray_has_its_names() -> None:
    xarray = pytest.importorskip("xarray")
    sim, u0 = simulator(trust=Trust(None, BY_TIME)), states()
    named = xarray.DataArray(u0[..., 0], dims=("sample", "x"), coords={"sample": [5, 6, 7]})
    answer, errors = sim.rollout(named, 4, {"beta": 1.0}, error=True)
    assert errors.dims == ("sample", "time")
    assert list(errors.sample) == [5, 6, 7]
    assert np.array_equal(errors.time, answer.time)
    assert sim.rollout(named[0], 4, {"beta": 1.0}, error=True)[1].dims == ("time",)


def test_frames_are_nan_from_the_step_on_at_which_the_estimate_passes_the_threshold() -> None:
    dt = simulator().ranges()["advection1d"]["dt"][0]
    sim, u0 = simulator(trust=Trust(None, BY_TIME)), states()
    words = {"steps": 5, "params": {"beta": 1.0}}
    frames, errors = sim.rollout(u0, stop_at=2.5 * dt, error=True, **words)
    assert np.array_equal(frames[:, :2], sim.rollout(u0, **words)[:, :2])
    assert frames.shape == (3, 5, 16, 1)
    assert np.isnan(frames[:, 2:]).all()
    assert errors[0, 2] == pytest.approx(3 * dt)
    assert np.isnan(errors[:, 3:]).all()
    assert np.isnan(sim.rollout(u0, stop_at=1e-9, ensemble=2, points=[0.1, 0.2], **words)).all()
    assert np.isfinite(sim.rollout(u0, stop_at=1e9, **words)).all()


def test_frames_that_are_not_finite_warn_once_unless_they_were_stopped_before(monkeypatch: pytest.MonkeyPatch) -> None:
    dt = simulator().ranges()["advection1d"]["dt"][0]
    sim, drawn = (simulator(draws=draws, trust=Trust(None, BY_TIME)) for draws in (False, True))
    frames = torch.zeros(3, 4, 16, 1)
    frames[1, 2:] = torch.nan
    for each in (sim, drawn):
        monkeypatch.setattr(each, "simulate", lambda _, steps, *_others: frames[:, :steps])
    words = {"u0": states(), "steps": 4, "params": {"beta": 1.0}}
    for asked, more in ((sim, {"error": True}), (sim, {"stop_at": 3.5 * dt}), (drawn, {"ensemble": 3})):
        with pytest.warns(UserWarning, match="the answer to 1 of 3 samples is not finite, first at step 3") as said:
            asked.rollout(**words, **more)
        assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sim.rollout(stop_at=2.5 * dt, **words)


def test_a_sample_stops_by_its_own_estimate() -> None:
    by_spread = ErrorModel(("spread",), (1.0,), 1.0, 0.0)
    sim, u0 = simulator(trust=Trust(None, by_spread)), states()
    u0[0] *= 20  # the same noise is less beside a large state
    words = {"steps": 3, "params": {"beta": 1.0}}
    errors = sim.rollout(u0, error=True, **words)[1]
    assert errors[0].max() < errors[1:].min()
    frames = sim.rollout(u0, stop_at=float(errors[1:].min()) / 1.01, **words)
    assert np.isfinite(frames[0]).all()
    assert np.isnan(frames[1:, -1]).all()
    alone = sim.rollout(u0[:1], stop_at=float(errors[1:].min()) / 1.01, **words)
    assert np.allclose(alone[0], frames[0], atol=1e-5)


@pytest.mark.parametrize("stop_at", [0, -1.0, math.nan, "0.2", True])
def test_a_threshold_that_is_none_is_one_sentence(stop_at: object) -> None:
    with pytest.raises(ConfigError, match=r"stop_at is .* above 0"):
        simulator(trust=Trust(None, BY_TIME)).rollout(states(), 1, {"beta": 1.0}, stop_at=stop_at)  # type: ignore[arg-type]


def test_a_simulator_that_nobody_fitted_says_that_it_has_no_estimate() -> None:
    for words in ({"error": True}, {"stop_at": 0.2}):
        with pytest.raises(ConfigError, match="no estimate of its errors on advection1d"):
            simulator(draws=False).rollout(states(), 1, {"beta": 1.0}, **words)


def test_without_draws_an_estimate_needs_no_spread() -> None:
    sim = simulator(draws=False, trust=Trust(None, BY_TIME))
    assert sim.rollout(states(), 2, {"beta": 1.0}, error=True)[1].shape == (3, 2)


def test_members_are_stretched_around_their_mean_which_stays() -> None:
    sim, u0 = simulator(), states()
    words = {"steps": 3, "params": {"beta": 1.0}, "seed": 7}
    plain, raw = sim.rollout(u0, **words), sim.rollout(u0, ensemble=3, **words)
    factors = ((2.0,), (0.5,))
    sim.trust = {"advection1d": Trust(Calibration("residual", factors))}
    wide = sim.rollout(u0, ensemble=3, **words)
    by = np.array([2.0, 0.5, 0.5]).reshape(3, 1, 1)
    assert np.allclose(wide, raw.mean(0) + by * (raw - raw.mean(0)), atol=1e-5)
    assert np.allclose(wide.mean(0), raw.mean(0), atol=1e-6)
    assert np.allclose(sim.rollout(u0, ensemble=1, **words), raw[:1], atol=1e-6), "one member is its mean"
    assert np.array_equal(sim.rollout(u0, **words), plain)
    points = sim.rollout(u0, ensemble=2, points=[0.3, 0.7], **words)
    assert points.shape == (2, 3, 3, 2, 1)
    for other in (replace(TWICE, drawn_by="consistency"), replace(TWICE, factors=((1.0,),))):
        sim.trust = {"advection1d": Trust(other)}
        assert np.array_equal(sim.rollout(u0, ensemble=3, **words), raw), "of another part, or as drawn"


@pytest.mark.parametrize("channels", [1, 3])
def test_the_mean_of_members_is_the_same_to_round_off_however_they_are_stretched(channels: int) -> None:
    members = torch.randn(16, 2, 4, 8, 8, channels, dtype=torch.float64)
    rows = torch.rand(3, channels).add(0.25).tolist()
    stretched = Calibration("residual", tuple(map(tuple, rows))).stretched(members)
    assert torch.allclose(stretched.mean(0), members.mean(0), rtol=0, atol=1e-14)
    assert torch.allclose(stretched.std(0)[:, 3], members.std(0)[:, 3] * torch.tensor(rows[-1]).double())


@pytest.mark.parametrize(("factor", "kinds"), [(1.5, (Within, Conserved)), (9.0, (Within,))])
def test_stretched_members_obey_the_laws_that_are_repaired(factor: float, kinds: tuple[type, ...]) -> None:
    """Where nothing crosses a bound, totals are kept too: what is linear survives a stretch."""
    sim = simulator("cfd1d")
    (task,) = sim.tasks
    u0 = 0.5 + torch.rand(2, 16, len(task.channels))
    params = {name: low for name, (low, _) in sim.ranges()[task.name].items() if name != "dt"}
    with torch.no_grad():
        given = window(sim, u0, 3, params)
        raw = ensemble_of(sim, given, 3, 4)
        sim.trust = {task.name: Trust(Calibration("residual", ((factor,) * len(task.channels),)))}
        drawn = ensemble_of(sim, given, 3, 4)
    laws = [law for law in laws_of(task, given.grid.periodic) if isinstance(law, kinds)]
    assert laws
    for law in laws:
        for member in drawn:
            assert float(law.residual(torch.cat((u0.unsqueeze(1), member), 1), given.grid).max()) < 1e-5, law.says
    assert drawn.std(0).mean() > 1.2 * raw.std(0).mean()


def test_what_was_fitted_travels_with_the_simulator_and_ends_with_the_part_it_was_fitted_to(tmp_path: Path) -> None:
    sim = simulator(trust=Trust(TWICE, BY_TIME))
    path = sim.save(tmp_path / "a.safetensors")
    again = Simulator.load(path, kinds=KINDS)
    assert again.trust == sim.trust
    words = {"steps": 2, "params": {"beta": 1.0}, "ensemble": 2}
    assert np.array_equal(sim.rollout(states(), **words), again.rollout(states(), **words))
    other = simulator().save(tmp_path / "b.safetensors")
    assert Simulator.load(other, kinds=KINDS).trust == {}
    mixed = artifact.replace_part(path, "residual", other, tmp_path / "c.safetensors")
    assert Simulator.load(mixed, kinds=KINDS).trust == {}


@pytest.mark.parametrize("factors", [[[-1.0]], [], [[1.0], [1.0, 2.0]], [["much"]], None])
def test_a_damaged_calibration_is_one_sentence(tmp_path: Path, factors: object) -> None:
    path = simulator(trust=Trust(TWICE, BY_TIME)).save(tmp_path / "a.safetensors")
    with safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["ups"])
    header["trust"]["advection1d"]["calibration"]["factors"] = factors
    save_file(load_file(path), path, metadata={"ups": json.dumps(header)})
    with pytest.raises(DataError, match="its ensembles and errors is damaged"):
        Simulator.load(path, kinds=KINDS)


def test_calibrating_changes_nothing_where_nothing_was_fitted() -> None:
    sim = simulator()
    with torch.no_grad():
        given = window(sim, torch.from_numpy(states()), 2, {"beta": 1.0})
        drawn = members_of(sim.simulate, given, 2, 3)
        assert calibrated(sim, given, drawn) is drawn


def test_a_replaced_part_or_another_that_draws_ends_what_was_fitted_and_a_seed_must_make_sense() -> None:
    made, words = simulator(trust=Trust(TWICE, BY_TIME)), {"steps": 1, "params": {"beta": 1.0}, "error": True}
    with pytest.raises(ConfigError, match="seed is -4"):
        made.rollout(states(), seed=-4, **words)
    made.idle = frozenset({"residual"})
    with pytest.raises(ConfigError, match="no estimate of its errors"):
        made.rollout(states(), **words)
    made.idle = frozenset()
    assert made.rollout(states(), **words)[1].shape == (3, 1)
    made.replace("operator", made.operator)
    with pytest.raises(ConfigError, match="no estimate of its errors"):
        made.rollout(states(), **words)


def test_a_sign_that_does_not_hold_under_another_boundary_is_one_sentence() -> None:
    model = ErrorModel(("law mass", "time"), (0.5, 1.0), 1.0, 0.0)
    made = simulator(draws=False, trust=Trust(None, model))
    assert made.rollout(states(), 1, {"beta": 1.0}, error=True)[1].shape == (3, 1)
    with pytest.raises(ConfigError, match="'law mass', which does not hold under this boundary"):
        made.rollout(states(), 1, {"beta": 1.0}, periodic=(False,), error=True)


def test_calibrated_members_at_points_are_those_of_the_grid() -> None:
    made, u0 = simulator(trust=Trust(TWICE)), states()
    cells = (np.arange(u0.shape[1]) + 0.5) / u0.shape[1]
    words = {"steps": 2, "params": {"beta": 1.0}, "ensemble": 2}
    assert np.allclose(made.rollout(u0, points=cells, **words), made.rollout(u0, **words), atol=1e-5)


@pytest.mark.parametrize(
    "error",
    [
        {"signs": ["mars"], "powers": [1.0], "constant": 1.0, "scatter": 0.0},
        {"signs": [], "powers": [], "constant": 1.0, "scatter": 0.0},
        {"signs": ["time"], "powers": [1e300], "constant": 1.0, "scatter": 0.0},
        [],
    ],
)
def test_an_estimate_that_cannot_be_of_the_task_is_one_sentence(tmp_path: Path, error: object) -> None:
    header, tensors = artifact.read(simulator(trust=Trust(TWICE, BY_TIME)).save(tmp_path / "a.safetensors"))
    header["trust"][next(iter(header["trust"]))]["error"] = error
    with pytest.raises(DataError, match="what it says of its ensembles and errors is damaged"):
        Simulator.load(artifact.write(tmp_path / "b.safetensors", header, tensors), kinds=KINDS)
