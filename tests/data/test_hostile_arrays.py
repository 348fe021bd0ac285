"""Files of arrays made to harm: no code of theirs is run, no other file read, no memory filled."""

from __future__ import annotations

import json
import os
import struct
import sys
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from ups.data import open_source
from ups.definition import Definition
from ups.physics import TASKS
from ups.types import DataError

FLOW = Definition(name="flow", dims=("sample", "time", "x"), fields={"u": ("u",)})


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.folder),)


def refused(path: Path, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        open_source(path, TASKS, FLOW)
    assert "\n" not in str(caught.value)


def test_pickled_objects_in_numpy_files_are_refused_and_not_unpickled(tmp_path: Path) -> None:
    marks = [tmp_path / name for name in ("a", "b")]
    np.savez(tmp_path / "a.npz", u=np.array([Evil(marks[0])], dtype=object))
    np.save(tmp_path / "b.npy", np.array([Evil(marks[1])], dtype=object), allow_pickle=True)
    refused(tmp_path / "a.npz", "holds Python objects, not numbers")
    refused(tmp_path / "b.npy", "holds Python objects, not numbers")
    assert not any(mark.exists() for mark in marks)


@pytest.mark.parametrize("new_format", [True, False])
def test_code_in_torch_files_is_refused_and_not_run(tmp_path: Path, new_format: bool) -> None:
    mark = tmp_path / "mark"
    values = {"u": torch.zeros(2, 3, 8), "evil": Evil(mark)}
    torch.save(values, tmp_path / "a.pt", _use_new_zipfile_serialization=new_format)
    refused(tmp_path / "a.pt", "holds Python objects that are not tensors")
    assert not mark.exists()


def test_a_torch_file_that_holds_itself_or_claims_terabytes_is_refused(tmp_path: Path) -> None:
    circle: dict[str, object] = {"u": torch.zeros(2, 3, 8)}
    circle["again"] = circle
    torch.save(circle, tmp_path / "a.pt")
    refused(tmp_path / "a.pt", "holds itself")
    torch.save({"u": torch.zeros(1, 1, 1).expand(2**20, 2**10, 2**10)}, tmp_path / "b.pt")
    refused(tmp_path / "b.pt", "GB of numbers in a file of")


def npz(path: Path, header: str, packed: bool) -> Path:
    """An archive of one member with a header of its own and some zeros."""
    text = header.encode().ljust(117) + b"\n"
    member = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(4096)
    kind = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind) as archive:
        archive.writestr("u.npy", member)
    return path


HEADERS = {
    "more than there is": "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 1000000, 8), }",
    "words of a gigabyte": "{'descr': '|S2000000000', 'fortran_order': False, 'shape': (7,), }",
    "beyond 64 bits": "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4, 8), }",
    "a negative length": "{'descr': '<f4', 'fortran_order': False, 'shape': (-4, 4, 8), }",
    "code": "__import__('os').mkdir('evil')",
}


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("header", HEADERS)
def test_a_numpy_header_is_not_believed(tmp_path: Path, header: str, packed: bool) -> None:
    refused(npz(tmp_path / "a.npz", HEADERS[header], packed), "GB of numbers in a file of|is truncated|cannot be read")
    assert not Path("evil").exists()


def test_a_matlab_file_of_too_many_numbers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy.io import savemat

    savemat(tmp_path / "a.mat", {"u": np.zeros((64, 64, 256))}, do_compression=True)
    assert (tmp_path / "a.mat").stat().st_size < 10_000
    monkeypatch.setattr("ups.data.source.HARMLESS", 2**20)
    refused(tmp_path / "a.mat", "GB of numbers in a file of")


