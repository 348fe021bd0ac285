"""RemoteFile: the interface of a file elsewhere, which gives its facts and its pieces; and LocalFile."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

from ups.files import stamp
from ups.types import DataError
from ups_fleet.fetch.addresses import shown, split
from ups_fleet.fetch.patience import ChangedError, TransientError

BLOCK = 1 << 20


@dataclass(frozen=True)
class RemoteFacts:
    """What a place says of a file. `size` is None where it does not; `version` is the same as long as the file is, or
    empty where nothing tells; `ranges`: pieces can be asked for; `name` is what the place calls it; `framed`: the end
    of what is sent is marked, so that a cut is noticed; `sha256` or `git` (the name of a blob in git, a SHA-1) is the
    checksum that the place itself publishes."""

    size: int | None
    version: str = ""
    ranges: bool = True
    name: str = ""
    framed: bool = True
    sha256: str = ""
    git: str = ""


class RemoteFile(Protocol):
    """One file somewhere else."""

    url: str

    def facts(self) -> RemoteFacts: ...  # TransientError, DataError
    def read(self, start: int, end: int, facts: RemoteFacts) -> Iterator[bytes]: ...  # also ChangedError
    def whole(
        self, facts: RemoteFacts
    ) -> Iterator[bytes]: ...  # from its beginning to its end, where there are no ranges


def local_path(url: str) -> Path:
    """The path that a file:// address names; what is quoted in it (%20) is unquoted."""
    parts = split(url)
    if parts.netloc not in ("", "localhost"):
        raise DataError(f"{shown(url)}: names another machine; write file:///PATH for a file of this one.")
    path = unquote(parts.path, errors="surrogateescape")
    if "\0" in path:
        raise DataError(f"{shown(url)}: has a %00, which no path can have; check the address.")
    return Path(path)


class LocalFile:
    """A file of this machine, `file://` or a mounted disk."""

    def __init__(self, url: str, path: Path | None = None) -> None:
        self.url, self.path = url, path or local_path(url)

    def facts(self) -> RemoteFacts:
        try:
            status = self.path.stat()
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read ({error.strerror}); check the path.") from None
        if not self.path.is_file():
            raise DataError(f"{self.path}: is no file; name one.")
        return RemoteFacts(status.st_size, str(stamp(status)), True, self.path.name)

    def read(self, start: int, end: int, facts: RemoteFacts) -> Iterator[bytes]:
        try:
            with self.path.open("rb", buffering=0) as file:
                if str(stamp(os.fstat(file.fileno()))) != facts.version:
                    raise ChangedError
                file.seek(start)
                while start < end and (block := file.read(min(BLOCK, end - start))):
                    start += len(block)
                    yield block
        except OSError as error:
            raise TransientError(str(error.strerror)) from None

    def whole(self, facts: RemoteFacts) -> Iterator[bytes]:
        return self.read(0, facts.size or 0, facts)
