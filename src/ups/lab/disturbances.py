"""What surrounds a run: its disk, its clock, its neighbours, its memory, its port, what others have left behind."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ups.engine.manifest import listing
from ups.jobs.run import STAGES
from ups.jobs.settings import RunConfig
from ups.lab import small_disks
from ups.lab.case import Case
from ups.lab.fork_launcher import let_go
from ups.supervise import launchers
from ups.supervise.forked import Ended
from ups.supervise.rank_states import state_of
from ups.supervise.job import Start
from ups.supervise.rank_parent import die_with_parent
from ups.rundir import RunDir

VARIABLE = "UPS_LAB"  # what surrounds it, for the ranks to see
HOURS = 3 * 3600.0
ROOM = 256 << 20  # bytes that a capped rank may take: more than an allocator may have kept; they are not touched

_held: list[Any] = []  # what is kept open as long as this process lives


def before(case: Case, home: Path) -> Callable[[Start], None]:
    """What happens to a run whenever its ranks are about to be started."""
    setting = case.setting

    def act(start: Start) -> None:
        if case.damage and start.attempt == 2:
            damage(case.damage, home)
        if setting.startswith("disk"):
            disks.put(setting, home)
        elif setting == "log full":
            (home / "metrics.jsonl").symlink_to("/dev/full")
        elif setting == "log is a folder":
            (home / "metrics.jsonl").mkdir()
        elif setting == "port taken":
            _take_port(start.attempt == 1)
        elif setting.startswith(("pulses", "crowd")):
            _beside(start, setting)

    return act


def surround(case: Case, config: RunConfig) -> None:
    """What is the matter before a run begins, in the process that will supervise it."""
    home = Path(config.out) / config.name
    os.environ[VARIABLE] = case.setting
    if case.setting == "nested":
        os.environ.update(RANK="0", WORLD_SIZE="2", TORCHELASTIC_RUN_ID="another")
    elif case.setting == "stale":
        os.environ.update(RANK="1", WORLD_SIZE="4")
    elif case.setting == "stale address":
        os.environ.update(MASTER_ADDR="198.51.100.7", MASTER_PORT="1", LOCAL_WORLD_SIZE="8")
    elif case.setting == "second":
        _held.append(RunDir.open(home, config))
    elif case.setting.startswith("clock of supervisor"):
        shift_clock(case.setting.split()[-1])


def enter(rank: int) -> Callable[[int, int], None]:
    """What surrounds this rank. What is returned is called with the step and the samples of every loss."""
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
    """From a step on, memory is really asked for while the address space is really limited.

    Once, and far too much; or, for good, so much that `most` samples at once are too many and half of them are not.
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
    """No more than `room` bytes beyond what this process has now."""
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


def _take_port(taken: bool) -> None:
    """The port that the launcher finds is no longer free when the ranks want it; or it is again."""
    if taken:
        _held.extend((launchers.free_port, socket.create_server(("", 0))))
    port, server = _held[-2:]
    launchers.free_port = (lambda: int(server.getsockname()[1])) if taken else port
    if not taken:
        server.close()


def _core(rank: int) -> int:
    cores = sorted(os.sched_getaffinity(0))
    return cores[rank % len(cores)]


def _beside(start: Start, setting: str) -> None:
    """A process beside the ranks of one start that makes life hard for them, and is gone when they are."""
    supervisor = os.getpid()
    if os.fork():
        return
    with Ended() as ended:  # whatever happens to it, it is no second supervisor
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        die_with_parent(signal.SIGKILL, supervisor)
        let_go()
        _disturb(start.folder, supervisor, *setting.split(" of "))
    os.write(2, ended.told.traceback.encode())
    os._exit(ended.code)


def _disturb(folder: Path, supervisor: int, how: str, who: str) -> None:
    """Until the ranks are gone: `pulses` stop one, all or the supervisor; a `crowd` has one's core half the time."""
    if how == "crowd":
        os.sched_setaffinity(0, {_core(int(who))})
    draw, seen = random.Random(f"{how} {who}"), False
    while True:
        pids = launchers.read_pids(folder)
        alive = {rank: pid for rank, pid in pids.items() if state_of(pid) not in ("", "Z")}
        if seen and not alive:
            return
        seen = seen or bool(alive)
        if how == "crowd":
            _spin(0.1)
        elif who == "supervisor":
            _pulse([supervisor], draw)
        else:
            _pulse([pid for rank, pid in alive.items() if who in ("all", str(rank))], draw)
        time.sleep(0.1)


def _spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def _pulse(pids: list[int], draw: random.Random) -> None:
    """Stop them for a while that is no hang."""
    for number, seconds in ((signal.SIGSTOP, draw.uniform(0.05, 0.5)), (signal.SIGCONT, 0.0)):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        time.sleep(seconds)


def damage(kind: str, home: Path) -> None:
    """Do to the newest checkpoint what disks and people do."""
    found = [listing(home / "checkpoints" / stage) for stage in reversed(STAGES)]
    newest = next((paths[0] for paths in found if paths), None)
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
