"""Records what a result depends on besides the config: versions, machine, device, git state."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from ups.verdict import now
from ups.version import __version__

FILTERS = ("config", "--show-scope", "--name-only", "--get-regexp", r"^filter\.")
SOURCE, ROOMS = "source of ups", "source by folder"
NAMED = 5  # changed folders of the source that a sentence names
PACKAGES = ("torch", "numpy", "scipy", "h5py", "safetensors", "pydantic", "neuraloperator")


def environment() -> dict[str, Any]:
    """All of it, for the record of a run."""
    versions = {name: installed(name) for name in PACKAGES}
    return {
        "started": now(),
        "directory": str(Path.cwd()),
        "command": command(sys.argv),
        "versions": {
            "ups": __version__,
            "python": platform.python_version(),
            **{n: v for n, v in versions.items() if v},
        },
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "device": _device(),
        "git": _git(),
    }


def command(words: Sequence[str]) -> str:
    """What was typed, to be typed again in the same folder: the program by its name, paths from that folder on."""
    program = Path(words[0])
    name = program.parent.name if program.name == "__main__.py" else program.name
    return shlex.join([*filter(None, [name]), *map(_from_here, words[1:])])  # a console has no name


def _from_here(word: str) -> str:
    """A word of a command, with a path that it is, or that stands behind its `=`, from the current folder on."""
    key, equals, value = word.rpartition("=")
    return f"{key}{equals}{os.path.relpath(value)}" if os.path.isabs(value) else word


def code() -> dict[str, Any]:
    """What computes a result: the versions of the program and of what it stands on, and digests of its own source, as
    a whole and by folder (or file) of the package."""
    whole, rooms = hashlib.sha256(), defaultdict[str, Any](hashlib.sha256)
    home = Path(__file__).parent
    for path in sorted(home.rglob("*.py")):
        name = path.relative_to(home)
        for digest in (whole, rooms[name.parts[0]]):
            digest.update(name.as_posix().encode() + path.read_bytes())
    versions = {name: installed(name) or "" for name in PACKAGES}
    return {
        "ups": __version__,
        SOURCE: whole.hexdigest()[:12],
        "python": platform.python_version(),
        **versions,
        ROOMS: {name: digest.hexdigest()[:12] for name, digest in rooms.items()},
    }


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two answers of `code`, in words; of its own source, the folders and files that do."""
    words = [
        f"{name} {before.get(name) or 'none'} → {now[name] or 'none'}"
        for name in now
        if name != ROOMS and before.get(name) != now[name]
    ]
    earlier, later = before.get(ROOMS), now.get(ROOMS)
    if before.get(SOURCE) == now.get(SOURCE) or not isinstance(earlier, dict) or not isinstance(later, dict):
        return words
    names = [f"ups/{name}" for name in sorted({*earlier, *later}) if earlier.get(name) != later.get(name)]
    few = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    return [f"the source of {few} has changed" if word.startswith(SOURCE) else word for word in words]


def _device() -> str:
    """The first GPU that the driver lists, else the processor; asking torch would claim the GPU for this process."""
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        with contextlib.suppress(OSError):
            rows = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
            if "Model" in rows:
                return rows["Model"].strip()
    return platform.processor() or platform.machine()


def installed(name: str) -> str | None:
    """The version of a package; None where it is not there."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git() -> dict[str, Any] | None:
    """The commit of the current folder and whether anything differs from it; None where there is no repository.

    A repository may have come in an archive, and its own settings can name programs for git to start: none is. Where
    it has filters, whether anything differs is left out, for git would ask them.
    """
    state: dict[str, Any] = {}
    with contextlib.suppress(OSError, subprocess.SubprocessError):  # no git, no repository, or one too old to be asked
        state["commit"] = _ask("rev-parse", "HEAD")
        scopes = {line.split()[0] for line in _ask(*FILTERS, none=1).splitlines()}
        if not scopes & {"local", "worktree"}:
            state["changed"] = bool(_ask("status", "--porcelain", "--ignore-submodules"))
    return state or None


def _ask(*words: str, none: int = 0) -> str:
    """What git answers; `none` is its code for an empty answer.

    A kill must leave no lock in the user's repository; nothing is fetched.
    """
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", *words]
    apart = {**os.environ, "GIT_ALLOW_PROTOCOL": "", "GIT_NO_LAZY_FETCH": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False, env=apart)
    if done.returncode not in (0, none):
        raise subprocess.CalledProcessError(done.returncode, command)
    return done.stdout.strip()
