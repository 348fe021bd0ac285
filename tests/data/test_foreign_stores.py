"""Files that other programs wrote: what they mark as missing is missing, what they pack is unpacked, nothing is lost
in silence."""

from __future__ import annotations

import base64
import bz2
import gzip
import importlib
import lzma
import random
import struct
import tracemalloc
import zipfile
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from scipy.io import netcdf_file

from ups.data import open_source
from ups.data.inflation import check_inflation
from ups.data.readers.conventions import variable
from ups.data.readers.zarr_chunks import Packing, absent, packing_of
from ups.definition import Definition
from ups.types import Array, DataError, UpsError

AXES = ("sample", "time", "x")
U = np.random.default_rng(0).random((2, 3, 8)).astype("f4")
HOLED = np.where(np.arange(8) == 2, np.nan, U).astype("f4")


def netcdf3(path: Path, **arrays: tuple[Array, dict[str, Any]]) -> Path:
    with netcdf_file(path, "w") as file:
        for name, length in zip(AXES, U.shape, strict=True):
            file.createDimension(name, length)
        for name, (array, attributes) in arrays.items():
            made = file.createVariable(name, array.dtype, AXES)
            made[:] = array
            for key, value in attributes.items():
                setattr(made, key, value)
    return path


def netcdf4(path: Path, fill: Any = None, **arrays: tuple[Array, dict[str, Any]]) -> Path:
    with h5py.File(path, "w") as file:
        for name, length in zip(AXES, U.shape, strict=True):
            file[name] = np.arange(length)
            file[name].make_scale(f"This is a netCDF dimension but not a netCDF variable. {length}")
        for name, (array, attributes) in arrays.items():
            made = file.create_dataset(name, data=array, fillvalue=fill)
            for i, axis in enumerate(AXES):
                made.dims[i].attach_scale(file[axis])
            made.attrs.update(attributes)
    return path


def read(path: Path, name: str = "u") -> Array:
    with open_source(path, {}) as source:
        at = source.task.channels.index(name)
        return np.stack([source.read(i)[..., at] for i in range(len(source))])


@pytest.mark.parametrize("write", [netcdf3, netcdf4])
def test_what_the_netcdf_library_leaves_where_nothing_was_written_is_missing(write: Any, tmp_path: Path) -> None:
    filled = np.where(np.isnan(HOLED), 9.969209968386869e36, HOLED).astype("f4")
    np.testing.assert_array_equal(read(write(tmp_path / "a.nc", u=(filled, {}))), HOLED)
    other = np.where(np.isnan(HOLED), -1, HOLED).astype("f4")
    stated = write(tmp_path / "b.nc", u=(other, {"_FillValue": np.float32(-1)}))
    np.testing.assert_array_equal(read(stated), HOLED)


def test_whole_numbers_are_missing_where_the_file_says_what_stands_there(tmp_path: Path) -> None:
    counts = np.where(np.isnan(HOLED), -32767, HOLED * 1000).astype("i2")
    expected = np.where(np.isnan(HOLED), np.nan, counts)
    np.testing.assert_array_equal(read(netcdf3(tmp_path / "a.nc", u=(counts.astype(">i2"), {}))), expected)
    np.testing.assert_array_equal(read(netcdf4(tmp_path / "b.nc", np.int16(-32767), u=(counts, {}))), expected)
    np.testing.assert_array_equal(read(netcdf4(tmp_path / "c.nc", u=(counts, {}))), counts)


@pytest.mark.parametrize("write", [netcdf3, netcdf4])
def test_whole_numbers_without_sign_are_read_so_and_their_fill_value_too(write: Any, tmp_path: Path) -> None:
    counts = np.where(np.isnan(HOLED), 255, HOLED * 250).astype("u1")
    attributes = {"_Unsigned": "true", "_FillValue": np.int8(-1), "scale_factor": 0.5, "add_offset": 1.0}
    path = write(tmp_path / "a.nc", u=(counts.view("i1"), attributes))
    np.testing.assert_array_equal(read(path), np.where(np.isnan(HOLED), np.nan, counts * 0.5 + 1))


@pytest.mark.parametrize("write", [netcdf3, netcdf4])
def test_each_variable_of_a_field_has_its_own_scale_and_offset(write: Any, tmp_path: Path) -> None:
    packed = (U * 1000).astype("i2")
    scales = {"u": (0.5, 1.0), "v": (0.25, -3.0), "w": (1.0, 0.0)}
    arrays = {n: (packed, {"scale_factor": a, "add_offset": b}) for n, (a, b) in scales.items()}
    task = Definition("flow", fields={"velocity": ("u", "v", "w")})
    with open_source(write(tmp_path / "a.nc", **arrays), {}, task) as source:
        for at, (scale, offset) in enumerate(scales.values()):
            np.testing.assert_array_equal(source.read(1)[..., at], packed[1] * scale + offset)


