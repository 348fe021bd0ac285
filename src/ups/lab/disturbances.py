"""Disturbs what is around a run: its disk, clock, neighbours, memory, port, checkpoints, what others left behind."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ups.engine.checkpoint.manifest import listing
from ups.lab.case import STEPS, Case
from ups.run.config import RunConfig
from ups.rundir import RunDir, StartDir
from ups.supervise.job import Start
from ups.supervise.launchers.forked import close_inherited, default_signals, fork
from ups.supervise.launchers.launcher import read_pids
from ups.supervise.proc import alive
from ups.supervise.rank_parent import die_with_parent

VARIABLE = "UPS_LAB"  # the setting of the case, for the ranks
HOURS = 3 * 3600.0
ROOM = 2 << 30  # bytes that a capped rank may take: more than an allocator may have kept; they are not touched

_kept_open: list[Any] = []  # as long as this process lives


def before_start(case: Case, run: RunDir) -> Callable[[Start], None]:
    """What to do to a run whenever its ranks are about to be started."""
    setting = case.setting

    def act(start: Start) -> None:
        if case.damage and start.attempt == 2:
            damage(case.damage, run)
        if setting.startswith("disk"):
            mount_disk(setting, run)
        elif setting == "log full":
            run.metrics.symlink_to("/dev/full")
        elif setting == "log is a folder":
            run.metrics.mkdir()
        elif setting.startswith(("pulses", "crowd")):
            _beside(start, setting)

    return act


def before_run(case: Case, config: RunConfig, run: RunDir) -> None:
    """Disturb the process that will supervise the run, before it begins."""
    os.environ[VARIABLE] = case.setting
    if case.setting == "nested":
        os.environ.update(RANK="0", WORLD_SIZE="2", TORCHELASTIC_RUN_ID="another")
    elif case.setting == "stale":
        os.environ.update(RANK="1", WORLD_SIZE="4")
    elif case.setting == "stale address":
        os.environ.update(MASTER_ADDR="198.51.100.7", MASTER_PORT="1", LOCAL_WORLD_SIZE="8")
    elif case.setting == "second":
        _kept_open.append(RunDir.open(run.folder, config))
    elif case.setting.startswith("clock of supervisor"):
        shift_clock(case.setting.split()[-1])


def enter(rank: int) -> Callable[[int, int], None]:
    """Disturb this rank. What is returned is called with the step and the samples of every loss."""
    setting = os.environ.get(VARIABLE, "")
    words = setting.split()
    if setting.startswith(f"clock of {rank} "):
        shift_clock(words[-1])
    elif setting == f"crowd of {rank}":
        os.nice(19)
        os.sched_setaffinity(0, {_core(rank)})
    elif setting.startswith(f"cap of {rank} "):
        return Cap(int(words[3]), words[4] == "python", int(words[5]) if "for good" in setting else 0)
    return lambda step, samples: None  # noqa: ARG005


class Cap:
    """From a step on, really allocates memory while the address space is really limited.

    Once, and far too much; or, with `most`, at every step, so much that `most` samples are too many and half are not.
    """

    def __init__(self, step: int, python: bool, most: int) -> None:
        self.step, self.python, self.most, self.over = step, python, most, False

    def __call__(self, step: int, samples: int) -> None:
        if step < self.step or self.over:
            return
        self.over = not self.most
        size = int(1.5 * ROOM * samples / self.most) if self.most else 2 * ROOM
        with _limited(ROOM):
            bytearray(size) if self.python else torch.empty(size, dtype=torch.uint8)


@contextlib.contextmanager
def _limited(room: int) -> Iterator[None]:
    """This process gets no more than `room` bytes beyond what it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def shift_clock(how: str) -> None:
    """This process's wall clock is hours `ahead`, hours `behind`, or the one and the other in turn (`jumps`)."""
    offsets = {"ahead": (HOURS,), "behind": (-HOURS,), "jumps": (HOURS, -HOURS)}[how]
    turn, names, true, whole = itertools.cycle(offsets), time, time.time, time.time_ns
    setattr(names, "time", lambda: true() + next(turn))  # noqa: B010  (another's name)
    setattr(names, "time_ns", lambda: whole() + int(1e9 * next(turn)))  # noqa: B010


