"""Errors of a channel that dies out: compared with its size in training for a user's own task, and no headline."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from grids import grid_of
from ups.eval.learnt import shortfall
from ups.eval.metrics import measure
from ups.eval.nrmse import LOST, QUIET, nrmse, validation_nrmse
from ups.eval.rollout import EvalProtocol, Evaluation, evaluate, persistence
from ups.eval.scores import HEADLINE, SCORES
from ups.physics import TASKS
from ups.tensors import Window
from ups.types import Field, TaskSpec

MINE = dataclasses.replace(
    TASKS["advection1d"], name="mine", equation="", fields=(Field.scalar("u"), Field.scalar("v"))
)
USUAL = (1.0, 0.1)
OFF = 1e-3  # of the size of each channel: what predictions are wrong by


class Wrong:
    """The truth, wrong by so much of the size of each channel in training."""

    def __init__(self, window: Window, by: float, name: str = "ups") -> None:
        noise = torch.randn(window.targets.shape, generator=torch.Generator().manual_seed(1))
        self.frames, self.name = window.targets + by * torch.tensor(USUAL) * noise, name

    def predict(self, window: Window, steps: int) -> torch.Tensor:
        assert (len(window), steps) == self.frames.shape[:2]
        return self.frames


def dying(task: TaskSpec, dead: int = 4) -> Window:
    """u moves; v is as large as in training, but dies out after two frames in `dead` of the eight samples, by a factor
    of 1000 a frame; their last frames hold nothing at all."""
    x = 2 * torch.pi * torch.arange(32) / 32
    time = torch.arange(7.0)[:, None]
    wave = torch.cos(x - 0.7 * time + torch.arange(8.0)[:, None, None])
    decay = torch.ones(8, 7, 1)
    decay[8 - dead :] = 0.001 ** (time - 2).clamp_min(0) * (time < 5)
    values = torch.stack([1.4 * wave, 0.14 * wave * decay], -1)
    inputs = torch.zeros(8, 32, 0)
    numbers = (torch.zeros(8, 1), torch.full((8,), 0.1))
    return Window(task, values[:, :1], values[:, 1:], inputs, *numbers, grid_of(inputs, (True,)))


def judged(task: TaskSpec, usual: tuple[float, ...] | None, by: float = OFF) -> tuple[Evaluation, Evaluation]:
    """Of ours and of persistence."""
    window, rules = dying(task), EvalProtocol("A", 1, usual=usual)
    return evaluate(Wrong(window, by), [window], rules), evaluate(persistence, [window], rules)


def test_a_channel_that_dies_out_decides_no_headline_of_own_data() -> None:
    plain, robust = (judged(MINE, usual)[0] for usual in (None, USUAL))
    assert plain.score > 1e4 * OFF, "the quiet channel alone decides"
    assert robust.score == pytest.approx(OFF, rel=0.15)
    assert robust.against_time[0].max() < 1.2 * OFF
    numbers = {number.name: number.value for number in robust.metrics() if number.mode == "strict"}
    assert set(SCORES) - {"nrmse-over-persistence"} <= set(numbers)
    assert numbers["nrmse-median"] == pytest.approx(OFF, rel=0.15)
    assert numbers["vrmse"] < 1.2 * OFF
    assert numbers["vrmse-median"] == pytest.approx(float(np.median(robust.per_sample("vrmse"))))
    assert robust.protocol.label == "A (1 given, to the end, robust)"
    assert plain.protocol.label == "A (1 given, to the end)"
    assert not set(plain.marks) & set(robust.marks), "errors of two kinds are never compared"


def test_pdebench_s_own_mean_stays_what_it_is() -> None:
    window = dying(MINE, dead=0)
    window.targets[0, :, :, 1] *= 1e-3
    frames, true = (x.numpy().astype(np.float64) for x in (Wrong(window, OFF).frames, window.targets))
    plain, robust = (measure(frames, true, usual=usual) for usual in (None, np.array(USUAL)))
    assert robust.batch_mean("nrmse") == plain.batch_mean("nrmse") == pytest.approx(plain.per_sample("nrmse").mean())
    assert robust.per_sample("nrmse")[0] < plain.per_sample("nrmse")[0] / 10
    np.testing.assert_array_equal(robust.per_sample("nrmse")[1:], plain.per_sample("nrmse")[1:])
    np.testing.assert_array_equal(robust.per_sample("vrmse")[1:], plain.per_sample("vrmse")[1:])


def test_what_is_learnt_is_told_from_what_is_not_although_a_channel_dies_out() -> None:
    ours, still = judged(MINE, USUAL)
    assert shortfall(ours, still).words == "learnt"
    ours, still = judged(MINE, USUAL, by=3.0)
    assert "no better than" in shortfall(ours, still).words
    zeros = evaluate(Wrong(dying(MINE), -0.0), [dying(MINE)], EvalProtocol("A", 1, usual=USUAL)).errors.zero
    size = 0.1 * np.sqrt((dying(MINE).targets[..., 1].numpy() ** 2).mean(2)) / 0.1
    expected = np.where(size < QUIET * 0.1, size / 0.1, 1.0)
    np.testing.assert_allclose(zeros[..., 1], expected, rtol=1e-6)


def test_weights_are_chosen_by_the_same_errors() -> None:
    window, usual = dying(MINE), torch.tensor(USUAL)
    frames = Wrong(window, OFF).frames
    errors = validation_nrmse(frames, window.targets, usual, MINE)
    np.testing.assert_allclose(errors, nrmse(frames, window.targets, usual=usual).mean((1, 2)))
    assert errors.max() < 1.3 * OFF
    assert validation_nrmse(frames, window.targets, usual, TASKS["advection1d"])[-1] > 100 * OFF
    assert validation_nrmse(frames * torch.nan, window.targets, usual, MINE).tolist() == [LOST] * 8


def test_the_page_on_judging_has_a_row_for_each_score() -> None:
    page = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text()
    rows = dict(re.findall(r"^\| `([\w-]+)` \| ([^|]*) \|$", page, flags=re.MULTILINE))
    assert {name: rows.get(name) for name in SCORES} == {name: kind.meaning for name, kind in SCORES.items()}
    assert set(HEADLINE) < set(SCORES)
