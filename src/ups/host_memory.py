"""Reads how much host memory is left, what limits a process, and when the kernel killed one for lack of it."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

INITIAL_PIDS = "pid:[4026531836]"  # the namespace in which the kernel's log counts processes
NEAR, LEAST = 0.1, 256 << 20  # an address space is full with less than this part, or so many bytes, to its limit
LIBRARIES = 700 << 20  # of address space that torch takes before it has done anything
AROUND = 1.5  # seconds between the kernel's count and the end of a process that is held to be the one it counted
KILLED = re.compile(r"Kill(?:ed)? process (\d+)")

Names = tuple[str, str, str, str]  # of a control group's files: limit, use, events, and what of its use can be given up
Group = tuple[Path, Names]
Between = tuple[float, float]  # the look before something was noticed and the one that noticed it, by CLOCK_MONOTONIC
VERSION_1: Names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control", "total_inactive_file")
VERSION_2: Names = ("memory.max", "memory.current", "memory.events", "inactive_file")


def available() -> tuple[int, int]:
    """Bytes that can still be taken, and bytes in all: of the tightest control group around us, or of the machine."""
    # Where the kernel does not say what can be had without swapping, all of it is taken to be free.
    machine = total = _meminfo("MemTotal", os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    free = _meminfo("MemAvailable", machine)
    for group, (limit_file, use_file, _, reclaimable) in _around(os.getpid()):
        limit, used = _number(group / limit_file), _number(group / use_file)
        if limit is not None and used is not None and limit < machine:
            left = limit - used + _fields(group / "memory.stat").get(reclaimable, 0)
            free, total = min(free, max(0, left)), min(total, limit)
    return free, total


def resident() -> int:
    """Bytes of memory that this process holds now, its program and libraries included."""
    return _fields(Path("/proc/self/status")).get("VmRSS:", 0) * 1024


def kills(pid: int | None = None) -> int:
    """How often the kernel has killed for want of memory: in the control group of a process (ours if not given) where
    the kernel counts there, else anywhere on the machine."""
    return _count(_group(os.getpid() if pid is None else pid))


def address_space(pid: int | None = None) -> tuple[int, int] | None:
    """Bytes of address space a process has had at most, and its limit; None where it has none or is gone."""
    folder = Path("/proc") / ("self" if pid is None else str(pid))
    peak = _fields(folder / "status").get("VmPeak:", 0) * 1024
    try:
        rows = (folder / "limits").read_text().splitlines()
    except OSError:
        return None
    words = next((row.split() for row in rows if row.startswith("Max address space")), [])
    return (peak, int(words[3])) if peak and len(words) > 3 and words[3].isdecimal() else None


def address_space_left() -> int | None:
    """Bytes that `ulimit -v` still lets this process take; None where it sets no limit."""
    space = address_space()
    return None if space is None else max(0, space[1] - 1024 * _fields(Path("/proc/self/status")).get("VmSize:", 0))


def full(peak: int, limit: int) -> bool:
    """Whether an address space that has grown to `peak` had next to nothing left of its `limit`."""
    return peak > limit - max(NEAR * limit, min(LEAST, limit / 2))


def cramped() -> str:
    """Why an allocation of this process may just have failed, in words; empty where there is no reason for it.

    The kernel lets a process allocate more than there is and kills it later; it refuses only beyond these limits.
    """
    space = address_space()
    if space is not None and full(*space):
        peak, limit = space
        return f"its address space had grown to {peak / 1e9:.2f} GB of the {limit / 1e9:.2f} GB that ulimit -v allows"
    if space is not None and space[1] < LIBRARIES:
        return f"ulimit -v allows {space[1] / 1e9:.2f} GB, less than torch alone takes"
    most = _number(Path("/proc/sys/vm/max_map_count"))
    with contextlib.suppress(OSError), Path("/proc/self/maps").open("rb") as maps:
        if most and (count := sum(1 for _ in maps)) > 0.98 * most:
            return f"it had {count} of the {most} mappings that vm.max_map_count allows"
    if _number(Path("/proc/sys/vm/overcommit_memory")) == 2:
        promised, most_promised = _meminfo("Committed_AS"), _meminfo("CommitLimit")
        if full(promised, most_promised):
            return f"{promised / 1e9:.1f} of the {most_promised / 1e9:.1f} GB that the machine gives out were given out"
    return ""


class KernelKills:
    """Follows some processes: when the kernel killed for want of memory in their control groups, and whom it killed.

    The kernel counts its victims per group; in its log, where that can be read, it names them.
    """

    def __init__(self) -> None:
        self._counts: dict[Group | None, int] = {}  # victims so far in each group that one of them was ever in
        self._times: list[Between] = []  # of kills in these groups
        self._victims: dict[int, Between] = {}  # those that the log names, in any group
        self._last = time.monotonic()
        self._log = _KernelLog()
        self.look(())

    def look(self, pids: Iterable[int]) -> None:
        """Notice what has happened since the last look; a group that is new counts from now on."""
        when = self._last, time.monotonic()
        groups = {_group(pid) for pid in (os.getpid(), *pids) if os.path.exists(f"/proc/{pid}")}
        for group in groups | self._counts.keys():
            count = _count(group)
            before = self._counts.setdefault(group, count)
            self._times += [when] * (count - before)
            self._counts[group] = max(count, before)
        self._victims.update(dict.fromkeys(self._log.victims(), when))
        self._last = when[1]

    def killed(self, pid: int, ended_at: float) -> bool:
        """Whether it was the kernel, for want of memory, that killed this process; times are by CLOCK_MONOTONIC."""
        self.look(())
        if pid in self._victims:
            return True
        around = [when for when in self._times if _fits(when, ended_at)]
        named = [when for when in self._victims.values() if _fits(when, ended_at)]
        return len(around) > len(named)  # a victim that the log names is somebody else


def _fits(when: Between, clock: float) -> bool:
    """Whether something that happened between two looks, however far apart they were, may have happened at `clock`."""
    return when[0] - AROUND < clock < when[1] + AROUND


class _KernelLog:
    """The kernel's own messages from now on; nothing where they cannot be read, or count processes otherwise."""

    def __init__(self) -> None:
        self._file: int | None = None
        with contextlib.suppress(OSError):
            if os.readlink("/proc/self/ns/pid") == INITIAL_PIDS:
                self._file = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.lseek(self._file, 0, os.SEEK_END)

    def victims(self) -> Iterator[int]:
        """Processes that it has said were killed since it was last asked."""
        while self._file is not None:
            try:
                line = os.read(self._file, 8192).decode(errors="replace")
            except BlockingIOError:
                return
            except BrokenPipeError:  # older messages were overwritten; the next read is of the oldest there is
                continue
            except OSError:
                return
            if match := KILLED.search(line):
                yield int(match[1])

    def __del__(self) -> None:
        if self._file is not None:
            os.close(self._file)


