"""Processes of this machine as /proc shows them: their state, whose they are, and ending those nobody owns."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path


def state_of(pid: int) -> str:
    """The process state in /proc: R, S, D, T, t, Z; empty where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return text[text.rindex(")") + 2]


def alive(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    return state_of(pid) not in ("", "Z")


def owned(name: str, value: str) -> dict[int, dict[str, str]]:
    """Processes of this machine that were started with `name=value` in their environment, and their UPS_ variables."""
    wanted = f"{name}={value}".encode()
    processes = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            content = Path(entry.path, "environ").read_bytes()
        except OSError:
            continue
        words = content.split(b"\0")
        if wanted in words and alive(int(entry.name)):
            ours = [word.decode(errors="replace").partition("=") for word in words if word.startswith(b"UPS_")]
            processes[int(entry.name)] = {key: text for key, _, text in ours}
    return processes


def sweep(token: str, wait: float = 5.0) -> list[int]:
    """SIGKILL to every process that carries the token, until none is left; those that would not go (state D)."""
    end = time.monotonic() + wait
    while (left := owned("UPS_TOKEN", token)) and time.monotonic() < end:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return sorted(left)
