"""Explains what a path is that no reader takes, and which command takes it."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from ups.files import starts_with
from ups.run_files import is_run
from ups.types import DataError

SIGNATURES = {
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"GIF8": "a GIF picture",
    b"%PDF": "a PDF document",
    b"\x1f\x8b": "a gzip archive; unpack it, and name what is in it",
    b"PK\x03\x04": "a zip archive; unpack it, and name what is in it",
    b"PAR1": "a Parquet table; write its arrays with numpy.savez",
}
SUFFIXES = {
    ".csv": "a table of text; write its arrays with numpy.savez, and describe their axes in a file for --task",
    ".tsv": "a table of text; write its arrays with numpy.savez, and describe their axes in a file for --task",
    ".tar": "a tar archive; unpack it, and name what is in it",
    ".safetensors": "a file of weights, such as a trained simulator; roll it out with `ups rollout`",
    ".yaml": "a config; run it with `ups run`, or name it with --task if it describes a task",
    ".yml": "a config; run it with `ups run`, or name it with --task if it describes a task",
    ".vtk": "a VTK mesh, which is not read; put its fields on a grid and write them with numpy.savez",
    ".vtu": "a VTK mesh, which is not read; put its fields on a grid and write them with numpy.savez",
    ".xdmf": "an XDMF description, which is not read; name the HDF5 file beside it, and say in a file for --task where "
    "its arrays lie (`datasets`)",
}


def stranger(path: Path, readers: Collection[str], suffixes: Collection[str]) -> DataError:
    """The error of a path that no reader recognises."""
    names = ", ".join(readers)
    if path.is_dir():
        if is_run(os.listdir(path)):
            return DataError(
                f"{path}: is a run folder; `ups rollout` and `ups evaluate` take it, data are read elsewhere."
            )
        return DataError(
            f"{path}: holds no .hdf5 file, nor anything else that can be read ({', '.join(suffixes)}); fetch the data "
            "or name another folder."
        )
    for signature, meaning in SIGNATURES.items():
        if path.suffix not in suffixes and starts_with(path, signature):
            return DataError(f"{path}: is {meaning}{'' if ';' in meaning else ', not data; name a file of arrays'}.")
    if path.suffix in SUFFIXES:
        return DataError(f"{path}: is {SUFFIXES[path.suffix]}.")
    return DataError(
        f"{path}: is not an HDF5 file, nor anything else that can be read ({names}), or is damaged; check what it is "
        "and fetch it again."
    )
