"""Dist: one process is the same object as a rank of many, and leaves nothing behind."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Literal

import pytest
import torch
import torch.distributed as dist

from ranks import run_ranks, values
from small_training import Fitting, Waves
from ups.engine.loop import Trainer
from ups.engine.ranks.control import LostPeer
from ups.engine.ranks.dist import Dist
from ups.engine.ranks.dist_config import DistConfig
from ups.engine.train import TrainConfig
from ups.types import ConfigError


def alone_and_sharded() -> tuple[list[float], list[bool], int]:
    """Two trainings one after the other; whether a group was left by each, and how many sockets listened meanwhile."""
    scores, left, listening = [], [], 0
    bind = socket.socket.bind

    def counted(self: socket.socket, address: object) -> None:
        nonlocal listening
        listening += 1
        bind(self, address)  # type: ignore[arg-type]

    socket.socket.bind = counted  # type: ignore[assignment,method-assign]
    for _ in range(2):
        with Dist.start("cpu", DistConfig(strategy="fsdp")) as ranks:
            assert dist.is_initialized()
            config = TrainConfig(steps=2, prefetch=0)
            scores.append(Trainer(config, Fitting(), Waves(ranks), ranks).fit().score)
        left.append(dist.is_initialized())
    return scores, left, listening


def test_a_sharded_process_alone_takes_no_port_and_leaves_no_group() -> None:
    ((scores, left, listening),) = values(run_ranks(alone_and_sharded, 1))
    assert scores[0] == scores[1]
    assert left == [False, False]
    assert listening == 0


def with_a_group_of_its_own() -> bool:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    with Dist.start("cpu", DistConfig(strategy="fsdp")) as ranks:
        assert ranks.mesh is not None
    total = torch.ones(1)
    dist.all_reduce(total)
    return dist.is_initialized() and total.item() == 1


def test_a_group_that_was_there_before_stays() -> None:
    assert values(run_ranks(with_a_group_of_its_own, 1)) == [True]


def failing() -> tuple[str, bool]:
    try:
        with Dist.start("cpu", DistConfig(strategy="fsdp")):
            raise ValueError("in the middle")
    except ValueError as error:
        return str(error), dist.is_initialized()


def test_the_group_ends_with_an_error_too() -> None:
    assert values(run_ranks(failing, 1)) == [("in the middle", False)]


def threads() -> list[str]:
    """The names of this process's threads of gloo."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return [name for name in names if "gloo" in name]


def kept(strategy: Literal["ddp", "fsdp"]) -> tuple[int, list[str], str]:
    with Dist.start("cpu", DistConfig(ranks=2, strategy=strategy)) as ranks:
        dist.all_reduce(torch.ones(1))
        ranks.barrier()
        during = len(threads())
    try:
        ranks.barrier()
    except LostPeer as error:
        return during, threads(), str(error)
    return during, threads(), "several ranks went on as if each were alone"


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="this system does not name threads under /proc")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_who_keeps_the_object_keeps_no_thread_that_could_abort_the_end_of_python(strategy: str) -> None:
    for during, after, sentence in values(run_ranks(kept, 2, strategy)):
        assert during > 0
        assert after == []
        assert "the ranks have parted" in sentence


def test_only_a_sharded_stage_in_bf16_is_gathered_as_bf16() -> None:
    assert DistConfig(strategy="fsdp", gather="bf16").rounds("bf16")
    assert not DistConfig(strategy="fsdp", gather="bf16").rounds("tf32")
    assert not DistConfig(strategy="fsdp").rounds("bf16")
    with pytest.raises(ConfigError, match=r"dist\.gather are for strategy fsdp; leave them out"):
        DistConfig(gather="bf16")


def test_what_nccl_is_told_is_named_and_nccl_without_a_gpu_is_refused() -> None:
    assert DistConfig().environment() == {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
    assert DistConfig(nccl_errors="abort").environment() == {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    with (
        pytest.raises(ConfigError, match="nccl, which needs a GPU per rank"),
        Dist.start("cpu", DistConfig(backend="nccl")),
    ):
        raise AssertionError
