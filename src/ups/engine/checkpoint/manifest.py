"""A checkpoint folder on disk: names, a manifest of sizes and SHA-256, verification, deletion; no torch."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ups.engine.checkpoint import index
from ups.engine.checkpoint.index import TensorLayout
from ups.files import sha256, sum_of, sync
from ups.types import data_size

FORMAT = 3
THREADS = min(8, os.cpu_count() or 1)  # that hash files
MOST = 2**28  # bytes of a file of JSON
MANIFEST, FACTS, INDEX = "manifest.json", "facts.json", "index.json"
NAME = re.compile(r"step-(\d{9})")
LEFTOVER = re.compile(r"step-\d{9}\.tmp-[0-9a-f]+")
ASIDE = re.compile(r"step-(\d{9})\.damaged-[0-9a-f]+")


Stamp = dict[str, tuple[int, int, int, int]]


def step_name(step: int) -> str:
    """The folder of the checkpoint of a step; names sort as steps do."""
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


def newest_whole(folder: Path) -> Path | None:
    """The newest checkpoint of a folder that has all its files in their sizes; what is in them is not looked at."""
    return next((path for path in listing(folder) if verify(path, hashing=False) is None), None)


def verify(path: Path, part: int = 0, parts: int = 1, cold: bool = False, hashing: bool = True) -> str | None:
    """None if a checkpoint is whole: every file listed, of the right size and SHA-256, and no other; or what is wrong.

    The hashing, not the rest, can be shared: of `parts` callers the one numbered `part` hashes its share of the files.
    `cold` asks the system to forget what it remembers of them, so that they are read from the disk.
    """
    try:
        manifest = read_manifest(path)
        if manifest["format"] != FORMAT:
            return f"its format is {manifest['format']} and this version reads {FORMAT}"
        if manifest["sum"] != sum_of(manifest):
            return f"{MANIFEST} is not what was written"
        if path.name != step_name(manifest["step"]):
            return f"its manifest is of step {manifest['step']}"
        files, world = manifest["files"], int(manifest["world"])
        sizes = {name: size for name, (size, *_) in stamp(path).items() if name != MANIFEST}
        if not 1 <= world <= len(files):
            return f"{MANIFEST} cannot be read"
        if missing := sorted({*files, INDEX, FACTS, *map(own_name, range(world))} - set(sizes)):
            return f"{missing[0][:80]} is missing"
        if foreign := sorted(set(sizes) - set(files)):
            return f"{foreign[0]} does not belong to it"
        for name, listed in files.items():
            if sizes[name] != listed["bytes"]:
                return f"{name} has {sizes[name]} bytes and was written with {listed['bytes']}"
        if hashing and (problem := _wrong_sum(path, files, part, parts, cold)):
            return problem
        for name in sorted({FACTS, *map(own_name, range(world))})[part::parts]:
            read_json(path / name)
        _check_shards(path, read_index(path), sizes)
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    except DamageError as error:
        return str(error)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{MANIFEST} cannot be read"
    return None


def _wrong_sum(path: Path, files: Mapping[str, Any], part: int, parts: int, cold: bool) -> str | None:
    mine = sorted(files, key=lambda name: (-files[name]["bytes"], name))[part::parts]
    with ThreadPoolExecutor(THREADS) as pool:
        for name, digest in zip(mine, pool.map(lambda n: sha256(path / n, cold), mine), strict=True):
            if digest != files[name]["sha256"]:
                return f"{name} is not what was written"
    return None


def _check_shards(path: Path, layouts: Mapping[str, TensorLayout], sizes: Mapping[str, int]) -> None:
    """The files of tensors are those that the index implies: no byte of them is taken for anything else."""
    shards = index.shards_of(layouts)
    for name in sorted(set(shards) ^ {name for name in sizes if index.SHARD.fullmatch(name)}):
        raise DamageError(f"{name} is {'not there' if name in shards else f'not in {INDEX}'}")
    for name, shard in shards.items():
        if sizes[name] != shard.size:
            raise DamageError(f"{name} has {sizes[name]} bytes and {INDEX} asks for {shard.size}")
        with (path / name).open("rb", buffering=0) as file:
            if file.read(len(shard.header)) != shard.header:
                raise DamageError(f"{name} does not begin as {INDEX} says")


class DamageError(ValueError):
    """What is wrong with a checkpoint, in words."""


def known_by(path: Path) -> Stamp:
    """The stamp by which a checkpoint is known to be unchanged; empty where it cannot be read."""
    try:
        return stamp(path)
    except (OSError, DamageError):
        return {}


def stamp(path: Path) -> Stamp:
    """Size, times of change and inode of each file in a checkpoint; they change with whatever is done to it."""
    if path.is_symlink() or not path.is_dir():
        raise DamageError("it is not a folder of its own")
    stats = {entry.name: entry.stat(follow_symlinks=False) for entry in os.scandir(path)}
    for name, status in stats.items():
        if not stat.S_ISREG(status.st_mode):
            raise DamageError(f"{name} is not a file of its own")
    return {name: (s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for name, s in stats.items()}


def read_json(path: Path, hook: Callable[[dict[str, Any]], Any] | None = None) -> dict[str, Any]:
    """What a file of JSON says; DamageError if it is none. `hook` as of json.loads."""
    try:
        values = json.loads(read_small(path), object_hook=hook)
    except DamageError:
        raise
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise DamageError(f"{path.name} cannot be read")
    return values


def read_small(path: Path) -> bytes:
    """The bytes of a file of JSON, of which nobody would have written more than MOST."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise DamageError(f"{path.name} is not a file of its own")
    if status.st_size > MOST:
        raise DamageError(f"{path.name} has {status.st_size} bytes, which is too many")
    return path.read_bytes()


