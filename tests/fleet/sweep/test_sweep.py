"""A sweep ends what it begins: nothing twice, nothing lost, no failure that stops the rest, no process left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from memory_runs import begun, finished
from ups.config import load
from ups.presence import HeldError, hold, release
from ups.run.config import run_config
from ups.run.journal import PhaseJournal
from ups.rundir import RunDir
from ups_fleet.run_folders.runs import runs_in
from ups_fleet.run_folders.state import state_of
from ups_fleet.supervise.proc import alive
from ups_fleet.sweep.begin import SweepRequest, points

sys.path.insert(0, str(Path(__file__).parent))
from sweep_process import fake_sweep

SCRIPT = Path(__file__).with_name("sweep_process.py")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("template") / "run").folder


def starts(folder: Path, name: str) -> list[list[str]]:
    """Process, threads and whether it was resumed, of every start of a run."""
    file = folder / f"started-{name}"
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def wait_for(words: str, folder: Path, name: str) -> None:
    end = time.monotonic() + 120
    while state_of(folder / name).word != words:
        assert time.monotonic() < end, state_of(folder / name).sentence
        time.sleep(0.02)


def test_an_axis_of_all_stages_is_one_of_each_whatever_the_file_says_of_one(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "name: c\nout: .\ndevice: cpu\ndata: {a: {task: advection1d, samples: 8, resolution: 32}}\n"
        "model: {codec: {dim: 16}}\noperator: {train: {lr: 5.0e-4}}\n"
    )
    _, listed = points(SweepRequest(path, ("train.lr=1e-3,3e-3", "model.network.size=tiny,small"), {}, tmp_path / "s"))
    configs = [load(run_config(), path, point.flags) for point in listed]
    seen = [(c.stage("codec").train.lr, c.stage("operator").train.lr, c.model.part("operator").size) for c in configs]
    assert seen == [(rate, rate, size) for rate in (1e-3, 3e-3) for size in ("tiny", "small")]


def test_a_failure_stops_no_other_and_what_is_finished_is_not_repeated(tmp_path: Path, template: Path) -> None:
    sweep = fake_sweep(tmp_path, template, ["good", "bad", "refused", "good"])
    assert sweep.carry_out() is None
    words = {name: state.word for name, state in sweep.ended.items()}
    assert words == {"0-good": "finished", "1-bad": "failed", "2-refused": "failed", "3-good": "finished"}
    assert sweep.ended["2-refused"].sentence == "there is no such thing; choose another."
    assert "no memory left" in sweep.ended["1-bad"].sentence
    assert starts(tmp_path, "0-good")[0][1:] == ["3", "False"]
    again = fake_sweep(tmp_path, template, ["good", "bad", "refused", "good"])
    again.carry_out()
    counts = {name: len(starts(tmp_path, name)) for name in words}
    assert counts == {"0-good": 1, "1-bad": 2, "2-refused": 2, "3-good": 1}
    assert starts(tmp_path, "1-bad")[1][2] == "True", "what was begun is resumed"
    assert {state.name for state in runs_in(tmp_path)} >= words.keys() - {"2-refused"}


def test_a_run_that_something_kills_is_resumed_but_not_for_ever(tmp_path: Path, template: Path) -> None:
    sweep = fake_sweep(tmp_path, template, ["killed", "doomed", "good"])
    assert sweep.carry_out() is None
    assert [state.word for _, state in sorted(sweep.ended.items())] == ["finished", "dead", "finished"]
    resumed = [[start[2] for start in starts(tmp_path, name)] for name in ("0-killed", "1-doomed")]
    assert resumed == [["False", "True"], ["False", "True", "True"]]


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_stopped_sweep_leaves_nothing_running_and_goes_on_where_it_was(
    tmp_path: Path, template: Path, number: int
) -> None:
    words = [sys.executable, str(SCRIPT), str(tmp_path), str(template), "slow", "slow", "good"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, start_new_session=True)
    for name in ("0-slow", "1-slow"):
        wait_for("running", tmp_path, name)
    children = [int(starts(tmp_path, name)[0][0]) for name in ("0-slow", "1-slow")]
    process.send_signal(number)
    code = process.wait(600)
    assert code == (-9 if number == signal.SIGKILL else 128 + number)
    end = time.monotonic() + 120
    while any(map(alive, children)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(map(alive, children))
    assert [state_of(tmp_path / name).word for name in ("0-slow", "1-slow")] == ["stopped", "stopped"]
    assert not starts(tmp_path, "2-good")
    assert subprocess.run(words, stdout=subprocess.DEVNULL, check=False).returncode == 0
    assert [len(starts(tmp_path, name)) for name in ("0-slow", "1-slow", "2-good")] == [2, 2, 1]
    assert [state_of(tmp_path / name).word for name in ("0-slow", "1-slow", "2-good")] == ["finished"] * 3


def test_runs_of_the_same_data_wait_until_the_first_has_made_them_and_are_told_where(
    tmp_path: Path, template: Path
) -> None:
    sweep = fake_sweep(tmp_path, template, ["good", "good", "good"])
    sweep.shared, sources, command = True, {}, sweep.command
    sweep.command = lambda point, slot, source: sources.update({point.name: source}) or command(point, slot, source)
    first = sweep._next()
    assert first is not None
    assert first.name == "0-good"
    assert sweep._next() is None
    journal = PhaseJournal(RunDir(tmp_path / "0-good").journal)
    (tmp_path / "0-good").mkdir()
    with journal("data"):
        assert sweep._next() is None
    second = sweep._next()
    assert second is not None
    for point in (first, second):
        sweep._start(point)
    while sweep._go_on():
        time.sleep(0.05)
    assert sources == {"0-good": None, "1-good": tmp_path / "0-good", "2-good": tmp_path / "0-good"}


def test_where_the_run_that_was_to_make_the_data_fails_the_others_make_them(tmp_path: Path, template: Path) -> None:
    sweep = fake_sweep(tmp_path, template, ["refused", "good", "good"])
    sweep.shared = True
    assert sweep.carry_out() is None
    assert [state.word for _, state in sorted(sweep.ended.items())] == ["failed", "finished", "finished"]


def test_a_run_that_lives_already_is_waited_for_and_never_written_twice(tmp_path: Path, template: Path) -> None:
    run = begun(tmp_path / "0-good")
    handle = hold(run.lock)
    sweep = fake_sweep(tmp_path, template, ["good", "good"])
    assert sweep._go_on()
    end = time.monotonic() + 120
    while "1-good" not in sweep.ended:
        assert time.monotonic() < end
        assert sweep._go_on()
        time.sleep(0.05)
    assert not starts(tmp_path, "0-good")
    release(handle)
    while sweep._go_on():
        assert time.monotonic() < end
        time.sleep(0.05)
    assert sweep.ended["0-good"].word == "finished"
    assert len(starts(tmp_path, "0-good")) == 1


def test_two_sweeps_of_one_folder_exclude_each_other(tmp_path: Path, template: Path) -> None:
    handle = hold(tmp_path / ".lock")
    with pytest.raises(HeldError, match="another process is writing this sweep"):
        fake_sweep(tmp_path, template, ["good"]).carry_out()
    release(handle)
    finished(tmp_path / "0-good")
    sweep = fake_sweep(tmp_path, template, ["good"])
    assert sweep.carry_out() is None
    assert not starts(tmp_path, "0-good")
