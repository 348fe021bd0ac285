"""Explains what a path is that no reader takes, and which command takes it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

from ups.files import starts_with
from ups.run_files import is_run
from ups.types import DataError

ARRAYS = "its arrays with numpy.savez, and describe their axes in a file for --task"
MESH = "which is not read yet; write its `points`, its `cells` and the fields (sample, time, point) with numpy.savez"
GRID = f"which is not read yet; write {ARRAYS} (`dims: [sample, time, x, y, z]`)"
SIGNATURES = {
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"GIF8": "a GIF picture",
    b"%PDF": "a PDF document",
    b"\x1f\x8b": "a gzip archive; unpack it, and name what is in it",
    b"PK\x03\x04": "a zip archive; unpack it, and name what is in it",
    b"PAR1": "a Parquet table; write its arrays with numpy.savez",
    b"ply": f"a PLY mesh, {MESH}",
    b"$MeshFormat": f"a Gmsh mesh, {MESH}",
    b"GRIB": "a GRIB file, which is not read; turn it into netCDF (`cdo -f nc copy`), and name that",
    b"SIMPLE  =": f"a FITS file, which is not read; write {ARRAYS}",
}
# What stands near the beginning of a text: VTK's own format, old and new, and XDMF.
INSIDE = {
    rb"# vtk DataFile[\s\S]*STRUCTURED_POINTS|<VTKFile[^>]*\bImageData\b": f"a VTK image, a grid, {GRID}",
    rb"# vtk DataFile[\s\S]*RECTILINEAR_GRID|<VTKFile[^>]*\bRectilinearGrid\b": f"a VTK grid, {GRID}",
    rb"# vtk DataFile|<VTKFile": f"a VTK mesh, {MESH}",
}
TEXT = f"a table of text; write {ARRAYS}"
CONFIG = "a config; run it with `ups run`, or name it with --task if it describes a task"
SUFFIXES = {
    **dict.fromkeys((".csv", ".tsv"), TEXT),
    ".tar": "a tar archive; unpack it, and name what is in it",
    ".safetensors": "a file of weights, such as a trained simulator; roll it out with `ups rollout`",
    **dict.fromkeys((".yaml", ".yml"), CONFIG),
    **dict.fromkeys((".vti", ".pvti"), f"a VTK image, a grid, {GRID}"),
    **dict.fromkeys((".vtr", ".pvtr"), f"a VTK grid, {GRID}"),
    **dict.fromkeys((".vtk", ".vtu", ".vts", ".vtp", ".pvtu", ".pvd"), f"a VTK mesh, {MESH}"),
    **dict.fromkeys((".msh", ".ply", ".stl", ".obj", ".foam", ".plt"), f"a mesh, {MESH}"),
    **dict.fromkeys((".pkl", ".pickle"), f"a pickle, which could run code and is not opened; write {ARRAYS}"),
    **dict.fromkeys(
        (".xdmf", ".xmf"),
        "an XDMF description, which is not read; name the HDF5 file beside it, and say in a file for --task where its "
        "arrays lie (`datasets`)",
    ),
}
BEGINNING = 2**12  # bytes in which a text says what it is


def stranger(path: Path, readers: Collection[str], suffixes: Collection[str]) -> DataError:
    """The error of a path that no reader recognises."""
    names = ", ".join(readers)
    if path.is_dir():
        if is_run(os.listdir(path)):
            return DataError(
                f"{path}: is a run folder; `ups rollout` and `ups evaluate` take it, data are read elsewhere."
            )
        if (kind := _kind_inside(path, suffixes)) is not None:
            return DataError(f"{path}: holds {kind}.")
        return DataError(
            f"{path}: holds no .hdf5 file, nor anything else that can be read ({', '.join(suffixes)}); fetch the data "
            "or name another folder."
        )
    if (kind := _kind(path, suffixes)) is not None:
        return DataError(f"{path}: is {kind}{'' if ';' in kind else ', not data; name a file of arrays'}.")
    return DataError(
        f"{path}: is not an HDF5 file, nor anything else that can be read ({names}), or is damaged; check what it is "
        "and fetch it again."
    )


def _kind(path: Path, suffixes: Collection[str]) -> str | None:
    """What a file is that no reader takes, and what to do; None where nothing says so."""
    suffix = path.suffix.lower()
    if suffix not in suffixes:
        for signature, meaning in SIGNATURES.items():
            if starts_with(path, signature):
                return meaning
        beginning = _beginning(path)
        for sign, meaning in INSIDE.items():
            if re.search(sign, beginning):
                return meaning
    return SUFFIXES.get(suffix)


def _kind_inside(folder: Path, suffixes: Collection[str]) -> str | None:
    """What the files of a folder are, by the first of them that says so; None where none does."""
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        if (kind := _kind(path, suffixes)) not in (None, CONFIG):
            return f"{path.name}, {kind}"
    return None


def _beginning(path: Path) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(BEGINNING)
    except OSError:
        return b""
