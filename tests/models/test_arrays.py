"""What users hold: whatever cannot be answered truthfully is refused in a sentence, and never answered with NaN."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_simulators import simulator

from ups.models import Simulator, artifact
from ups.types import ConfigError, DataError

U = np.sin(2 * np.pi * np.arange(32) / 32)


@pytest.fixture(scope="module")
def sim() -> Simulator:
    return simulator("burgers1d")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("words", "no array of numbers"),
        (None, "no array of numbers"),
        (torch.zeros(32, 1).to_sparse(), "no array of numbers"),
        (torch.zeros(32, 1, device="meta"), "no array of numbers"),
        ([[1.0, 2.0], [3.0]], "no array of numbers"),
        (U + 1j, "is complex"),
        (np.zeros(0), "is empty"),
        (np.zeros((0, 32, 1)), "is empty"),
        (np.zeros((1, 0, 32, 1)), "is empty"),
        (np.zeros(()), "channels u"),
        (np.full(32, 1e39), "not finite"),  # no float32 holds it
    ],
)
def test_a_state_that_is_none_is_refused(sim: Simulator, given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        sim.rollout(given, 1)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"steps": 1.5}, "whole number"),
        ({"steps": "3"}, "whole number"),
        ({"dt": 0}, "dt is 0, but must be one finite number above 0"),
        ({"dt": -1.0}, "above 0"),
        ({"dt": float("nan")}, "above 0"),
        ({"dt": [0.1, 0.2]}, "one finite number"),
        ({"dt": "x"}, "no array of numbers"),
        ({"params": {"nu": "x"}}, "nu of burgers1d is no array of numbers"),
        ({"params": [0.1, 0.2]}, "has 2 numbers; give nu"),
        ({"params": []}, "has 0 numbers; give nu"),
        ({"periodic": True}, "for each of 1 axis"),
        ({"periodic": (True, True)}, "for each of 1 axis"),
        ({"points": [[0.1, 0.2]]}, r"are \(P, 1\), a row for each point, not \(1, 2\)"),
        ({"points": "x"}, "no array of numbers"),
        ({"points": [[float("nan")]]}, "outside the box"),
        ({"task": 3}, "not trained on '3'"),
    ],
)
def test_a_question_that_has_no_answer_is_refused(sim: Simulator, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        sim.rollout(U, **{"steps": 1, "params": {"nu": 1.0}, **asked})


def test_points_on_a_line_need_no_second_axis_and_wrap_where_the_box_does(sim: Simulator) -> None:
    there = sim.rollout(U, 2, {"nu": 1.0}, points=[[0.25], [0.5]])
    assert np.array_equal(sim.rollout(U, 2, {"nu": 1.0}, points=[0.25, 0.5]), there)
    assert np.array_equal(sim.rollout(U, 2, {"nu": 1.0}, points=torch.tensor([1.25, -0.5])), there)


@pytest.mark.parametrize("key", ["provenance", "shapes", "tasks", "parts"])
def test_an_artifact_whose_header_lacks_a_part_is_refused_by_its_name(sim: Simulator, tmp_path: Path, key: str) -> None:
    header, tensors = artifact.read(sim.save(tmp_path / "whole.safetensors"))
    kept = {k: v for k, v in header.items() if k not in (key, "format", "version", "digest")}
    artifact.write(tmp_path / "part.safetensors", kept, tensors)
    with pytest.raises(DataError, match=rf"part\.safetensors: .*{key}"):
        Simulator.load(tmp_path / "part.safetensors")


def test_an_artifact_of_an_impossible_model_is_refused_by_its_name(sim: Simulator, tmp_path: Path) -> None:
    header, tensors = artifact.read(sim.save(tmp_path / "whole.safetensors"))
    plain = {k: v for k, v in header.items() if k not in ("format", "version", "digest")}
    for odd in (
        {"tasks": []},
        {"shapes": {"burgers1d": [7]}},
        {"parts": {**header["parts"], "codec": {"config": {"dim": 0}}}},
    ):
        artifact.write(tmp_path / "odd.safetensors", {**plain, **odd}, tensors)
        with pytest.raises(DataError, match=r"odd\.safetensors: its weights are not of the model it describes"):
            Simulator.load(tmp_path / "odd.safetensors")


def test_samples_of_one_channel_need_no_axis_for_it(sim: Simulator) -> None:
    many = np.stack((U, 2 * U, -U)).astype(np.float32)
    full = sim.rollout(many[..., None], 2, {"nu": 1.0})
    bare = sim.rollout(many, 2, {"nu": 1.0})
    assert bare.shape == (3, 2, 32)
    assert np.array_equal(bare, full[..., 0])
    assert sim.rollout(many[:1], 2, {"nu": 1.0}).shape == (1, 2, 32)
    assert sim.rollout(many[0][:, None], 2, {"nu": 1.0}).shape == (2, 32, 1)  # a last axis of one is the channel
    with pytest.raises(ConfigError, match=r"not \(32, 3\)"):
        sim.rollout(np.zeros((32, 3)), 2, {"nu": 1.0})


def test_arrays_that_run_backwards_or_come_from_another_machine_are_read(sim: Simulator) -> None:
    want = sim.rollout(U.astype(np.float32), 1, {"nu": 1.0})
    assert np.array_equal(sim.rollout(U[::-1].copy()[::-1].astype(">f4"), 1, {"nu": 1.0}), want)
    assert np.array_equal(sim.rollout(U.astype(np.float32)[::-1].copy()[::-1], 1, {"nu": 1.0}), want)
    still = U.astype(np.float32)
    still.flags.writeable = False  # as of a file in memory that is only read
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(sim.rollout(still, 1, {"nu": 1.0}), want)
