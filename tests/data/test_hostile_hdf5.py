"""HDF5 files made to harm: they read no other file, fill no memory, and whatever stands in them is one sentence."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ups.cli.app import main
from ups.data import open_source
from ups.data.write_well import write_data_set
from ups.definition import Definition
from ups.jobs.inspect import describe, notes, problems
from ups.physics import TASKS
from ups.types import DataError, UpsError

SECRET = 0x5EC2E7
ARRAYS = Definition(name="arrays", dims=("sample", "time", "x"), datasets={"u": "u"}, fields={"u": ("u",)})


def make(path: Path, **replaced: Any) -> Path:
    """A PDEBench file whose data set `tensor` can be put there otherwise."""
    with h5py.File(path, "w") as file:
        file["x-coordinate"] = ((np.arange(8) + 0.5) / 8).astype("f4")
        file["t-coordinate"] = np.linspace(0, 2.0, 6, dtype="f4")
        values = np.random.default_rng(0).standard_normal((3, 5, 8)).astype("f4")
        if "tensor" in replaced:
            replaced["tensor"](file, "tensor")
        else:
            file["tensor"] = values
    return path


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Another file of the reader's, as HDF5 and as bytes."""
    path = tmp_path / "secret.h5"
    with h5py.File(path, "w") as file:
        file["diary"] = np.full((3, 5, 8), SECRET, "f4")
    return path


def external_link(secret: Path) -> Callable[[Any, str], None]:
    return lambda file, name: file.__setitem__(name, h5py.ExternalLink(str(secret), "/diary"))


def soft_to_external(secret: Path) -> Callable[[Any, str], None]:
    def put(file: Any, name: str) -> None:
        file["hidden/below"] = h5py.ExternalLink(str(secret), "/")
        file[name] = h5py.SoftLink("/hidden/below/diary")

    return put


def external_storage(secret: Path) -> Callable[[Any, str], None]:
    def put(file: Any, name: str) -> None:
        file.create_dataset(name, (3, 5, 8), "f4", external=[(str(secret), 0, 480)])

    return put


def virtual(secret: Path) -> Callable[[Any, str], None]:
    def put(file: Any, name: str) -> None:
        layout = h5py.VirtualLayout((3, 5, 8), "f4")
        layout[:] = h5py.VirtualSource(str(secret), "diary", (3, 5, 8))
        file.create_virtual_dataset(name, layout)

    return put


WAYS_OUT = {f.__name__: f for f in (external_link, soft_to_external, external_storage, virtual)}
NAMES = {  # one name for each reader of HDF5, and what the user says of the file
    "1D_Advection_Sols_beta0.4.hdf5": None,
    "anything.h5": ARRAYS,
    "climate.nc": None,
    "lab.mat": None,
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", WAYS_OUT)
def test_no_other_file_is_read(tmp_path: Path, secret: Path, way: str, name: str) -> None:
    path = tmp_path / name
    place = {"anything.h5": "u"}.get(name, "tensor")
    make(path, tensor=lambda file, _: WAYS_OUT[way](secret)(file, place))
    if name.endswith(".mat"):
        whole = path.read_bytes()
        with h5py.File(path, "w", userblock_size=512) as file:
            WAYS_OUT[way](secret)(file, place)
        whole = path.read_bytes()
        path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(512, b"\0") + whole[512:])
    with pytest.raises(DataError, match=r"into another file|in other files") as caught:
        open_source(path, TASKS, NAMES[name])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("way", WAYS_OUT)
def test_a_field_of_the_well_cannot_lie_in_another_file(tmp_path: Path, secret: Path, way: str) -> None:
    source = open_source(make(tmp_path / "1D_Advection_Sols_beta0.4.hdf5"), TASKS)
    folder = write_data_set(source, tmp_path, "toy", {"train": source.ids})
    (path,) = folder.rglob("*.hdf5")
    with h5py.File(path, "a") as file:
        attributes = dict(file["t0_fields/u"].attrs)
        del file["t0_fields/u"]
        WAYS_OUT[way](secret)(file["t0_fields"], "u")
        if way in ("external_storage", "virtual"):
            file["t0_fields/u"].attrs.update(attributes)
    for place in (path, folder):
        with pytest.raises(DataError, match=r"into another file|in other files"):
            open_source(place, TASKS)