@pytest.mark.parametrize("write", [netcdf3, netcdf4])
@pytest.mark.parametrize("scale", [np.array([0.5, 0.25]), "half", np.nan])
def test_a_scale_that_is_not_one_number_is_one_sentence(write: Any, scale: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "a.nc", u=((U * 1000).astype("i2"), {"scale_factor": scale}))
    with pytest.raises(DataError, match=r"a\.nc: scale_factor of u is .*, where one number is meant") as caught:
        open_source(path, {})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("write", [netcdf3, netcdf4])
def test_numbers_outside_the_valid_range_are_missing_and_a_note_says_so(write: Any, tmp_path: Path) -> None:
    filled = np.where(np.isnan(HOLED), 1e9, HOLED).astype("f4")
    path = write(tmp_path / "a.nc", u=(filled, {"valid_range": np.array([0.0, 2.0], "f4")}))
    np.testing.assert_array_equal(read(path), HOLED)
    assert "values of u outside the valid range" in " ".join(open_source(path, {}).notes)
    packed = np.where(np.isnan(HOLED), 3000, HOLED * 1000).astype("i2")
    meant = write(tmp_path / "b.nc", u=(packed, {"valid_max": 2.0, "scale_factor": 1e-3}))
    np.testing.assert_array_equal(np.isnan(read(meant)), np.isnan(HOLED))


def test_groups_whose_variables_are_not_read_are_mentioned(tmp_path: Path) -> None:
    path = netcdf4(tmp_path / "a.nc", u=(U, {}))
    with h5py.File(path, "a") as file:
        file["inner/q"] = U
    assert "its groups (inner) are not read (q)" in " ".join(open_source(path, {}).notes)
    with h5py.File(path, "a") as file:
        del file["u"]
    with pytest.raises(DataError, match=r"its groups \(inner\) are not read \(q\); `xarray"):
        open_source(path, {})


def test_a_fill_value_is_understood_in_each_way_in_which_it_is_written() -> None:
    def fill(dtype: str, value: Any) -> tuple[float, ...]:
        return variable(Path("a"), "u", (8,), dtype, ("x",), {"_FillValue": value}).fill

    assert fill("f4", base64.b64encode(struct.pack("<d", -9999.0)).decode()) == (-9999.0,)
    assert fill("f4", "-9999.0") == (-9999.0,)
    assert fill("i8", np.int64(2 - 2**63)) == (2 - 2**63,)
    assert fill("i2", 1e20) == ()
    assert fill("u1", np.int8(-1)) == (255,)


@pytest.mark.parametrize("spelling", ["{}.{}", "{}/{}", "c/{}/{}", "c.{}.{}"])
def test_chunks_that_are_not_there_are_counted(spelling: str, tmp_path: Path) -> None:
    for i, j in ((0, 0), (0, 1), (1, 1), (7, 0)):  # the last was left by an array that was longer
        path = tmp_path / spelling.format(i, j)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    (tmp_path / ".zarray").write_text("{}")
    lost = absent(tmp_path, (3, 8), (2, 4), Packing(None, 0))
    assert (lost.count, lost.total, lost.first) == (1, 4, (1, 0))
    assert "1 of the 4 chunks of u are not in the store (the first: 1.0)" in lost.words("u")


def zarr_group(path: Path, version: int, packer: Any = "auto", **arrays: Any) -> Path:
    zarr = pytest.importorskip("zarr", reason="needs the extra `formats`")
    group = zarr.open_group(str(path), mode="w", zarr_format=version)
    for name, (values, fill, attributes) in arrays.items():
        dims = {"attributes": {**attributes, "_ARRAY_DIMENSIONS": AXES}}
        dims = dims if version == 2 else {"dimension_names": AXES, "attributes": attributes}
        made = group.create_array(
            name, shape=U.shape, chunks=(1, 1, 8), dtype="f4", fill_value=fill, compressors=packer, **dims
        )
        made[:, :2] = values[:, :2]
    return path


