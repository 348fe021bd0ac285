"""What --debug sets: enough to see more, nothing that is known to crash, and never over the user's own values."""

from __future__ import annotations

import pytest

from ups.supervise.job import debugging


def test_debugging_says_more_and_waits_for_kernels_only_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in debugging("cuda"):
        monkeypatch.delenv(name, raising=False)
    gpu, cpu = debugging("auto"), debugging("cpu")
    assert gpu["CUDA_LAUNCH_BLOCKING"] == "1"
    assert gpu["NCCL_DEBUG"] == "INFO"
    assert cpu["TORCH_DISTRIBUTED_DEBUG"] == "INFO", "DETAIL crashes gloo"
    assert cpu["TORCH_SHOW_CPP_STACKTRACES"] == "1"
    assert not {"CUDA_LAUNCH_BLOCKING", "NCCL_DEBUG"} & cpu.keys()
    assert int(cpu["TORCH_FR_BUFFER_SIZE"]) > 2000
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "OFF")
    assert "TORCH_DISTRIBUTED_DEBUG" not in debugging("cpu")
