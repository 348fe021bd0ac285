"""Processes of this machine as /proc shows them: their state, whose they are, their groups, and how they are ended."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from ups_fleet.supervise.rank_parent import DeathSwitch


def stat_of(pid: int | str) -> list[str]:
    """The fields of /proc/PID/stat from the third on, the state; empty where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()


def state_of(pid: int) -> str:
    """The process state in /proc: R, S, D, T, t, Z; empty where there is no such process."""
    return next(iter(stat_of(pid)), "")


def alive(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    return state_of(pid) not in ("", "Z")


def group_of(pid: int) -> int:
    """The process group; 0 where there is no such process."""
    fields = stat_of(pid)
    return int(fields[2]) if fields else 0


def children(pid: int) -> list[int]:
    """The children of a process, of all its threads."""
    if not _lists_children():
        stats = {int(name): stat_of(name) for name in os.listdir("/proc") if name.isdecimal()}
        return [child for child, fields in stats.items() if fields and int(fields[1]) == pid]
    pids: list[int] = []
    with contextlib.suppress(OSError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                pids += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return pids


def descendants(pid: int) -> list[int]:
    """Its children, theirs, and so on."""
    pids, new = [], children(pid)
    while new:
        pids += new
        new = [below for one in new for below in children(one)]
    return pids


@functools.cache
def _lists_children() -> bool:
    """Whether this kernel lists the children of a thread; not all do."""
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def owned(name: str, value: str) -> dict[int, dict[str, str]]:
    """Processes of this machine that were started with `name=value` in their environment, and their UPS_ variables."""
    return {pid: variables for pid, variables in _environments() if variables.get(name) == value and alive(pid)}


def of_run(folder: Path) -> dict[int, dict[str, str]]:
    """This user's processes that a supervisor has started for the run in `folder`, and their UPS_ variables."""
    mine = identity(folder)
    return {} if mine is None else of_runs().get(mine, {})


def of_runs() -> dict[tuple[int, int], dict[int, dict[str, str]]]:
    """As `of_run`, for all runs, by the identity of a run's folder.

    Anybody may name a folder in UPS_HOME; the other two variables are a supervisor's. It is the folder itself that
    counts (device and inode), as each process sees it: in another mount namespace the same path is another folder.
    """
    runs: dict[tuple[int, int], dict[int, dict[str, str]]] = {}
    for pid, variables in _environments():
        started = variables.keys() >= {"UPS_HOME", "UPS_RUN", "UPS_TOKEN"} and is_mine(Path(f"/proc/{pid}"))
        if started and alive(pid) and (home := identity(seen_by(pid, variables["UPS_HOME"]))) is not None:
            runs.setdefault(home, {})[pid] = variables
    return runs


def is_mine(path: Path) -> bool:
    """Whether a file, or a process by its folder in /proc, is there and this user's."""
    try:
        return path.stat().st_uid == os.geteuid()
    except OSError:
        return False


def seen_by(pid: int, path: str) -> Path:
    """A path of this process that leads to what `path` is for another one."""
    return Path(f"/proc/{pid}/root/{path.lstrip('/')}")


def sweep(token: str, wait: float = 5.0) -> list[int]:
    """SIGKILL to every process that carries the token, until none is left; those that would not go (state D)."""
    return end_all(lambda: owned("UPS_TOKEN", token), wait) if token else []


def end_all(listing: Callable[[], Collection[int]], wait: float = 5.0) -> list[int]:
    """SIGKILL to every listed process until none is listed; those that would not go (state D).

    A number is listed again after a handle on its process was taken: it cannot have become another process's.
    """
    end = time.monotonic() + wait
    while (left := listing()) and time.monotonic() < end:
        with contextlib.ExitStack() as handles:
            processes = {pid: _handle(pid, handles) for pid in left}
            for pid in set(listing()) & processes.keys():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    _kill(pid, processes[pid])
        time.sleep(0.02)
    return sorted(left)


def _handle(pid: int, handles: contextlib.ExitStack) -> int | None:
    """A descriptor of the process itself; None where it is gone, or the kernel (before 5.3) has no such thing."""
    try:
        handle = os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None
    handles.callback(os.close, handle)
    return handle


def _kill(pid: int, handle: int | None) -> None:
    if handle is None:
        os.kill(pid, signal.SIGKILL)
    else:
        signal.pidfd_send_signal(handle, signal.SIGKILL)


def variables_of(pid: int) -> dict[str, str]:
    """The UPS_ variables that a process was started with; none where it may not be asked."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = [word.decode(errors="surrogateescape").partition("=") for word in words if word.startswith(b"UPS_")]
    return {key: text for key, _, text in pairs}


def _environments() -> Iterator[tuple[int, dict[str, str]]]:
    """The UPS_ variables that other processes were started with, where they have any and may be asked."""
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        if variables := variables_of(int(name)):
            yield int(name), variables


def identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a file or folder; None where it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


class RankGroups:
    """What the launcher has started, followed through every session and group that its descendants make.

    Made before the launcher starts: the processes that are there then are not its own, nor are those that come later
    without the token of the start.
    """

    def __init__(self, token: str) -> None:
        self._token = token
        self._others = set(children(os.getpid()))
        self._switches: dict[int, DeathSwitch] = {}
        self.roots: list[int] = []
        self.problem = ""  # why some group could not be covered

    def begin(self) -> None:
        """To be called when the launcher has started."""
        self.roots = [pid for pid in children(os.getpid()) if pid not in self._others]
        self._others.update(self.roots)
        self.cover()

    def cover(self) -> None:
        """Find new groups, and forget those that are gone."""
        ours = os.getpgrp()
        present = set(children(os.getpid()))
        self.roots = [pid for pid in self.roots if pid in present]  # the number of one that is gone may be anybody's
        self._others &= present
        self.roots += [pid for pid in present - self._others if variables_of(pid).get("UPS_TOKEN") == self._token]
        self._others.update(self.roots)
        pids = [pid for root in self.roots for pid in (root, *descendants(root))]
        groups = {group for pid in pids if (group := group_of(pid)) not in (0, ours)}
        for group in groups - self._switches.keys():
            try:
                self._switches[group] = DeathSwitch(group)
            except ProcessLookupError:  # it has just ended
                continue
            except OSError as error:
                self.problem = str(error)
        for group in [group for group in self._switches if group not in groups and not _exists(group)]:
            self._switches.pop(group).disarm()

    def childless(self, ranks: Iterable[int]) -> list[int]:
        """What the launcher has started and is there, but has no rank below it."""
        known = set(ranks)
        return [root for root in self.roots if alive(root) and not known & set(descendants(root))]

    def kill(self) -> None:
        """SIGKILL to every group that was ever found and still exists."""
        self.cover()
        for switch in self._switches.values():
            switch.fire()
        self._switches.clear()


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
