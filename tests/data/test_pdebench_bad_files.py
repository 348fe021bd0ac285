"""What is not a whole PDEBench file is refused with one sentence that says why."""

import h5py
import numpy as np
import pytest

from ups.data import hdf5, open_source
from ups.physics import TASKS
from ups.types import DataError


def centres(n):
    return ((np.arange(n) + 0.5) / n).astype("f4")


def zeros(*shape):
    return np.zeros(shape, "f4")


def write(path, datasets, **attrs):
    with h5py.File(path, "w") as file:
        for name, value in datasets.items():
            file[name] = value
        file.attrs.update(attrs)
    return path


def replace(path, name, value):
    with h5py.File(path, "a") as file:
        del file[name]
        file[name] = value


@pytest.fixture
def advection(tmp_path):
    data = {
        "tensor": np.random.default_rng(0).standard_normal((3, 5, 8)).astype("f4"),
        "x-coordinate": centres(8),
        "t-coordinate": np.linspace(0, 2.5, 6, dtype="f4"),
    }
    return write(tmp_path / "1D_Advection_Sols_beta0.4.hdf5", data)


def refused(path, match, task=None):
    with pytest.raises(DataError, match=match) as caught:
        open_source(path, TASKS, task)
    text = str(caught.value)
    assert text.startswith(str(path))
    assert text.endswith(".")
    assert "\n" not in text


def test_what_is_not_an_hdf5_file_is_refused(tmp_path):
    path = tmp_path / "1D_Advection_Sols_beta0.4.hdf5"
    refused(path, "there is no such file")
    path.write_bytes(b"")
    refused(path, "is empty")
    path.write_text("x,u\n0,1\n" * 100)
    refused(path, "is not an HDF5 file")


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.9, 0.999])
def test_a_truncated_file_is_refused(advection, kept):
    whole = advection.read_bytes()
    advection.write_bytes(whole[: int(len(whole) * kept)])
    refused(advection, "is truncated")


def test_a_dataset_whose_shape_does_not_fit_its_bytes_is_called_damaged(advection):
    with h5py.File(advection) as file:
        shape = np.array(file["tensor"].shape, "<u8").tobytes()
    huge = np.array([2**40, 5, 8], "<u8").tobytes()
    whole = advection.read_bytes()
    at = whole.index(shape)
    advection.write_bytes(whole[:at] + huge + whole[at + len(huge) :])
    refused(advection, "its header cannot be read, the file is damaged")


def test_a_file_with_a_zeroed_symbol_table_is_called_damaged(advection):
    whole = bytearray(advection.read_bytes())
    for signature in (b"TREE", b"HEAP", b"SNOD"):
        at = whole.index(signature)
        damaged = bytes(whole[:at]) + bytes(4) + bytes(whole[at + 4 :])
        advection.write_bytes(damaged)
        refused(advection, "its header cannot be read, the file is damaged")


def test_a_folder_is_refused(tmp_path):
    refused(tmp_path, r"holds no \.hdf5 file")


def test_a_file_that_may_not_be_read_is_refused(advection, monkeypatch):
    def denied(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(hdf5.h5py, "File", denied)
    refused(advection, "may not be read")


def test_an_unfinished_file_is_refused(advection):
    with h5py.File(advection, "a") as file:
        file.attrs["ups_complete"] = False
    refused(advection, "is unfinished; run the same `ups data generate` command again")
    part = advection.rename(advection.with_name(advection.name + ".part"))
    refused(part, "is unfinished")
    part.unlink()
    refused(part, "there is no such file")


@pytest.mark.parametrize("name", ["tensor", "x-coordinate", "t-coordinate"])
def test_a_missing_dataset_is_named_with_what_there_is(advection, name):
    with h5py.File(advection, "a") as file:
        del file[name]
    refused(advection, rf"data set '{name}' is missing \(there are: ")


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("tensor", np.zeros((3, 5, 8, 2), "f4"), r"'tensor' is 3 × 5 × 8 × 2, where any × any × any \(samples, times"),
        ("tensor", np.zeros((3, 5, 8), "i4"), "'tensor' holds int32"),
        ("tensor", np.zeros((0, 5, 8), "f4"), "holds no sample"),
        ("tensor", np.zeros((3, 0, 8), "f4"), "6 entries for 0 frames"),
        ("x-coordinate", centres(9), r"'x-coordinate' is 9, where 8 \(one per cell\)"),
        ("x-coordinate", centres(8)[::-1], "uniform, increasing"),
        ("x-coordinate", centres(8) ** 2, "uniform, increasing"),
        ("x-coordinate", np.full(8, np.nan, "f4"), "uniform, increasing"),
        ("t-coordinate", np.zeros(6, "f4"), "does not increase"),
        ("t-coordinate", np.zeros((2, 3), "f4"), r"'t-coordinate' is 2 × 3"),
    ],
)
def test_a_dataset_of_wrong_shape_type_or_order_is_named(advection, name, value, match):
    replace(advection, name, value)
    refused(advection, match)


