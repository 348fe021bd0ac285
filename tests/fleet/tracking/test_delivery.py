"""Whatever a tracker's library does, a run is not held up and ends as it would; what was missed is sent later."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from shown_runs import end, log, made_up

from ups.presence import hold, release
from ups.rundir import RunDir
from ups.types import DataError
from ups.verdict import Ending
from ups_fleet.tracking import TrackingConfig, TroubleWatch, deliver, deliver_by_the_way, deliveries, mirrored
from ups_fleet.tracking.mirror import MirrorReceipt

# A library that behaves as the file `behaviour` in the run's folder says, and writes what it is told to `told` there.
LIBRARY = """
import json, os, sys, time
from pathlib import Path
HERE = Path()

def act(place):
    word = (HERE / "behaviour").read_text() if (HERE / "behaviour").exists() else "well"
    if word == f"hang at {place}":
        time.sleep(1000)
    if word == f"raise at {place}":
        sys.stdout.write("x" * 10_000_000)
        raise ConnectionError(f"no answer with the key {os.environ.get('WANDB_API_KEY')}")
    if word == f"die at {place}":
        os._exit(3)

def tell(**row):
    with (HERE / "told").open("a") as file:
        file.write(json.dumps(row) + chr(10))

def Settings(**values):
    return values

class Run:
    starting_step = 0
    summary = {}
    def log(self, values, step):
        act("log")
        tell(step=step, **values)
    def define_metric(self, *words, **more):
        pass
    def finish(self, exit_code):
        act("finish")
        tell(exit=exit_code)

def init(**values):
    global HERE
    HERE = Path(values["dir"])
    act("init")
    (HERE / "told").unlink(missing_ok=True)
    tell(mode=values["mode"], project=values["project"])
    return Run()
"""


def behave(run: RunDir, word: str) -> None:
    (run.folder / "behaviour").write_text(word)


def told(run: RunDir) -> list[dict[str, object]]:
    path = run.folder / "told"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


KEY = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def _library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Processes that are started from now on import a fake `wandb`; none of them is left in the end."""
    folder = tmp_path / "library"
    folder.mkdir()
    (folder / "wandb.py").write_text(LIBRARY)
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_MODE", "offline")
    yield
    until(lambda: not any(str(tmp_path).encode() in _read(path) for path in Path("/proc").glob("[0-9]*/cmdline")))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


SETTINGS = TrackingConfig(to=("wandb",), wait=1.0)


TROUBLES = ("hang at init", "raise at log", "die at log", "hang at finish")


def test_a_run_ends_in_time_with_its_own_ending_and_what_was_missed_is_sent_later(tmp_path: Path) -> None:
    with ThreadPoolExecutor(len(TROUBLES)) as threads:
        list(threads.map(lambda trouble: check_trouble(trouble, tmp_path / trouble), TROUBLES))


def check_trouble(trouble: str, folder: Path) -> None:
    said: list[str] = []
    run = made_up(folder, ["wandb"])
    behave(run, trouble)
    before = time.monotonic()
    with mirrored(run.folder, SETTINGS, said.append):
        log(run, range(1, 6))
        assert time.monotonic() - before < 100, "a run begins at once"
        time.sleep(1.0)
        end(run, Ending.SUCCESS, products=False)
        ended = time.monotonic()
    assert time.monotonic() - ended < 100
    rows = run.metrics.read_text().count("\n")
    assert len(said) == 1
    assert f"`ups track {run.folder}` sends them" in said[0]
    behave(run, "well")
    (state,) = deliver(run.folder, 200.0)
    assert state.whole, state
    assert state.sentence(run.folder) == "wandb: has everything (SUCCESS)."
    first, *sent, last = told(run)
    assert first == {"mode": "offline", "project": "ups"}
    assert [row["step"] for row in sent] == list(range(rows))
    assert last == {"exit": 0}
    assert KEY.encode() not in b"".join(_read(path) for path in run.folder.rglob("*"))
    assert sum(path.stat().st_size for path in run.tracking("").iterdir()) < 20_000


OWNER = """
import sys, time, os
from pathlib import Path
from ups_fleet.tracking import TrackingConfig, mirrored
from ups.rundir import RunDir
run = RunDir(Path(sys.argv[1]))
run._hold()
with mirrored(run.folder, TrackingConfig(to=("wandb",)), print):
    (run.folder / "ready").touch()
    time.sleep(1000)
"""


@contextmanager
def owned(run: RunDir) -> Iterator[subprocess.Popen[bytes]]:
    """A process that carries out the run of a folder, and its courier, until both are killed."""
    process = subprocess.Popen([sys.executable, "-c", OWNER, str(run.folder)])
    try:
        until((run.folder / "ready").exists)
        yield process
    finally:
        process.kill()
        process.wait()


