"""On a GPU: steps as two graphs around the vote, on one rank and two of one card; `ups bench speed` times them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ranks import run_ranks, values
from two_heads import STEPS, differences, same, train
from ups.engine.graph import WARM
from ups.engine.ranks.dist import Dist
from ups.engine.ranks.dist_config import DistConfig

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

SHORT = torch.OutOfMemoryError("planned")
REPLAYED_AT = 2 * WARM + 4  # a step of which both tasks are captured


def started(world: int) -> Any:
    return Dist.start("cuda", DistConfig(ranks=world, backend="gloo", vote_timeout=60))


def planned(world: int, plans: dict[str, dict[str, Any]]) -> dict[str, Any]:
    with started(world) as dist:
        return {name: train(dist, **plan) for name, plan in plans.items()}


def ends(world: int, plans: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """How every plan ended, by rank; all ranks hold the same weights."""
    found = values(run_ranks(planned, world, world, plans))
    for name in plans:
        first = found[0][name]["weights"]
        assert all(torch.equal(w, rank[name]["weights"][n]) for rank in found for n, w in first.items()), name
    return found


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("world", [1, 2])
def test_replayed_steps_have_the_bits_of_ordinary_ones(world: int, optimizer: str) -> None:
    """Two tasks in turn, with dropout, uneven microbatches, and a head each that the other's steps do not touch."""
    changes = {"optimizer": optimizer, "stage": (32, 2), "steps": 2 * STEPS}
    plans = {"ordinary": {"graph": False, **changes}, "replayed": {"graph": True, **changes}}
    for rank in ends(world, plans):
        assert rank["replayed"]["captured"] == [4, 4]
        assert rank["ordinary"]["captured"] == []
        assert same(rank["replayed"], rank["ordinary"])


def test_memory_short_at_a_replayed_step_is_met_in_place() -> None:
    fault = (1, "backward", REPLAYED_AT, SHORT)
    plans = {
        "straight": {"graph": True},
        "for a moment": {"graph": True, "faults": (fault,)},
        "for long": {"graph": True, "faults": ((*fault, 2),)},
        "for long, ordinary": {"graph": False, "faults": ((*fault, 2),)},
    }
    for rank in ends(2, plans):
        assert rank["for a moment"]["recovered"] == 1
        assert same(rank["for a moment"], rank["straight"])
        assert rank["for long"]["microbatch"] == 2
        assert set(rank["for long"]["captured"]) == {2}, "graphs of larger microbatches are gone"
        assert same(rank["for long"], rank["for long, ordinary"])


def short_of_memory(capped: bool) -> dict[str, Any]:
    """At the first capture rank 1 gets hardly any memory beyond what it holds."""
    with started(2) as dist:
        visits = [0]

        def cap(phase: str, step: int) -> None:
            if phase == "data" and step == 2 * WARM and dist.rank == 1 and capped:
                visits[0] += 1
                torch.cuda.empty_cache()
                few = (torch.cuda.memory_reserved() + 40 * 2**20) / torch.cuda.mem_get_info()[1]
                torch.cuda.set_per_process_memory_fraction(few if visits[0] == 1 else 1.0)

        plan = {"stage": (2048, 4), "sizes": (4096, 6144), "microbatch": None, "lr": 1e-3}
        return train(dist, graph="auto", fire=cap, **plan)


def test_memory_that_the_allocator_refuses_to_a_capture_is_met_in_place() -> None:
    straight, short = (values(run_ranks(short_of_memory, 2, capped)) for capped in (False, True))
    assert [(end["recovered"], end["eager"], len(end["captured"])) for end in short] == [(1, 0, 2), (1, 1, 1)]
    assert any("cannot be captured as a CUDA graph" in note for note in short[1]["notes"])
    for a, b in zip(straight, short, strict=True):
        assert differences(a, b) == []
