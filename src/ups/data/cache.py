"""Reads a latent cache: the tokens that a frozen codec made of one part of a task. Refuses one of other data."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ups.data.cache_locks import lock_for_reading
from ups.data.cache_shards import FORMATS, CacheShard
from ups.data.clock import Clock
from ups.data.trajectories import Trajectories
from ups.files import sha256, stamp, sum_of
from ups.lazy_imports import Tensor, torch
from ups.parsing import read_record
from ups.tensors import Window
from ups.types import Array, DataError, Grid, TaskSpec, counted

FORMAT, VERSION = "ups-latents", 3
MANIFEST = "manifest.json"
REMEDY = "build it again (`ups cache build --rebuild`, or cache.rebuild: true)"
SHARD_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
ARRAYS = {"tokens", "inputs", "params", "ids"}  # of a shard
MOST = 2**48  # of anything that is counted in a cache
OPEN = 64  # files that a process keeps open of a cache

Key = Mapping[str, str]
Seals = Mapping[str, Sequence[int]]  # by the name of a shard: the `stamp` of the file that was verified


class StaleError(DataError):
    """A cache that was made of other data, or by another codec, than those of this run."""


def frames_of(part: Trajectories) -> int:
    """Frames of a sample that are encoded: two of a steady task, an empty one and the solution."""
    return 2 if part.task.steady else len(part.times)


def key_of(part: Trajectories, codec: Mapping[str, str], data: str, dtype: str) -> dict[str, str]:
    """Everything a cache depends on, by name. `codec` holds digests of weights and normalisation, `data` that of the
    file."""
    r, grid = part.reduction, part.grid
    return {
        **codec,
        "data file": data,
        "samples": hashlib.sha256("\n".join(part.ids).encode()).hexdigest(),
        "reduction": f"every {r.time}. frame from {r.start} on and every {r.space}. cell, {part.dt:g} apart",
        "task": hashlib.sha256(repr((part.task, grid.periodic, grid.lengths)).encode()).hexdigest(),
        "dtype": dtype,
    }


def digest(key: Key) -> str:
    """A short name of a key."""
    return hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()[:16]


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a cache; a DataError where there is none, where it is damaged or of another version."""
    path = folder / MANIFEST
    try:
        manifest = read_record(path, nan=False)
        version = manifest["version"] if manifest["format"] == FORMAT else None
    except FileNotFoundError:
        raise DataError(f"{folder}: holds no latent cache; build it with `ups cache build`.") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check its permissions.") from None
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path}: is no manifest of a latent cache, or is damaged; {REMEDY}.") from None
    if version != VERSION:
        raise DataError(f"{path}: is of version {version}, and this program reads {VERSION}; {REMEDY}.")
    if manifest.get("sum") != sum_of(manifest):
        raise DataError(f"{path}: is not what was written, so it is damaged; {REMEDY}.")
    try:
        _check_plan(folder, manifest)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise DataError(f"{path}: {error}, so it is damaged or foreign; {REMEDY}.") from None
    return dict(manifest)


