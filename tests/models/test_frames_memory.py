"""A rollout whose frames no memory here can hold is one sentence before its first step, and the others hold little."""

from __future__ import annotations

import re
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from small_simulators import frames, simulator
from test_masked import ALONE, state, with_nan
from test_masked import simulator as of_lake

import ups
from ups.cli.app import main
from ups.engine.memory import MemoryCount
from ups.models import CodecConfig, OperatorConfig, Simulator, build, frames_memory, limits
from ups.physics import TASKS
from ups.types import ConfigError
from ups.verdict import Ending, classify

WORDS = r"frames of \d samples? take .* of memory, and .*B are free here; ask for fewer steps"
NU = {"nu": 1.0}


@pytest.fixture
def sim() -> Simulator:
    return simulator("burgers1d")


@pytest.mark.parametrize("more", [{}, {"ensemble": None, "points": [[0.1], [0.2]]}, {"stop_at": 0.1}])
@pytest.mark.parametrize("steps", [10**12, 10**18, np.int64(10**18)])
def test_steps_without_number_are_one_sentence_at_once(sim: Simulator, steps: int, more: dict[str, object]) -> None:
    began = time.process_time()
    if "stop_at" in more:
        sim.trust["burgers1d"] = ups.models.trust.Trust(None, ups.models.trust.ErrorModel(("time",), (1.0,), 1.0, 0.1))
    with pytest.raises(ConfigError, match=WORDS) as refused:
        sim.rollout(frames("burgers1d")[:, 0], steps, NU, **more)
    assert time.process_time() - began < 60
    assert classify(refused.value).ending == Ending.OOM, "a run that meets it has run out of memory"


def test_steps_that_have_no_name_are_refused_too(sim: Simulator) -> None:
    with pytest.raises(ConfigError, match=r"no machine can hold or count more than 10+ steps; ask for fewer"):
        sim.rollout(frames("burgers1d")[:, 0], 10**5000, NU)


def test_what_is_just_larger_than_the_memory_at_hand_is_refused_and_what_fits_is_not(
    sim: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    need, u = 2 * 4 * 2 * 32 * 20, frames("burgers1d")[:, 0]
    monkeypatch.setattr(frames_memory, "SMALL", 0)
    monkeypatch.setattr(frames_memory, "available", lambda: (need, 10**12))
    assert len(sim.rollout(u, 20, NU)[0]) == 20
    monkeypatch.setattr(frames_memory, "available", lambda: (need - 1, 10**12))
    with pytest.raises(ConfigError, match=re.escape("20 predicted frames of 2 samples take 10.2 kB of memory")):
        sim.rollout(u, 20, NU)
    monkeypatch.setattr(frames_memory, "available", lambda: (need, 10**12))
    monkeypatch.setattr(frames_memory, "address_space_left", lambda: need - 1)
    with pytest.raises(ConfigError, match="are free here"):
        sim.rollout(u, 20, NU)


@pytest.mark.parametrize("masked", [False, True])
def test_a_rollout_holds_its_frames_no_more_often_than_is_asked_for(
    masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TOGETHER", 2**12)
    steps = 160
    sim, u = (of_lake(ALONE), with_nan(state())) if masked else (simulator("reacdiff2d"), frames("reacdiff2d")[:1, 0])
    sim.rollout(u, 1)
    with MemoryCount("cpu") as count:
        out = sim.rollout(u, steps)
    own = 4 * out.numel() if isinstance(out, torch.Tensor) else out.nbytes
    assert count.peak < (2.6 if masked else 1.6) * own, "its frames, once more where some do not count, and a step"


def of_advection(folder: Path) -> tuple[Path, Path]:
    """A file of advection and a simulator for it."""
    data = folder / "1D_Advection_Sols_beta0.4.hdf5"
    with h5py.File(data, "w") as file:
        file["tensor"] = np.random.default_rng(0).random((2, 41, 32), np.float32)
        file["x-coordinate"], file["t-coordinate"] = (np.arange(32) + 0.5) / 32, np.linspace(0, 2, 42)
    small = OperatorConfig(width=8, depth=1, heads=1)
    made = build([TASKS["advection1d"]], CodecConfig(dim=4), small, shapes={"advection1d": (32,)})
    return data, made.save(folder / "s.safetensors")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_command_writes_what_it_writes_on_a_processor_when_it_runs_on_a_gpu(tmp_path: Path) -> None:
    data, path = of_advection(tmp_path)
    for device in ("cpu", "cuda"):
        words = ["--input", str(data), "--steps", "2", "--out", str(tmp_path / device), "--device", device]
        with pytest.raises(SystemExit) as ended:
            main(["rollout", str(path), *words])
        assert not ended.value.code
    with h5py.File(tmp_path / "cpu") as one, h5py.File(tmp_path / "cuda") as other:
        assert np.allclose(one["t0_fields/u"], other["t0_fields/u"], atol=1e-4)


def test_the_command_says_so_before_it_writes_and_ends_as_where_memory_runs_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, path = of_advection(tmp_path)
    out = tmp_path / "out.h5"
    for steps in (10**12, 10**18, 10**40):
        with pytest.raises(SystemExit) as ended:
            main(["rollout", str(path), "--input", str(data), "--steps", str(steps), "--out", str(out)])
        last = capsys.readouterr().err.splitlines()[-1]
        assert re.search(WORDS if steps <= 10**18 else "ask for fewer", last), last
        assert ended.value.code in (Ending.OOM, Ending.USER)
        assert "Traceback" not in last
        assert not out.exists()
