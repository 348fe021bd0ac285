"""Whatever happens to a sender, it is ended with all it has started, said, and started again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ups_fleet.outbox import DONE, Line, Post, Sender, couriers_of, end_couriers, sending
from ups_fleet.supervise.children import Program
from ups_fleet.supervise.proc import alive
from ups_fleet.tracking import TrackingConfig, mirrored

REASONS = {
    "hang": "nothing was sent for 0 s",
    "raise": "ConnectionError: no answer",
    "die": "it ended with code 3",
    "leave": "it ended with code 0",
}


@dataclass
class Moody(Sender):
    """Behaves as a file says, and has sent what it was to send when it has written another."""

    place: Path
    patience = 1000.0

    def send(self, line: Line) -> int:
        mood = (self.place / "mood").read_text()
        child = subprocess.Popen(["sleep", "1000"])
        (self.place / "child").write_text(str(child.pid))
        if mood == "hang":
            time.sleep(1000)
        if mood == "raise":
            raise ConnectionError("no answer")
        if mood == "die":
            os._exit(3)
        if mood == "well":
            (self.place / "sent").touch()
            while not line.over(0.05):
                line.beat()
        return DONE

    def whole(self) -> bool:
        return (self.place / "sent").exists()

    def troubled(self, reason: str, printed: bytes) -> None:  # noqa: ARG002
        (self.place / "trouble").write_text(reason)


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("mood", REASONS)
def test_a_sender_that_fails_is_said_and_started_again(mood: str, tmp_path: Path) -> None:
    post = Post(sender := Moody(tmp_path), bytes)
    (tmp_path / "mood").write_text(mood)
    if mood == "hang":
        sender.patience = 0.3  # type: ignore[misc]
    until(lambda: post.look(time.monotonic()) or post.failures)
    assert (tmp_path / "trouble").read_text() == REASONS[mood]
    until(lambda: not alive(int((tmp_path / "child").read_text())))
    assert (post.child, post.finished) == (None, False)
    (tmp_path / "mood").write_text("well")
    sender.patience = 1000.0  # type: ignore[misc]
    until(lambda: post.look(time.monotonic()) or (tmp_path / "sent").exists())
    post.end()
    until(lambda: post.look(time.monotonic()) or post.finished)


def test_a_run_without_any_process_to_be_had_goes_on() -> None:
    asked: list[None] = []

    def none() -> Program | None:
        asked.append(None)
        return None

    with sending(none, 1.0):
        assert len(asked) == 1
    assert len(asked) == 2, "at the end it is tried again"


OWNER = """
import sys, time
from pathlib import Path
from ups_fleet.tracking import TrackingConfig, mirrored
with mirrored(Path(sys.argv[1]), TrackingConfig(to=("csv",), wait=600), print):
    time.sleep(600)
"""


def test_the_courier_of_a_killed_run_does_not_keep_the_mirrors_of_the_run_that_goes_on(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)])
    until((tmp_path / "tracking" / "csv.lock").exists)
    owner.kill()
    owner.wait()
    assert couriers_of(tmp_path)
    end_couriers(tmp_path)  # as every start of a run does
    assert couriers_of(tmp_path) == []
    with mirrored(tmp_path, TrackingConfig(to=("csv",)), print):
        until((tmp_path / "csv").is_dir)
