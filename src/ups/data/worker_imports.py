"""Imported once by the server that loader workers are forked from, so that all of them share its memory."""

import gc

import h5py
import torch.utils.data

import ups.data.cache
import ups.data.windows
import ups.lazy_imports

# Names that are filled in at their first use are filled in here, for all workers.
assert (ups.lazy_imports.h5py.File, ups.lazy_imports.torch.Tensor) == (h5py.File, torch.Tensor)
# A worker that collects garbage would otherwise write to every object of these modules, and own a copy of each.
gc.collect()
gc.freeze()

__all__ = ["h5py", "torch", "ups"]
