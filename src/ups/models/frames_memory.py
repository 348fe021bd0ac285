"""Refuses a rollout whose frames the memory at hand cannot hold, before its first step."""

from __future__ import annotations

import torch

from ups.host_memory import address_space_left, available
from ups.types import ConfigError, counted, data_size

SMALL = 1 << 24  # bytes for which nobody looks how many are left
NUMBER = 4  # bytes of a number of a frame
MOST = 10**18  # steps that can be said in figures


def free_memory(device: torch.device) -> int:
    """Bytes of memory that can still be had: of a GPU, or of this machine, the container around us and `ulimit -v`."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    left = address_space_left()
    return available()[0] if left is None else min(available()[0], left)


def check_memory(task: str, steps: int, samples: int, numbers: int, device: torch.device, copies: int = 1) -> None:
    """ConfigError where a device cannot hold `steps` frames of so many `numbers` of each sample, so many times over."""
    need = NUMBER * copies * samples * numbers * steps
    if need <= SMALL or need <= (free := free_memory(device)):
        return
    if steps > MOST:
        raise ConfigError(f"{task}: no machine can hold or count more than {MOST} steps; ask for fewer.")
    where, cause = ("here", MemoryError) if device.type == "cpu" else (f"on {device}", torch.OutOfMemoryError)
    raise ConfigError(
        f"{task}: {counted(steps, 'predicted frame')} of {counted(samples, 'sample')} take {data_size(need)} of "
        f"memory, and {data_size(free)} are free {where}; ask for fewer steps, or for one piece after the other: write "
        "each to a file, and go on from its last frames."
    ) from cause("more frames than memory holds")
