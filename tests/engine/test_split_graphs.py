"""Steps recorded as two halves around the vote give the bits of ordinary ones: here with closures, without a GPU."""

from __future__ import annotations

import functools
import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ranks import run_ranks, values
from two_heads import STEPS, same, train
from ups.engine.graph import WARM, graphed
from ups.engine.ranks.dist import Dist
from ups.engine.ranks.dist_config import DistConfig
from ups.types import ConfigError, UpsError

SHORT = torch.OutOfMemoryError("planned")
ODD = RuntimeError("a host decision")
REPLAYED = 2 * (STEPS - 2 * WARM)  # halves, of both tasks
PLANS: dict[str, dict[str, Any]] = {
    "ordinary": {},
    "recorded": {"failures": {}},
    "short in forward": {"failures": {}, "faults": ((1, "forward", 14, SHORT),)},
    "short in backward": {"failures": {}, "faults": ((0, "backward", 15, SHORT), (1, "backward", 15, SHORT))},
    "short for long": {"failures": {}, "faults": ((0, "forward", 10, SHORT, 2),)},
    "ordinary, short for long": {"faults": ((0, "forward", 10, SHORT, 2),)},
    "not captured": {"failures": {3: ODD}},
    "half captured": {"failures": {2: ODD}},
    "short in capture": {"failures": {3: SHORT}},
    "short in capture, must": {"failures": {1: SHORT, 2: SHORT}, "must": True},
    "ordinary, short in capture": {"faults": ((0, "forward", 6, SHORT, 2),)},
    "must": {"failures": {3: ODD}, "must": True},
    "generator lost": {"failures": {}, "stale_at": 13},
}


def every_plan() -> dict[str, Any]:
    """How each training ends: with its result, or with an error in words. Captures fail on the last rank alone."""
    found: dict[str, Any] = {}
    with Dist.start("cpu", DistConfig(ranks=int(os.environ["WORLD_SIZE"]), vote_timeout=140)) as dist:
        for name, plan in PLANS.items():
            mine = {k: {} if k == "failures" and dist.rank < dist.world - 1 else v for k, v in plan.items()}
            try:
                found[name] = train(dist, **mine)
            except UpsError as error:
                found[name] = f"{type(error).__name__}: {error}"
    return found


@functools.cache
def planned(world: int) -> Any:
    return run_ranks(every_plan, world)


def of(world: int, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The last rank's ordinary training, and its training by that plan, whose end all ranks share."""
    ranks = values(planned(world))
    ends = [rank[name] for rank in ranks]
    assert all(isinstance(end, dict) for end in ends), ends
    assert all(torch.equal(w, end["weights"][n]) for end in ends for n, w in ends[0]["weights"].items()), "ranks differ"
    return ranks[-1]["ordinary"], ends[-1]


@pytest.mark.parametrize("world", [1, 2])
def test_recorded_steps_have_the_bits_of_ordinary_ones(world: int) -> None:
    ordinary, recorded = of(world, "recorded")
    assert same(recorded, ordinary)
    assert recorded["captured"] == [4, 4]
    assert recorded["recorder"]["recorded"] == 4
    assert recorded["recorder"]["replayed"] == REPLAYED
    heads = [sum("heads" in name for name in row) for row in recorded["gradients"]]
    assert heads == [2] * STEPS, "a step leaves the gradient of the other task's head behind"


@pytest.mark.parametrize("name", ["short in forward", "short in backward"])
def test_memory_short_at_a_replayed_step_changes_no_bit(name: str) -> None:
    ordinary, found = of(2, name)
    assert found["recovered"] == 1
    assert same(found, ordinary)
    assert values(planned(2))[0][name]["recorder"]["replayed"] == REPLAYED + 1
    assert found["recorder"]["forgotten"] == 0


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize(
    ("name", "like"),
    [("short for long", "ordinary, short for long"), ("short in capture, must", "ordinary, short in capture")],
)
def test_smaller_microbatches_drop_all_graphs_and_are_captured_anew(world: int, name: str, like: str) -> None:
    (_, ordinary), (_, found) = of(world, like), of(world, name)
    assert same(found, ordinary)
    assert found["microbatch"] == 2
    assert found["captured"] == [2, 2]
    assert found["recorder"]["forgotten"] == (1 if name == "short for long" else 3)
    assert not found["eager"]


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("name", ["not captured", "half captured", "short in capture"])
def test_a_rank_that_cannot_capture_runs_as_ever_and_says_so(world: int, name: str) -> None:
    ordinary, found = of(world, name)
    assert same(found, ordinary)
    assert found["eager"] == 1
    assert sum("cannot be captured as a CUDA graph" in note for note in found["notes"]) == 1
    assert found["recovered"] == (name == "short in capture")
    others = [rank[name] for rank in values(planned(world))][:-1]
    assert all(end["captured"] == [4, 4] and not end["eager"] for end in others)


def test_graphs_that_must_be_stop_all_ranks_where_one_cannot_capture() -> None:
    first, last = (rank["must"] for rank in values(planned(2)))
    assert last.startswith("ConfigError: the step of task 'second' cannot be captured")
    assert "a host decision" in last
    assert first.startswith("PeerError: rank 1 failed in phase 'forward' of step 7")


def test_graphs_of_a_lost_generator_are_captured_again() -> None:
    ordinary, found = of(2, "generator lost")
    assert same(found, ordinary)
    assert found["recorder"]["recorded"] == 8


def test_a_graph_of_shards_is_refused_in_a_sentence() -> None:
    on_gpu = SimpleNamespace(dist=SimpleNamespace(device=torch.device("cuda")), parallel=object())
    with pytest.raises(ConfigError, match=r"strategy fsdp ranks wait for each other.*set graph to auto or off"):
        graphed(on_gpu, True, print)  # type: ignore[arg-type]
    assert graphed(on_gpu, "auto", print) is None  # type: ignore[arg-type]
