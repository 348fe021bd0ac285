"""A reader that does not read holds up no supervisor, and one that is slow loses nothing."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broken_streams import code_of, started
from test_streams import RUN
from ups.streams import QUEUE

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
SAY = """
import os, signal, sys, time
from ups.streams import finish, never_wait, protect
protect()
never_wait()
{}
print("done", file=sys.stderr)
finish()
sys.exit(7)
"""


@pytest.fixture
def full_pipe() -> Iterator[tuple[int, int]]:
    """Both ends of a pipe into which nothing more goes."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writing, False)
    os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    yield reading, writing
    for end in (reading, writing):
        os.close(end)


def said(code: str, **streams: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", SAY.format(code)], env=ENVIRONMENT, **streams)


def test_a_run_whose_output_nobody_reads_ends_as_its_verdict_says_and_obeys_a_request_to_stop(
    tmp_path: Path, full_pipe: tuple[int, int]
) -> None:
    """Three at once: one that succeeds, one that is to stop, and one that is refused."""
    flags: dict[str, list[str]] = {"whole": [], "stopped": ["--operator.train.steps", "100000000"], "refused": []}
    runs = {}
    for name, more in flags.items():
        config = tmp_path / f"{name}.yaml"
        config.write_text(RUN.format(name=name, out=tmp_path))
        stuck = f"/proc/{os.getpid()}/fd/{full_pipe[1]}"
        if name == "refused":
            (tmp_path / name).mkdir()
            (tmp_path / name / "thesis.tex").touch()
        runs[name] = started(["run", str(config), *more], (stuck, stuck), tmp_path / "printed")
    end = time.monotonic() + 120
    while not list((tmp_path / "stopped" / "checkpoints").glob("codec/step-*")) and time.monotonic() < end:
        time.sleep(0.1)
    runs["stopped"].terminate()
    assert {name: code_of(run) for name, run in runs.items()} == {"whole": 0, "stopped": 15, "refused": 2}
    verdicts = {name: json.loads((tmp_path / name / "verdict.json").read_text())["verdict"] for name in list(runs)[:2]}
    assert verdicts == {"whole": "SUCCESS", "stopped": "PREEMPTED"}


def test_a_slow_reader_that_reads_to_the_end_loses_nothing_and_keeps_the_order() -> None:
    reading, writing = os.pipe()
    code = "for n in range(20_000): print(n, 'x' * 50, file=(sys.stdout, sys.stderr)[n % 2], flush=True)"
    process = said(code, stdout=writing, stderr=writing)
    os.close(writing)
    time.sleep(1.0)
    text = b""
    while part := os.read(reading, 1 << 16):
        text += part
        time.sleep(0.02)
    os.close(reading)
    assert process.wait(timeout=600) == 7
    assert [line.split()[0] for line in text.splitlines()] == [*(b"%d" % n for n in range(20_000)), b"done"]


def test_what_is_too_much_for_a_reader_is_counted_in_its_place(full_pipe: tuple[int, int], tmp_path: Path) -> None:
    reading, writing = full_pipe
    lines = 3 * QUEUE // 1000
    code = f"for n in range({lines}): print('%06d' % n, 'y' * 992, flush=True)\nopen({str(tmp_path / 'said')!r}, 'w')"
    with (tmp_path / "errors").open("wb") as errors:
        process = said(code, stdout=writing, stderr=errors.fileno())
        end = time.monotonic() + 120
        while not (tmp_path / "said").exists() and time.monotonic() < end:
            time.sleep(0.05)
        keep = os.dup(reading)
        os.set_blocking(keep, True)
        text = b""
        while b"%06d" % (lines - 1) not in text[-5000:]:
            text += os.read(keep, 1 << 16)
        text += os.read(keep, 1 << 16) if not text.endswith(b"\n") else b""
        os.close(keep)
    assert process.wait(timeout=600) == 7
    before, mark, after = text[4096:].partition(b"\nups: ")
    assert mark
    missing, _, after = after.partition(b" bytes are missing here, because they were not read in time.\n")
    assert len(before) + int(missing) + len(after) == lines * 1000
    assert len(after) <= QUEUE


def test_a_request_to_stop_ends_the_wait_for_a_slow_reader_and_not_the_exit_code(
    full_pipe: tuple[int, int], tmp_path: Path
) -> None:
    with (tmp_path / "errors").open("w+b") as errors:
        process = said(
            "import ups.streams; ups.streams.GRACE = 1000; print('lost')", stdout=full_pipe[1], stderr=errors
        )
        end = time.monotonic() + 120
        while (tmp_path / "errors").stat().st_size == 0 and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=600) == 7


def test_a_forked_child_of_such_a_process_prints_by_itself(tmp_path: Path) -> None:
    code = (
        "from ups.streams import alone\nassert alone()\n"
        "for n in range(100):\n"
        "    print('parent', n, flush=True)\n"
        "    if os.fork() == 0:\n"
        "        print('child', n, flush=True)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
    )
    with (tmp_path / "output").open("wb") as output:
        assert said(code, stdout=output.fileno(), stderr=output.fileno()).wait(timeout=600) == 7
    lines = sorted((tmp_path / "output").read_text().splitlines())
    assert lines == sorted([*(f"{who} {n}" for who in ("parent", "child") for n in range(100)), "done"])