def _core(rank: int) -> int:
    cores = sorted(os.sched_getaffinity(0))
    return cores[rank % len(cores)]


def _beside(start: Start, setting: str) -> None:
    """A process beside the ranks of one start that makes life hard for them, and is gone when they are."""
    supervisor = os.getpid()

    def work() -> None:
        default_signals()
        die_with_parent(signal.SIGKILL, supervisor)
        close_inherited()
        _disturb(start.files, supervisor, *setting.split(" of "))

    fork(work)


def _disturb(files: StartDir, supervisor: int, how: str, who: str) -> None:
    """Until the ranks are gone: `pulses` stop one, all or the supervisor; a `crowd` has one's core half the time."""
    if how == "crowd":
        os.sched_setaffinity(0, {_core(int(who))})
    draw, seen = random.Random(f"{how} {who}"), False
    while True:
        living = {rank: pid for rank, pid in read_pids(files).items() if alive(pid)}
        if seen and not living:
            return
        seen = seen or bool(living)
        if how == "crowd":
            end = time.monotonic() + 0.1
            while time.monotonic() < end:
                pass
        elif who == "supervisor":
            _pulse([supervisor], draw)
        else:
            _pulse([pid for rank, pid in living.items() if who in ("all", str(rank))], draw)
        time.sleep(0.1)


def _pulse(pids: list[int], draw: random.Random) -> None:
    """Stop them for a while that is no hang."""
    for number, seconds in ((signal.SIGSTOP, draw.uniform(0.05, 0.5)), (signal.SIGCONT, 0.0)):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        time.sleep(seconds)


def damage(kind: str, run: RunDir) -> None:
    """Do to the newest checkpoint what disks and people do."""
    checkpoints = [listing(run.checkpoints(stage)) for stage in reversed(STEPS)]
    newest = next((paths[0] for paths in checkpoints if paths), None)
    if newest is None:
        return
    largest = max((p for p in newest.iterdir()), key=lambda p: p.stat().st_size)
    if kind == "flip":
        content = bytearray(largest.read_bytes())
        content[random.Random(len(content)).randrange(len(content))] ^= 4
        largest.write_bytes(content)
    elif kind == "truncate":
        os.truncate(largest, largest.stat().st_size // 2)
    elif kind == "missing":
        largest.unlink()
    elif kind == "foreign":
        (newest / "another").write_bytes(b"of another run")
    else:
        (newest / "manifest.json").write_text("{}")


def can_mount() -> bool:
    """Whether this process may mount a file system."""
    return os.geteuid() == 0 and shutil.which("mount") is not None


def mount_disk(setting: str, run: RunDir) -> None:
    """A disk as `setting` says ("disk of 200k", "disk that is read-only") for the checkpoints of a run."""
    folder = run.checkpoints()
    folder.mkdir()
    size = setting.rpartition(" ")[2] if setting.startswith("disk of") else "64m"
    _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    if setting.endswith("read-only"):
        _mount("-o", "remount,ro", str(folder))


def mend_disk(run: RunDir) -> None:
    """Make it large and writable, keeping what it holds."""
    _mount("-o", "remount,rw,size=64m", str(run.checkpoints()))


@contextlib.contextmanager
def unmounted_after(run: RunDir) -> Iterator[None]:
    """Nothing is mounted in the run's folder afterwards."""
    try:
        yield
    finally:
        if os.path.ismount(run.checkpoints()):
            subprocess.run(["umount", "-l", str(run.checkpoints())], check=False, capture_output=True)


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)