def _group(pid: int) -> Group | None:
    """The control group that counts the memory of a process; None where there is none, or the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    rows = [line.split(":", 2) for line in lines]
    for controllers, path in ((row[1].split(","), row[2]) for row in rows if len(row) == 3):
        if "memory" in controllers and (folder := _mounted(path, "cgroup")) is not None:
            return folder, VERSION_1
    for row in rows:
        if row[:2] == ["0", ""] and (folder := _mounted(row[2], "cgroup2")) is not None:
            return (folder, VERSION_2) if (folder / VERSION_2[2]).exists() else None
    return None


def _around(pid: int) -> Iterator[Group]:
    """The control group of a process and those around it, as far as they are mounted."""
    group = _group(pid)
    if group is not None:
        folder, names = group
        while (folder / names[1]).exists():
            yield folder, names
            folder = folder.parent


def _mounted(path: str, kind: str) -> Path | None:
    """Where the group `path` is in the file system, which may show only a part of the groups."""
    mount = _mounts().get(kind)
    if mount is None:
        return None
    root, point = mount
    inside = path == root or path.startswith(root.rstrip("/") + "/")
    # What is outside of the mounted part (a container that sees its own group as the root) is its root.
    folder = point / (path[len(root) :] if inside else "").lstrip("/")
    return folder if folder.exists() else point


@functools.cache
def _mounts() -> dict[str, tuple[str, Path]]:
    """Mounted control groups by kind, cgroup (of memory) or cgroup2: the group that is mounted, and where."""
    mounts: dict[str, tuple[str, Path]] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            left, _, right = line.partition(" - ")
            root, point = left.split()[3:5]
            kind, *_, options = right.split()
            if kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split(",")):
                mounts.setdefault(kind, (root, Path(point)))
    return mounts


def _count(group: Group | None) -> int:
    """The kernel's victims in a group; on the whole machine where it does not count them there."""
    count = None if group is None else _fields(group[0] / group[1][2]).get("oom_kill")
    return _fields(Path("/proc/vmstat")).get("oom_kill", 0) if count is None else count


def _meminfo(name: str, unknown: int = 0) -> int:
    kilobytes = _fields(Path("/proc/meminfo")).get(f"{name}:")
    return unknown if kilobytes is None else 1024 * kilobytes


def _fields(path: Path) -> dict[str, int]:
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
