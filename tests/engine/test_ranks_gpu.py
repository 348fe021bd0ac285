"""The loop on two ranks of one GPU: memory that the real allocator refuses is met in place, replicated and sharded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ranks import run_ranks, values
from small_training import Fitting, Rows, Waves, same_bits
from ups.engine.loop import Trainer
from ups.engine.ranks.dist import Dist
from ups.engine.ranks.dist_config import DistConfig
from ups.engine.train import TrainConfig
from ups.heartbeat import Pulse

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

SIZE, WIDE = 4096, 4096


class Wide(Fitting):
    """The same task, with blocks whose activations are large beside their weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        for block in self.module.blocks:
            block.up, block.down = nn.Linear(12, WIDE), nn.Linear(WIDE, 12)  # type: ignore[assignment]


def train(strategy: str, capped: tuple[int, ...]) -> dict[str, Any]:
    """At each visit to `data` named in `capped` rank 1 gets hardly any memory beyond what it holds."""
    visits = [0]
    with Dist.start("cuda", DistConfig(ranks=2, strategy=strategy, backend="gloo", vote_timeout=60)) as dist:  # type: ignore[arg-type]

        def cap(phase: str, step: int) -> None:  # noqa: ARG001
            if phase == "data" and dist.rank == 1:
                visits[0] += 1
                total = torch.cuda.mem_get_info()[1]
                torch.cuda.empty_cache()
                few = (torch.cuda.memory_reserved() + 40 * 2**20) / total
                torch.cuda.set_per_process_memory_fraction(few if visits[0] in capped else 1.0)

        settings = TrainConfig(steps=8, lr=0.01, log_every=1, validate_every=0, prefetch=0)
        rows = Rows()
        batches = Waves(dist, size=SIZE)
        trainer = Trainer(settings, Wide(), batches, dist, trackers=[rows], pulse=Pulse(None, dist.rank, cap))
        outcome = trainer.fit()
        return {
            "weights": trainer.weights(),
            "losses": dist.gather(rows.losses)[0],
            "recovered": outcome.recovered,
            "microbatch": trainer.state.microbatch,
        }


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_memory_the_allocator_refuses_is_met_in_place(strategy: str) -> None:
    straight = values(run_ranks(train, 2, strategy, ()))[0]
    moment = values(run_ranks(train, 2, strategy, (4, 7)))[0]
    assert (moment["recovered"], moment["microbatch"]) == (2, None)
    assert same_bits(moment, straight)
    longer = values(run_ranks(train, 2, strategy, (4, 5, 6)))
    assert longer[0]["recovered"] >= 2
    assert longer[0]["microbatch"] == longer[1]["microbatch"] < SIZE // 2
    assert longer[0]["losses"] == pytest.approx(straight["losses"], rel=1e-5)


def test_replicated_and_sharded_ranks_on_a_gpu_are_equal_to_the_bit() -> None:
    ddp, fsdp = (values(run_ranks(train, 2, strategy, ()))[0] for strategy in ("ddp", "fsdp"))
    assert ddp["losses"] == pytest.approx(fsdp["losses"], rel=1e-6)
