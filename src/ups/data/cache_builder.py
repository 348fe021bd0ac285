"""Builds latent caches: encoded in shards that any number of processes share out, published in one step."""

from __future__ import annotations

import errno
import json
import math
import shutil
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ups.data.cache import FORMAT, MANIFEST, VERSION, Key, check_key, digest, frames_of, read_manifest
from ups.data.cache_locks import locked, unread
from ups.data.cache_shards import FORMATS, named, write
from ups.data.trajectories import Trajectories
from ups.files import no_room, sha256, sum_of, sync, write_atomic
from ups.lazy_imports import Tensor, torch
from ups.parsing import read_record
from ups.types import DataError, counted

Encode = Callable[["Tensor"], "Tensor"]  # frames (N, *S, C) → tokens (N, *G, D), float32, on the CPU
OnSamples = Callable[[int, int], None]  # samples done, of all

SHARD = 128 * 2**20  # bytes, or one sample where that is larger
BATCH = 256  # frames encoded at once, at most; fewer where they are large
CELLS = 1 << 22
READERS = 2  # threads that read ahead
PATIENCE = 0.2  # seconds between looks at what other builders do


@dataclass
class Builder:
    """One cache being built from `part` by `encode`. `folder` is where it is published.

    Shards are made in a folder beside it, named by the key, each under a lock that ends with its process: ranks,
    machines and independent builders of the same key share them out, go on where a killed one stopped, and one of them
    publishes. A cache of another key, or a damaged one, is replaced only where `rebuild` says so.
    """

    part: Trajectories
    encode: Encode
    key: Key
    folder: Path
    dtype: str = "fp32"
    rebuild: bool = False
    shard: int = SHARD
    report: OnSamples = lambda done, total: None  # noqa: ARG005
    say: Callable[[str], None] = lambda sentence: None  # noqa: ARG005

    def __post_init__(self) -> None:
        self.draft = self.folder.with_name(f".{self.folder.name}.{digest(self.key)}.draft")
        with torch.no_grad():
            probe = self.encode(self._frames(0, 1)[:1])
        self.frames, self.tokens = frames_of(self.part), tuple(probe.shape[1:])
        each = self.frames * math.prod(self.tokens) * FORMATS[self.dtype].raw.itemsize
        each += 4 * (self.part.params.shape[1] + math.prod(self.part.inputs.shape[1:]))
        self.bytes = len(self.part) * each  # of the whole cache
        self.rows = max(1, min(len(self.part), self.shard * len(self.part) // max(1, self.bytes)))
        self.count = math.ceil(len(self.part) / self.rows)

    def run(self) -> Path:
        """The published cache; built, or adopted where it is there already."""
        try:
            if not self._there():
                self._check_room()
                while not self._there():
                    self._go_on()
        except OSError as error:
            raise DataError(_sentence(self.folder, error)) from None
        # Where another builder was the faster one, and what one that was killed while it replaced a cache has left.
        for left in (self.draft, *self.folder.parent.glob(f".{self.folder.name}.old-*")):
            shutil.rmtree(left, ignore_errors=True)
        self.report(len(self.part), len(self.part))
        return self.folder

    def _there(self) -> bool:
        """Whether the cache is published; a foreign or damaged one is an error unless it may be replaced."""
        if not self.folder.exists():
            return False
        try:
            check_key(self.folder, read_manifest(self.folder), self.key)
        except DataError:
            if self.rebuild:
                return False
            raise
        return True

    def _check_room(self) -> None:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.folder.parent).free
        made = sum(path.stat().st_size for path in self.draft.glob("*.safetensors")) if self.draft.is_dir() else 0
        need = self.bytes - made
        self.say(
            f"{self.folder}: {len(self.part)} × {counted(self.frames, 'frame')} as {self.dtype} tokens, "
            f"{self.bytes / 1e9:.3g} GB in {counted(self.count, 'shard')}; {free / 1e9:.3g} GB are free."
        )
        if need > free:
            raise DataError(
                f"{self.folder.parent}: has {free / 1e9:.3g} GB free, but the cache needs {need / 1e9:.3g} GB more; "
                "make room, name another cache.folder, or store it as bf16."
            ) from no_room()

    def _go_on(self) -> None:
        """Make every shard that is not made and that nobody else is making; publish if all are there, else wait."""
        with suppress(FileNotFoundError):  # published meanwhile: the next look finds it
            self.draft.mkdir(parents=True, exist_ok=True)
            todo = [i for i in range(self.count) if self._entry(i) is None]
            if not todo:
                self._publish()
                return
            for number in todo:
                with locked(self.draft / f"{number}.lock") as mine:
                    if mine and self._entry(number) is None and not self._there():
                        self._make(number)
            if any(self._entry(i) is None for i in todo):
                self.report(self._made(), len(self.part))
                time.sleep(PATIENCE)

    def _name(self, number: int) -> str:
        return f"shard-{number:05d}.safetensors"

    def _entry(self, number: int) -> dict[str, Any] | None:
        """What is known of a finished shard; None if it is not finished, or not what was written."""
        path = self.draft / self._name(number)
        try:
            entry = read_record(path.with_suffix(".json"))
            whole = path.stat().st_size == entry["bytes"]
        except (FileNotFoundError, ValueError, KeyError):
            return None
        if not whole:
            path.with_suffix(".json").unlink(missing_ok=True)
        return entry if whole else None

    def _make(self, number: int) -> None:
        first, last = number * self.rows, min((number + 1) * self.rows, len(self.part))
        ids, rows = self.part.ids[first:last], slice(first, last)
        small = {
            "params": self.part.params[rows].numpy(),
            "inputs": self.part.inputs[rows].numpy(),
            "ids": named(ids),
        }
        shape = (last - first, self.frames, *self.tokens)
        lost = {"square": 0.0, "error": 0.0, "worst": 0.0}
        path = self.draft / self._name(number)
        entry = write(path, small, "tokens", shape, self.dtype, self._stored(first, last, lost), {"format": FORMAT})
        entry |= {"file": path.name, "first": first, "samples": last - first, **lost}
        write_atomic(path.with_suffix(".json"), json.dumps(entry))

    def _stored(self, first: int, last: int, lost: dict[str, float]) -> Iterator[Tensor]:
        """Tokens of samples `first` … as they are stored, read ahead by threads; `lost` adds up what rounding takes."""
        many = max(1, min(BATCH, CELLS // math.prod(self.part.shape)) // self.frames)
        made = self._made()
        stretches = deque((at, min(at + many, last)) for at in range(first, last, many))
        ahead: deque[tuple[int, int, Future[Tensor]]] = deque()
        with ThreadPoolExecutor(READERS, "readers") as pool:
            while stretches or ahead:
                while stretches and len(ahead) <= READERS:
                    begin, end = stretches.popleft()
                    ahead.append((begin, end, pool.submit(self._frames, begin, end)))
                begin, end, future = ahead.popleft()
                yield self._rounded(self._encoded(future.result()), begin, lost)
                self.report(min(made + end - first, len(self.part)), len(self.part))

    def _frames(self, begin: int, end: int) -> Tensor:
        """All frames of some samples, `(n · T, *S, C)`; of a steady task nothing and the solution of each."""
        samples = list(range(begin, end))
        if self.part.task.steady:
            solved = self.part.frames(samples, [0] * len(samples), 1)
            return torch.cat((torch.zeros_like(solved), solved), 1).flatten(0, 1)
        return self.part.frames(samples, [0] * len(samples), frames_of(self.part)).flatten(0, 1)

    def _encoded(self, frames: Tensor) -> Tensor:
        size = max(1, min(BATCH, CELLS // math.prod(self.part.shape)))
        with torch.no_grad():
            return torch.cat([self.encode(piece) for piece in torch.split(frames, size)])

    def _rounded(self, tokens: Tensor, begin: int, lost: dict[str, float]) -> Tensor:
        stored = tokens.to(FORMATS[self.dtype].dtype)
        back = stored.float()
        if not torch.isfinite(back).all():
            bad = int((~torch.isfinite(back.flatten(1))).any(1).nonzero()[0]) // self.frames
            fits = bool(torch.isfinite(tokens).all())
            remedy = "store it as bf16" if fits else "look for bad values with `ups data validate`"
            what = f"too large for {self.dtype}" if fits else "not finite"
            raise DataError(f"{self.part.origin}: tokens of sample {self.part.ids[begin + bad]} are {what}; {remedy}.")
        gap = (back - tokens).double()
        lost["square"] += float(tokens.double().square().sum())
        lost["error"] += float(gap.square().sum())
        lost["worst"] = max(lost["worst"], float(gap.abs().max()))
        return stored

    def _made(self) -> int:
        """Samples in finished shards."""
        return sum(entry["samples"] for i in range(self.count) if (entry := self._entry(i)) is not None)

    def _publish(self) -> None:
        """Write the manifest, check every shard against it, and give the folder its name; one process at a time."""
        with locked(self.folder.with_name(f".{self.folder.name}.lock"), wait=True):
            if self._there():
                return
            entries = [self._entry(i) for i in range(self.count)]
            for number, entry in enumerate(entries):
                path = self.draft / self._name(number)
                if entry is None or sha256(path) != entry["sha256"]:
                    path.with_suffix(".json").unlink(missing_ok=True)  # damaged since it was made: once more
                    return
            write_atomic(self.draft / MANIFEST, json.dumps(self._manifest(entries), indent=1))  # type: ignore[arg-type]
            for path in (*self.draft.glob("*.lock"), *self.draft.glob("shard-*.json"), *self.draft.glob(".*")):
                path.unlink(missing_ok=True)
            sync(self.draft)
            old = self.folder.with_name(f".{self.folder.name}.old-{uuid.uuid4().hex[:8]}")
            with unread(self.folder / MANIFEST):
                if self.folder.exists():
                    self.folder.rename(old)
                self.draft.rename(self.folder)
            sync(self.folder.parent)
            shutil.rmtree(old, ignore_errors=True)

    def _manifest(self, entries: list[dict[str, Any]]) -> dict[str, Any]:
        part, clock = self.part, self.part.clock
        square, error = (math.fsum(entry[name] for entry in entries) for name in ("square", "error"))
        shards = [{name: e[name] for name in ("file", "first", "samples", "bytes", "sha256")} for e in entries]
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "key": dict(self.key),
            "task": part.task.name,
            "data": part.origin.name,
            "dtype": self.dtype,
            "rounding": {
                "relative": math.sqrt(error / square) if square else 0.0,
                "worst": max(entry["worst"] for entry in entries),
            },
            "samples": len(part),
            "frames": self.frames,
            "tokens": list(self.tokens),
            "rows": self.rows,
            "bytes": sum(entry["bytes"] for entry in entries),
            "times": part.times.tolist(),
            "lengths": clock.lengths.tolist(),
            "dt": clock.dt.tolist(),
            "steps": None if clock.steps is None else clock.steps.tolist(),
            "shape": list(part.shape),
            "periodic": list(part.grid.periodic),
            "bounds": list(part.grid.bounds),
            "corner": list(part.grid.corner),
            "shards": shards,
        }
        return {**manifest, "sum": sum_of(manifest)}


def _sentence(folder: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"{folder}: the disk became full while the cache was built; nothing was published, and what is finished is "
            "kept: make room and build it again, or name another cache.folder."
        )
    return f"{folder}: the cache cannot be built ({error.strerror}); check the folder or name another cache.folder."


def discard(folder: Path) -> None:
    """Take a published cache away, in one step; a DataError where a run is reading it."""
    old = folder.with_name(f".{folder.name}.old-{uuid.uuid4().hex[:8]}")
    with unread(folder / MANIFEST), suppress(FileNotFoundError):
        folder.rename(old)
    shutil.rmtree(old, ignore_errors=True)


def leftovers(place: Path) -> list[Path]:
    """What killed builders left below a folder: drafts that nobody works on, and caches that were replaced."""
    left = []
    for path in sorted(place.glob("**/.*")):
        replaced, begun = ".old-" in path.name, path.name.endswith(".draft")
        if path.is_dir() and (replaced or (begun and not _worked_on(path))):
            left.append(path)
    return left


def _worked_on(draft: Path) -> bool:
    for lock in draft.glob("*.lock"):
        with locked(lock) as free:
            if not free:
                return True
    return False
