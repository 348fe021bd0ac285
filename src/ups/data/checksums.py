"""The SHA-256 of the files of a source, remembered as long as they are not touched."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

from ups.data.source import Source
from ups.files import sha256, write_atomic
from ups.types import DataError

# A file touched so short a time before it was hashed may be touched again without a trace.
RECENT = 2_000_000_000


def checksum(source: Source, memory: Path) -> str:
    """The SHA-256 of all bytes of a source; `memory` is a file that remembers those of untouched files."""
    try:
        known: dict[str, Any] = json.loads(memory.read_bytes())
    except (OSError, ValueError):
        known = {}
    total, changed = hashlib.sha256(), False
    for path in source.files():
        try:
            state = path.stat()
            stamp = [state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino]
            name = str(path.resolve())
            entry = known.get(name)
            if not isinstance(entry, list) or entry[:-1] != stamp:
                entry = [*stamp, sha256(path)]
                if time.time_ns() - max(state.st_mtime_ns, state.st_ctime_ns) > RECENT:
                    known[name], changed = entry, True
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}); check the path.") from None
        total.update(entry[-1].encode())
    if changed:
        try:
            memory.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(memory, json.dumps(known, indent=1))
        except OSError as error:
            raise DataError(f"{memory}: cannot be written ({error.strerror}); name another cache.folder.") from None
    return total.hexdigest()