def courier_of(owner: subprocess.Popen[bytes]) -> int:
    (courier,) = Path(f"/proc/{owner.pid}/task/{owner.pid}/children").read_text().split()
    return int(courier)


def until(true: object, seconds: float = 120.0) -> None:
    stop = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < stop, "it has not come"
        time.sleep(0.02)


def test_rows_arrive_while_a_run_runs_and_its_kill_is_told_by_the_courier(tmp_path: Path) -> None:
    run = made_up(tmp_path / "run", ["wandb"])
    with owned(run):
        log(run, [1, 3])
        until(lambda: len(told(run)) == 3)
        until(lambda: deliveries(run.folder)[0].whole)
        log(run, [5])
        until(lambda: len(told(run)) == 4)
    until(lambda: told(run)[-1] == {"exit": 137})
    until(lambda: deliveries(run.folder)[0].ending == "KILLED")
    assert deliver(run.folder)[0].whole


def test_after_a_kill_of_everything_the_next_delivery_closes_the_tracker(tmp_path: Path) -> None:
    run = made_up(tmp_path / "run", ["wandb"])
    behave(run, "hang at log")
    with owned(run) as owner:
        log(run, [1, 3])
        until(lambda: len(told(run)) == 1)
        before = time.monotonic()
        (state,) = deliver(run.folder, 1000.0)
        assert time.monotonic() - before < 100, "a run that is carried out is left to its courier"
        assert (state.whole, state.missing) == (False, 2)
        os.kill(courier_of(owner), signal.SIGKILL)
    behave(run, "well")
    (state,) = deliver(run.folder, 200.0)
    assert (state.ending, state.whole) == ("KILLED", True)
    assert told(run)[-1] == {"exit": 137}
    assert [row.get("step") for row in told(run)] == [None, 0, 1, None]
    (run.folder / "told").unlink()
    assert deliver(run.folder)[0].whole
    assert told(run) == [], "nothing is started where nothing is missing"


def test_the_list_of_runs_closes_the_trackers_of_dead_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ups_fleet.cli.runs import runs

    killed, live = (made_up(tmp_path / "runs" / name, ["wandb"]) for name in ("killed", "live"))
    for run in (killed, live):
        run.lock.touch()
        log(run, [1, 3])
    handle = hold(live.lock)
    runs(tmp_path / "runs", sort="name")
    release(handle)
    printed = capsys.readouterr().out
    assert printed.index("1 dead, 1 running.") < printed.index("wandb"), "the list comes first"
    assert f"{killed.folder}: wandb: has everything (KILLED)." in printed
    assert told(killed)[-1] == {"exit": 137}
    assert told(live) == [], "a live run has a courier of its own"
    (killed.folder / "told").unlink()
    assert list(deliver_by_the_way([killed.folder])) == []
    assert told(killed) == [], "nothing is started where nothing is missing"


def test_a_tracker_that_hangs_holds_up_the_list_of_runs_once_and_not_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made_up(tmp_path / "run", ["wandb"])
    log(run, [1, 3])
    behave(run, "hang at init")
    for wait in (2.0, 1000.0):
        monkeypatch.setattr("ups_fleet.tracking.delivery.WAIT", wait)
        before = time.monotonic()
        (sentence,) = deliver_by_the_way([run.folder])
        assert time.monotonic() - before < 100
        assert f"(it took longer than 2 s); `ups track {run.folder}` sends them." in sentence


def test_a_run_that_paused_as_it_was_asked_to_is_no_failure(tmp_path: Path) -> None:
    run = made_up(tmp_path / "run", ["wandb"])
    log(run, [1])
    end(run, Ending.PAUSED, products=False)
    assert deliver(run.folder, 200.0)[0].ending == "PAUSED"
    assert told(run)[-1] == {"exit": 0}


def test_steps_that_are_taken_again_open_the_tracker_anew(tmp_path: Path) -> None:
    run = made_up(tmp_path / "run", ["wandb"])
    with mirrored(run.folder, SETTINGS, print):
        log(run, [1, 3, 5])
        until(lambda: len(told(run)) == 4)
        log(run, [3, 5], factor=10.0)
        until(lambda: [row.get("codec/loss") for row in told(run)] == [None, 1.0, 30.0, 50.0])
        end(run, Ending.SUCCESS, products=False)
    assert told(run)[-1] == {"exit": 0}


