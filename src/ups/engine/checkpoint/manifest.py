"""A checkpoint folder on disk: its names, its manifest of sizes and SHA-256, whether all of it is true; no torch."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ups.files import sha256, sum_of, sync

FORMAT = 2
MANIFEST, FACTS, INDEX = "manifest.json", "facts.json", ".metadata"
NAME = re.compile(r"step-(\d{9})")
LEFTOVER = re.compile(r"step-\d{9}\.tmp-[0-9a-f]+")
ASIDE = re.compile(r"step-(\d{9})\.damaged-[0-9a-f]+")


def step_name(step: int) -> str:
    return f"step-{step:09d}"


def own_name(rank: int) -> str:
    """The file of what belongs to one rank alone."""
    return f"own-{rank}.json"


def listing(folder: Path) -> list[Path]:
    """The published checkpoints of a folder, newest first, good or not."""
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if NAME.fullmatch(p.name)), reverse=True)


def aside(folder: Path) -> list[Path]:
    """The damaged checkpoints of a folder that were set aside."""
    return sorted(p for p in folder.iterdir() if ASIDE.fullmatch(p.name)) if folder.is_dir() else []


def newest_verified(folder: Path) -> Path | None:
    """The newest checkpoint of a folder that is what its manifest says."""
    return next((path for path in listing(folder) if verify(path) is None), None)


def verify(path: Path, part: int = 0, parts: int = 1, cold: bool = False) -> str | None:
    """None if a checkpoint is whole: every file listed, of the right size and SHA-256, and no other; or what is wrong.

    The hashing, not the rest, can be shared: of `parts` callers the one numbered `part` hashes its share of the files.
    `cold` asks the system to forget what it remembers of them, so that they are read from the disk.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        if manifest["format"] != FORMAT:
            return f"its format is {manifest['format']} and this version reads {FORMAT}"
        if manifest["sum"] != sum_of(manifest):
            return f"{MANIFEST} is not what was written"
        if path.name != step_name(manifest["step"]):
            return f"its manifest is of step {manifest['step']}"
        files, there = manifest["files"], {p.name: p.lstat().st_size for p in path.iterdir() if p.name != MANIFEST}
        needed = {*files, INDEX, FACTS, *map(own_name, range(manifest["world"]))}
        if missing := sorted(needed - set(there)):
            return f"{missing[0]} is missing"
        if foreign := sorted(set(there) - set(files)):
            return f"{foreign[0]} does not belong to it"
        for name, listed in files.items():
            if there[name] != listed["bytes"]:
                return f"{name} has {there[name]} bytes and was written with {listed['bytes']}"
        for name in sorted(files, key=lambda n: (-there[n], n))[part::parts]:
            if sha256(path / name, cold) != files[name]["sha256"]:
                return f"{name} is not what was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} cannot be read"
    return None


def of_other_format(path: Path) -> bool:
    """Whether a checkpoint says it was written in a format other than this version's."""
    try:
        return bool(json.loads((path / MANIFEST).read_bytes())["format"] != FORMAT)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def world_of(path: Path) -> int:
    """How many ranks wrote a verified checkpoint."""
    return int(json.loads((path / MANIFEST).read_bytes())["world"])


def entry(size: int, digest: str) -> dict[str, Any]:
    """A file as the manifest lists it."""
    return {"bytes": size, "sha256": digest}


def write(path: Path, content: bytes) -> dict[str, Any]:
    """Write a new file to the disk; its entry."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return entry(len(content), hashlib.sha256(content).hexdigest())


def write_manifest(folder: Path, step: int, world: int, files: Mapping[str, Mapping[str, Any]]) -> None:
    """List the files of a finished checkpoint, and make their names durable."""
    manifest: dict[str, Any] = {"format": FORMAT, "step": step, "world": world, "files": dict(sorted(files.items()))}
    write(folder / MANIFEST, json.dumps({**manifest, "sum": sum_of(manifest)}, indent=1).encode())
    sync(folder)


def publish(beside: Path, final: Path) -> None:
    """Give a finished checkpoint its name, durably. A damaged one of that name is set aside, a good one is an error."""
    if final.exists():
        if verify(final) is None:
            raise FileExistsError(17, "a good checkpoint of this step is there already", str(final))
        set_aside(final)
    beside.rename(final)
    sync(final.parent)


def set_aside(path: Path) -> Path:
    """Rename a damaged checkpoint so that nobody takes it for a good one; its bytes stay for whoever wants to look."""
    aside = path.with_name(f"{path.name}.damaged-{uuid.uuid4().hex[:8]}")
    path.rename(aside)
    return aside


def drop(path: Path) -> None:
    """Delete a checkpoint; a kill in between leaves a leftover, never half a checkpoint."""
    beside = path.with_name(f"{path.name.split('.')[0]}.tmp-{uuid.uuid4().hex[:8]}")
    path.rename(beside)
    shutil.rmtree(beside, ignore_errors=True)


def drop_outdated(folder: Path, oldest: Path) -> None:
    """Delete what is older than `oldest`, the last checkpoint to keep, and what was set aside of older steps."""
    for path in folder.iterdir():
        name = NAME.fullmatch(path.name) or ASIDE.fullmatch(path.name)
        if name and step_name(int(name[1])) < oldest.name:
            drop(path)


def clear_leftovers(folder: Path) -> None:
    """Delete what killed saves left behind."""
    for path in folder.iterdir():
        if LEFTOVER.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)
