"""Values read by their place in the file are those that the HDF5 library reads, however a data set is stored."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from ups.data import hdf5
from ups.data.hdf5 import is_hdf5, values_at

VALUES = np.random.default_rng(0).standard_normal((4, 9, 6, 2))
WHERE = [(), (2,), (3, slice(None)), (0, slice(1, 8, 3)), (1, slice(4, 4)), (slice(1, 3),), (slice(0, 4, 2),)]
STORED = ("<f4", ">f4", "<f8", "<f2", "chunked", "compact", "external", "virtual", "never written", "user block")
BY_PLACE = {"<f4", ">f4", "<f8", "<f2", "user block"}


def stored(folder: Path, kind: str) -> Path:
    path, values = folder / "a.h5", VALUES.astype(kind if kind[0] in "<>" else "f4")
    with h5py.File(path, "w", userblock_size=1024 if kind == "user block" else 0) as file:
        if kind == "chunked":
            file.create_dataset("u", data=values, chunks=(1, 3, 6, 2))
        elif kind == "compact":
            settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            settings.set_layout(h5py.h5d.COMPACT)
            space = h5py.h5s.create_simple(values.shape)
            h5py.Dataset(h5py.h5d.create(file.id, b"u", h5py.h5t.IEEE_F32LE, space, settings))[...] = values
        elif kind == "external":
            outside = [(str(folder / "u.bin"), 0, values.nbytes)]
            file.create_dataset("u", values.shape, "f4", external=outside)[...] = values
        elif kind == "virtual":
            file["all"] = values
            layout = h5py.VirtualLayout(values.shape, "f4")
            layout[...] = h5py.VirtualSource(file["all"])
            file.create_virtual_dataset("u", layout)
        elif kind == "never written":
            file.create_dataset("u", values.shape, "f4", fillvalue=3.0)
        else:
            file["u"] = values
    return path


@pytest.mark.parametrize("kind", STORED)
def test_values_by_place_are_those_of_the_library(tmp_path: Path, kind: str) -> None:
    path = stored(tmp_path, kind)
    assert is_hdf5(path)
    with h5py.File(path, "r") as file:
        node = file["u"]
        assert (hdf5._start(node) is not None) == (kind in BY_PLACE)
        for where in WHERE:
            values = values_at(node, *where)
            assert values.dtype == node.dtype
            np.testing.assert_array_equal(values, node[where])
        with pytest.raises((IndexError, ValueError)):
            values_at(node, 4)


def test_a_file_that_has_become_shorter_is_an_error(tmp_path: Path) -> None:
    path = stored(tmp_path, "<f4")
    with h5py.File(path, "r") as file:
        end = file["u"].id.get_offset() + 100
        with path.open("r+b") as raw:
            raw.truncate(end)
        with pytest.raises(OSError, match="ends before the data set does"):
            values_at(file["u"], 3)
