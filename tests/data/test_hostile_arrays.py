"""Files of arrays made to harm: no code of theirs is run, no other file read, no memory filled."""

from __future__ import annotations

import json
import os
import random
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from ups.data import open_source
from ups.definition import Definition
from ups.physics import TASKS
from ups.types import DataError, UpsError

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


def npy(path: Path, header: str, version: tuple[int, int] = (1, 0)) -> Path:
    """An .npy file with a header of its own and some zeros."""
    length = struct.pack("<H" if version == (1, 0) else "<I", len(header))
    path.write_bytes(b"\x93NUMPY" + bytes(version) + length + header.encode("latin1") + bytes(4096))
    return path


ODD = {
    "that does not end": "{'descr': '<f4', 'fortran_order': False, 'shape': (2,3,8",
    "that is a text without an end": "'''",
    "that goes on in the next line": "\\\n" * 4000,
    "that is indented": "if 1:\n  2\n 3",
    "of brackets": "(" * 9000,
    "of brackets in a shape": f"{{'descr': '<f4', 'fortran_order': False, 'shape': {'(' * 150}2{')' * 150}}}",
    "of signs": "-" * 9000 + "1",
    "of sums": "1+" * 4000 + "1",
    "of thousands of digits": f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({'9' * 5000},)}}",
}


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0), (4, 0)])
@pytest.mark.parametrize("what", ODD)
def test_a_numpy_header_that_is_deep_or_cut_is_one_sentence(
    tmp_path: Path, what: str, version: tuple[int, int]
) -> None:
    refused(npy(tmp_path / "a.npy", ODD[what], version), "its header cannot be read, the file is damaged")


def test_numpy_and_torch_files_cut_anywhere_or_with_bytes_changed_are_read_or_one_sentence(tmp_path: Path) -> None:
    u, draw = np.random.default_rng(0).random((2, 3, 8)), random.Random(0)
    np.save(tmp_path / "u.npy", u)
    np.savez_compressed(tmp_path / "u.npz", u=u)
    for name, new in (("new", True), ("old", False)):
        torch.save({"u": torch.tensor(u)}, tmp_path / f"{name}.pt", _use_new_zipfile_serialization=new)
    for whole in ("u.npy", "u.npz", "new.pt", "old.pt"):
        raw = (tmp_path / whole).read_bytes()
        path, texts = tmp_path / f"changed{Path(whole).suffix}", set()
        cuts = [raw[: draw.randrange(len(raw))] for _ in range(60)]
        for content in (*cuts, *(changed(raw, draw) for _ in range(150))):
            path.write_bytes(content)
            try:
                open_source(path, TASKS, FLOW).read(0)
            except UpsError as error:
                texts.add(str(error))
        assert texts
        assert not [text for text in texts if "\n" in text]


def changed(raw: bytes, draw: random.Random) -> bytes:
    """A file with a few bytes that are others, or gone."""
    content = bytearray(raw)
    for _ in range(draw.choice((1, 2, 20))):
        place = draw.randrange(len(content))
        if draw.random() < 0.7:
            content[place] = draw.randrange(256)
        else:
            del content[place : min(place + draw.choice((1, 4, 50)), len(content) - 1)]
    return bytes(content)


