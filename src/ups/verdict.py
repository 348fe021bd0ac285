"""How a run ended and why: exit codes, the record that a failing rank leaves, and verdict.json."""

from __future__ import annotations

import errno
import json
import os
import re
import time
import traceback as traces
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import IntEnum
from pathlib import Path
from typing import Any

from ups.files import write_atomic
from ups.parsing import read_json
from ups.shortage import Shortage, shortage
from ups.types import DataError, UpsError


class Ending(IntEnum):
    """The exit code of a rank and of a run; docs/failures.md says what each means. 0 only with a written SUCCESS."""

    SUCCESS = 0
    CRASH = 1
    USER = 2
    OOM = 10
    NOT_FINITE = 11
    DIVERGED = 12
    HANG = 13
    RANK_DIED = 14
    PREEMPTED = 15
    CORRUPT = 16
    NO_PROGRESS = 17
    STORAGE = 18
    GATE_MISSED = 19
    PAUSED = 20
    INTERRUPTED = 130


# The plan was carried out to its end: simulator, results and report are there.
FINISHED = frozenset({Ending.SUCCESS, Ending.GATE_MISSED})
# All that was asked for was done, and rank 0 says so.
AS_ASKED = FINISHED | {Ending.PAUSED}

# A restart from the last verified checkpoint may mend these; it cannot mend a mistake.
RESTARTED = frozenset({Ending.HANG, Ending.RANK_DIED, Ending.OOM})

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})  # EFBIG: beyond a limit of this user, or of the disk
_FULL_TEXTS = (
    *map(os.strerror, _FULL),
    *(f"{words} {number}" for number in _FULL for words in ("os error", "errno =")),
)
FAILING = frozenset({errno.EROFS, errno.EIO, errno.ESTALE})  # of a disk that somebody has to mount again, or mend
_STORAGE = FAILING | _FULL
_REMEDY = re.compile(r"\b([Ff]ree (some space|the disk)|make room)\b")
# The machine had no process or descriptor to give: others may give theirs back.
_LENT = {errno.EAGAIN, errno.EMFILE, errno.ENFILE}
_BY_NAME = {
    "DesyncError": Ending.DIVERGED,
    "KeyboardInterrupt": Ending.INTERRUPTED,
}
_ECHOES = {"LostPeer", "PeerFailed", "PeerError", "DistNetworkError", "DistStoreError"}
_TAKEN = "EADDRINUSE"
_WORKER = "DataLoader worker (pid"  # and not "… worker process", whose own exception follows
_ECHO_TEXTS = ("Connection closed by peer", "Connection reset by peer", "Connection refused", "Timed out waiting")
_MACHINE_TEXTS = ("CUDA error", "NCCL", "cuBLAS", "CUBLAS_STATUS", "CUDNN_STATUS")
_MACHINE = {"DistBackendError", "AcceleratorError"}


class StorageError(DataError):
    """What must be kept cannot be written."""

    ending = Ending.STORAGE


@dataclass(frozen=True)
class Kind:
    """What an exception means. `first_hand`: it is no echo of a peer's end; `transient`: a restart may help. `short`:
    the memory that ran out."""

    ending: Ending
    first_hand: bool = True
    transient: bool = False
    short: Shortage | None = None


