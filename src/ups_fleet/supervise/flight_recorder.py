"""The flight recorder: the last collectives of a rank, written when the supervisor asks or a peer is lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from ups.files import write_atomic


def answer(path: Path) -> None:
    """Have this process write its recorder to `path` at SIGUSR2 from now on, also while its main thread waits in C.

    The kernel writes the number of an arriving signal to a pipe, which a thread reads; nothing comes while the
    interpreter is locked. An empty file says that this process can be asked.
    """
    path.write_bytes(b"")
    if threading.current_thread() is not threading.main_thread():
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.signal(signal.SIGUSR2, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_serve, args=(reader, path), daemon=True, name="flight recorder").start()


def _serve(reader: int, path: Path) -> None:
    while numbers := os.read(reader, 64):
        if signal.SIGUSR2 in numbers:
            dump(path)


def dump(path: Path) -> None:
    """Write what torch has recorded; nothing where torch is not loaded or records nothing."""
    torch: Any = sys.modules.get("torch._C._distributed_c10d")
    record = getattr(torch, "_dump_fr_trace_json", None)
    if record is None:
        return
    with contextlib.suppress(OSError, RuntimeError, ValueError):  # evidence is worth a try, not a second failure
        trace = json.loads(record())
        if trace.get("entries"):
            write_atomic(path, json.dumps(trace))


def last(path: Path) -> str:
    """The newest collective in a dump: what, its number in its group, its size, and whether it has ended."""
    try:
        trace = json.loads(path.read_text())
        newest = max(trace["entries"], key=lambda entry: entry["record_id"])
        group = newest["process_group"][0]
        number, sizes = newest["collective_seq_id"], newest["input_sizes"]
        ended = int(trace["pg_status"].get(group, {}).get("last_completed_collective", -1)) >= number
        name = newest["profiling_name"].partition(":")[2] or newest["profiling_name"]
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return ""
    size = "×".join(map(str, sizes[0])) if sizes and sizes[0] else "1"
    return f"{name} {number} of group {group}, {size} {'(ended)' if ended else '(waits)'}"
