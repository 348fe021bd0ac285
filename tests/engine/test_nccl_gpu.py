"""NCCL itself, in a group of one rank: it is made on the rank's own GPU, computes, trains to gloo's bits, and ends."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from ranks import run_ranks, values
from small_training import Fitting, Waves, same_bits
from ups.engine.loop import Trainer
from ups.engine.ranks.dist import Dist
from ups.engine.ranks.dist_config import DistConfig
from ups.engine.train import TrainConfig

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def train(backend: str, strategy: str) -> dict[str, Any]:
    with Dist.start("cuda", DistConfig(backend=backend, strategy=strategy, timeout=60)) as ranks:  # type: ignore[arg-type]
        facts: dict[str, Any] = {"device": str(ranks.device)}
        if dist.is_initialized():
            total = torch.arange(4.0, device=ranks.device)
            dist.all_reduce(total)
            pieces = [torch.empty_like(total)]
            dist.all_gather(pieces, total)
            facts |= {"backend": dist.get_backend(), "reduced": total.tolist(), "gathered": pieces[0].tolist()}
        trainer = Trainer(TrainConfig(steps=4, prefetch=0), Fitting(), Waves(ranks), ranks)
        outcome = trainer.fit()
        facts |= {"score": outcome.score, "weights": trainer.weights()}
    return {**facts, "left": dist.is_initialized()}


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_group_of_one_rank_by_nccl_trains_as_one_process_does(strategy: str) -> None:
    (nccl,) = values(run_ranks(train, 1, "nccl", strategy))
    (other,) = values(run_ranks(train, 1, "auto", strategy))
    assert (nccl["backend"], nccl["left"], nccl["device"]) == ("nccl", False, "cuda:0")
    assert nccl["reduced"] == nccl["gathered"] == [0.0, 1.0, 2.0, 3.0]
    assert nccl["score"] == other["score"]
    assert same_bits(nccl, other)
