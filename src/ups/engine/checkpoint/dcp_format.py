"""Tensors of all ranks to files and back, through torch's distributed checkpoint; its failures in one line."""

from __future__ import annotations

import base64
import errno
import hashlib
import io
import os
import pickle
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from ups.engine.checkpoint import manifest
from ups.engine.checkpoint.manifest import INDEX

# One process without a process group is a case like any other here.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")

PLAIN = {"flatten_state_dict": False, "flatten_sharded_tensors": False}  # names are kept as they are

LARGE = 2**28  # bytes that are worth a thread of their own

Kind = tuple[tuple[int, ...], torch.dtype]


def write_shards(
    folder: Path, state: Mapping[str, Tensor], copies: Mapping[str, Tensor], group: dist.ProcessGroup | None
) -> dict[str, dict[str, Any]]:
    """Write this rank's `copies`, in CPU memory, of what `state` describes; the manifest's entries of the files.

    All ranks of `group` call it, and a failure of any is a CheckpointException on all.
    """
    # No copying ahead: there is nothing to copy, and a background thread has no GPU stream to do it on.
    # Each thread writes and hashes a file of its own, where there is enough for several.
    threads = max(1, min(manifest.THREADS, sum(copy.nbytes for copy in copies.values()) // LARGE))
    writer = FileSystemWriter(folder, thread_count=threads, per_thread_copy_ahead=0, overwrite=False)
    writer.fs = files = _Files()
    save(dict(state), storage_writer=writer, planner=_Planner(copies), process_group=group, no_dist=group is None)
    return files.entries


def read_shards(folder: Path, tensors: Mapping[str, Tensor]) -> str | None:
    """Read this rank's part into `tensors`, in place; a sentence instead if names, shapes or types differ.

    Each rank reads alone and only what it needs: nothing here waits for another one.
    """
    here, there = {n: (tuple(t.shape), t.dtype) for n, t in tensors.items()}, _kinds(folder)
    other = next((n for n in (*here, *there) if here.get(n) != there.get(n)), None)
    if other is not None:
        return (
            f"the checkpoint belongs to another model: '{other}' is {_words(there.get(other))} there and "
            f"{_words(here.get(other))} here; use the config it was made with, or overwrite the run."
        )
    load(dict(tensors), storage_reader=FileSystemReader(folder), planner=DefaultLoadPlanner(**PLAIN), no_dist=True)
    return None


def _kinds(folder: Path) -> dict[str, Kind]:
    """Shape and type of every tensor in a checkpoint, whole as it was before it was sharded."""
    try:
        tensors = FileSystemReader(folder).read_metadata().state_dict_metadata
    except (pickle.UnpicklingError, AttributeError, ImportError) as error:  # it was verified, so it is not damaged
        raise OSError(errno.EINVAL, f"it was written by a torch too different from this one ({line(error)})") from error
    return {n: (tuple(m.size), m.properties.dtype) for n, m in tensors.items() if isinstance(m, TensorStorageMetadata)}


def _words(kind: Kind | None) -> str:
    return "absent" if kind is None else f"{str(kind[1]).removeprefix('torch.')} {list(kind[0])}"


class _Planner(DefaultSavePlanner):
    """Plans by the live tensors' shapes and places, and writes the copies."""

    def __init__(self, copies: Mapping[str, Tensor]) -> None:
        super().__init__(**PLAIN)
        self.copies = copies

    def lookup_object(self, index: Any) -> Any:
        return self.copies[index.fqn]


class _Files(FileSystem):
    """Files that hash what is written to them on its way, so that the manifest says what was meant."""

    def __init__(self) -> None:
        self.entries: dict[str, dict[str, Any]] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        with super().create_stream(path, mode) as stream:
            hashed = _Hashed(stream)
            yield hashed
            name = INDEX if Path(path).name == f"{INDEX}.tmp" else Path(path).name  # DCP renames it afterwards
            self.entries[name] = manifest.entry(hashed.tell(), hashed.sum.hexdigest())


class _Hashed(io.IOBase):
    def __init__(self, stream: io.IOBase) -> None:
        self.stream, self.sum = stream, hashlib.sha256()

    def write(self, content: Any) -> int:
        self.sum.update(content)
        return self.stream.write(content)  # type: ignore[no-any-return]

    def tell(self) -> int:
        return self.stream.tell()

    def flush(self) -> None:
        self.stream.flush()

    def fileno(self) -> int:
        return self.stream.fileno()


def pack(value: Any) -> dict[str, Any]:
    """A tensor as JSON."""
    if not isinstance(value, Tensor):
        raise TypeError(f"a checkpoint holds JSON and tensors, not {type(value).__name__}")
    raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    dtype = str(value.dtype).removeprefix("torch.")
    return {"tensor": base64.b64encode(raw).decode(), "dtype": dtype, "shape": list(value.shape)}


def unpack(value: dict[str, Any]) -> Any:
    """What `pack` made a tensor into, as a tensor; anything else as it is."""
    if value.keys() != {"tensor", "dtype", "shape"}:
        return value
    raw = torch.frombuffer(bytearray(base64.b64decode(value["tensor"])), dtype=torch.uint8)
    return raw.view(getattr(torch, value["dtype"])).reshape(value["shape"])


def plain(error: OSError | RuntimeError | ValueError | CheckpointException) -> OSError:
    """Any failure as an OSError that says it in a line; DCP's names the ranks."""
    if isinstance(error, CheckpointException):
        return joined({rank: plain(why) for rank, (why, _) in error.failures.items()}, 2)  # type: ignore[arg-type]
    if isinstance(error, OSError) and error.strerror:
        where = f": {Path(error.filename).name}" if error.filename else ""
        return OSError(error.errno, error.strerror + where)
    return OSError(errno.EIO, line(error))


def joined(failures: Mapping[int, OSError], world: int) -> OSError:
    """The failures of several ranks as one."""
    first = next(iter(failures.values()))
    lines = [f"rank {rank}: {failure.strerror}" for rank, failure in failures.items()]
    return OSError(first.errno, "; ".join(lines) if world > 1 else first.strerror)


def line(error: BaseException) -> str:
    """The first line of what an error says."""
    return next(iter(str(error).splitlines()), type(error).__name__)
