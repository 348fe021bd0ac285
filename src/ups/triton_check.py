"""Whether kernels written in Triton run on a GPU of this machine."""

from __future__ import annotations

import functools
import subprocess
import warnings
from importlib.util import find_spec

from ups.lazy_imports import torch


@functools.cache
def runs_triton(device: torch.device) -> bool:
    """Tries one: Triton, which comes with torch, needs a C compiler on the machine. Says why where none runs."""
    if find_spec("triton") is None:
        return False
    import triton

    try:
        with torch.cuda.device(device):
            triton.jit(_nothing)[(1,)](torch.zeros(1, device=device))
    except (RuntimeError, OSError, subprocess.SubprocessError, triton.TritonError) as error:
        why = str(error).strip().splitlines()[-1][:200] if str(error).strip() else type(error).__name__
        warnings.warn(f"a library's kernels are used, which are slower: Triton says '{why}'.", stacklevel=2)
        return False
    return True


def _nothing(x):  # type: ignore[no-untyped-def]  # a kernel: its words are read by Triton, which knows no types
    """Does nothing."""
