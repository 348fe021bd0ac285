"""After training, validation data say how far a simulator can be believed; the test data never have a part in it."""

from __future__ import annotations

import dataclasses
import json
import math
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
from ups.eval.ensembles import coverage
from ups.eval.report import Report
from ups.jobs.evaluate import Question, evaluate_run
from ups.models.calibration import EDGES, Calibration
from ups.models.ensembles import Draws
from ups.physics import TASKS
from ups.progress import Screen
from ups.run.config import run_config
from ups.run.data.datasets import DataSet
from ups.run.judging import calibrate
from ups.run.judging.calibrate import factors_of
from ups.run.run import Run, run_alone
from ups.rundir import RunDir
from ups.tensors import Window

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


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    folder = tmp_path_factory.mktemp("calibrated")
    (folder / "tiny.yaml").write_text(TINY)
    place, report = run_alone(load(run_config(), folder / "tiny.yaml", {"out": str(folder)}), Screen.silent())
    return place.folder, report


def header_of(run: Path) -> Any:
    with safe_open(run / "artifacts" / "simulator.safetensors", "pt") as file:
        return json.loads(file.metadata()["ups"])


@pytest.mark.parametrize("widths", [np.geomspace(0.2, 2, STEPS), np.geomspace(2.5, 0.15, STEPS)])
def test_ensembles_that_are_too_narrow_or_too_wide_cover_nine_tenths_of_other_data_at_every_step(
    widths: np.ndarray,
) -> None:
    """Gaussian truth around a known centre, members of wrong widths that change with the step."""
    torch.manual_seed(0)
    task, shape = TASKS["reacdiff2d"], (16, STEPS, 16, 16, 2)
    by_channel = torch.tensor([1.0, 3.0])  # each is a field of its own
    size = torch.tensor(widths, dtype=torch.float32).reshape(STEPS, 1, 1, 1) * by_channel

    def drawn(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        plain = torch.randn(shape)
        return plain + size * torch.randn(count, *shape), plain, plain + torch.randn(shape)

    members, plain, truth = drawn(16)
    box = torch.ones(16, 16, 16, dtype=torch.bool)  # a mask: then all deviations are stretched, rough as they are here
    given: Any = SimpleNamespace(targets=truth, mask=box, periodic=task.periodic)
    steps = [[calibrate.thinned(members[:, :, i : i + 1], plain[:, i : i + 1], given, i)] for i in range(STEPS)]
    fitted = Calibration("residual", factors_of(steps, task))
    for count in (16, 50):
        members, plain, truth = drawn(count)
        covered = coverage(fitted.stretched(members, plain, given), truth).mean((0, 2, 3))
        before = coverage(members, truth).mean((0, 2, 3))
        assert before.min() < 0.6
        assert before.max() > 0.98
        assert covered.mean().item() == pytest.approx(0.9, abs=0.015)
        assert covered.min() > 0.86
        assert covered.max() < 0.94


def test_a_stretch_is_fitted_to_members_as_they_are_damped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws with nearly twice the short waves that the truth has beside the rollout without draws: what is damped is
    narrower, and stretched for it; whether members were kept or are drawn again."""
    torch.manual_seed(0)
    task, k = TASKS["burgers1d"], torch.fft.rfftfreq(64)

    def waves(*lead: int, short: float) -> torch.Tensor:
        noise = torch.fft.rfft(torch.randn(*lead, 2, 64), dim=-1) * torch.where(k >= 0.125, short, 1.0)
        return torch.fft.irfft(noise, n=64, dim=-1).unsqueeze(-1)

    plain, none = waves(64, short=0.5), (torch.zeros(64, 64, 0), torch.zeros(64, 1))
    truth, members = plain + waves(64, short=0.5), plain + waves(16, 64, short=0.9)
    given = Window(task, plain[:, :1], truth, *none, torch.ones(64), (True,), (1.0,))

    def fitted(rounds: int, kept: int = 2**30) -> Calibration:
        monkeypatch.setattr(calibrate, "ROUNDS", rounds)
        monkeypatch.setattr(calibrate, "HELD_BYTES", kept)
        drawings = calibrate.Drawings()
        drawings.add(members, plain, given)
        return drawings.calibration("residual", 0.0, task, torch.device("cpu"), lambda: [(members, plain, given)])

    def covered(found: Calibration) -> float:
        return coverage(found.stretched(members, plain, given), truth).mean().item()

    assert covered(fitted(0)) < 0.875
    assert covered(fitted(2)) == pytest.approx(0.9, abs=0.01)
    assert fitted(1, kept=0) == fitted(1)


@pytest.mark.parametrize(("shape", "stretch"), [((64,), 1.0), ((97,), 1.0), ((32, 32), 1.0), ((64,), 1.5)])
def test_fine_structure_of_members_is_damped_to_that_of_other_truth_and_totals_stay(
    shape: tuple[int, ...], stretch: float
) -> None:
    """Waves of a known spectrum; draws add as much again of the short ones, and of the shortest thrice as much; a
    stretch adds to longer ones than half as many cells hold."""
    torch.manual_seed(0)
    task, axes = TASKS["burgers1d" if len(shape) == 1 else "reacdiff2d"], tuple(range(2, 2 + len(shape)))
    fields, batch, steps = len(task.channels), 96 if len(shape) == 1 else 12, 3
    k = torch.stack(torch.meshgrid(*(torch.fft.fftfreq(n, 1 / n).abs() / n for n in shape), indexing="ij")).amax(0)

    def waves(strength: torch.Tensor, *lead: int) -> torch.Tensor:
        noise = torch.fft.fftn(torch.randn(*lead, steps, *shape, fields), dim=[a + len(lead) - 1 for a in axes])
        return torch.fft.ifftn(noise * strength.unsqueeze(-1), dim=[a + len(lead) - 1 for a in axes]).real

    usual = 1 / (1 + 20 * k)
    excess = usual * torch.where(k > 5 / 12, 3.0**0.5, torch.where(k >= 0.125, 1.0, 0.0))

    def drawn() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Any]:
        plain, truth = waves(usual, batch), waves(usual, batch)
        wraps = (True,) * len(shape)
        return plain + waves(excess, 4, batch), plain, truth, SimpleNamespace(targets=truth, mask=None, periodic=wraps)

    members, plain, _, given = drawn()
    powers = calibrate.Powers()
    powers.add(members, plain, given)
    factors = ((stretch,) * fields,) * steps
    fitted = Calibration("residual", factors, 0.0, powers.damping(factors, task))
    assert Calibration.of(json.loads(json.dumps(dataclasses.asdict(fitted)))) == fitted
    longer = ((stretch,) * fields,) * (steps + 2)  # other trajectories of the task, between walls, go on
    assert powers.damping(longer, task)[-1] == ((1.0,) * fields,) * len(EDGES)
    members, plain, truth, given = drawn()
    for band, before in ((k > 1 / 3, 2.2), (k > 0.25, 1.9), ((k >= 0.125) & (k < 0.25), 1.8)):

        def power(frames: torch.Tensor, band: torch.Tensor = band) -> float:
            spectrum = torch.fft.fftn(frames, dim=list(range(-1 - len(shape), -1))).abs().square()
            return float((spectrum * band.unsqueeze(-1)).mean())

        assert power(members) / power(truth) > before
        assert power(fitted.stretched(members, plain, given)) / power(truth) == pytest.approx(1, abs=0.1)
    other = fitted.stretched(members, plain, given)
    assert torch.allclose(other.mean(tuple(a + 1 for a in axes)), members.mean(tuple(a + 1 for a in axes)), atol=1e-5)
    walls = SimpleNamespace(**{**vars(given), "periodic": (False,) * len(shape)})
    assert torch.equal(
        fitted.stretched(members, plain, walls), replace(fitted, damping=()).stretched(members, plain, walls)
    )


@pytest.mark.parametrize("lasting", [0.0, 0.3, 1.0])
def test_as_much_of_the_noise_lasts_as_errors_repeat_themselves(lasting: float, monkeypatch: Any) -> None:
    """Frames that are sums of steps, each missed by noise of which a known part is the same at all steps."""
    given = replace(window(8, targets=20, cells=256), task=TASKS["advection1d"])

    def walk(copies: Window, steps: int, _: None, draw: Draws) -> torch.Tensor:
        return torch.stack([draw(i, copies.state) for i in range(steps)], 1).cumsum(1)

    given = replace(given, targets=walk(given, 20, None, Draws(7, [0], lasting)))
    one = SimpleNamespace(scale=torch.ones(1))
    simulator: Any = SimpleNamespace(simulate=walk, context=1, codec=SimpleNamespace(statistics_of=lambda _: one))
    monkeypatch.setattr(calibrate, "_windows", lambda *_: [given])
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
    truth, mask = torch.rand(2, 1, 8, 8, len(task.channels)), torch.ones(2, 8, 8, dtype=torch.bool)
    mask[:, 4:] = False
    truth[:, :, 4:] = torch.nan
    given: Any = SimpleNamespace(targets=truth, mask=mask, periodic=task.periodic)
    plain = (truth - torch.randn(truth.shape)).nan_to_num()
    members = plain + 2 * torch.randn(16, *truth.shape)
    (row,) = factors_of([[calibrate.thinned(members, plain, given, 0)]], task)
    places = np.cumsum([0, *(len(f.channels) for f in task.fields)])
    assert all(len(set(row[a:b])) == 1 for a, b in pairwise(places))
    assert len(set(row)) == len(task.fields)
    assert max(row) <= 1


def test_structure_that_half_the_cells_do_not_show_stays_as_drawn() -> None:
    given, x = window(1, cells=64), torch.arange(64) / 64 * 2 * math.pi
    low, high = (torch.sin(k * x).reshape(1, 1, 1, 64, 1) for k in (3, 29))
    plain = torch.randn(1, 1, 64, 1)
    wide = Calibration("residual", ((3.0,),)).stretched(plain + low + high, plain, given)
    assert torch.allclose(wide, plain + 3 * low + high, atol=1e-5)
    narrow = Calibration("residual", ((0.5,),)).stretched(plain + low + high, plain, given)
    assert torch.allclose(narrow, plain + 0.5 * (low + high), atol=1e-5)


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
        for w in calibrate._windows(data, starts, most, 3):
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
