"""Heartbeats are read whole from outside, whatever happens to their writer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ups.heartbeat import PHASES, WARM_UP, Beat, Pulse, read


def beat_of(path: Path) -> Beat:
    found = read(path)
    assert found is not None
    return found


def test_a_reader_sees_what_the_rank_last_said(tmp_path: Path) -> None:
    path = tmp_path / "beat"
    pulse = Pulse(path, rank=3)
    before = time.monotonic()
    pulse.beat("forward", 7, op="all_gather blocks.0 ü" + "x" * 40)
    pulse.note(16)
    beat = beat_of(path)
    assert (beat.rank, beat.pid, beat.step, beat.phase, beat.microbatch) == (3, os.getpid(), 7, "forward", 16)
    assert beat.op.startswith("all_gather blocks.0 ü")
    assert len(beat.op.encode()) <= 32
    assert before <= beat.time <= time.monotonic()
    pulse.beat("backward")
    assert (beat_of(path).step, beat_of(path).phase, beat_of(path).count) == (7, "backward", beat.count + 1)
    assert not beat_of(path).done
    pulse.close()
    assert beat_of(path).done


def test_no_path_means_no_file_and_no_cost_to_the_caller(tmp_path: Path) -> None:
    pulse = Pulse(None, 0)
    pulse.beat("data", 1)
    pulse.close()
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_phase_is_an_error_where_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        Pulse(tmp_path / "beat", 0).beat("lunch")


def test_a_fault_plan_fires_in_the_phase_it_was_made_for(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []

    def fire(phase: str, step: int) -> None:
        beat = beat_of(tmp_path / "beat")
        assert (beat.phase, beat.step) == (phase, step), "the beat is out before the fault strikes"
        seen.append((phase, step))

    pulse = Pulse(tmp_path / "beat", 0, fire)
    pulse.beat("data", 1)
    pulse.beat("vote")
    assert seen == [("data", 1), ("vote", 1)]


def test_warm_up_teaches_nothing_and_later_stays_are_remembered(tmp_path: Path) -> None:
    now = [0.0]
    pulse = Pulse(tmp_path / "beat", 0, clock=lambda: now[0])
    index = PHASES.index("forward")
    for step in range(1, WARM_UP + 4):
        pulse.beat("forward", step)
        now[0] += 100.0 if step <= WARM_UP else step
        pulse.beat("data")
    beat = beat_of(tmp_path / "beat")
    assert not beat.warm
    assert (beat.seen[index], beat.longest[index]) == (3, WARM_UP + 3)
    pulse.beat("forward", 1)  # another stage begins
    assert beat_of(tmp_path / "beat").warm


def test_a_damaged_half_leaves_the_other_readable(tmp_path: Path) -> None:
    path = tmp_path / "beat"
    pulse = Pulse(path, 0)
    for step in range(1, 6):
        pulse.beat("data", step)
    content = bytearray(path.read_bytes())
    half = len(content) // 2
    start = (beat_of(path).count % 2) * half
    content[start + 24] ^= 1
    path.write_bytes(content)
    assert beat_of(path).step == 4
    path.write_bytes(bytes(2 * half))
    assert read(path) is None
    assert read(tmp_path / "none") is None


def test_a_reader_never_sees_half_a_beat_and_a_kill_leaves_one_readable(tmp_path: Path) -> None:
    path = tmp_path / "beat"
    code = (
        "import sys; from pathlib import Path; from ups.heartbeat import Pulse\n"
        "pulse, step = Pulse(Path(sys.argv[1]), 5), 0\n"
        "while True:\n    step += 1; pulse.note(step); pulse.beat('data', step, op=str(step))\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, str(path)])
    try:
        while read(path) is None:
            time.sleep(0.01)
        last, end = 0, time.monotonic() + 120
        while last < 5000 and time.monotonic() < end:
            beat = beat_of(path)
            assert beat.op in ("", str(beat.step))
            assert beat.microbatch - beat.step in (0, 1)
            assert beat.count >= last
            last = beat.count
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    assert beat_of(path).count >= last >= 5000


def test_nothing_here_needs_torch() -> None:
    code = "import sys, ups.heartbeat, ups.verdict\nassert 'torch' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_rank_that_waits_for_its_peers_says_so_whatever_its_phase(tmp_path: Path) -> None:
    path = tmp_path / "beat"
    pulse = Pulse(path, rank=0)
    pulse.beat("backward", 1)
    assert not beat_of(path).waiting
    pulse.wait("all-gather of blocks.0")
    assert (beat_of(path).waits, beat_of(path).phase, beat_of(path).op) == (True, "backward", "all-gather of blocks.0")
    pulse.wait("")
    assert not beat_of(path).waiting
    pulse.wait("gate")
    pulse.beat("forward", 2)
    assert not beat_of(path).waits, "a new phase is a new place"
    pulse.beat("vote")
    assert beat_of(path).waiting, "a vote is for waiting"