def test_complex_numbers_are_refused_in_every_version_of_matlab(tmp_path: Path) -> None:
    from scipy.io import savemat

    values = np.random.default_rng(0).random((3, 4, 8)) * 1j
    savemat(tmp_path / "a.mat", {"u": values})
    record = np.zeros((8, 4, 3), [("real", "f8"), ("imag", "f8")])
    with h5py.File(tmp_path / "b.mat", "w", userblock_size=512) as file:
        file["u"] = record
        file["u"].attrs["MATLAB_class"] = np.bytes_("double")
    with (tmp_path / "b.mat").open("r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM")
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["u"] = record.T
    for name in ("a.mat", "b.mat", "c.h5"):
        task = Definition("flow", dims=("sample", "time", "x"), fields={"u": ("u",)})
        with pytest.raises(DataError, match=r"u \(3 × 4 × 8\) is complex; write its real and imaginary part"):
            open_source(tmp_path / name, TASKS, task).read(0)


def test_folders_that_link_back_are_walked_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "u.npz", u=np.random.default_rng(0).random((2, 3, 8)))
        for other in ("one", "two"):
            (tmp_path / name / other).symlink_to(tmp_path)
    assert len(open_source(tmp_path, TASKS, FLOW)) == 4


@pytest.fixture
def store(tmp_path: Path) -> Path:
    zarr = pytest.importorskip("zarr", reason="needs the extra `formats`")
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w", zarr_format=2)
    dims = {"_ARRAY_DIMENSIONS": ["sample", "time", "x"]}
    values = group.create_array("u", shape=(2, 3, 8), dtype="f4", attributes=dims)
    values[:] = 1
    assert open_source(tmp_path / "a.zarr", TASKS).read(0).shape == (3, 8, 1)
    return tmp_path / "a.zarr"


def test_a_chunk_of_a_zarr_store_that_is_a_link_is_refused(store: Path, tmp_path: Path) -> None:
    chunk = next(p for p in (store / "u").rglob("*") if p.is_file() and not p.name.startswith("."))
    chunk.rename(tmp_path / "elsewhere")
    chunk.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="is a link inside a Zarr store"):
        open_source(store, TASKS)


def test_a_codec_that_unpickles_is_refused_before_it_is_made(store: Path) -> None:
    path = store / "u" / ".zarray"
    path.write_text(json.dumps({**json.loads(path.read_text()), "filters": [{"id": "pickle"}], "dtype": "|O"}))
    with pytest.raises(DataError, match="is packed by 'pickle', which is not read"):
        open_source(store, TASKS)


def test_a_zarr_store_that_names_what_lies_outside_or_claims_terabytes_is_refused(store: Path) -> None:
    path = store / "u" / ".zarray"
    whole = path.read_text()
    path.write_text(json.dumps({**json.loads(whole), "shape": [2**30, 2**20, 8]}))
    with pytest.raises(DataError, match="GB of numbers in a file of"):
        open_source(store, TASKS)
    path.write_text(whole)
    (store / ".zmetadata").write_text(json.dumps({"zarr_consolidated_format": 1, "metadata": {"../../u/.zarray": {}}}))
    with pytest.raises(DataError, match="lies outside the store"):
        open_source(store, TASKS)


def test_the_checks_of_a_zarr_store_need_no_zarr(tmp_path: Path) -> None:
    """What is refused is refused by this program: it is tested also where the package is not installed."""
    from ups.data.readers.zarr_folders import _check_store

    (tmp_path / "u").mkdir()
    (tmp_path / "u" / ".zarray").write_text(json.dumps({"filters": None, "compressor": {"id": "blosc"}}))
    assert _check_store(tmp_path) == (tmp_path / "u" / ".zarray").stat().st_size
    (tmp_path / "u" / ".zarray").write_text(json.dumps({"filters": [{"id": "pickle"}]}))
    with pytest.raises(DataError, match="'pickle'"):
        _check_store(tmp_path)
    (tmp_path / "u" / ".zarray").write_text("{}")
    (tmp_path / "u" / "0.0").symlink_to(sys.executable)
    with pytest.raises(DataError, match="is a link"):
        _check_store(tmp_path)