def test_a_folder_without_mirrors_or_with_damaged_notes_is_no_trouble(tmp_path: Path) -> None:
    assert deliver(tmp_path) == []
    run = made_up(tmp_path / "run", [])
    with mirrored(run.folder, TrackingConfig(), print):
        pass
    assert deliver(run.folder) == []
    run.tracking("settings.json").write_text('{"to": ["../../csv"]}')
    assert deliver(run.folder) == []
    run = made_up(tmp_path / "run", ["csv"])
    run.tracking("csv.json").write_text('{"position": -5, "rows": "many"}')
    log(run, [1])
    end(run, Ending.SUCCESS, products=False)
    assert deliver(run.folder, 200.0)[0].whole
    assert (run.folder / "csv" / "codec.csv").read_text().count("\n") == 2


def test_a_strangers_folder_writes_nothing_elsewhere_and_names_no_server_unasked(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    run = made_up(tmp_path / "linked", ["csv"])
    log(run, [1])
    end(run, Ending.SUCCESS)
    (run.folder / "csv").mkdir()
    (run.folder / "csv" / "codec.csv").symlink_to(outside)
    assert not deliver(run.folder)[0].whole
    with pytest.raises(DataError, match=r"codec.csv: is a link"):
        deliver(run.folder, by_user=True)
    assert outside.read_text() == "mine"
    run = made_up(tmp_path / "naming", ["mlflow"], uri="http://127.0.0.1:9")
    log(run, [1])
    end(run, Ending.SUCCESS)
    assert deliver(run.folder)[0].trouble == "", "nobody has tried"


def test_a_mirror_that_could_not_write_for_want_of_room_is_named_with_the_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=False).returncode != 0:
        pytest.skip("a file system can be mounted by root only")
    try:
        run = made_up(disk / "run", ["csv"])
        log(run, [1])
        end(run, Ending.SUCCESS, products=False)
        (disk / "filler").write_bytes(bytes(os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize))
        (state,) = deliver(run.folder)
        assert f"1 line of the log and how it ended could not be sent (the disk of {run.folder} is full)" in (
            state.sentence(run.folder)
        )
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_what_troubles_a_mirror_is_said_once_while_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    run = made_up(tmp_path / "run", ["csv", "wandb"])
    MirrorReceipt(trouble="of an earlier start").write(run.tracking("csv.json"))
    os.utime(run.tracking("csv.json"), (1, 1))
    monkeypatch.setattr("ups_fleet.tracking.delivery.LOOK", 0.0)
    watch = TroubleWatch(run.folder, TrackingConfig(to=("csv", "wandb")), said.append)
    watch()
    assert said == []
    MirrorReceipt(trouble="OSError: [Errno 28] No space left on device").write(run.tracking("wandb.json"))
    os.utime(run.tracking("wandb.json"))  # some clocks of file systems are behind
    for _ in range(3):
        watch()
    assert said == [
        "wandb: cannot be told of the run now (OSError: [Errno 28] No space left on device); training goes on, and it "
        "is tried again."
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["csv", "tensorboard", "wandb", "mlflow"])
def test_a_mirror_whose_own_disk_is_full_never_says_that_it_has_everything(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W&B's own process loses what it cannot write, without a word; with room again, all of it is sent."""
    if name != "csv":
        pytest.importorskip(name)
    (tmp_path / "library" / "wandb.py").unlink()  # the real one
    monkeypatch.delenv("WANDB_API_KEY")
    run = made_up(tmp_path / "run", [name])
    disk = run.folder / name
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], check=False).returncode != 0:
        pytest.skip("a file system can be mounted by root only")
    try:
        said: list[str] = []
        with mirrored(run.folder, TrackingConfig(to=(name,), wait=20.0), said.append):
            log(run, range(1, 6000))
            for step in range(6000, 6240):  # as a run goes on
                if MirrorReceipt.read(run.tracking(f"{name}.json")).trouble:
                    break
                log(run, [step])
                time.sleep(1.0)
            end(run, Ending.SUCCESS, products=False)
        assert len(said) == 1
        assert "could not be sent" in said[0]
        assert "No space left" in said[0] or "is full" in said[0]
        subprocess.run(["mount", "-o", "remount,size=512m", disk], check=True)
        (state,) = deliver(run.folder, 60.0, by_user=True)
        assert state.whole, state.trouble
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_a_disk_that_takes_no_settings_is_said_and_the_run_goes_on(tmp_path: Path) -> None:
    said: list[str] = []
    run = made_up(tmp_path / "run", [])
    run.tracking("settings.json").unlink()
    run.tracking("").rmdir()
    run.tracking("").touch()
    with mirrored(run.folder, SETTINGS, said.append):
        end(run, Ending.SUCCESS, products=False)
    assert "training goes on" in said[0]