@pytest.mark.parametrize("version", [2, 3])
def test_cells_of_a_zarr_store_that_were_never_written_are_missing_and_zeros_stay_zeros(
    version: int, tmp_path: Path
) -> None:
    zeros = np.where(np.isnan(HOLED), 0, HOLED)
    marked = np.where(np.isnan(HOLED), -5, HOLED)
    path = zarr_group(
        tmp_path / "a.zarr", version, plain=(zeros, 0, {}), own=(marked, -5, {}), said=(zeros, 0, {"_FillValue": 0.0})
    )
    expected = {"plain": zeros, "own": HOLED, "said": HOLED}
    for name, values in expected.items():
        late = np.full_like(U[:, :1], 0 if name == "plain" else np.nan)
        np.testing.assert_array_equal(read(path, name), np.concatenate([values[:, :2], late], 1))
    notes = [note for note in open_source(path, {}).notes if "not in the store" in note]
    assert len(notes) == 3
    assert (
        "2 of the 6 chunks of plain are not in the store (the first: 0.2.0), so taken to be full of zeros" in notes[1]
    )
    assert "taken to be missing" in notes[0]


@pytest.mark.parametrize("version", [2, 3])
def test_a_zarr_store_of_xarray_is_read_as_xarray_reads_it(version: int, tmp_path: Path) -> None:
    pytest.importorskip("zarr", reason="needs the extra `formats`")
    xarray = pytest.importorskip("xarray")
    encoding = {"u": {"_FillValue": -9999.0}, "n": {"dtype": "i2", "_FillValue": -1, "scale_factor": 0.001}}
    data = xarray.Dataset({"u": (AXES, HOLED), "n": (AXES, HOLED), "z": (AXES, np.nan_to_num(HOLED))})
    data.to_zarr(tmp_path / "a.zarr", zarr_format=version, encoding=encoding)
    with xarray.open_dataset(tmp_path / "a.zarr", engine="zarr") as truth:
        for name in ("u", "n", "z"):
            np.testing.assert_allclose(read(tmp_path / "a.zarr", name), truth[name].values, rtol=1e-6)
    assert not [note for note in open_source(tmp_path / "a.zarr", {}).notes if "fill value" in note]


@pytest.mark.parametrize("version", [2, 3])
def test_groups_of_a_zarr_store_that_are_not_read_are_mentioned(version: int, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", reason="needs the extra `formats`")
    path = zarr_group(tmp_path / "a.zarr", version, u=(U, 0, {}))
    zarr.open_group(str(path), mode="a").create_group("inner").create_array("q", shape=(3,), dtype="f4")
    assert "its groups (inner) are not read (q); each is a store" in " ".join(open_source(path, {}).notes)


PACKERS = ("zlib", "gzip", "bz2", "lzma", "zstd", "blosc", "lz4")


@pytest.mark.parametrize("packer", PACKERS)
def test_a_damaged_chunk_of_a_zarr_store_is_one_sentence(packer: str, tmp_path: Path) -> None:
    codecs = pytest.importorskip("numcodecs", reason="needs the extra `formats`")
    path = zarr_group(tmp_path / "a.zarr", 2, codecs.get_codec({"id": packer}), u=(U, 0, {}))
    chunk, draw = path / "u" / "0.0.0", random.Random(0)
    whole, texts = chunk.read_bytes(), set[str]()
    for _ in range(40):
        raw = bytearray(whole)
        raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
        chunk.write_bytes(bytes(raw[: draw.choice((len(raw), draw.randrange(len(raw))))]))
        try:
            open_source(path, {}).read(0)
        except DataError as error:
            texts.add(str(error).partition(": ")[2])
    assert all("the file is damaged" in text or "it is damaged" in text for text in texts)
    assert not [text for text in texts if "\n" in text]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "null", "[" * 5000, '{"zarr_format": 3}', "\0\xff"])
def test_damaged_metadata_of_a_zarr_store_are_one_sentence(version: int, content: str, tmp_path: Path) -> None:
    path, texts = zarr_group(tmp_path / "a.zarr", version, u=(U, 0, {})), set[str]()
    for name in (".zgroup", ".zattrs", "u/.zarray", "u/.zattrs") if version == 2 else ("zarr.json", "u/zarr.json"):
        whole = (path / name).read_bytes()
        (path / name).write_text(content)
        try:
            open_source(path, {}).read(0)
        except UpsError as error:
            texts.add(str(error))
        (path / name).write_bytes(whole)
    assert not [text for text in texts if "\n" in text]


