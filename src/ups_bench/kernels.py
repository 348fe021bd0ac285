"""Where the time of a step goes: seconds of each kernel by torch.profiler, and what kind of work it is by its name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from ups_bench.turns import Work, finished, repeated

LONGEST = 8  # kernels that are named
# The first that fits a name, of a kernel or on a processor of an operation, is its kind.
KINDS = {
    "attention": r"flash|fmha|attention|sdpa|^_attend$|^_attend_back$",
    "matrix products": r"gemm|gemv|cutlass|nvjet|xmma|cublas|splitk|matmul|triton_tem|triton_mm|::(add|badd|b)?mm$",
    "convolutions": r"conv(?!ert)|fft|^_mix$|^_weigh$|^_whole$|^_gains$|^_forward$|^_backward$|^_backward_weight$"
    r"|^_taps$|^_patch$|^_patch_back$|^_patch_weight$",
    "optimizer": r"multi_tensor_apply|adam|lerp|_foreach_",
    "fused": r"^triton_",
    "copies": r"memcpy|memset|copy|catarray|::cat$|transpose|permut|(?<!un)roll|fill|::zero",
    "element-wise, norms": r"elementwise|reduce|norm|softmax|vectorized|gelu|silu|index|^_squares$|^_apply$|^_sums$"
    r"|^_gather$|^_entering$|^_alone$|^_alone_back$"
    r"|^_gate$|^_gate_back$|^_activate_back$|^_residual$|^_residual_back$|^_residual_squares$|^_residual_norm_back$"
    r"|^_split$|^_split_back$|^_repair_gas$"
    r"|::(add|sub|mul|div|sum|mean|addcmul|rsqrt|pow|sqrt|neg|where)_?$",
}
OTHER = "other"
NO_WORK = re.compile(r"Sync$|Wait Event$|Buffer")  # what the profiler lists beside kernels


def kind_of(name: str) -> str:
    """What kind of work a kernel does. A kernel that torch.compile fused is element-wise work or a norm."""
    kind = next((kind for kind, pattern in KINDS.items() if re.search(pattern, name, re.IGNORECASE)), OTHER)
    return "element-wise, norms" if kind == "fused" else kind


def kernel_seconds(step: Work, steps: int, device: torch.device) -> dict[str, float]:
    """Seconds of one step in each kernel, the mean of so many; on a processor those of each operation itself."""
    on_gpu = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as traced:
        finished(repeated(step, steps), device)()
    spent: dict[str, float] = {}
    for event in traced.events() or ():
        if event.device_type.name != ("CUDA" if on_gpu else "CPU"):
            continue
        if event.is_user_annotation or NO_WORK.search(event.name):
            continue
        micro = event.time_range.elapsed_us() if on_gpu else event.self_cpu_time_total
        spent[event.name] = spent.get(event.name, 0.0) + 1e-6 * float(micro) / steps
    return spent


def summary(spent: Mapping[str, float]) -> dict[str, Any]:
    """Milliseconds of a step in kernels, the share of each kind of them, and the longest by name."""
    total = sum(spent.values())
    kinds: dict[str, float] = {}
    for name, seconds in spent.items():
        kinds[kind_of(name)] = kinds.get(kind_of(name), 0.0) + seconds / total
    longest = sorted(spent.items(), key=lambda row: -row[1])[:LONGEST]
    return {
        "milliseconds": 1e3 * total,
        "shares": dict(sorted(kinds.items(), key=lambda row: -row[1])),
        "longest": [[name[:160], 1e3 * seconds] for name, seconds in longest],
    }
