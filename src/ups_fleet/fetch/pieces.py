"""The pieces of a file: fetched over several connections, written to their places, recorded one by one, verified."""

from __future__ import annotations

import hashlib
import json
import os
import queue
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

from ups.files import CHUNK, read_at, write_all, write_atomic
from ups.parsing import parse_json
from ups.types import UpsError
from ups_fleet.fetch.patience import ChangedError, NoRangesError, Patience, StoppedError, TransientError
from ups_fleet.fetch.remote_file import RemoteFacts, RemoteFile

SMALLEST, LARGEST, MANY = 1 << 22, 1 << 26, 256  # bytes of a piece; pieces of a file


def piece_size(size: int, connections: int) -> int:
    """Bytes of a piece: some hundred pieces a file, and at least one for each connection."""
    return min(max(-(-size // MANY), SMALLEST), LARGEST, max(1 << 16, -(-size // connections)))


@dataclass
class Pieces:
    """A file under way, and the record of its pieces. The first line of the record says what is fetched; each further
    one that a piece is on the disk, with its checksum. A kill loses the pieces that were under way and no other."""

    path: Path
    record: Path
    header: dict[str, Any] = field(default_factory=dict)
    done: dict[int, int] = field(default_factory=dict)  # checksums by number
    _lock: Lock = field(default_factory=Lock)

    @property
    def size(self) -> int:
        return int(self.header["size"])

    @property
    def step(self) -> int:
        return int(self.header["piece"])

    def begin(self, identity: str, facts: RemoteFacts, connections: int) -> bool:
        """Go on with what is there of this very version of the file, or begin anew; whether something was left."""
        size = facts.size or 0
        wanted = {"file": identity, "size": size, "version": facts.version}
        header, done = _read(self.record)
        if {key: header.get(key) for key in wanted} == wanted and header.get("piece", 0) > 0 and self.path.is_file():
            self.header, self.done = header, {n: crc for n, crc in done.items() if n * header["piece"] < size}
            with self.path.open("r+b") as file:
                file.truncate(size)
            return bool(self.done)
        self.discard()
        self.header, self.done = {**wanted, "piece": piece_size(size, connections)}, {}
        with self.path.open("wb") as file:
            file.truncate(size)
        self._rewrite()
        return False

    def begin_whole(self) -> None:
        """Begin anew with a file that comes in one piece."""
        self.discard()
        self.header, self.done = {"size": 0, "piece": 1 << 62}, {}
        for path in (self.path, self.record):
            path.write_bytes(b"")

    def missing(self) -> list[tuple[int, int, int]]:
        """Number, first byte and end of each piece that is not there."""
        starts = range(0, self.size, self.step)
        return [(n, s, min(s + self.step, self.size)) for n, s in enumerate(starts) if n not in self.done]

    def left(self) -> int:
        """Bytes that an earlier fetch has left."""
        header, done = _read(self.record)
        return len(done) * int(header["piece"]) if done and self.path.is_file() else 0

    def had(self) -> int:
        """Bytes that are there."""
        return sum(min((n + 1) * self.step, self.size) - n * self.step for n in self.done)

    def write(self, number: int, start: int, blocks: Iterable[bytes]) -> Iterator[int]:
        """Put a piece in its place as it comes, bytes by bytes, and record it when all of it is on the disk."""
        crc, handle = 0, os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.lseek(handle, start, os.SEEK_SET)
            for block in blocks:
                write_all(handle, memoryview(block))
                crc = zlib.crc32(block, crc)
                yield len(block)
            os.fsync(handle)
        finally:
            os.close(handle)
        with self._lock:
            line = (json.dumps({"piece": number, "crc": crc}) + "\n").encode()
            record = os.open(self.record, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                write_all(record, memoryview(line))
                os.fsync(record)
            finally:
                os.close(record)
            self.done[number] = crc

    def verify(self, kinds: Iterable[str]) -> dict[str, str]:
        """The digests of the whole file, by kind; pieces that the disk does not hold as they came are forgotten, and
        then there are none."""
        hashes = {kind: hashlib.new(kind, usedforsecurity=False) for kind in kinds}
        buffer, bad = memoryview(bytearray(CHUNK)), False
        handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for number, start in enumerate(range(0, self.size, self.step)):
                crc, end = 0, min(start + self.step, self.size)
                while start < end and (count := read_at(handle, buffer[: end - start], start)):
                    crc, start = zlib.crc32(buffer[:count], crc), start + count
                    for hashed in hashes.values():
                        hashed.update(buffer[:count])
                if crc != self.done.get(number):
                    bad = True
                    self.done.pop(number, None)
        finally:
            os.close(handle)
        if bad:
            self._rewrite()
        return {} if bad else {kind: hashed.hexdigest() for kind, hashed in hashes.items()}

    def _rewrite(self) -> None:
        rows = [self.header, *({"piece": number, "crc": crc} for number, crc in self.done.items())]
        write_atomic(self.record, "".join(json.dumps(row) + "\n" for row in rows))

    def discard(self) -> None:
        """Forget all of it."""
        self.record.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)


def digests_of(path: Path) -> dict[str, str]:
    """MD5 and SHA-256 of a file, read once."""
    hashes = {kind: hashlib.new(kind, usedforsecurity=False) for kind in ("md5", "sha256")}
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            for hashed in hashes.values():
                hashed.update(chunk)
    return {kind: hashed.hexdigest() for kind, hashed in hashes.items()}


def blob_of(path: Path) -> str:
    """The name that git gives the content of a file."""
    hashed = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            hashed.update(chunk)
    return hashed.hexdigest()


def _read(record: Path) -> tuple[dict[str, Any], dict[int, int]]:
    """What a record says; a line that a kill has cut, and all after it, does not count."""
    header: dict[str, Any] = {}
    done: dict[int, int] = {}
    try:
        for number, line in enumerate(record.read_bytes().split(b"\n")[:-1]):
            row = parse_json(line)
            if number == 0:
                header = row if isinstance(row, dict) and isinstance(row.get("piece"), int) else {}
            elif isinstance(row["piece"], int) and isinstance(row["crc"], int):
                done[row["piece"]] = row["crc"]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return header, done if header else {}


LOOK = 0.2  # seconds between two looks at the threads
CUTS = 100  # of one piece, after which it is given up whatever has come
PARTING = 2.0  # seconds for threads to end by themselves; those that wait for a server end with the process


@dataclass
class Connections:
    """One attempt to fetch all pieces that are missing. `tell` is called with the bytes that are there."""

    file: RemoteFile
    facts: RemoteFacts
    pieces: Pieces
    patience: Patience
    tell: Callable[[int], None]
    _stop: Event = field(default_factory=Event)
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self._done = self.pieces.had()
        self._errors: list[BaseException] = []
        self._todo: queue.SimpleQueue[tuple[int, int, int]] = queue.SimpleQueue()
        self._missing = self.pieces.missing()
        for piece in self._missing:
            self._todo.put(piece)

    def fetch(self, count: int) -> None:
        """All pieces, over so many connections; raises what has ended one of them."""
        self._advance(0)
        threads = [Thread(target=self._work, daemon=True) for _ in range(min(count, len(self._missing)))]
        try:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads) and not self._errors:
                for thread in threads:
                    thread.join(LOOK)
        finally:
            self._stop.set()
        for thread in threads:
            thread.join(PARTING / len(threads))
        causes = [error for error in self._errors if not isinstance(error, StoppedError)]
        for kind in (ChangedError, NoRangesError):
            if any(isinstance(cause, kind) for cause in causes):
                raise kind
        if causes:
            raise causes[0]
        if self.pieces.missing():
            raise RuntimeError("a connection has ended without a word; its traceback is above")

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                self._piece(*self._todo.get_nowait())
        except queue.Empty:
            pass
        except (TransientError, ChangedError, NoRangesError, StoppedError, UpsError, OSError, MemoryError) as error:
            self._errors.append(error)
            self._stop.set()

    def _piece(self, number: int, start: int, end: int) -> None:
        for count in self.pieces.write(number, start, self._blocks(start, end)):
            self._advance(count)

    def _blocks(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes of a piece. What was cut goes on from there; only tries that bring nothing count as failures."""
        failures, cuts, silent = 0, 0, 0.0
        while start < end:
            begun = start
            try:
                for block in self.file.read(start, end, self.facts):
                    if self._stop.is_set():
                        raise StoppedError
                    start += len(block)
                    yield block
                if start < end:
                    raise TransientError(f"{end - start} bytes of a piece did not come")
            except TransientError as error:
                fresh = start - begun >= self.patience.least
                failures, silent = (1, error.silent) if fresh else (failures + 1, silent + error.silent)
                cuts += 1
                self.patience.wait(self.patience.tries if cuts > CUTS else failures, error, self._stop, silent)

    def _advance(self, count: int) -> None:
        with self._lock:
            self._done += count
            self.tell(self._done)