@pytest.mark.parametrize("way", WAYS_OUT)
def test_in_a_file_of_thousands_of_groups_no_sample_lies_in_another_file(
    tmp_path: Path, secret: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a file is not looked through data set by data set when it is opened, so each is when it is read."""
    monkeypatch.setattr("ups.data.hdf5_safety.FEW", 4)
    path = tmp_path / "2D_diff-react_NA_NA.h5"
    axis = ((np.arange(4) + 0.5) / 4).astype("f4")
    with h5py.File(path, "w") as file:
        for i in range(3):
            group = file.create_group(f"{i:04d}")
            group["grid/x"], group["grid/y"], group["grid/t"] = axis, axis, np.arange(2.0)
            if i < 2:
                group["data"] = np.zeros((2, 4, 4, 2), "f4")
        WAYS_OUT[way](secret)(file["0002"], "data")

    def read() -> None:
        with open_source(path, TASKS) as source:
            source.read(2)

    with pytest.raises(DataError, match=r"into another file|in other files"):
        read()


def test_commands_say_it_in_one_sentence(tmp_path: Path, secret: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make(tmp_path / "1D_Advection_Sols_beta0.4.hdf5", tensor=external_link(secret))
    for words, code in ((("info",), 2), (("validate",), 1), (("split",), 2), (("import", "--out", str(tmp_path)), 2)):
        with pytest.raises(SystemExit) as ended:
            main(["data", words[0], str(path), *words[1:]])
        out, err = capsys.readouterr()
        assert ended.value.code == code
        assert "is a link into another file" in out + err
        assert (out + err).count("\n") == 1


def test_a_circle_of_links_is_called_damaged(tmp_path: Path) -> None:
    path = make(tmp_path / "1D_Advection_Sols_beta0.4.hdf5", tensor=lambda f, n: f.__setitem__(n, h5py.SoftLink("/b")))
    with h5py.File(path, "a") as file:
        file["b"] = h5py.SoftLink("/tensor")
        file["loop/back"] = file["/"]  # a group that holds the one above it
    with pytest.raises(DataError):
        open_source(path, TASKS)


def unallocated(file: Any, name: str) -> None:
    file.create_dataset(name, (2**30, 2**20, 8), "f4", chunks=(1, 1024, 8))


def no_cells(file: Any, name: str) -> None:
    file.create_dataset(name, (2**40, 5, 0), "f4", chunks=(1, 5, 1), maxshape=(None, 5, None))


def packed(file: Any, name: str) -> None:
    """4 GB of zeros that take 4 MB."""
    node = file.create_dataset(name, (64, 2**21, 8), "f4", chunks=(1, 2**21, 8), compression="gzip")
    chunk = zlib.compress(bytes(2**26), 9)
    for i in range(64):
        node.id.write_direct_chunk((i, 0, 0), chunk)


def wide_chunk(file: Any, name: str) -> None:
    """A few numbers in a chunk that is unpacked to 2 GB."""
    file.create_dataset(name, (12, 5, 8), "f4", chunks=(2**24, 4, 8), maxshape=(None, 5, 8), compression="gzip")


@pytest.mark.parametrize("bomb", [unallocated, no_cells, packed, wide_chunk])
@pytest.mark.parametrize("name", ["1D_Advection_Sols_beta0.4.hdf5", "anything.h5"])
def test_what_a_file_cannot_hold_is_refused_before_it_is_read(
    tmp_path: Path, bomb: Callable[[Any, str], None], name: str
) -> None:
    place = {"anything.h5": "u"}.get(name, "tensor")
    path = make(tmp_path / name, tensor=lambda file, _: bomb(file, place))
    assert path.stat().st_size < 2**23
    with pytest.raises(DataError, match=r"GB of numbers in a file of"):
        open_source(path, TASKS, NAMES[name])


def test_samples_and_axes_that_only_an_attribute_claims_are_refused(tmp_path: Path) -> None:
    source = open_source(make(tmp_path / "1D_Advection_Sols_beta0.4.hdf5"), TASKS)
    (path,) = write_data_set(source, tmp_path, "toy", {"train": source.ids}).rglob("*.hdf5")
    with h5py.File(path, "a") as file:
        file.attrs["n_trajectories"] = 2**60
        values = file["t0_fields/u"][:1]
        flags = {**file["t0_fields/u"].attrs, "sample_varying": False}
        del file["t0_fields/u"]
        file["t0_fields/u"] = values
        file["t0_fields/u"].attrs.update(flags)
    with pytest.raises(DataError, match="GB of numbers in a file of"):
        open_source(path, TASKS)


def test_fields_that_compress_well_are_still_read(tmp_path: Path) -> None:
    path = tmp_path / "anything.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("u", data=np.ones((4, 100, 4096), "f4"), chunks=(1, 100, 4096), compression="gzip")
    with open_source(path, TASKS, ARRAYS) as source:
        assert (source.read(3) == 1).all()


# A list of two, of two of these, of two of these …: a thousand characters that stand for a million values.
LAUGHS = "a: &a0 [x, x]\n" + "".join(f"b{i}: &a{i + 1} [*a{i}, *a{i}]\n" for i in range(20))


def hostile_values(file: Any) -> dict[str, Any]:
    """Attributes of every wrong type and shape."""
    return {
        "empty": h5py.Empty("f4"),
        "nan": np.float32("nan"),
        "infinite": np.inf,
        "negative": np.int64(-5),
        "huge": np.int64(2**62),
        "long": "x" * 60_000,
        "no text": np.bytes_(b"\xff\xfe\x00abc"),
        "several": np.arange(7.0),
        "a table": np.zeros((3, 3)),
        "words": np.array(["a", "b"], dtype=h5py.string_dtype()),
        "a reference": file.ref,
        "a record": np.zeros(2, np.dtype([("a", "f4"), ("b", "i8")])),
        "complex": np.complex128(1j),
        "JSON of another": '{"params": 3, "name": [1], "fields": 5, "bounds": {"x": 3}, "dims": 7}',
        "a JSON list": "[1, 2]",
        "brackets": "[" * 20_000,
        "YAML in a circle": "&a [*a]",
        "YAML that laughs": LAUGHS,
        "an object": "!!python/object/apply:os.system ['true']",
    }


def hostile_data(shape: tuple[int, ...]) -> dict[str, Any]:
    """Data sets of every wrong type, shape and content."""
    count = max(1, int(np.prod(shape)))
    return {
        "NaN": np.full(shape, np.nan, "f4"),
        "infinite": np.full(shape, np.inf, "f4"),
        "downwards": -np.arange(count, dtype="f4").reshape(shape),
        "zero": np.zeros(shape, "f4"),
        "huge": np.full(shape, 1e308),
        "beyond": np.linspace(-1.7e308, 1.7e308, count).reshape(shape),
        "tiny": np.arange(count).reshape(shape) * 5e-324,
        "whole": np.zeros(shape, "i8"),
        "complex": np.zeros(shape, "c16"),
        "bytes": np.full(shape, b"abc"),
        "a number": np.float32(1),
        "nothing": np.zeros((0,) * max(1, len(shape)), "f4"),
        "one axis more": np.zeros((*shape, 2), "f4"),
        "one axis less": np.zeros(shape[1:], "f4"),
        "records": np.zeros(shape, np.dtype([("a", "f4")])),
        "null": h5py.Empty("f4"),
        "references": np.array([], h5py.ref_dtype),
        "lists": np.array([], h5py.vlen_dtype(np.int32)),
    }


def netcdf(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file["x"], file["time"] = np.arange(8.0) + 0.5, np.arange(3.0)
        file["u"] = np.random.default_rng(0).random((3, 8)).astype("f4")
        file["x"].make_scale("x")
        file["time"].make_scale("time")
        file["u"].dims[0].attach_scale(file["time"])
        file["u"].dims[1].attach_scale(file["x"])
        file["u"].attrs["_FillValue"] = np.float32(9e9)
        file["u"].attrs["units"] = "m"
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A whole file of each kind that describes itself."""
    folder = tmp_path_factory.mktemp("whole")
    for words in ("advection1d --resolution 16 --samples 2", "reacdiff2d --resolution 8 --samples 1"):
        with pytest.raises(SystemExit):
            main(["data", "generate", *words.split(), "--frames", "3", "--out", str(folder)])
    with open_source(next(folder.glob("1D*")), TASKS) as source:
        well = write_data_set(source, folder, "toy", {"train": source.ids})
    return {
        "one array": next(folder.glob("1D*")),
        "groups": next(folder.glob("2D*")),
        "well": next(well.rglob("*.hdf5")),
        "netcdf": netcdf(folder / "a.nc"),
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["one array", "groups", "well", "netcdf"])
def test_whatever_stands_in_an_attribute_or_a_data_set_is_read_or_refused_in_one_sentence(
    files: dict[str, Path], kind: str, tmp_path: Path
) -> None:
    """Every attribute and data set of a whole file, replaced by each of a zoo of hostile ones, a few at a time."""
    path, wrong = tmp_path / files[kind].name, []
    with h5py.File(files[kind], "r") as file:
        places: list[tuple[str, str, str]] = []
        nodes = ["/"]
        file.visit(nodes.append)
        for node in nodes:
            places += [(node, name, value) for name in file[node].attrs for value in hostile_values(file)]
            if isinstance(file[node], h5py.Dataset):
                places += [(node, "", value) for value in hostile_data(file[node].shape)]
    chosen = np.random.default_rng(0).permutation(len(places))[:40]
    for node, name, value in (places[i] for i in chosen):
        path.write_bytes(files[kind].read_bytes())
        with h5py.File(path, "a") as file:
            if name:
                content = hostile_values(file)[value]
                del file[node].attrs[name]
                file[node].attrs[name] = content
            else:
                content = hostile_data(file[node].shape)[value]
                attributes = {key: value for key, value in file[node].attrs.items() if key.islower()}
                del file[node]
                file[node] = content
                file[node].attrs.update(attributes)
        for job in (describe, lambda p, d: (problems([p], d or Definition()), notes([p], d or Definition()))):
            try:
                job(path, None)
            except UpsError as error:
                wrong += [(node, name, value, str(error))] if "\n" in str(error) else []
    assert wrong == []


@pytest.mark.parametrize(("number", "words"), [(32001, "32001 (blosc)"), (40000, "40000 (shuffle)")])
def test_a_filter_that_is_not_here_is_named_and_no_folder_beside_the_file_is_asked_for_it(
    tmp_path: Path, number: int, words: str
) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("u", data=np.ones((2, 3, 8)), chunks=(1, 3, 8), shuffle=True)
        file.create_dataset("x", (8,), "f4", chunks=(8,), shuffle=True)
    path.write_bytes(
        re.sub(rb"\x02\0\x08\0(?=.{4}shuffle)", number.to_bytes(2, "little") + b"\x08\0", path.read_bytes())
    )
    h5py.h5pl.prepend(b"plugins")
    remedy = r"pip install hdf5plugin.*HDF5_PLUGIN_PATH" if number == 32001 else "if you trust who wrote it"
    with pytest.raises(DataError, match=rf"data set 'u' is packed by HDF5's filter {re.escape(words)}.*{remedy}"):
        open_source(path, {}, Definition("flow", dims=("sample", "time", "x"), fields={"u": ("u",)}))
    assert all(os.path.isabs(h5py.h5pl.get(at)) for at in range(h5py.h5pl.size()))
