"""READERS: every file format there is, by name; a path is read by the first that recognises it."""

from __future__ import annotations

from ups.data.readers import matlab, netcdf, numpy_files, pdebench, torch_files, well, zarr_folders
from ups.data.source import Reader
from ups.plugins import Table

BUILT_IN: dict[str, Reader] = {
    "well": well.READER,
    "netcdf": netcdf.READER,
    "matlab": matlab.READER,
    "pdebench": pdebench.READER,
    "numpy": numpy_files.READER,
    "torch": torch_files.READER,
    "zarr": zarr_folders.READER,
}
READERS: Table[Reader] = Table("readers", BUILT_IN)
