"""The artifact: one safetensors file with the weights of every part and, as JSON in its header, how each is made."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ups.files import draft
from ups.models.header import FORMAT, VERSION, check_header, parsed
from ups.types import DataError, UpsError

FILE_NAME = "simulator.safetensors"


def digest(tensors: Mapping[str, Tensor]) -> str:
    """A hash of names, types, shapes and bytes."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name]
        total.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        total.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def write(path: Path, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    """Write the artifact whole or not at all, to a file or into a folder, and return the file's path.

    Every part of `header["parts"]` gets the digest of its own weights, and those of the parts as they are beside it.
    """
    path = path if path.suffix == ".safetensors" else path / FILE_NAME
    held = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    full = {**header, "format": FORMAT, "version": VERSION}
    digests = {name: digest(of_part(held, name)) for name in header.get("parts", ())}
    if digests:
        full["parts"] = {n: {"beside": digests, **part, "digest": digests[n]} for n, part in header["parts"].items()}
    full["digest"] = _whole(held, digests)
    path.parent.mkdir(parents=True, exist_ok=True)
    with draft(path) as beside:
        try:
            save_file(held, beside, metadata={"ups": json.dumps(full)})
        except SafetensorError as error:  # which hides the system's own
            number = re.search(r"os error (\d+)", str(error))
            code = int(number[1]) if number else errno.EIO
            raise OSError(code, os.strerror(code), str(path)) from error
    return path


def _whole(tensors: Mapping[str, Tensor], digests: Mapping[str, str]) -> str:
    """A hash of all tensors: those of parts through the digests of the parts, so that each is hashed once."""
    rest = {name: value for name, value in tensors.items() if name.partition(".")[0] not in digests}
    return hashlib.sha256(f"{digest(rest)} {sorted(digests.items())}".encode()).hexdigest() if digests else digest(rest)


def of_part(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """The tensors of one part, by their names within it."""
    start = f"{part}."
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


def read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(header, tensors) of an artifact; `path` is the file or the folder it lies in."""
    path = path / FILE_NAME if path.is_dir() else path
    if not path.exists():
        raise DataError(f"{path}: there is no such simulator; name a file written by `Simulator.save`, or its folder.")
    if not path.is_file():
        raise DataError(f"{path}: is no file, so it is no simulator; name a file written by `Simulator.save`.")
    try:
        with safe_open(path, "pt") as file:
            header = header_of(path, file.metadata())
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path}: is cut short or no simulator at all ({error}); save it again.") from None
    except (RuntimeError, MemoryError):  # torch cannot map it
        size = path.stat().st_size / 1e9
        raise DataError(f"{path}: its {size:.3g} GB do not fit in the memory; take a machine with more.") from None
    digests = {name: digest(of_part(tensors, name)) for name in header.get("parts", ())}
    if _whole(tensors, digests) != header.get("digest"):
        raise DataError(f"{path}: its weights do not match its digest, so the file is damaged; save it again.")
    return header, tensors


def replace_part(path: str | Path, name: str, source: str | Path, out: str | Path | None = None) -> Path:
    """Put the part `name` of the artifact `source` into the one at `path` (or write that to `out`).

    The other parts keep every bit, and their headers. Which parts a part was trained beside stays in its header
    (`beside`), so that a part that has lost its company can be told: see `strangers`.
    """
    header, tensors = read(Path(path))
    other, theirs = read(Path(source))
    for key, what in (("tasks", "tasks"), ("shapes", "grids")):
        if header[key] != other[key]:
            raise DataError(
                f"{source}: was trained on other {what} than {path}; a part is replaced by one of the same."
            )
    if name not in other["parts"]:
        raise DataError(f"{source}: has no part '{name}'; it has {', '.join(other['parts'])}.")
    shapes = [{n: tuple(t.shape) for n, t in of_part(held, name).items()} for held in (tensors, theirs)]
    if shapes[0] and shapes[0] != shapes[1]:
        raise DataError(f"{source}: its '{name}' is another network than that of {path}; take one of the same config.")
    others = {key: value for key, value in tensors.items() if not key.startswith(f"{name}.")}
    taken = {key: value for key, value in theirs.items() if key.startswith(f"{name}.")}
    parts = {**header["parts"], name: other["parts"][name]}
    # What validation data said of the whole was said with the part that was there before.
    header = {key: value for key, value in header.items() if key != "trust"}
    if name == "codec":
        header["corners"] = other.get("corners", {})
    return write(Path(out or path), {**header, "parts": parts}, {**others, **taken})


def strangers(parts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A sentence for each part that was trained beside other weights of a part it needs than stand beside it now."""
    return [
        f"the part '{name}' was trained beside another '{other}' than the one in this simulator."
        for name, part in parts.items()
        for other in part.get("needs", ())
        if other in parts and part.get("beside", {}).get(other) != parts[other].get("digest")
    ]


def header_of(path: Path, metadata: Mapping[str, str] | None) -> dict[str, Any]:
    """The header of an artifact from the metadata of its file; a DataError where it is none."""
    try:
        header = parsed((metadata or {}).get("ups", ""))
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise DataError(f"{path}: holds tensors but no simulator of this project; name a file saved by it.")
    version = header.get("version")
    if version != VERSION:
        old = isinstance(version, int) and version < VERSION
        remedy = "train it again, or load it with the program that wrote it" if old else "update the program"
        raise DataError(f"{path}: has format version {version!r:.40}, and this program reads {VERSION}; {remedy}.")
    try:
        check_header(header)
    except UpsError as error:
        raise damaged(path, error) from None
    return header


def damaged(path: Path | str, error: Exception) -> DataError:
    """What is said of an artifact whose header is none, or not that of its weights."""
    first = " ".join(str(error).split()).rstrip(".")[:300]
    return DataError(f"{path}: its weights are not of the model it describes ({first}); save it again.")
