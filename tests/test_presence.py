"""Who writes a run: two writers are impossible, looking disturbs nobody, and another machine is heard, not guessed."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from ups.presence import SILENT, HeldError, LockHolder, SignsOfLife, hold, look, release


def elsewhere(lock: Path, age: float) -> None:
    """A lock as a process on another machine has left it, whose flock is not seen here."""
    lock.write_text(json.dumps(asdict(replace(LockHolder.me(), host="far", boot="another", pid=7))))
    os.utime(lock, (time.time() - age,) * 2)


def test_a_lock_is_held_once_and_says_by_whom(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    assert not look(lock).held
    handle = hold(lock)
    presence = look(lock)
    assert presence.alive
    assert presence.writer is not None
    assert (presence.writer.pid, presence.writer.here) == (os.getpid(), True)
    with pytest.raises(HeldError, match="another process is writing"):
        hold(lock)
    assert look(lock).writer == presence.writer, "a refused writer leaves no trace"
    release(handle)
    assert (look(lock).held, look(lock).writer) == (False, None)


def test_many_who_look_keep_no_writer_out(tmp_path: Path) -> None:
    lock, done = tmp_path / ".lock", threading.Event()

    def ask() -> None:
        while not done.is_set():
            look(lock)
            time.sleep(0.001)

    readers = [threading.Thread(target=ask) for _ in range(4)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(50):
            release(hold(lock))
    finally:
        done.set()
        for reader in readers:
            reader.join()


def test_a_killed_writer_of_this_machine_is_gone_at_once(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    if (child := os.fork()) == 0:
        hold(lock)
        os._exit(0)  # as a kill: nothing is given back
    os.waitpid(child, 0)
    presence = look(lock)
    assert presence.writer is not None
    assert presence.writer.pid == child
    assert not presence.alive
    release(hold(lock))


def test_a_writer_on_another_machine_is_believed_while_it_gives_signs_of_life(tmp_path: Path) -> None:
    """Not every shared filesystem shows the locks of other machines."""
    lock = tmp_path / ".lock"
    elsewhere(lock, age=3)
    assert look(lock).alive
    with pytest.raises(HeldError, match="process 7 on far wrote this run 3 s ago"):
        hold(lock)
    elsewhere(lock, age=SILENT + 1)
    assert not look(lock).alive
    SignsOfLife(lock)()
    assert look(lock).alive, "a sign of life counts from when it is given"
    elsewhere(lock, age=SILENT + 1)
    release(hold(lock))


def test_a_lock_that_was_deleted_is_taken_anew_and_keeps_a_second_writer_out(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    handle, alive = hold(lock), SignsOfLife(lock)
    lock.unlink()
    alive()
    assert look(lock).alive
    with pytest.raises(HeldError):
        hold(lock)
    alive.close()
    release(handle)
    assert not look(lock).held
    SignsOfLife(None)()


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"host": 1}', b"\xff" * 9000])
def test_a_damaged_lock_names_nobody_and_stops_nobody(tmp_path: Path, content: bytes) -> None:
    lock = tmp_path / ".lock"
    lock.write_bytes(content)
    assert look(lock).writer is None
    release(hold(lock))