@pytest.mark.parametrize("new_format", [True, False])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("sparse", "u is sparse; save a dense tensor"),
        ("rows", "u is sparse; save a dense tensor"),
        ("meta", "u is without numbers"),
        ("quantised", "u is quantised; save a dense tensor"),
        ("nested", "u is nested; save a dense tensor"),
        ("eighths", "u is of type float8_e4m3fn, which is not read; save it as float32"),
        ("number", "n is a whole number too large"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # torch calls half of these experimental
def test_a_tensor_that_does_not_hold_its_numbers_is_one_sentence(
    tmp_path: Path, kind: str, words: str, new_format: bool
) -> None:
    u = torch.rand(2, 3, 8)
    values: dict[str, Callable[[], object]] = {
        "sparse": u.to_sparse,
        "rows": u[0].to_sparse_csr,
        "meta": lambda: torch.empty(2**20, 2**20, 8, device="meta"),
        "quantised": lambda: torch.quantize_per_tensor(u, 0.1, 0, torch.quint8),
        "nested": lambda: torch.nested.nested_tensor([u[0], u[1, :2]]),
        "eighths": lambda: u.to(torch.float8_e4m3fn),
        "number": lambda: u,
    }
    held = {"u": values[kind](), **({"n": 10**400} if kind == "number" else {})}
    torch.save(held, tmp_path / "a.pt", _use_new_zipfile_serialization=new_format)
    unknown = "" if new_format else "|cannot be read"  # to the old format, of which torch reads some no more
    refused(tmp_path / "a.pt", f"{words}{unknown}")


def test_a_matlab_file_of_too_many_numbers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy.io import savemat

    savemat(tmp_path / "a.mat", {"u": np.zeros((64, 64, 256))}, do_compression=True)
    assert (tmp_path / "a.mat").stat().st_size < 10_000
    monkeypatch.setattr("ups.data.source.HARMLESS", 2**20)
    refused(tmp_path / "a.mat", "GB of numbers in a file of")


@pytest.mark.parametrize("where", ["values", "name", "dimensions"])
def test_a_packed_matlab_variable_that_fills_the_memory_is_refused_before_it_is_unpacked(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scipy.io import savemat

    def part(kind: int, data: bytes) -> bytes:
        return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)

    monkeypatch.setattr("scipy.io.loadmat", lambda *_, **__: pytest.fail("unpacked first"))
    savemat(tmp_path / "a.mat", {"u": np.zeros((2, 3, 8)), "word": "a", "v": np.ones(3, "i1")}, do_compression=True)
    parts = {"flags": part(6, struct.pack("<II", 6, 0)), "dimensions": part(5, struct.pack("<iii", 2, 3, 8))}
    parts |= {"name": part(1, b"u"), "values": b""}
    bomb = struct.pack("<II", {"dimensions": 5, "name": 1, "values": 9}[where], 2**24) + bytes(2**24)
    names = list(parts)
    whole = b"".join([parts[name] for name in names[: names.index(where)]] + [bomb])
    packed = zlib.compress(struct.pack("<II", 14, len(whole)) + whole)
    header = (tmp_path / "a.mat").read_bytes()[:128]
    (tmp_path / "b.mat").write_bytes(header + struct.pack("<II", 15, len(packed)) + packed)
    refused(tmp_path / "b.mat", rf"the .*{where[:9]}|the variable u.* unpacks to more than the .* that it may hold")


def test_what_packed_matlab_files_hold_is_read_as_before(tmp_path: Path) -> None:
    from scipy.io import savemat

    u, task = np.random.default_rng(0).random((2, 3, 8)), {"dims": ("sample", "time", "x"), "fields": {"u": ("u",)}}
    for name, more in (("u", {"word": "a"}), ("a_name_of_more_than_four_letters", {"s": {"n": 1}, "k": 3})):
        for values in (u, u.astype("f4"), np.round(100 * u).astype("i2")):
            savemat(tmp_path / "a.mat", {name: values, **more}, do_compression=True)
            definition = Definition("flow", datasets={"u": name}, **task)
            with open_source(tmp_path / "a.mat", TASKS, definition) as source:
                assert np.array_equal(source[1].values[..., 0], values[1].astype(source[1].values.dtype))


@pytest.mark.parametrize("packed", [False, True])
def test_complex_numbers_are_refused_in_every_version_of_matlab(tmp_path: Path, packed: bool) -> None:
    from scipy.io import savemat

    values = np.random.default_rng(0).random((3, 4, 8)) * 1j
    savemat(tmp_path / "a.mat", {"u": values}, do_compression=packed)
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
