"""After training, validation data say how far a simulator can be believed; the test data never have a part in it."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

import ups
from small_flows import window
from ups.config import load
from ups.eval.ensembles import coverage, crps
from ups.eval.report import Report
from ups.eval.trajectories import read
from ups.jobs.evaluate import Question, evaluate_run
from ups.models.calibration import Calibration
from ups.models.ensembles import Draws
from ups.physics import TASKS
from ups.progress import Screen
from ups.run.config import run_config
from ups.run.data.datasets import DataSet
from ups.run.judging import calibrate
from ups.run.run import Run, run_alone
from ups.rundir import RunDir
from ups.tensors import Window
from ups.types import TaskSpec

TINY = """
name: tiny
data:
  a: {task: advection1d, scheme: accurate, samples: 20, resolution: 32, device: cpu, reduce: {time: 20}}
plan: [codec, operator, residual]
model:
  codec: {dim: 8}
  operator: {width: 16, depth: 1, heads: 2}
  residual: {width: 16, depth: 1, heads: 2, steps: 1}
codec: {batch: 4, train: {steps: 2}}
operator: {batch: 4, train: {steps: 20, lr: 3.0e-3}}
residual: {batch: 4, train: {steps: 4}}
device: cpu
"""
STEPS = 12
Drawn = tuple[torch.Tensor, torch.Tensor]  # members and truth


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    folder = tmp_path_factory.mktemp("calibrated")
    (folder / "tiny.yaml").write_text(TINY)
    place, report = run_alone(load(run_config(), folder / "tiny.yaml", {"out": str(folder)}), Screen.silent())
    return place.folder, report


def header_of(run: Path) -> Any:
    with safe_open(run / "artifacts" / "simulator.safetensors", "pt") as file:
        return json.loads(file.metadata()["ups"])


def fitted(task: TaskSpec, drawn: Drawn, mask: torch.Tensor | None = None) -> Calibration:
    """What is fitted to 16 trajectories of members and truth."""
    stretches, (members, truth) = calibrate.Stretches(), drawn
    for first in (0, 8):
        part = slice(first, first + 8)
        cells = None if mask is None else mask[part]
        given: Any = SimpleNamespace(targets=truth[part], mask=cells, weights=cells)
        stretches.add(members[:, part], given, torch.ones(truth.shape[-1]), range(first, first + 8))
    return Calibration("residual", stretches.factors(task))


def scores(drawn: Drawn, found: Calibration) -> tuple[float, float, float]:
    """CRPS as drawn and calibrated, and the coverage then."""
    members, truth = drawn
    after = found.stretched(members)
    return crps(members, truth).mean().item(), crps(after, truth).mean().item(), coverage(after, truth).mean().item()


@pytest.mark.parametrize("widths", [np.geomspace(0.36, 2, STEPS), np.geomspace(2.5, 0.36, STEPS)])
def test_members_that_are_too_narrow_or_too_wide_by_a_known_factor_are_stretched_by_its_inverse(
    widths: np.ndarray,
) -> None:
    """Normal truth around a known centre, members of wrong widths that change with the step; each channel is a field of
    its own. Of M members about their own mean the CRPS is least at s² = (1 / w² + 1 / M) / (1 + 1 / M)."""
    torch.manual_seed(0)
    task, shape = TASKS["reacdiff2d"], (16, STEPS, 16, 16, 2)
    size = torch.tensor(widths, dtype=torch.float32).reshape(STEPS, 1, 1, 1) * torch.tensor([1.0, 0.8])

    def drawn() -> Drawn:
        centre = torch.randn(shape)
        return centre + size * torch.randn(16, *shape), centre + torch.randn(shape)

    found = fitted(task, drawn())
    wanted = ((1 / size[:, 0, 0].square() + 1 / 16) / (1 + 1 / 16)).sqrt()
    assert np.array(found.factors) == pytest.approx(wanted.numpy().clip(0.25, 4), rel=0.12)
    other = drawn()
    before, after, covered = scores(other, found)
    assert after < 0.95 * before
    assert covered == pytest.approx(0.9, abs=0.02)
    assert coverage(*other).mean().item() < 0.8


@pytest.mark.parametrize("seed", range(8))
def test_members_that_are_right_already_stay_as_drawn(seed: int) -> None:
    torch.manual_seed(seed)
    centre = torch.randn(16, 6, 32, 1)
    found = fitted(TASKS["burgers1d"], (centre + torch.randn(16, *centre.shape), centre + torch.randn(centre.shape)))
    assert found.factors == ((1.0,),) * 6
    assert not found.stretches


@pytest.mark.parametrize("seed", range(4))
def test_members_that_are_too_narrow_are_stretched_although_a_few_trajectories_make_most_of_the_crps(seed: int) -> None:
    """Of sizes that differ as in front of shocks and behind them; all members are half as wide as they are wrong."""
    torch.manual_seed(seed)
    size = torch.randn(16, 1, 1, 1).mul(1.5).exp()
    truth = size * torch.randn(16, 4, 64, 1)
    found = fitted(TASKS["burgers1d"], (size * torch.randn(16, *truth.shape) / 2, truth))
    assert np.array(found.factors) == pytest.approx(1.95, rel=0.2)


def test_where_nine_tenths_cannot_be_covered_members_do_not_run_away() -> None:
    """Half of the places are foretold, by members that vary there; at the others all members are one, and wrong:
    no factor covers those, and any that grows spoils the rest."""
    torch.manual_seed(1)
    members, truth = torch.randn(16, 16, 4, 64, 1), torch.zeros(16, 4, 64, 1)
    members[:, :, :, 32:], truth[:, :, 32:] = 0.0, 5.0
    found = fitted(TASKS["burgers1d"], (members, truth))
    before, after, _ = scores((members, truth), found)
    assert max(found.factors)[0] <= 1
    assert after <= before


def test_what_half_of_the_trajectories_ask_for_is_left_where_the_others_would_be_worse_for_it() -> None:
    torch.manual_seed(2)
    truth = torch.randn(16, 4, 64, 1)
    size = torch.tensor([0.3, 2.0] * 8).reshape(
        16, 1, 1, 1
    )  # those of even numbers are too narrow, the others too wide
    found = fitted(TASKS["burgers1d"], (size * torch.randn(16, *truth.shape), truth))
    assert not found.stretches


@pytest.mark.parametrize("wild", [math.nan, math.inf])
def test_a_rollout_that_runs_away_says_nothing_of_the_others_and_no_trajectories_nothing_at_all(wild: float) -> None:
    torch.manual_seed(3)
    members, truth = 0.5 * torch.randn(16, 16, 4, 64, 1), torch.randn(16, 4, 64, 1)
    whole = fitted(TASKS["burgers1d"], (members, truth))
    members[3, 5, 2:] = wild
    left = fitted(TASKS["burgers1d"], (members, truth))
    assert np.array(left.factors) == pytest.approx(np.array(whole.factors), rel=0.1)
    assert min(left.factors)[0] > 1.5
    assert not fitted(TASKS["burgers1d"], (members * wild, truth)).stretches


@pytest.mark.parametrize("lasting", [0.0, 0.3, 1.0])
def test_as_much_of_the_noise_lasts_as_errors_repeat_themselves(lasting: float, monkeypatch: Any) -> None:
    """Frames that are sums of steps, each missed by noise of which a known part is the same at all steps."""
    given = replace(window(8, targets=20, cells=256), task=TASKS["advection1d"])

    def walk(copies: Window, steps: int, _: None, draw: Draws) -> torch.Tensor:
        return torch.stack([draw(i, copies.state) for i in range(steps)], 1).cumsum(1)

    given = replace(given, targets=walk(given, 20, None, Draws(7, [0], lasting)))
    one = SimpleNamespace(scale=torch.ones(1))
    simulator: Any = SimpleNamespace(simulate=walk, context=1, codec=SimpleNamespace(statistics_of=lambda _: one))
    monkeypatch.setattr(calibrate, "_windows", lambda *_: [(given, [*range(8)])])
    data: Any = SimpleNamespace(task=given.task)
    assert calibrate._lasting_noise(simulator, data, torch.device("cpu"), (1,)) == lasting
    monkeypatch.setattr(calibrate, "_windows", lambda *_: [])  # no trajectory is longer than what is given
    assert calibrate._lasting_noise(simulator, data, torch.device("cpu"), (1,)) == 0
    noise = torch.stack([Draws(0, range(4000), lasting)(step, torch.zeros(4000, 1)) for step in (0, 9)])
    assert noise.std().item() == pytest.approx(1, abs=0.03)
    assert noise.prod(0).mean().item() == pytest.approx(lasting, abs=0.05)


def test_channels_of_one_field_are_stretched_alike_and_cells_that_do_not_count_are_left_out() -> None:
    task = TASKS["cfd2d"]
    torch.manual_seed(1)
    truth, mask = torch.randn(16, 1, 8, 8, len(task.channels)), torch.ones(16, 8, 8, dtype=torch.bool)
    mask[:, 4:] = False
    members = torch.tensor([0.4, 0.7, 0.7, 0.5]) * torch.randn(16, *truth.shape)
    truth[:, :, 4:] = torch.nan
    (row,) = fitted(task, (members, truth), mask).factors
    places = np.cumsum([0, *(len(f.channels) for f in task.fields)])
    assert all(len(set(row[a:b])) == 1 for a, b in pairwise(places))
    assert len(set(row)) == len(task.fields)
    assert min(row) > 1.2


def test_a_run_leaves_what_it_fitted_with_the_simulator_and_shows_it(finished: tuple[Path, Report]) -> None:
    run, report = finished
    sim = ups.load(run)
    trust = sim.trust["advection1d"]
    assert trust.calibration is not None
    assert trust.error is not None
    assert trust.calibration.drawn_by == "residual"
    steps = report.tasks[0].ours.evaluation.steps
    assert len(trust.calibration.factors) == steps
    assert {"spread", "time"} < set(trust.error.signs)
    ensemble, errors = report.tasks[0].ensemble, report.tasks[0].errors
    assert ensemble is not None
    assert errors is not None
    records = {r.metric: r for r in report.records}
    assert records["ensemble coverage"].value == pytest.approx(ensemble.numbers()["coverage"])
    assert {
        "ensemble coverage as drawn",
        "ensemble crps as drawn",
        "ensemble coverage at time",
        "error-estimate rank correlation",
    } <= set(records)
    page = (run / "report.html").read_text()
    assert "Estimates of error" in page
    assert "as drawn" in page
    u0 = np.zeros((32, 1), np.float32)
    frames, estimate = sim.rollout(u0, 3, error=True)
    assert (frames.shape, estimate.shape) == ((3, 32, 1), (3,))
    assert "calibration" in dict(report.phases)


def test_fitted_again_from_the_finished_weights_it_is_the_same_to_the_bit_whatever_lies_in_the_test_part(
    finished: tuple[Path, Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = finished
    before, parts = header_of(run), DataSet.parts

    def no_test(data: DataSet, name: str) -> Any:
        assert name != "test"
        return parts(data, name)

    monkeypatch.setattr(DataSet, "parts", no_test)
    config = load(run_config(), run / "config.yaml")
    with Run(config, RunDir(run), Screen.silent()) as again:
        again.calibrate()
    assert header_of(run) == before
    assert before["provenance"]["steps"] == 26, "written anew, and what it was made by stays"


def test_a_finished_run_is_judged_again_with_what_it_fitted(finished: tuple[Path, Report]) -> None:
    run, report = finished
    evaluate_run(run, Question(device="cpu"), Screen.silent())
    rows = json.loads((run / "results.json").read_text())
    value = next(row["value"] for row in rows if row["metric"] == "ensemble coverage")
    assert value == next(r.value for r in report.records if r.metric == "ensemble coverage")


def test_ensembles_that_do_not_pay_are_left_off_and_said_to_be_and_are_drawn_when_asked_for(
    finished: tuple[Path, Report], tmp_path: Path
) -> None:
    run = shutil.copytree(finished[0], tmp_path / "run")
    sim = ups.load(run)
    (name,), (part,) = sim.trust, [path for path in (run / "artifacts").iterdir() if path.stem == "simulator"]
    worth = sim.trust[name].calibration
    assert worth is not None
    assert worth.worth is not None
    assert worth.worth > 0
    sim.trust = {name: replace(sim.trust[name], calibration=replace(worth, worth=0.96))}
    sim.save(part)
    report = evaluate_run(run, Question(device="cpu"), Screen.silent())[1]
    assert report.tasks[0].ensemble is None
    assert "(ensembles do not pay here)" in report.headline()[1][-1]
    words = "ensembles do not pay here: on validation data their CRPS is 0.96 times the absolute error of the operator"
    assert sum(words in remark for remark in report.remarks()) == 1
    assert words in (run / "report.html").read_text()
    assert read(run)[0].verdict.endswith("(ensembles do not pay here)")
    u0 = np.zeros((32, 1), np.float32)
    assert not any("pay" in remark for remark in ups.load(run).rollout(u0, 2, details=True).remarks)
    drawn = ups.load(run).rollout(u0, 2, ensemble=3, details=True)
    assert drawn.frames.shape == (3, 2, 32, 1)
    assert any(words in remark for remark in drawn.remarks)


def test_the_worth_of_an_ensemble_is_its_crps_over_the_error_of_the_operator_on_what_it_was_not_fitted_to() -> None:
    rng, truth = torch.Generator().manual_seed(0), torch.zeros(16, 2, 8, 1)
    members = 0.1 * torch.randn(32, *truth.shape, generator=rng)
    given: Any = SimpleNamespace(targets=truth, mask=None, weights=None)
    stretches, ones = calibrate.Stretches(), ((1.0,), (1.0,))
    alone = torch.ones_like(truth)
    alone[::2] = 3.0
    stretches.add(members, given, torch.ones(1), range(16), alone)
    assert stretches.worth(ones) == pytest.approx(crps(members, truth).mean().item() / 2, rel=1e-6)
    odd = crps(members[:, 1::2], truth[1::2]).mean().item()
    assert stretches.worth(((1.0,), (1 + 1e-9,))) == pytest.approx(odd, rel=1e-5)


def test_errors_are_fitted_after_as_few_frames_as_a_rollout_needs_and_after_as_many_as_a_judged_one_is_given() -> None:
    task, lengths = TASKS["burgers1d"], np.array([20] * 10 + [9] * 2)

    def part(count: int) -> Any:
        """Each trajectory holds its number."""

        def cut(samples: list[int], first: list[int], context: int, targets: int) -> Window:
            assert set(first) == {0}
            frames = torch.tensor(samples).float().reshape(-1, 1, 1, 1).expand(-1, context + targets, 4, 1)
            given = replace(window(len(samples), cells=4), task=task)
            return replace(given, context=frames[:, :context], targets=frames[:, context:])

        size = min(count, 10)
        return SimpleNamespace(task=task, shape=(4,), lengths=lengths[10 - size : 10 - size + count], window=cut)

    def taken(starts: tuple[int, ...], count: int = 12, most: int = 8) -> dict[int, list[int]]:
        data: Any = SimpleNamespace(parts=lambda name: {"valid": [part(count)]}[name])
        found: dict[int, list[int]] = {}
        for w, numbers in calibrate._windows(data, starts, most, 3):
            assert w.state[:, 0, 0].int().tolist() == numbers
            found.setdefault(w.context.shape[1], []).extend(w.state[:, 0, 0].int().tolist())
        return found

    assert taken((2,)) == {2: [*range(8)]}, "as all begin alike, as many as there may be"
    assert taken((1, 10)) == {1: [0, 1, 2, 3], 10: [4, 5, 6, 7]}, "other trajectories for each"
    assert taken((1, 10), count=3) == {1: [0, 1, 2], 10: [0, 1, 2]}, "all for each, where they are few"
    assert taken((1, 30)) == {1: [*range(8)]}, "none is so long"
    simulator: Any = SimpleNamespace(context=4, looks_back=lambda name: 1 if name == task.name else 4)
    starts = [calibrate.starts_of(simulator, TASKS[name], given) for name in (task.name, "ks1d") for given in (4, 10)]
    assert starts == [(1, 4), (1, 10), (4,), (4, 10)]


@pytest.mark.slow
def test_a_task_under_two_boundaries_is_estimated_by_what_holds_under_both(tmp_path: Path) -> None:
    data = {"task": "cfd1d", "samples": 8, "resolution": 32, "scheme": "accurate", "reduce": {"time": 10}}
    kinds = {name: {**data, "params": {"boundary": name, "eta": 0.01, "zeta": 0.01}} for name in ("periodic", "trans")}
    small = {"codec": {"dim": 8}, "operator": {"width": 16, "depth": 1, "heads": 2}}
    steps = {name: {"batch": 8, "train": {"steps": 4}} for name in ("codec", "operator")}
    made = {"name": "mixed", "out": str(tmp_path), "device": "cpu", "data": kinds, "model": small, **steps}
    folder, report = run_alone(run_config().model_validate(made), Screen.silent())
    assert report.tasks[0].errors is not None
    model = ups.load(folder.folder).trust["cfd1d"].error
    assert model is not None
    assert "law mass" not in model.signs, "open ends let mass out"
    assert {"law density", "time"} <= {*model.signs}