def classify(error: BaseException) -> Kind:
    """What an exception means: by its own `ending` attribute if it has one, else by its class name and its text."""
    names = {kind.__name__ for kind in type(error).__mro__}
    own = getattr(error, "ending", None)
    # What could not be stored for want of memory has its own word for it, and the wrong one.
    if isinstance(own, Ending) and not (own == Ending.STORAGE and shortage(error) is not None):
        own_hand = getattr(error, "first_hand", not names & _ECHOES)
        return Kind(own, first_hand=own_hand, short=getattr(error, "short", None))
    if (short := shortage(error)) is not None:
        return Kind(Ending.OOM, short=short)
    if names & _ECHOES:
        # A port that somebody else has is this rank's own trouble, although its kind is that of a lost connection.
        if _TAKEN in str(error):
            return Kind(Ending.RANK_DIED, transient=True)
        return Kind(Ending.RANK_DIED, first_hand=False, transient=True)
    for name, ending in _BY_NAME.items():
        if name in names:
            return Kind(ending)
    if _of_the_disk(error):
        return Kind(Ending.STORAGE)
    if isinstance(error, OSError) and error.errno in _LENT:
        return Kind(Ending.CRASH, transient=True)
    if isinstance(error, UpsError):
        origin: BaseException | None = error
        while isinstance(origin, UpsError):
            origin = origin.__cause__ or origin.__context__
        stored = isinstance(origin, OSError) and origin.errno in _STORAGE
        full = origin is not None and any(words in str(origin) for words in _FULL_TEXTS)
        return Kind(Ending.STORAGE if stored or full else Ending.USER)
    if isinstance(error, RuntimeError | ConnectionError):
        text = str(error)
        if isinstance(error, ConnectionError) or any(words in text for words in _ECHO_TEXTS):
            return Kind(Ending.RANK_DIED, first_hand=False, transient=True)
        if _WORKER in text:  # torch raises it wherever the rank is at that moment
            return Kind(Ending.RANK_DIED, transient=True)
        if names & _MACHINE or any(words in text for words in _MACHINE_TEXTS):
            return Kind(Ending.CRASH, transient=True)
    return Kind(Ending.CRASH)


def _of_the_disk(error: BaseException) -> bool:
    """Whether a disk refused to be written or read. Libraries that write by themselves tell it in their text alone."""
    if isinstance(error, OSError) and error.errno in _STORAGE | {errno.ENODEV}:
        return True
    return not isinstance(error, UpsError) and any(words in str(error) for words in _FULL_TEXTS)


@dataclass(frozen=True)
class Failure:
    """The record that a failing rank leaves. `clock` is CLOCK_MONOTONIC: a wall clock may be wrong or jump."""

    rank: int
    step: int
    phase: str
    ending: Ending
    kind: str
    sentence: str
    traceback: str
    first_hand: bool
    transient: bool
    clock: float
    time: str
    microbatch: int = 0
    memory: str = ""

    @classmethod
    def of(cls, error: BaseException, rank: int, step: int, phase: str, microbatch: int = 0) -> Failure:
        """The record of an exception. An echo raised while another exception was handled gives way to that one."""
        error = next((e for e in _with_context(error) if classify(e).first_hand), error)
        kind = classify(error)
        text = "".join(traces.format_exception(error))
        sentence = " ".join(str(error).split()) or type(error).__name__
        if kind.short is not None and kind.short.evidence:
            sentence += f" ({kind.short.evidence})"
        return cls(
            rank=rank,
            step=step,
            phase=getattr(error, "phase", phase),
            ending=kind.ending,
            kind=type(error).__name__,
            sentence=sentence if len(sentence) <= 600 else sentence[:600] + " …",
            traceback=text if len(text) <= 20000 else text[:4000] + "\n…\n" + text[-16000:],
            first_hand=kind.first_hand,
            transient=kind.transient,
            clock=time.monotonic(),
            time=now(),
            microbatch=microbatch,
            memory=kind.short.where if kind.short else "",
        )

    def write(self, path: Path) -> None:
        _write(path, asdict(self))

    def verdict(self) -> Verdict:
        """The verdict on this failure. A user's mistake is told in its own words: it would be one on any rank."""
        where = f"rank {self.rank}, {self.phase} of step {self.step}: "
        where += f"out of {self.memory} memory: {self.kind}: " if self.memory else f"{self.kind}: "
        return Verdict(
            self.ending,
            self.sentence if self.ending == Ending.USER else where + self.sentence,
            rank=self.rank,
            phase=self.phase,
            step=self.step,
            kind=self.kind,
            traceback=self.traceback,
            transient=self.transient,
            echo=not self.first_hand,
            microbatch=self.microbatch,
            memory=self.memory,
        )


def _write(path: Path, record: Mapping[str, Any]) -> None:
    """A record of an end, which is written whatever bytes the names in it have."""
    text = json.dumps(record, indent=2, ensure_ascii=False, default=str) + "\n"
    write_atomic(path, text.encode("utf-8", "backslashreplace"))


