"""Rollouts of very many steps: how far one is, what it takes of the memory, and what is left where it is stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from ups.cli.app import main
from ups.data import open_source
from ups.data.clock import is_even
from ups.host_memory import resident
from ups.jobs.rollout import rollout
from ups.models import build
from ups.models.stepping import Stepping
from ups.physics import TASKS
from ups.progress import reporter, reporting
from ups.types import DataError

STEPS, CELLS, DRIFT = 100_000, 16, 2.0**-20


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A simulator as it is before training; beside it a file of trajectories for it."""
    simulator = build([TASKS["advection1d"]])
    simulator.fit_dt("advection1d", 0.05, 0.05)
    x = 2 * np.pi * np.arange(CELLS) / CELLS
    u = np.sin(x + np.arange(4)[:, None])[:, None].repeat(3, 1)
    np.savez(tmp_path / "u.npz", u=u.astype("f4"), t=0.05 * np.arange(3), beta=np.full(4, 0.5))
    return simulator.save(tmp_path / "simulator.safetensors")


@pytest.fixture
def trivial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step adds the same to all cells, and costs nothing."""

    def step(self: Stepping, z: Tensor, i: int, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:  # noqa: ARG001
        return z, self.window.state + DRIFT * (i + 1)

    monkeypatch.setattr(Stepping, "step", step)


@pytest.mark.usefixtures("trivial")
def test_a_hundred_thousand_steps_take_the_memory_of_their_frames_alone_and_are_all_in_the_file(saved: Path) -> None:
    shares: list[float] = []
    held: list[int] = []

    def told(share: float) -> None:
        shares.append(share)
        if len(shares) % 10_000 == 0:
            held.append(resident())

    with reporting(told):
        out = rollout(saved, saved.parent / "u.npz", STEPS, saved.parent / "o.h5", 2, None)
    assert len(shares) == STEPS
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert held[-1] - held[0] < 4 * CELLS * 2 * STEPS + 2**22
    with open_source(out, TASKS) as source:
        assert len(source) == 2
        values, times = source[1].values[..., 0], source.times_of(1)
        assert values.shape == (STEPS + 1, CELLS)
        assert np.array_equal(values[1:, 3], values[0, 3] + np.float32(DRIFT) * np.arange(1, STEPS + 1, dtype="f4"))
        assert is_even(times)
        assert times[-1] == pytest.approx(0.05 * STEPS)


@pytest.mark.usefixtures("trivial")
@pytest.mark.parametrize("there", [False, True])
def test_a_rollout_that_is_stopped_leaves_what_was_there_and_nothing_else(saved: Path, there: bool) -> None:
    out = saved.parent / "o.h5"
    if there:
        out.write_bytes(b"before")
    names = sorted(path.name for path in saved.parent.iterdir())

    def stopped(share: float) -> None:
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), reporting(stopped):
        rollout(saved, saved.parent / "u.npz", 100, out, 2, None, overwrite=True)
    assert sorted(path.name for path in saved.parent.iterdir()) == names
    assert not there or out.read_bytes() == b"before"


def test_a_rollout_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    sentences: list[str] = []

    class Waiting:
        def __init__(self, sentence: str) -> None:
            sentences.append(sentence)

        def __enter__(self) -> Callable[[str], None]:
            return sentences.append

        def __exit__(self, *_: object) -> None:
            pass

    def job(*_: object, **__: object) -> Path:
        reporter()(0.25)
        return Path("o.h5")

    monkeypatch.setattr("ups.jobs.rollout.rollout", job)
    monkeypatch.setattr("ups.cli.app.waiting", Waiting)
    with pytest.raises(SystemExit) as ended:
        main(["rollout", "run", "--input", "u.npz", "--steps", "40", "--out", "o.h5"])
    assert not ended.value.code
    doing = "predicting 40 frames after those of u.npz"
    assert sentences == ["opening run", doing, f"{doing}: 25%"]
    assert capsys.readouterr().out == "o.h5\n"


def test_where_a_result_cannot_be_written_is_told_before_the_first_step(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ups.jobs.rollout.load", lambda *_: pytest.fail("computed first"))
    for out, words in ((saved / "o.h5", "Not a directory"), (Path("/proc/none/o.h5"), "No such file")):
        with pytest.raises(DataError, match=rf"o\.h5: cannot be written \({words}.*; choose another --out"):
            rollout(saved, saved.parent / "u.npz", STEPS, out, 2, None)
