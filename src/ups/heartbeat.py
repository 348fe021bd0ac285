"""Heartbeats: each rank writes where it is to a small mapped file, which others read while it runs or hangs."""

from __future__ import annotations

import mmap
import os
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PHASES = (
    *("start", "data", "forward", "backward", "vote", "reduce", "step", "log", "validate", "save", "finish"),
    *("judge", "idle"),
)
# In these a healthy rank waits for its peers, so a long stay says nothing about the rank itself.
WAITING = frozenset({"vote", "reduce", "finish"})
# Steps whose durations teach nothing: imports, allocation, compilation and graph capture happen in them.
WARM_UP = 3
# Readings of a file before it counts as holding nothing whole.
LOOKS = 5

_INDEX = {name: i for i, name in enumerate(PHASES)}
# count, rank, pid, step, phase, flags, time of this beat, microbatch, op; then per phase: how often, longest
_RECORD = struct.Struct(f"<qqqqiidq32s{len(PHASES)}I{len(PHASES)}f")
_CHECK = struct.Struct("<I")
_SLOT = _RECORD.size + _CHECK.size
_WARM, _DONE, _WAITS = 1, 2, 4
# A fault plan: called with the phase and the step of each beat, and free to do what a real fault would do.
Fire = Callable[[str, int], None]


@dataclass(frozen=True)
class Beat:
    """The last beat of a rank. `time` is CLOCK_MONOTONIC of its machine; `count` rises with every beat.

    `seen[p]` and `longest[p]` say how often phase p was left and how long it took at most, warm-up not counted.
    `done`: the rank left on purpose. `microbatch`: samples it takes at once, 0 if not known. `waits`: it is
    inside a vote or a collective, whatever the phase.
    """

    rank: int
    pid: int
    step: int
    phase: str
    op: str
    time: float
    count: int
    warm: bool
    done: bool
    microbatch: int
    seen: tuple[int, ...]
    longest: tuple[float, ...]
    waits: bool = False

    @property
    def waiting(self) -> bool:
        """Whether a long stay says nothing about this rank, but about one that it waits for."""
        return self.waits or self.phase in WAITING


class Pulse:
    """A rank's side of the heartbeat. One writer; the record is written into two slots in turn, each with a checksum.

    A kill in the middle of a write, therefore, leaves the beat before it readable. `path` None: beats go nowhere.
    `fire` is called at the end of every beat, inside the phase it names: the place where a real fault would strike.
    """

    def __init__(
        self,
        path: Path | None,
        rank: int,
        fire: Fire | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rank, self.phase, self.step, self.microbatch = rank, "start", 0, 0
        self._fire, self._clock, self._since = fire, clock, clock()
        self._map = None if path is None else _create(path)
        self._count, self._steps, self._op = 0, 0, b""
        self._done = self._waits = False
        self.busy: dict[str, float] = {}  # seconds by phase, those apart in which the rank waited for its peers
        self._waited, self._waits_since = 0.0, 0.0
        self._seen = [0] * len(PHASES)
        self._longest = [0.0] * len(PHASES)
        self._write()

    def beat(self, phase: str, step: int | None = None, op: str = "") -> None:
        """Note that the rank enters `phase` of `step` (by default the same as before), doing `op` (32 bytes of it)."""
        now = self._clock()
        if self._steps > WARM_UP:
            left = _INDEX[self.phase]
            self._seen[left] += 1
            self._longest[left] = max(self._longest[left], now - self._since)
        self._stop_waiting(now)
        self.busy[self.phase] = self.busy.get(self.phase, 0.0) + now - self._since - self._waited
        self._waited = 0.0
        if step is not None and step != self.step:
            self._steps = 0 if step < self.step else self._steps + 1
            self.step = step
        if phase == "start":
            self._steps = 0
        _INDEX[phase]  # an unknown phase is an error here, not in the reader
        self.phase = phase
        self._since = now
        self._op, self._waits = op.encode()[:32], False
        self._write()
        if self._fire is not None:
            self._fire(phase, self.step)

    def note(self, microbatch: int) -> None:
        """How many samples are now taken at once; a rank that is killed has still told it."""
        self.microbatch = microbatch
        self._write()

    def wait(self, op: str) -> None:
        """Note that the rank waits for its peers in `op`; or no longer, if it is empty."""
        now = self._clock()
        self._stop_waiting(now)
        self._op, self._waits, self._waits_since = op.encode()[:32], bool(op), now
        self._write()

    def _stop_waiting(self, now: float) -> None:
        if self._waits:
            self._waited += now - self._waits_since
        self._waits = False

    def close(self) -> None:
        """Note that the rank leaves on purpose: an exit without an error after this is not a disappearance."""
        self._done = True
        self._write()

    def _write(self) -> None:
        if self._map is None:
            return
        self._count += 1
        flags = (_WARM if self._steps <= WARM_UP else 0) | (_DONE if self._done else 0)
        flags |= _WAITS if self._waits else 0
        place = (self._count, self.rank, os.getpid(), self.step, _INDEX[self.phase], flags, self._since)
        record = _RECORD.pack(*place, self.microbatch, self._op, *self._seen, *self._longest)
        start = (self._count % 2) * _SLOT
        self._map[start : start + _SLOT] = record + _CHECK.pack(zlib.crc32(record))


def read(path: Path) -> Beat | None:
    """A rank's latest whole beat; None where there is no such file or nothing whole has been written yet."""
    for _ in range(LOOKS):  # a writer that beats twice while the file is read spoils both slots of this reading
        try:
            content = path.read_bytes()
        except OSError:
            return None
        slots = (content[start : start + _SLOT] for start in (0, _SLOT)) if len(content) >= 2 * _SLOT else ()
        beats = [beat for slot in slots if (beat := _parse(slot)) is not None]
        if beats:
            return max(beats, key=lambda beat: beat.count)
    return None


def _parse(slot: bytes) -> Beat | None:
    record = slot[: _RECORD.size]
    if _CHECK.unpack(slot[_RECORD.size :])[0] != zlib.crc32(record):
        return None
    count, rank, pid, step, phase, flags, at, microbatch, op, *rest = _RECORD.unpack(record)
    words = op.rstrip(b"\0").decode(errors="replace")
    warm, done, waits = (bool(flags & flag) for flag in (_WARM, _DONE, _WAITS))
    seen, longest = tuple(rest[: len(PHASES)]), tuple(rest[len(PHASES) :])
    return Beat(rank, pid, step, PHASES[phase], words, at, count, warm, done, microbatch, seen, longest, waits)


def _create(path: Path) -> mmap.mmap:
    """A new mapped file whose blocks exist: writing to a hole of a full disk would be a bus error, not an exception."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.posix_fallocate(handle, 0, 2 * _SLOT)
        return mmap.mmap(handle, 2 * _SLOT)
    finally:
        os.close(handle)
