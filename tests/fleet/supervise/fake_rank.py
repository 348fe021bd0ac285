"""A rank that trains nothing and misbehaves on request: `fake_rank.py SCENARIO [WORD]`, at step 5 on the last rank."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from ups.types import ConfigError, UpsError
from ups.verdict import Ending
from ups_fleet.supervise.rank_context import RankContext

SCENARIO, WORD = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LAST = RANK == WORLD - 1
STEPS, AT = 10, 5
LONG = dict.fromkeys(("slow", "idle", "preempted", "stubborn", "workers"), 1000)
_held: list[bytearray] = []
LONG["pair"] = int(WORD or 400) if SCENARIO == "pair" else 0


class LostPeer(UpsError):  # noqa: N818
    """What the real control plane raises when a vote meets a closed connection."""


class OutOfMemoryError(RuntimeError):
    """What torch raises."""


def folder_of(seat: RankContext) -> Path:
    assert seat.run is not None
    return seat.run.folder


def act(seat: RankContext) -> None:
    """The fault, in forward of step 5."""
    first = seat.attempt == 1
    if SCENARIO == "silent":
        os._exit(0)
    if SCENARIO == "code":
        os._exit(int(WORD))
    if SCENARIO == "raise" or (SCENARIO == "lost-once" and first):
        known = {"user": ConfigError("a bad key; mend it."), "disk": OSError(28, "No space left on device")}
        raise {**known, "memory": MemoryError("no more")}.get(
            WORD, RuntimeError("CUDA error: an illegal memory access") if WORD == "cuda" else ValueError("not my day")
        )
    if SCENARIO == "crowd":  # so many modules that their list is longer than what is kept of a log
        sys.modules.update({f"extension_with_a_long_name_{n}": sys.modules["_thread"] for n in range(1000)})
        ctypes.string_at(0)
    if SCENARIO == "signal" or (SCENARIO == "signal-once" and first):
        os.kill(os.getpid(), getattr(signal, f"SIG{WORD}"))
        time.sleep(100)
    if SCENARIO == "hang" or (SCENARIO == "hang-once" and first):
        seat.pulse.beat(WORD or "data", op="loader 3")
        time.sleep(100)
    if SCENARIO == "gil":
        ctypes.PyDLL(None).sleep(100)  # a C call that keeps the interpreter locked
    if SCENARIO == "memory" and seat.pulse.microbatch > 2:
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    if SCENARIO == "hungry" and seat.pulse.microbatch > 2:  # in a control group that is too small for more
        Path(WORD, "cgroup.procs").write_text(str(os.getpid()))
        time.sleep(0.5)
        _held.extend(bytearray(b"x" * (1 << 20)) for _ in range(500))
    if SCENARIO == "no-memory":
        raise MemoryError
    if SCENARIO == "orphans":
        command = [sys.executable, "-c", "import time; time.sleep(100)"]
        children = [subprocess.Popen(command, start_new_session=new) for new in (False, True)]
        folder_of(seat).joinpath("children").write_text(" ".join(str(c.pid) for c in children))
        os.kill(os.getpid(), signal.SIGKILL)


def echo(seat: RankContext) -> None:
    """What the others do: wait in a vote for the last rank and notice, after a while, that it is not there."""
    seat.pulse.beat("vote", op="finish")
    time.sleep(0.3 if SCENARIO in ("raise", "signal", "signal-once", "orphans", "stop-echo") else 100)
    raise LostPeer("a rank is gone or stuck.")


def meet(seat: RankContext) -> None:
    """A heartbeat to the other ranks, wherever they are; one that has been silent for a second is lost."""
    home = folder_of(seat)
    mark = f"alive-{os.environ['UPS_GROUP']}"
    home.joinpath(f"{mark}-{RANK}").write_text("")
    silent = [time.time() - path.stat().st_mtime for r in range(WORLD) if (path := home / f"{mark}-{r}").exists()]
    if max(silent) > 1.0 and len(silent) == WORLD:
        raise LostPeer("a rank is gone or stuck.")


def start_workers() -> list[int]:
    """Children as ranks have them: a copy of the process, a program in a session of its own, one whose parent left."""
    copy = os.fork()
    if copy == 0:
        time.sleep(100)
    program = subprocess.Popen(["sleep", "100"], start_new_session=True)
    shell = "setsid sleep 100 >/dev/null & echo $!"
    daemon = subprocess.run(["sh", "-c", shell], stdout=subprocess.PIPE, check=True, stdin=subprocess.DEVNULL)
    return [copy, program.pid, int(daemon.stdout)]


def train(seat: RankContext) -> None:
    faulty = SCENARIO not in (
        "ok",
        "abort",
        "stubborn",
        "preempted",
        "slow",
        "no-word",
        "linger",
        "pair",
        "idle",
        "abort-early",
        "workers",
        "reporting",
    )
    pause = 0.1 if SCENARIO in ("slow", "preempted", "idle", "workers") else 0.01
    if SCENARIO == "workers":
        pids = [os.getppid(), os.getpid(), *start_workers()]
        draft = folder_of(seat) / f"pids-{RANK}.new"
        draft.write_text(" ".join(map(str, pids)))
        draft.replace(draft.with_suffix(""))
    if SCENARIO == "idle" and RANK == 0:
        raise SystemExit(int(Ending.PREEMPTED))  # asked to stop before the ranks have met
    for step in range(1, LONG.get(SCENARIO, STEPS) + 1):
        for phase in ("data", "forward"):
            seat.pulse.beat(phase, step)
            time.sleep(pause)
        if SCENARIO == "pair":
            meet(seat)
        if asked:
            raise SystemExit(int(Ending.PREEMPTED))
        if step == AT and faulty:
            done = SCENARIO.endswith("-once") and seat.attempt > 1
            done = done or (SCENARIO in ("memory", "hungry") and seat.pulse.microbatch <= 2)
            if LAST and not done:
                act(seat)
            elif not done:
                echo(seat)
    if SCENARIO == "abort-early" and RANK == 0:
        seat.pulse.beat("judge")
        time.sleep(1.5)  # longer than others may take to say what they saw of a failure
    if SCENARIO == "reporting" and RANK == 0:  # alone, while the others have nothing left to do
        for _ in range(10 * int(WORD)):
            seat.pulse.beat("judge")
            time.sleep(0.1)
            if asked:
                raise SystemExit(int(Ending.PREEMPTED))
    if SCENARIO != "no-word":
        seat.succeed(steps=STEPS)


asked: list[int] = []
if SCENARIO == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
elif SCENARIO != "slow":
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
print(f"rank {RANK} of {WORLD}, attempt {os.environ['UPS_ATTEMPT']}")
with RankContext() as seat:
    seat.pulse.note(min(seat.limit() or 8, 8))
    train(seat)
if SCENARIO.startswith("abort") and LAST:
    os.abort()
if SCENARIO == "linger" and LAST:
    time.sleep(100)