def _check_plan(folder: Path, manifest: Mapping[str, Any]) -> None:
    """ValueError or another that says what is wrong, unless every number is possible and every shard a file of its own
    folder: a manifest may come from anyone, and its sum says only that it is whole."""
    shards, samples, rows = manifest["shards"], manifest["samples"], manifest["rows"]
    for name in ("samples", "rows", "frames", "bytes"):
        if not _is_count(manifest[name]):
            raise ValueError(f"its {name} are no possible whole number")
    if manifest["dtype"] not in FORMATS or not all(_is_count(n) for n in manifest["shape"]):
        raise ValueError("its number format or its grid is none")
    if len(shards) != -(-samples // rows):
        raise ValueError(f"it has {counted(len(shards), 'shard')} for {counted(samples, 'sample')}")
    for shard in shards:
        name = shard["file"]
        if not isinstance(name, str) or not SHARD_NAME.fullmatch(name):
            raise ValueError(f"it names the shard {str(name)[:80]!r}, which is no file of its folder")
        if (folder / name).is_symlink():
            raise ValueError(f"its shard {name} is a link")
        if type(shard["bytes"]) is not int or not isinstance(shard["sha256"], str):
            raise ValueError(f"it does not say how large {name} is")
    times = _numbers(manifest, "times", None)
    if not all(type(n) is int and 0 < n <= len(times) for n in manifest["lengths"]):
        raise ValueError("its samples are of no possible length")
    for name, length in (("lengths", samples), ("dt", samples)):
        _numbers(manifest, name, length)
    _numbers(manifest, "bounds", len(manifest["shape"]), 2)
    if manifest["corner"] != []:
        _numbers(manifest, "corner", len(manifest["shape"]))
    if manifest["steps"] is not None:
        _numbers(manifest, "steps", samples, len(times) - 1)
    if not math.isfinite(manifest["rounding"]["relative"]):
        raise ValueError("its rounding is no number")
    words = (*manifest["key"], *manifest["key"].values(), manifest["task"])
    if not all(isinstance(word, str) for word in words):
        raise TypeError("its key or its task is no text")
    if len(manifest["periodic"]) != len(manifest["shape"]) or not all(_is_count(n) for n in manifest["tokens"]):
        raise ValueError("its boundaries or its tokens are none")


def _is_count(value: object) -> bool:
    return type(value) is int and 0 < value < MOST


def _numbers(manifest: Mapping[str, Any], name: str, *shape: int | None) -> Array:
    """The numbers of a manifest under a name; ValueError or TypeError where they are not finite or not of a shape."""
    values = np.asarray(manifest[name], np.float64)
    if values.ndim != len(shape) or any(n not in (None, m) for n, m in zip(shape, values.shape, strict=True)):
        raise ValueError(f"its {name} are of another shape")
    if not np.isfinite(values).all():
        raise ValueError(f"its {name} are not finite")
    return values


def check_key(folder: Path, manifest: Mapping[str, Any], key: Key) -> None:
    """Refuse a cache that was made of something else, and say of what."""
    old = manifest["key"]
    changed = [_change(name, old.get(name), key.get(name)) for name in {**old, **key} if old.get(name) != key.get(name)]
    if changed:
        raise StaleError(f"{folder}: was made of something else, for its {', '.join(changed)} changed; {REMEDY}.")


def _change(name: str, old: str | None, new: str | None) -> str:
    short = [("nothing" if x is None else x if len(x) < 60 else x[:8]) for x in (old, new)]
    return f"{name} ({short[0]} → {short[1]})"


def verified(folder: Path, part: int = 0, parts: int = 1) -> Seals:
    """The seals of the shards, each of which is what the manifest says; a DataError where one is not.

    Of several callers each hashes, and seals, its share of the shards.
    """
    manifest = read_manifest(folder)
    seals = {}
    try:
        for shard in manifest["shards"]:
            path = folder / shard["file"]
            size = path.stat().st_size
            if size != shard["bytes"]:
                raise DataError(f"{path}: has {size} bytes and was written with {shard['bytes']}; {REMEDY}.")
        for shard in manifest["shards"][part::parts]:
            path = folder / shard["file"]
            seals[shard["file"]] = stamp(path.stat())
            if sha256(path) != shard["sha256"]:
                raise DataError(f"{path}: is not what was written, so it is damaged; {REMEDY}.")
    except OSError as error:
        raise DataError(f"{error.filename or folder}: cannot be read ({error.strerror}); {REMEDY}.") from None
    return seals


def verify(folder: Path) -> str | None:
    """None if every shard is what the manifest says, or a sentence on what is wrong."""
    try:
        verified(folder)
    except DataError as error:
        return str(error)
    return None


@dataclass(frozen=True)
class NoFrames:
    """Stands in where no loss needs frames: the right count and grid, and no channel."""

    shape: tuple[int, ...]

    def frames(self, samples: Sequence[int], first: Sequence[int], count: int) -> Tensor:  # noqa: ARG002
        return torch.zeros(len(samples), count, *self.shape, 0)


class Latents:
    """Windows of tokens from a published cache, in the place of windows of frames.

    `window` gives tokens of context and targets, float32 whatever they are stored in; the frames of the context are
    left out, those of the targets come from `truth` where a loss needs them. All processes share what is read through
    the system's page cache; a process keeps nothing of it for itself. With `seals`, only files that were verified are
    read. Frames on points lie on a `grid` that the cache does not hold.
    """

    def __init__(
        self,
        folder: Path,
        key: Key,
        task: TaskSpec,
        truth: Trajectories | None = None,
        seals: Seals | None = None,
        grid: Grid | None = None,
    ) -> None:
        manifest = read_manifest(folder)
        check_key(folder, manifest, key)
        self.origin, self.task, self.manifest = folder, task, manifest
        steps = manifest["steps"]
        self.clock = Clock(
            times=np.array(manifest["times"], np.float64),
            lengths=np.array(manifest["lengths"], np.int64),
            dt=np.array(manifest["dt"], np.float64),
            steps=None if steps is None else np.array(steps, np.float64),
        )
        self.times, self.lengths = self.clock.times, self.clock.lengths
        self.shape: tuple[int, ...] = tuple(manifest["shape"])
        bounds = tuple((float(low), float(high)) for low, high in manifest["bounds"])
        cells = Grid(self.shape, tuple(manifest["periodic"]), bounds, tuple(manifest["corner"]))
        self.grid = cells if grid is None else grid
        self.truth = truth or NoFrames(self.shape)
        self.form, self.per_shard = FORMATS[manifest["dtype"]], int(manifest["rows"])
        self._seals = dict(seals or {})
        self._reading = weakref.finalize(self, os.close, lock_for_reading(folder / MANIFEST))
        self._shards: dict[int, CacheShard] = {}
        self._open: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return int(self.manifest["samples"])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_shards": {}, "_open": OrderedDict(), "_reading": None}  # whoever made it holds it

    def _shard(self, number: int) -> CacheShard:
        if number in self._open:
            self._open.move_to_end(number)
            return self._shards[number]
        entry = self.manifest["shards"][number]
        if number in self._shards:
            self._shards[number].open()
        else:
            self._shards[number] = CacheShard(self.origin / entry["file"])
        shard = self._shards[number]
        self._require_sealed(entry, shard.stamp)
        if shard.bytes != entry["bytes"]:
            raise DataError(f"{shard.path}: has {shard.bytes} bytes, not {entry['bytes']}, so it is cut; {REMEDY}.")
        expected = (self.manifest["frames"], *self.manifest["tokens"])
        if not shard.fields.keys() >= ARRAYS or shard.fields["tokens"].shape[1:] != expected:
            raise DataError(f"{shard.path}: holds other arrays than the manifest says; {REMEDY}.")
        self._open[number] = None
        if len(self._open) > OPEN:
            self._shards[self._open.popitem(last=False)[0]].close()
        return shard

    def require_unchanged(self) -> None:
        """DataError for the first shard that is not the file that was verified."""
        for entry in self.manifest["shards"]:
            path = self.origin / entry["file"]
            try:
                self._require_sealed(entry, stamp(path.stat()))
            except OSError as error:
                raise DataError(f"{path}: cannot be read any more ({error.strerror}); {REMEDY}.") from None

    def _require_sealed(self, entry: Mapping[str, Any], now: Sequence[int]) -> None:
        """DataError unless a shard is the file that was verified; one that was only touched, or that this machine knows
        by another number, is hashed again."""
        name = entry["file"]
        if self._seals.get(name, now) == now:
            return
        if sha256(self.origin / name) != entry["sha256"]:
            raise DataError(
                f"{self.origin / name}: was replaced or changed while it was in use; see that nobody writes to it, and "
                f"{REMEDY}."
            )
        self._seals[name] = now

    def rows(self, samples: Sequence[int], first: Sequence[int], count: int) -> dict[str, Array]:
        """Copies of what is stored of some samples, by name; of the tokens of each, `count` frames from its `first`."""
        fields = self._shard(samples[0] // self.per_shard).fields
        shapes = {name: field.shape[1:] for name, field in fields.items()}
        frames, *token = shapes["tokens"]
        if not all(0 <= f <= frames - count for f in first):
            raise IndexError(
                f"{self.origin} has {counted(frames, 'frame')} of a sample, and not {count} from {max(first)} on"
            )
        shapes["tokens"] = (count, *token)
        rows = {name: np.empty((len(samples), *shape), fields[name].dtype) for name, shape in shapes.items()}
        # Bytes of a row by name, and as many to skip for each frame before the first.
        sizes = [(name, a.data.cast("B"), a.nbytes // len(a)) for name, a in rows.items() if a.size]
        skipped = math.prod(token) * fields["tokens"].dtype.itemsize
        for i, sample in enumerate(samples):
            number, row = divmod(sample, self.per_shard)
            shard = self._shard(number)
            for name, into, size in sizes:
                skip = first[i] * skipped if name == "tokens" else 0
                shard.read(name, row, into[i * size : (i + 1) * size], skip)
        return rows

    def _numbers(self, stored: Array) -> Tensor:
        numbers = torch.from_numpy(stored)
        return (numbers.view(torch.bfloat16) if self.form.dtype == torch.bfloat16 else numbers).float()

    def tokens(self, samples: Sequence[int], first: Sequence[int], count: int) -> Tensor:
        """`(B, count, *G, D)`, float32."""
        return self._numbers(self.rows(samples, first, count)["tokens"])

    def window(self, samples: Sequence[int], first: Sequence[int], context: int, targets: int) -> Window:
        """As `Trajectories.window`, with `tokens` of all its frames."""
        if self.task.steady:
            first = [0] * len(samples)
            stored = self.rows(samples, first, 2)
            pair = self._numbers(stored["tokens"])
            tokens = torch.cat((pair[:, :1].expand(-1, context, *pair.shape[2:]), pair[:, 1:]), 1)
            truth = self.truth.frames(samples, first, 1)
        else:
            stored = self.rows(samples, first, context + targets)
            tokens = self._numbers(stored["tokens"])
            truth = self.truth.frames(samples, [f + context for f in first], targets)
        return Window(
            task=self.task,
            context=torch.zeros(len(samples), context, *self.shape, 0),
            targets=truth,
            inputs=torch.from_numpy(stored["inputs"]),
            params=torch.from_numpy(stored["params"]),
            dt=self.clock.step(samples, first, context, targets),
            grid=self.grid,
            ids=tuple(name.tobytes().rstrip(b"\0").decode() for name in stored["ids"]),
            tokens=tokens,
        )
