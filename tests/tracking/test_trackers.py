"""Every tracker of TRACKERS: it appends after a resume, survives torn files and full disks, and never raises."""

from __future__ import annotations

import re
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ups.tracking import TRACKERS, Tracker, open_trackers, require
from ups.types import ConfigError
from ups.verdict import Ending

VALUES = {"codec/loss": 0.5, "codec/Fehler ü/µ": 1e-30, "codec/bad": float("nan"), "codec/worse": -float("inf")}


PAGE = Path(__file__).parents[2] / "docs" / "howto-add-a-tracker.md"


def of_the_page() -> dict[str, type[Tracker]]:
    """The tracker of docs/howto-add-a-tracker.md, its blocks executed as they are written."""
    module, line = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    namespace: dict[str, object] = {}
    exec(module, namespace)
    found: dict[str, type[Tracker]] = eval(f"{{{line}}}", namespace)
    return found


@pytest.fixture(params=[*TRACKERS, *of_the_page()])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Tracker]:
    for name, tracker in of_the_page().items():
        monkeypatch.setitem(TRACKERS, name, tracker)
    found = TRACKERS[request.param]
    try:
        found.require()
    except ConfigError as error:
        pytest.skip(str(error))
    return found


def files(place: Path) -> list[Path]:
    return sorted(p for p in [place, *place.rglob("*")] if p.is_file())


def content(place: Path) -> bytes:
    return b"".join(path.read_bytes() for path in files(place))


def refused(sentence: str) -> None:
    raise AssertionError(sentence)


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process can grow."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_every_line_is_on_disk_when_log_returns_and_a_resumed_run_appends(kind: type[Tracker], tmp_path: Path) -> None:
    place = tmp_path / kind.place
    seen = [b""]
    for ending in (Ending.PREEMPTED, Ending.OOM, Ending.SUCCESS):
        tracker = kind(tmp_path, refused)
        for step in (1, 2):
            tracker.log(step, {**VALUES, "codec/note": f"{ending.name}, 'ä' \n\"b\"", "count": step})
            seen.append(content(place))
        tracker.close(ending.name)
        assert tracker.lost == 0
    assert len(set(seen)) == len(seen), "each line is there when log returns"
    assert "µ".encode() in content(place)
    names = [name for name, other in TRACKERS.items() if other is kind]
    assert kind in [type(tracker) for tracker in open_trackers(names, tmp_path, refused)]


def test_a_tracker_that_is_killed_needs_no_close(kind: type[Tracker], tmp_path: Path) -> None:
    kind(tmp_path, refused).log(1, VALUES)
    before = content(tmp_path / kind.place)
    assert before
    later = kind(tmp_path, refused)
    later.log(2, VALUES)
    assert content(tmp_path / kind.place) != before
    later.close("SUCCESS")


def test_torn_files_cost_no_further_line(kind: type[Tracker], tmp_path: Path) -> None:
    first = kind(tmp_path, refused)
    first.log(1, VALUES)
    first.close("RANK_DIED")
    for path in files(tmp_path / kind.place):
        path.write_bytes(path.read_bytes()[:-3])
    before = content(tmp_path / kind.place)
    later = kind(tmp_path, refused)
    for step in (2, 3):
        later.log(step, VALUES)
    later.close("SUCCESS")
    assert later.lost == 0
    assert content(tmp_path / kind.place) != before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_full_disk_is_said_once_and_counted(kind: type[Tracker], tmp_path: Path) -> None:
    said: list[str] = []
    with full_disk():  # not for longer: pytest may be writing to a file itself
        tracker = kind(tmp_path, said.append)
        for step in range(3):
            tracker.log(step, VALUES)
        lost, told = tracker.lost, len(said)
        tracker.close("STORAGE")
    assert (lost, told) == (3, 1)
    assert "training goes on" in said[0]
    assert "could not be written" in said[1]
    assert len(said) == 2


def test_a_disk_that_recovers_is_written_again(kind: type[Tracker], tmp_path: Path) -> None:
    folder, said = tmp_path / "later", []
    folder.write_text("in the way")
    tracker = kind(folder, said.append)
    tracker.log(0, VALUES)
    assert (tracker.lost, len(said)) == (1, 1)
    folder.unlink()
    tracker.log(1, VALUES)
    assert tracker.lost == 1
    assert content(folder / kind.place)
    tracker.close("SUCCESS")
    assert said[1:] == [f"{folder / kind.place}: 1 line could not be written."]


def test_the_log_is_always_on_and_comes_first(tmp_path: Path) -> None:
    assert [type(t) for t in open_trackers((), tmp_path, refused)] == [TRACKERS["jsonl"]]
    names = ("csv", "jsonl")
    assert [type(t) for t in open_trackers(names, tmp_path, refused)] == [TRACKERS["jsonl"], TRACKERS["csv"]]


def test_an_unknown_tracker_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"^there is no tracker 'wandb'; the trackers are jsonl, csv, tensorboard"):
        require(["csv", "wandb"])


def test_what_is_missing_is_said_before_training_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # noqa: ARG005
    with pytest.raises(ConfigError, match=r"pip install 'universal-physics-stack\[tensorboard\]'"):
        require(["csv", "tensorboard"])
