"""What the server of loader processes imports once: all of them share it, for nothing in it is touched again."""

import gc

import torch.utils.data

import ups.data.cache
import ups.data.windows

# A worker that collects garbage would otherwise write to every object of these modules, and own a copy of each.
gc.collect()
gc.freeze()

__all__ = ["torch", "ups"]