def zeros_packed(packer: str, count: int) -> bytes:
    """Many zeros by a packer of Python's own, or a header that claims them."""
    made: dict[str, Any] = {"zlib": zlib.compress, "gzip": gzip.compress, "bz2": bz2.compress, "lzma": lzma.compress}
    if packer in made:
        return bytes(made[packer](bytes(count)))
    block = (2**17 << 3 | 2).to_bytes(3, "little") + b"\0"  # of zstd: so many times the byte that follows
    last = (1 | 2**17 << 3 | 2).to_bytes(3, "little") + b"\0"
    frames = {"blosc": struct.pack("<4BIII", 2, 1, 1, 4, count, count, 100), "lz4": struct.pack("<I", count)}
    frames["zstd"] = struct.pack("<I2B", 0xFD2FB528, 0, 0x50) + block * (count // 2**17 - 1) + last
    return frames[packer] + bytes(100)


@pytest.mark.parametrize("packer", PACKERS)
def test_what_unpacks_to_more_than_it_may_hold_is_refused_before_it_is_unpacked(
    packer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if packer in ("zlib", "gzip"):  # of few bytes these make no more than is harmless
        monkeypatch.setattr("ups.data.inflation.HARMLESS", 2**20)
    raw, settings = zeros_packed(packer, 8 * 2**20), {"name": packer}
    check_inflation(Path("a"), "the chunk u/0", settings, raw, 8 * 2**20)
    with pytest.raises(DataError, match=r"the chunk u/0 unpacks to more than the 1\.05 MB that it may hold"):
        check_inflation(Path("a"), "the chunk u/0", settings, raw, 2**20)
    check_inflation(Path("a"), "the chunk u/0", settings, raw[:3], 2**20)
    many = {"gzip": raw + raw, "bz2": raw + raw, "zstd": raw[:-100] + raw}.get(packer, raw)
    with pytest.raises(DataError, match="unpacks to more"):
        check_inflation(Path("a"), "the chunk u/0", settings, many, 7 * 2**20 if many is raw else 9 * 2**20)


@pytest.mark.parametrize("packer", ["bz2", "lzma", "zstd", "blosc", "lz4"])
def test_a_chunk_of_a_zarr_store_that_fills_the_memory_is_refused(packer: str, tmp_path: Path) -> None:
    codecs = pytest.importorskip("numcodecs", reason="needs the extra `formats`")
    path = zarr_group(tmp_path / "a.zarr", 2, codecs.get_codec({"id": packer}), u=(U, 0, {}))
    (path / "u" / "0.0.0").write_bytes(zeros_packed(packer, 16 * 2**20))
    with pytest.raises(DataError, match=r"the chunk u/0\.0\.0 unpacks to more than"):
        open_source(path, {}).read(0)
    assert open_source(path, {}).read(1).shape == (3, 8, 1)


@pytest.mark.parametrize("place", ["start", "end"])
def test_a_chunk_in_a_shard_that_fills_the_memory_is_refused(place: str, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", reason="needs the extra `formats`")
    codecs = importlib.import_module("zarr.codecs")
    inner = [codecs.BytesCodec(), codecs.ZstdCodec()]
    shard = codecs.ShardingCodec(chunk_shape=(1, 1, 8), codecs=inner, index_location=place)
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w", zarr_format=3)
    made = {"chunks": (1, 3, 8), "dtype": "f4", "serializer": shard, "compressors": None, "dimension_names": AXES}
    group.create_array("u", shape=U.shape, **made)[:] = U
    np.testing.assert_array_equal(read(tmp_path / "a.zarr"), U)
    path, bomb = tmp_path / "a.zarr" / "u" / "c" / "0" / "0" / "0", zeros_packed("zstd", 16 * 2**20)
    whole = path.read_bytes()
    at = 0 if place == "start" else len(whole) - 52
    index = np.frombuffer(whole[at : at + 48], "<u8").copy()
    index[:2] = (52 if place == "start" else 0), len(bomb)
    seal = importlib.import_module("google_crc32c").value(index.tobytes())
    sealed = index.tobytes() + struct.pack("<I", seal)
    path.write_bytes(sealed + bomb if place == "start" else bomb + sealed)
    with pytest.raises(DataError, match="the chunk u/c/0/0/0 unpacks to more than"):
        open_source(tmp_path / "a.zarr", {}).read(0, slice(0, 1))
    with pytest.raises(DataError, match="the chunk u/c/0/0/0 unpacks to more than"):
        open_source(tmp_path / "a.zarr", {}).read(0)


@pytest.mark.parametrize("place", ["start", "end"])
@pytest.mark.parametrize("sealed", [True, False])
def test_chunks_that_are_not_in_their_shards_are_counted(place: str, sealed: bool, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", reason="needs the extra `formats`")
    codecs = importlib.import_module("zarr.codecs")
    index = [codecs.BytesCodec(), *([codecs.Crc32cCodec()] if sealed else [])]
    shard = codecs.ShardingCodec(chunk_shape=(1, 1, 4), index_codecs=index, index_location=place)
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w", zarr_format=3)
    made = {"chunks": (1, 2, 8), "dtype": "f4", "serializer": shard, "compressors": None, "dimension_names": AXES}
    u = group.create_array("u", shape=U.shape, fill_value=0, **made)
    u[:] = U

    def notes() -> list[str]:
        with open_source(tmp_path / "a.zarr", {}) as source:
            return [note for note in source.notes if "not in the store" in note]

    assert U.shape == (2, 3, 8)
    assert not notes(), "the last frames of a shard lie beyond the array, and none of them is lost"
    u[1, 1, 4:] = 0  # which zarr leaves out
    (lost,) = notes()
    assert "1 of the 12 chunks of u are not in the store (the first: 1.1.1), so taken to be full of zeros" in lost
    (tmp_path / "a.zarr" / "u" / "c" / "0" / "1" / "0").unlink()
    (lost,) = notes()
    assert "3 of the 12 chunks of u are not in the store (the first: 0.2.0)" in lost


def test_chunks_that_are_packed_twice_are_refused() -> None:
    twice = {"filters": [{"id": "zlib"}], "compressor": {"id": "bz2"}}
    with pytest.raises(DataError, match="packed more than once"):
        packing_of(Path("a/u"), twice, (8,), (8,), 100)
    once = {"filters": [{"id": "delta"}], "compressor": {"id": "bz2", "level": 1}}
    assert packing_of(Path("a/u"), once, (8,), (8,), 100).packer == {"id": "bz2", "level": 1, "name": "bz2"}


def test_a_list_of_tensors_beside_other_arrays_is_mentioned(tmp_path: Path) -> None:
    tensors = {"u": torch.tensor(U), "pressure": [torch.rand(3, 8), torch.rand(3, 8)], "more": {"v": (torch.rand(3),)}}
    torch.save(tensors, tmp_path / "a.pt")
    task = Definition("flow", dims=AXES, fields={"u": ("u",)})
    mentions = [note.partition(";")[0] for note in open_source(tmp_path / "a.pt", {}, task).notes if "tensor" in note]
    assert mentions == [
        "pressure is a list of 2 tensors, which is not read",
        "more/v is a list of 1 tensor, which is not read",
    ]
    task = Definition("flow", dims=AXES, fields={"u": ("u",)}, ignore=("pressure", "more/v"))
    assert not [note for note in open_source(tmp_path / "a.pt", {}, task).notes if "list" in note or "ignore" in note]


def test_a_chunk_of_an_hdf5_file_that_fills_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ups.data.inflation.HARMLESS", 2**20)
    monkeypatch.setattr("ups.data.hdf5_safety.HARMLESS", 2**20)
    task, bomb = Definition("flow", dims=AXES, fields={"u": ("u",)}), zlib.compress(bytes(16 * 2**20))
    for name, chunks, other in (("a.h5", (1, 1, 8), "u"), ("b.h5", (1, 3, 8), "u"), ("c.h5", (1, 3, 8), "x")):
        with h5py.File(tmp_path / name, "w") as file:
            file.create_dataset("u", data=U, chunks=chunks, compression="gzip", shuffle=True)
            file.create_dataset("x", data=np.arange(8.0), chunks=(8,), compression="gzip")
        with open_source(tmp_path / name, {}, task) as source:
            np.testing.assert_array_equal(source.read(1)[..., 0], U[1])
        with h5py.File(tmp_path / name, "a") as file:
            file[other].id.write_direct_chunk((0,) * file[other].ndim, bomb)
        with pytest.raises(DataError, match=f"a chunk of data set '{other}' unpacks to more than"):
            open_source(tmp_path / name, {}, task).read(0, slice(0, 1))


def test_a_packed_numpy_header_of_any_length_is_not_unpacked(tmp_path: Path) -> None:
    length = 32 * 2**20
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("u.npy", b"\x93NUMPY\x02\0" + struct.pack("<I", length) + bytes(length))
    tracemalloc.start()
    with pytest.raises(DataError, match="its header cannot be read, the file is damaged"):
        open_source(tmp_path / "a.npz", {}, Definition("flow", dims=AXES, fields={"u": ("u",)}))
    assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    tracemalloc.stop()