def read_manifest(path: Path) -> dict[str, Any]:
    """What a checkpoint says it consists of."""
    return read_json(path / MANIFEST)


def read_index(path: Path) -> dict[str, TensorLayout]:
    """Where the tensors of a checkpoint are; DamageError if that is impossible."""
    try:
        return index.from_json(read_small(path / INDEX))
    except DamageError:
        raise
    except ValueError as error:
        raise DamageError(f"{INDEX}: {error}") from None


def of_other_format(path: Path) -> bool:
    """Whether a checkpoint says it was written in a format other than this version's."""
    try:
        return bool(read_manifest(path)["format"] != FORMAT)
    except (OSError, ValueError, KeyError, RecursionError):
        return False


def world_of(path: Path) -> int:
    """How many ranks wrote a verified checkpoint."""
    return int(read_manifest(path)["world"])


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


def make_folder(folder: Path) -> None:
    """A folder and those above it that are missing, all of whose names outlive a power cut."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync(path.parent)


def no_room(need: int, free: int) -> OSError:
    """The error of a disk on which there is less room than needed."""
    words = f"it needs {data_size(need)} and the disk has {data_size(free)} free, {data_size(need - free)} too few"
    return OSError(errno.ENOSPC, words)


def copy(path: Path, folder: Path) -> Path:
    """A checkpoint again in another folder, read back and verified there; OSError or DamageError if that cannot be."""
    final, size = folder / path.name, sum(size for size, *_ in stamp(path).values())
    make_folder(folder)
    clear_leftovers(folder)
    if final.exists() and verify(final) is None:
        return final
    free = shutil.disk_usage(folder).free
    if free < size:
        raise no_room(size, free)
    beside = folder / f"{path.name}.tmp-{uuid.uuid4().hex}"
    try:
        beside.mkdir()
        for file in sorted(path.iterdir()):
            sync(Path(shutil.copyfile(file, beside / file.name, follow_symlinks=False)))
        sync(beside)
        publish(beside, final)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    problem = verify(final, cold=True)
    if problem is not None:
        drop(final)
        raise OSError(errno.EIO, f"it did not read back as written: {problem}")
    return final


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
