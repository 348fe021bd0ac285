"""Work in children: whatever it does is found out in time, named, and nobody is left."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from watched_ranks import run_ranks, values

from ups_fleet.supervise.forked_functions import CaughtExit, failure_of, first_failure, run_copy
from ups_fleet.supervise.proc import state_of


def misbehave(how: str) -> str:
    """On rank 1; the other returns."""
    if os.environ["RANK"] == "1":
        print("on rank 1")
        if how == "crash":
            ctypes.string_at(0)
        elif how == "raise":
            raise ValueError("no")
        elif how == "hang":
            ctypes.PyDLL(None).sleep(1000)  # keeps the interpreter locked
        elif how == "leave":
            os._exit(0)
    return os.environ["WORLD_SIZE"]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("crash", "rank 1: ended by a segmentation fault, in string_at"),
        ("raise", "rank 1: ValueError: no"),
        ("hang", "rank 1: did not answer within 4 s, in misbehave"),
        ("leave", "rank 1: left with exit code 0 and without a word"),
    ],
)
def test_a_rank_that_ends_badly_is_named_and_the_others_are_heard(how: str, words: str) -> None:
    run_ranks(misbehave, 1, "")  # the imports of the server are not to be counted
    results = run_ranks(misbehave, 2, how, timeout=4 if how == "hang" else 400)
    assert failure_of(results).startswith(words)
    assert results[0].value == "2"
    assert "on rank 1" in results[1].log or how != "raise"
    with pytest.raises(AssertionError, match="rank 1 ended with"):
        values(results)


def unpicklable() -> Any:
    return threading.Lock()


def left_behind(path: Path) -> None:
    path.write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)


def test_a_value_that_cannot_be_sent_is_an_error_of_the_rank_that_has_it() -> None:
    (result,) = run_ranks(unpicklable, 1)
    assert not result.well
    assert "does not pickle" in result.ending()


def test_a_child_that_is_stopped_is_not_left_behind(tmp_path: Path) -> None:
    result = run_copy(left_behind, tmp_path / "pid", seconds=0.5)
    assert (result.hung, result.exitcode) == (True, -signal.SIGKILL)
    assert state_of(int((tmp_path / "pid").read_text())) in ("", "Z")


def seen() -> tuple[str | None, ...]:
    return tuple(os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "OWN"))


def test_ranks_find_what_a_launcher_would_tell_them_and_copies_what_their_parent_finds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert values(run_ranks(seen, 2, env={"OWN": "x"})) == [(str(r), "2", None, "x") for r in range(2)]
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OWN", "y")
    assert values([run_copy(seen, seconds=100)]) == [(None, None, None, "y")]


def test_the_one_that_failed_is_named_before_those_that_waited_for_it() -> None:
    crashed, raised = run_ranks(misbehave, 2, "crash")[1], run_ranks(misbehave, 2, "raise")[1]
    assert first_failure([raised, crashed]) == (1, crashed)
    assert failure_of([]) == ""


@pytest.mark.parametrize(("left", "code"), [(None, 0), (0, 0), (17, 17), ("words", 1)])
def test_a_block_ends_as_a_process_would(left: Any, code: int) -> None:
    with CaughtExit() as caught:
        raise SystemExit(left)
    assert (caught.code, bool(caught.result.error)) == (code, code != 0)