def test_fields_of_different_shapes_are_refused(tmp_path):
    data = {name: zeros(2, 3, 4) for name in ("density", "pressure", "Vx")}
    data |= {"x-coordinate": centres(4), "t-coordinate": np.linspace(0, 1, 3, dtype="f4")}
    path = write(tmp_path / "Sod1.hdf5", data)
    replace(path, "Vx", zeros(2, 3, 5))
    refused(path, r"'Vx' is 2 × 3 × 5, where 2 × 3 × 4 \(as in 'density'\)")


def test_darcy_and_incompressible_files_with_mismatched_parts_are_refused(tmp_path):
    data = {
        "tensor": zeros(3, 1, 4, 4),
        "nu": zeros(2, 4, 4),
        "x-coordinate": centres(4),
        "y-coordinate": centres(4),
    }
    refused(write(tmp_path / "2D_DarcyFlow_beta1.0_Train.hdf5", data), r"'nu' is 2 × 4 × 4, where 3 × 4 × 4")
    data = {"velocity": zeros(2, 3, 4, 4, 2), "particles": zeros(2, 3, 4, 4, 1), "force": zeros(2, 4, 4, 3)}
    refused(write(tmp_path / "ns_incom_inhom_2d_512-7.h5", data), r"'force' is 2 × 4 × 4 × 3, where 2 × 4 × 4 × 2")


def test_a_group_file_without_groups_is_refused_and_an_odd_group_is_named_when_read(tmp_path):
    data = {"0000/data": zeros(3, 4, 1), "0000/grid/x": centres(4), "0000/grid/t": np.linspace(0, 500, 3, dtype="f4")}
    path = write(tmp_path / "1D_diff-sorp_NA_NA.h5", {**data, "0001/data": zeros(2, 4, 1), "0002": zeros(2)})
    source = open_source(path, TASKS)
    with pytest.raises(DataError, match=r"'0001/data' is 2 × 4 × 1, where 3 × 4 × 1"):
        source.read(1)
    with pytest.raises(DataError, match="'0002' is not a group"):
        source.read(2)
    refused(write(tmp_path / "2D_rdb_NA_NA.h5", {}), "holds no sample")
    refused(write(tmp_path / "2D_rdb_NA_NA.h5", {"tensor": zeros(3)}), "is not a group")


def test_damaged_bytes_are_named_by_the_sample_they_belong_to(advection):
    path = advection
    with h5py.File(path, "a") as file:
        tensor = file["tensor"][:]
        del file["tensor"]
        stored = file.create_dataset("tensor", data=tensor, chunks=(1, 5, 8), compression="gzip", fletcher32=True)
        chunk = stored.id.get_chunk_info(1)
    raw = bytearray(path.read_bytes())
    raw[chunk.byte_offset : chunk.byte_offset + chunk.size] = bytes(chunk.size)
    path.write_bytes(raw)
    source = open_source(path, TASKS)
    np.testing.assert_array_equal(source.read(0)[..., 0], tensor[0])
    with pytest.raises(DataError, match="sample 000001 cannot be read, the file is damaged"):
        source.read(1)
