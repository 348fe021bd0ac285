"""A rank that, in one long phase, works where few would look for it, or does nothing: `still_rank.py KIND [PHASE]`."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time

from ups_fleet.supervise.rank_context import RankContext

KIND, PHASE = sys.argv[1], (sys.argv[2:] or ["judge"])[0]
RANK = int(os.environ["RANK"])
LONG = 5.0  # seconds of a healthy phase: some windows
SPIN = "import time\nend = time.monotonic() + {}\nwhile time.monotonic() < end: pass"


def work(seat: RankContext) -> None:
    """Healthy, each in its own way, and without a beat."""
    assert seat.run is not None
    end = time.monotonic() + LONG
    if KIND == "computes":
        exec(SPIN.format(LONG))
    elif KIND == "child":
        subprocess.run([sys.executable, "-c", SPIN.format(LONG)], check=True)
    elif KIND == "reads":
        with open(sys.executable, "rb", buffering=0) as file:
            while time.monotonic() < end:
                file.seek(0)
                file.read(1 << 16)
                time.sleep(0.3)
    elif KIND == "crowded":  # others have its core
        core = min(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {core})
        neighbour = subprocess.Popen([sys.executable, "-c", SPIN.format(LONG)], start_new_session=True)
        neighbour.wait() if not os.fork() else None
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        exec(SPIN.format(LONG))
    elif KIND == "lock":  # that a process which is no rank has
        holder = (
            f"import fcntl, time; fcntl.flock(open({str(seat.run.folder / 'a.lock')!r}, 'w'), 2); time.sleep({LONG})"
        )
        subprocess.Popen(["setsid", "-f", sys.executable, "-c", holder])
        while not (seat.run.folder / "a.lock").exists():
            time.sleep(0.05)
        time.sleep(0.3)
        with (seat.run.folder / "a.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
    elif KIND == "peer":  # which works, and is not said to be waited for
        exec(SPIN.format(LONG)) if RANK else time.sleep(LONG)


def hang(seat: RankContext) -> None:
    if KIND == "sleeps" and int(os.environ["WORLD_SIZE"]) - 1 == RANK:
        seat.pulse.beat(PHASE)
        time.sleep(100)
    if KIND == "prepares":  # rank 0 does nothing while the others wait for it, awake
        while RANK:
            seat.pulse.beat("idle")
            time.sleep(0.05)
        time.sleep(100)
    if KIND == "worker":
        child = subprocess.Popen(["sleep", "100"])
        os.kill(child.pid, signal.SIGSTOP)
        seat.pulse.beat(PHASE)
        child.wait()
    seat.pulse.beat("vote")
    time.sleep(100)


if KIND == "early" and RANK == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
with RankContext() as seat:
    seat.pulse.beat(PHASE, 3)
    if KIND in ("sleeps", "prepares", "worker", "early"):
        hang(seat)
    work(seat)
    seat.succeed()