def read_failures(paths: Iterable[Path]) -> list[Failure]:
    """The records in these files, by rank; a file that holds none is passed over."""
    records = []
    for path in paths:
        values = read_json(path)
        if values.keys() >= {f.name for f in fields(Failure)}:
            records.append(Failure(**{**values, "ending": Ending(values["ending"])}))
    return sorted(records, key=lambda record: record.rank)


@dataclass(frozen=True)
class Verdict:
    """How a run ended, its cause in one sentence, and the rank that failed first; verdict.json holds one.

    `attempts` has one entry per start of the ranks. `transient`: a restart may mend it although the ending alone does
    not say so. `echo`: nobody here failed first. `memory`: whose ran out, the host's or the device's.
    """

    ending: Ending
    cause: str
    rank: int | None = None
    phase: str | None = None
    step: int | None = None
    kind: str = ""
    traceback: str = ""
    transient: bool = False
    echo: bool = False
    microbatch: int = 0
    memory: str = ""
    time: str = ""
    attempts: tuple[Mapping[str, Any], ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, error: BaseException) -> Verdict:
        """The verdict on an exception that ended a run in this process, which has no ranks."""
        record = Failure.of(error, rank=0, step=0, phase="")
        words = record.sentence if record.ending == Ending.USER else f"{record.kind}: {record.sentence}"
        if record.memory:
            words = f"out of {record.memory} memory: {words}"
        return cls(record.ending, words, kind=record.kind, traceback=record.traceback, memory=record.memory)

    @property
    def restarts(self) -> bool:
        """Whether starting again from the last verified checkpoint may help."""
        return self.ending in RESTARTED or self.transient

    def to_dict(self) -> dict[str, Any]:
        values = {
            "verdict": self.ending.name,
            "code": int(self.ending),
            "time": self.time or now(),
            "cause": self.cause,
            "rank": self.rank,
            "phase": self.phase,
            "step": self.step,
            "kind": self.kind,
            **({"memory": self.memory} if self.memory else {}),
            "traceback": self.traceback,
            "attempts": list(self.attempts),
        }
        return {**values, **{key: value for key, value in self.facts.items() if key not in values}}

    def write(self, path: Path) -> None:
        _write(path, self.to_dict())

    @classmethod
    def read(cls, path: Path) -> Verdict | None:
        """A written verdict; None where there is no file, or one that names no ending."""
        values = read_json(path)
        word, attempts = values.pop("verdict", None), values.pop("attempts", [])
        if not isinstance(word, str) or word not in Ending.__members__:
            return None
        kinds = {"rank": int, "step": int, **dict.fromkeys(("phase", "kind", "memory", "traceback", "time"), str)}
        about = {name: values.pop(name, None) for name in kinds if name in values}
        about = {name: value for name, value in about.items() if isinstance(value, kinds[name])}
        ending, cause = Ending[word], str(values.pop("cause", ""))
        rows = attempts if isinstance(attempts, list) else []
        attempts = tuple(row for row in rows if isinstance(row, dict))
        values.pop("code", None)
        return cls(ending, cause, attempts=attempts, facts=values, **about)


def now() -> str:
    """The wall clock, for people; nothing is decided by it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _with_context(error: BaseException) -> Iterator[BaseException]:
    """The error, then those it was raised while handling; not those it was raised `from`."""
    link: BaseException | None = error
    while link is not None:
        yield link
        link = None if link.__suppress_context__ else link.__context__


def with_remedy(cause: str, advice: str) -> str:
    """Why a disk did not take what it should, what to do, and what could be deleted where it is full."""
    words = cause if cause.endswith(".") else f"{cause}."
    if any(os.strerror(number) in words for number in FAILING):
        return words if "mount it again" in words else f"{words} Mount its disk again, or mend it, and --resume."
    if os.strerror(errno.EFBIG) in words:
        return words if "ulimit -f" in words else f"{words} Raise the limit of file sizes (ulimit -f) and --resume."
    if not _REMEDY.search(words):
        words = f"{words} Free some space and --resume."
    return f"{words} {advice}".strip()
