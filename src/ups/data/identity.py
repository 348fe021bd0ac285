"""What a source is, to the byte: the SHA-256 of its files, remembered as long as they are not touched."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

from ups.data.shards import sha256
from ups.data.source import Joined, Source
from ups.files import write_atomic
from ups.types import DataError

# A file touched so short a time before it was hashed may be touched again without a trace.
RECENT = 2_000_000_000


def files_of(source: Source) -> list[Path]:
    """The files behind a source, in order."""
    if isinstance(source, Joined):
        return [path for part in source.parts for path in files_of(part)]
    return sorted(p for p in source.path.rglob("*") if p.is_file()) if source.path.is_dir() else [source.path]


def content(source: Source, memory: Path) -> str:
    """The SHA-256 of all bytes of a source; `memory` is a file that remembers those of untouched files."""
    try:
        known: dict[str, Any] = json.loads(memory.read_bytes())
    except (OSError, ValueError):
        known = {}
    hashed, news = hashlib.sha256(), False
    for path in files_of(source):
        try:
            state = path.stat()
            mark = [state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino]
            name = str(path.resolve())
            found = known.get(name)
            if not isinstance(found, list) or found[:-1] != mark:
                found = [*mark, sha256(path)]
                if time.time_ns() - max(state.st_mtime_ns, state.st_ctime_ns) > RECENT:
                    known[name], news = found, True
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}); check the path.") from None
        hashed.update(found[-1].encode())
    if news:
        try:
            memory.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(memory, json.dumps(known, indent=1))
        except OSError as error:
            raise DataError(f"{memory}: cannot be written ({error.strerror}); name another cache.folder.") from None
    return hashed.hexdigest()
