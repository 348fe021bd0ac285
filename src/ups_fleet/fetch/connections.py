"""Fetches the pieces of one version of a file over several connections, and retries each one."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Event, Lock, Thread

from ups.types import UpsError
from ups_fleet.fetch.patience import ChangedError, NoRangesError, Patience, StoppedError, TransientError
from ups_fleet.fetch.pieces import Pieces
from ups_fleet.fetch.remote_file import RemoteFacts, RemoteFile

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
