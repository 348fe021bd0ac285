"""Every reader of READERS keeps the contract of a source; a new one brings a sample of its files to SAMPLES."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
import torch
from scipy.io import netcdf_file, savemat

from ups.data import READERS, open_source
from ups.data.duplicates import copies, ends_of
from ups.data.reduction import Reduction
from ups.data.trajectories import Trajectories
from ups.definition import Definition
from ups.physics import TASKS
from ups.types import ConfigError, DataError

N, T, X = 16, 12, 64
RNG = np.random.default_rng(0)
DAMAGES = ("missing", "empty", "cut", "text")


def numbers(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype("f4")


def centres(n: int, lo: float = 0.0, hi: float = 1.0) -> Any:
    return (lo + (np.arange(n) + 0.5) * (hi - lo) / n).astype("f4")


def hdf5(path: Path, arrays: dict[str, Any], **attributes: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, value in arrays.items():
            file[name] = value
        file.attrs.update(attributes)
    return path


def array(folder: Path, dtype: str = "<f4") -> Path:
    data = {"tensor": numbers(N, T, X).astype(dtype), "x-coordinate": centres(X)}
    data["t-coordinate"] = np.linspace(0, 2, T + 1, dtype="f4")
    return hdf5(folder / "1D_Advection_Sols_beta0.4.hdf5", data, beta=0.4)


def chunked(folder: Path) -> Path:
    path = array(folder)
    with h5py.File(path, "a") as file:
        values = file["tensor"][:]
        del file["tensor"]
        file.create_dataset("tensor", data=values, chunks=(1, 3, X), compression="gzip", fletcher32=True)
    return path


def fields(folder: Path) -> Path:
    data = {name: numbers(N, T, 8, 16) for name in ("density", "pressure", "Vx", "Vy")}
    data |= {"x-coordinate": centres(8), "y-coordinate": centres(16), "t-coordinate": np.linspace(0, 1, T, dtype="f4")}
    return hdf5(folder / "2D_CFD_Rand_M1.0_Eta1e-08_Zeta1e-08_periodic_512_Train.hdf5", data, M=1.0)


def groups(folder: Path) -> Path:
    data = {}
    for i in range(N):
        data |= {f"{i:04d}/data": numbers(T, 16, 16, 2), f"{i:04d}/grid/x": centres(16, -1, 1)}
        data |= {f"{i:04d}/grid/y": centres(16, -1, 1), f"{i:04d}/grid/t": np.linspace(0, 5, T, dtype="f4")}
    return hdf5(folder / "2D_diff-react_NA_NA.h5", data)


def steady(folder: Path) -> Path:
    data = {"tensor": numbers(N, 1, 32, 32), "nu": numbers(N, 32, 32)}
    return hdf5(
        folder / "2D_DarcyFlow_beta1.0_Train.hdf5",
        {**data, "x-coordinate": centres(32), "y-coordinate": centres(32)},
        beta=1.0,
    )


def incompressible(folder: Path) -> Path:
    data = {"velocity": numbers(N, T, 8, 8, 2), "particles": numbers(N, T, 8, 8, 1), "force": numbers(N, 8, 8, 2)}
    times = np.tile(np.arange(T, dtype="f4") * 0.005, (N, 1))
    return hdf5(folder / "ns_incom_inhom_2d_512-7.h5", {**data, "t": times}, config="NU: 0.01\n")


def well(path: Path) -> Path:
    varying = {"sample_varying": True, "time_varying": True, "dim_varying": [True, True]}
    with h5py.File(path, "w") as file:
        file.attrs.update({"dataset_name": "toy_flow", "n_trajectories": N, "simulation_parameters": ["Reynolds"]})
        file.attrs["Reynolds"] = 100.0
        for name, axis in {"time": np.arange(T), "x": np.arange(8), "y": np.arange(16)}.items():
            file[f"dimensions/{name}"] = axis.astype("f4")
        file["dimensions"].attrs["spatial_dims"] = ["x", "y"]
        for name, value in {"t0_fields/density": numbers(N, T, 8, 16), "t1_fields/v": numbers(N, T, 8, 16, 2)}.items():
            file[name] = value
            file[name].attrs.update(varying)
    return path


def well_folder(folder: Path) -> Path:
    for name in ("a.hdf5", "b.hdf5"):
        well(folder / name)
    return folder


def arrays() -> dict[str, Any]:
    """Axes in an order of their own: x, sample, time, channel."""
    values = numbers(X, N, T, 2).astype(">f8")
    return {"values": values, "x": centres(X), "t": np.linspace(0, 2, T), "nu": np.linspace(1, 2, N, dtype="f4")}


def npz(folder: Path, save: Callable[..., None] = np.savez) -> Path:
    save(folder / "flow.npz", **arrays())
    return folder / "flow.npz"


def npy(folder: Path) -> Path:
    np.save(folder / "flow.npy", np.asfortranarray(arrays()["values"]))
    return folder / "flow.npy"


def npz_folder(folder: Path) -> Path:
    (folder / "more").mkdir()
    for i in range(N):
        values = numbers(4 * X, T, 2)
        np.savez(folder / ("more" if i % 2 else "") / f"{i:03d}.npz", values=values, x=centres(4 * X), nu=float(i))
    return folder


def pt(folder: Path) -> Path:
    torch.save({k: torch.from_numpy(v.astype("f4")) for k, v in arrays().items()}, folder / "flow.pt")
    return folder / "flow.pt"


def mat5(folder: Path) -> Path:
    savemat(folder / "flow.mat", arrays(), do_compression=True)
    return folder / "flow.mat"


def mat73(folder: Path) -> Path:
    path = folder / "flow.mat"
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, value in arrays().items():
            file[name] = np.atleast_2d(value).T.astype("<f8")
            file[name].attrs["MATLAB_class"] = np.bytes_("double")
    with path.open("r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file")
    return path


def netcdf4(folder: Path) -> Path:
    sizes = {"sample": N, "time": T, "x": X}
    with h5py.File(folder / "flow.nc", "w") as file:
        for name, values in {"x": centres(X), "time": np.linspace(0, 2, T), "sample": np.arange(N)}.items():
            file[name] = values
            file[name].make_scale(name)
        for name, dims in {"u": ("time", "sample", "x"), "v": ("sample", "x", "time"), "nu": ("sample",)}.items():
            file[name] = numbers(*(sizes[dim] for dim in dims))
            for i, dim in enumerate(dims):
                file[name].dims[i].attach_scale(file[dim])
    return folder / "flow.nc"


def netcdf3(folder: Path) -> Path:
    sizes = {"sample": N, "time": T, "x": X}
    with netcdf_file(folder / "flow.nc", "w") as file:
        for name, n in sizes.items():
            file.createDimension(name, n)
        for name, dims in {"u": ("time", "sample", "x"), "v": ("sample", "x", "time"), "nu": ("sample",)}.items():
            file.createVariable(name, "f4", dims)[:] = numbers(*(sizes[dim] for dim in dims))
        file.createVariable("x", "f8", ("x",))[:] = centres(X)
    return folder / "flow.nc"


def zarr_store(folder: Path, version: int) -> Path:
    import zarr

    group = zarr.open_group(str(folder / "flow.zarr"), mode="w", zarr_format=version)
    variables = {"u": (("sample", "time", "x"), numbers(N, T, X)), "nu": (("sample",), numbers(N))}
    variables |= {"x": (("x",), centres(X)), "time": (("time",), np.linspace(0, 2, T))}
    for name, (dims, values) in variables.items():
        chunks = (1, 3, X)[: values.ndim]
        names = {"dimension_names": dims} if version == 3 else {}
        array = group.create_array(name, shape=values.shape, chunks=chunks, dtype=values.dtype, **names)
        array[...] = values
        if version == 2:
            array.attrs["_ARRAY_DIMENSIONS"] = list(dims)
    return folder / "flow.zarr"


# What the user says of files that do not say it themselves.
DEFINITION = Definition(name="flow", dims=("x", "sample", "time", "channel"), fields={"w": ("u", "v")})
TOLD = {"numpy": DEFINITION, "torch": DEFINITION, "matlab": DEFINITION}
# Formats that are compressed as a whole: the first read of a sample reads more than it.
WHOLE = ("compressed", "mat5")


# By reader: what a sample is called, and a function that writes it in an empty folder and returns what is opened. At
# least eight trajectories, so that one of them is little of all.
SAMPLES: dict[str, dict[str, Callable[[Path], Path]]] = {
    "pdebench": {
        "array": array,
        "big-endian": lambda folder: array(folder, ">f8"),
        "chunked": chunked,
        "fields": fields,
        "groups": groups,
        "steady": steady,
        "incompressible": incompressible,
    },
    "well": {"file": lambda folder: well(folder / "toy.hdf5"), "folder": well_folder},
    "numpy": {"npz": npz, "compressed": lambda folder: npz(folder, np.savez_compressed), "npy": npy},
    "torch": {"dict": pt},
    "matlab": {"mat5": mat5, "mat73": mat73},
    "netcdf": {"netcdf4": netcdf4, "netcdf3": netcdf3},
    "zarr": {"v2": lambda folder: zarr_store(folder, 2), "v3": lambda folder: zarr_store(folder, 3)},
    "a folder": {"npz_folder": npz_folder},
}


class Sample(NamedTuple):
    reader: str
    path: Path
    task: Definition | None = None
    whole: bool = False

    def open(self) -> Any:
        return open_source(self.path, TASKS, self.task)


def sample_of(reader: str, kind: str, folder: Path) -> Sample:
    if reader == "zarr":
        pytest.importorskip("zarr")
    (folder / "data_set").mkdir()
    path = SAMPLES[reader][kind](folder / "data_set")
    return Sample(reader, path, DEFINITION if reader == "a folder" else TOLD.get(reader), kind in WHOLE)


CASES = [(reader, kind) for reader, kinds in SAMPLES.items() for kind in kinds]


@pytest.fixture(params=CASES, ids="-".join)
def sample(request: pytest.FixtureRequest, tmp_path: Path) -> Sample:
    return sample_of(*request.param, tmp_path)


def test_every_reader_brings_a_sample() -> None:
    missing = READERS.keys() - SAMPLES.keys()
    assert not missing, f"{missing} has no sample here: add to SAMPLES a function that writes a small file of it"


def test_a_path_is_recognised_by_its_own_reader_and_no_other(sample: Sample) -> None:
    known = [name for name, reader in READERS.items() if reader.sniff(sample.path)]
    assert known == ([sample.reader] if sample.reader in READERS else [])


def test_no_reader_raises_or_recognises_what_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty.h5").write_bytes(b"")
    (tmp_path / "text.hdf5").write_text("x,u\n0,1\n" * 100)
    (tmp_path / "folder").mkdir()
    for name in ("nowhere.h5", "empty.h5", "text.hdf5", "text.hdf5/below", "folder", "x" * 300):
        assert not any(reader.sniff(tmp_path / name) for reader in READERS.values()), name
        with pytest.raises(DataError) as caught:
            open_source(tmp_path / name, TASKS)
        one_sentence(caught.value, tmp_path / name)


def one_sentence(error: DataError, path: Path) -> None:
    text = str(error)
    assert text.startswith(str(path))
    assert text.endswith(".")
    assert "\n" not in text


def bytes_read() -> int:
    return int(re.findall(r"rchar: (\d+)", Path("/proc/self/io").read_text())[0])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="counts bytes through Linux's /proc")
def test_opening_reads_no_values_and_a_read_no_other_sample(sample: Sample) -> None:
    with sample.open() as source:
        whole = sum(source.read(i).nbytes for i in range(len(source)))
    before = bytes_read()
    source = sample.open()
    opened = bytes_read() - before
    source.read(1, slice(0, 1))
    assert opened < whole / 2 + 2**14
    assert sample.whole or bytes_read() - before - opened < whole / 4 + 2**14


def test_frames_are_a_slice_of_the_whole_in_native_numbers(sample: Sample) -> None:
    source = sample.open()
    for index in (0, len(source) - 1):
        whole, frames = source.read(index), len(source.times_of(index))
        assert whole.shape == (frames, *source.grid.shape, len(source.task.channels))
        assert (whole.dtype.kind, whole.dtype.isnative) == ("f", True)
        for part in (slice(1), slice(1, 3), slice(0, None, 5), slice(2, 11, 4), slice(3, 3), slice(-2, None)):
            np.testing.assert_array_equal(source.read(index, part), whole[part])
        given = source.inputs(index)
        assert given.shape == (*source.grid.shape, sum(len(field.channels) for field in source.task.inputs))
        assert given.dtype.isnative


def test_ids_are_unique_parameters_complete_and_times_increase(sample: Sample) -> None:
    source = sample.open()
    assert len(set(source.ids)) == len(source) == len(list(source)) >= 8
    assert (source.problems, copies(ends_of(source))) == ((), [])
    for index in range(len(source)):
        assert set(source.params_of(index)) == {p.name for p in source.task.parameters}
        assert (np.diff(source.times_of(index)) > 0).all()
    assert all(path.is_file() for path in source.files())


def test_places_count_from_the_end_and_others_are_refused(sample: Sample) -> None:
    source = sample.open()
    np.testing.assert_array_equal(source[-1].values, source.read(len(source) - 1))
    with pytest.raises(IndexError, match=f"no sample {len(source)}"):
        source.read(len(source))
    with pytest.raises(ValueError, match="forward in time"):
        source.read(0, slice(None, None, -1))


def test_a_source_survives_pickling_and_closing(sample: Sample) -> None:
    with sample.open() as source:
        first = source.read(0)
        copy = pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(copy.read(0), first)
    np.testing.assert_array_equal(source.read(0), first)
    assert copy.ids == source.ids


def _read_in_child(source: Any, queue: Any) -> None:
    queue.put((os.getpid(), source.read(1)))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_source_may_be_used_after_a_fork(sample: Sample) -> None:
    source = sample.open()
    expected = source.read(1)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    children = [context.Process(target=_read_in_child, args=(source, queue)) for _ in range(2)]
    for child in children:
        child.start()
    for _ in children:
        pid, values = queue.get(timeout=120)
        assert pid != os.getpid()
        np.testing.assert_array_equal(values, expected)
    for child in children:
        child.join(600)
    np.testing.assert_array_equal(source.read(1), expected)


def test_handles_and_threads_do_not_disturb_each_other(sample: Sample) -> None:
    first, second = (sample.open() for _ in range(2))
    expected = [first.read(i) for i in range(len(first))]
    with ThreadPoolExecutor(4) as pool:
        for i, values in enumerate(pool.map(second.read, range(len(second)))):
            np.testing.assert_array_equal(values, expected[i])
    second.close()
    np.testing.assert_array_equal(first.read(0), expected[0])


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_missing_or_damaged_file_is_one_sentence(sample: Sample, damage: str) -> None:
    if damage == "missing":
        shutil.rmtree(sample.path) if sample.path.is_dir() else sample.path.unlink()
    for file in (p for p in sample.path.parent.rglob("*") if p.is_file()):
        whole = file.read_bytes()
        file.write_bytes({"empty": b"", "cut": whole[: len(whole) * 6 // 10], "text": b"x,u\n0,1\n" * 100}[damage])
    with pytest.raises(DataError) as caught:
        _ = list(sample.open())
    one_sentence(caught.value, sample.path)


def test_parameters_may_be_assumed(sample: Sample) -> None:
    source = sample.open()
    with pytest.raises(ConfigError, match="has no parameter 'nonsense'"):
        source.assuming({"nonsense": 1.0})
    plain = pickle.loads(pickle.dumps(source.assuming({})))
    np.testing.assert_array_equal(plain[0].values, source[0].values)
    assert (plain.params_of(0), plain.files(), plain.attributes().keys()) == (
        *(source.params_of(0), source.files()),
        source.attributes().keys(),
    )
    for parameter in (p for p in source.task.parameters if not p.choices):
        before, assumed = dict(source.params_of(0)), source.assuming({parameter.name: 0.25})
        assert assumed.params_of(0)[parameter.name] == assumed[0].params[parameter.name] == 0.25
        assert source.params_of(0) == before, "the source itself stays as it is"
        with pytest.raises(ConfigError, match=f"{parameter.name} is 'much', but must be a number"):
            source.assuming({parameter.name: "much"})
        source.params = {}
        if parameter.name not in source.params_of(0):
            with pytest.raises(ConfigError, match=f"give it with --params {parameter.name}="):
                source.assuming({})
        break


def test_trajectories_in_memory_are_those_of_the_file_and_their_statistics_are_computed_when_asked_for(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = sample.open()
    reduction = Reduction(time=5, space=2, start=0 if source.task.steady else 1)
    monkeypatch.setattr(Trajectories, "statistics", None)
    kept, read = (Trajectories(source, source.ids[2:7], reduction, resident) for resident in (None, 0))
    monkeypatch.undo()
    every = (slice(None, None, 2),) * source.grid.ndim
    expected = np.stack([source.read(i)[(slice(reduction.start, None, 5), *every)] for i in range(2, 7)])
    for part in (kept, read):
        values = part.frames(list(range(5)), [0] * 5, len(part.times)).numpy()
        np.testing.assert_array_equal(values, expected.astype(np.float32))
    assert all((a == b).all() for a, b in zip(kept.statistics(), read.statistics(), strict=True))


def test_samples_beside_each_other_are_read_at_once_as_they_are_one_by_one(sample: Sample) -> None:
    source = sample.open()
    near = source.beside(2)
    assert 2 in near
    some, frames = range(near.start, min(near.stop, near.start + 4)), slice(0, None, 2)
    one_by_one = np.stack([source.read(i, frames) for i in some])
    at_once = source.read_several(some, frames)
    assert (at_once.dtype, at_once.shape) == (one_by_one.dtype, one_by_one.shape)
    np.testing.assert_array_equal(at_once, one_by_one)
    np.testing.assert_array_equal(source.inputs_of(some), np.stack([source.inputs(i) for i in some]))


def test_no_torch_is_imported_before_tensors_are_wanted() -> None:
    names = ("splits", "sampler", "windows", "cache_shards", "cache", "cache_builder", "write", "layouts", "checksums")
    modules = ", ".join(("ups.data", *(f"ups.data.{name}" for name in names)))
    code = f"import {modules}, sys; assert not {{'torch', 'h5py'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
