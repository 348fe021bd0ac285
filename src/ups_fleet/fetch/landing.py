"""Landing: the place of a fetched file, its lock, and the receipt of what is known of it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ups.files import stamp, write_atomic
from ups.parsing import read_record
from ups_fleet.fetch.addresses import identity, shown

FOLDER = ".ups-fetch"  # beside what is fetched: what is under way, and what is known of what is there
LOOK = 0.2  # seconds between two looks at a lock


@dataclass(frozen=True)
class FetchReceipt:
    """What is known of a file that was fetched: from where, its digests, and how it lay on the disk."""

    url: str
    identity: str
    version: str
    md5: str
    sha256: str
    stamp: list[int]


class Landing:
    """The place of one file below a folder."""

    def __init__(self, folder: Path, path: str) -> None:
        self.folder, self.target = folder, folder / path
        own = folder / FOLDER / path
        self.part, self.record = own.with_name(f"{own.name}.part"), own.with_name(f"{own.name}.pieces")
        self.lock, self.receipt = own.with_name(f"{own.name}.lock"), own.with_name(f"{own.name}.json")

    def settled(self, url: str, agrees: Callable[[Mapping[str, str]], bool]) -> bool:
        """Whether the file was fetched from this address before, and nobody has touched it since."""
        try:
            row, status = read_record(self.receipt), self.target.stat()
        except (OSError, ValueError):
            return False
        digests = {kind: str(row.get(kind, "")) for kind in ("md5", "sha256")}
        return row.get("stamp") == stamp(status) and row.get("identity") == identity(url) and agrees(digests)

    def holds_another(self, url: str, version: str, sha256: str) -> bool:
        """Whether what lies here came from another address, or is known to be another version of the file."""
        try:
            row = read_record(self.receipt)
        except (OSError, ValueError):
            return False
        if row.get("sha256") != sha256:  # of something that lay here before
            return False
        versions = {str(row.get("version", "")), version} - {""}
        return row.get("identity") != identity(url) or len(versions) > 1

    def settle(self, url: str, version: str, digests: dict[str, str]) -> None:
        """Write down what is known of the file in its place."""
        lies = stamp(self.target.stat())
        row = FetchReceipt(shown(url), identity(url), version, digests["md5"], digests["sha256"], lies)
        write_atomic(self.receipt, json.dumps(asdict(row), indent=1) + "\n")

    @contextlib.contextmanager
    def alone(self, waits: Callable[[], None]) -> Iterator[None]:
        """No other process fetches this file while the block runs. One that does is waited for, after `waits`."""
        self.target.parent.mkdir(parents=True, exist_ok=True)
        says = iter((waits,))

        def once() -> None:
            for say in says:
                say()

        with alone(self.lock, once):
            yield


@contextlib.contextmanager
def alone(lock: Path, waits: Callable[[], None]) -> Iterator[None]:
    """No other process has this lock while the block runs. One that has it is waited for; `waits` is called again and
    again meanwhile."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        while not _locked(handle):
            waits()
            time.sleep(LOOK)
        yield
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
