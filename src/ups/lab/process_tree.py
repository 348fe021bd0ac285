"""Who is whose child, as /proc says."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def parent_of(pid: int) -> int:
    """An OSError where there is no such process."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return int(text[text.rindex(")") + 2 :].split()[1])


def children(pid: int) -> list[int]:
    """The children of a process."""
    return _tree().get(pid, [])


def descendants(pid: int) -> list[int]:
    """Its children, theirs, and so on."""
    tree, pids, below = _tree(), list[int](), [pid]
    while below:
        below = [child for one in below for child in tree.get(one, [])]
        pids += below
    return pids


def _tree() -> dict[int, list[int]]:
    tree: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            tree.setdefault(parent_of(int(name)), []).append(int(name))
    return tree
