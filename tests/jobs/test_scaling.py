"""What more devices would give: the bytes that rings send, and what is said of a second device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import nn

from ups.cli.app import main
from ups.engine.ranks.dist_config import DistConfig
from ups.jobs.estimate import estimate as module
from ups.jobs.estimate.costs import costs
from ups.jobs.estimate.estimate import forecast
from ups.jobs.estimate.scaling import (
    VOTE,
    Link,
    Scaled,
    Scaling,
    Traffic,
    bytes_of_weights,
    counts_up_to,
    scaling,
    talk_of,
)
from ups.jobs.estimate.timing import Ceilings
from ups.run.config import RunConfig, run_config

FAST = Link("fast", 1e9, 0.0)


def settings(batch: int = 8, **dist: object) -> RunConfig:
    stage = {"batch": batch, "train": {"steps": 3, "validate_every": 1, "prefetch": 0}}
    model = {"codec": {"dim": 8}, "operator": {"width": 16, "depth": 1, "heads": 2}}
    data = {"a": {"task": "advection1d", "samples": 20, "resolution": 64, "reduce": {"time": 40}}}
    parts = {"data": data, "model": model, "codec": stage, "operator": stage, "device": "cpu", "dist": dist}
    return run_config().model_validate(parts)


def sent_by_a_ring(world: int, numbers: int) -> int:
    """Bytes that a rank sends when pieces go round: once to be summed, once to be known to all."""
    piece, sent = numbers // world, 0
    for _ in range(2):
        for _ in range(world - 1):
            sent += piece
    return sent


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_a_rank_sends_what_a_ring_sends(world: int) -> None:
    assert talk_of(DistConfig(ranks=world), 8000, 3, 1).bytes == sent_by_a_ring(world, 8000)
    sharded = talk_of(DistConfig(ranks=world, strategy="fsdp"), 8000, 3, 2)
    # Gathered for the forward and the backward of both microbatches, and summed once: half a ring each.
    assert sharded.bytes == 5 * sent_by_a_ring(world, 8000) / 2
    assert sharded.votes == (1 + 5 * 4 if world > 1 else 0)


def test_pieces_with_copies_are_reduced_among_the_copies_too() -> None:
    both = talk_of(DistConfig(ranks=4, strategy="fsdp", shard=2), 8000, 0, 1)
    pieces = talk_of(DistConfig(ranks=2, strategy="fsdp"), 8000, 0, 1)
    assert both.bytes == pieces.bytes + sent_by_a_ring(2, 4000)


class Blocks(nn.Sequential):
    def shard_units(self) -> list[nn.Module]:
        return list(self)[1:]


@pytest.mark.parametrize("gather", ["fp32", "bf16"])
def test_of_what_is_gathered_blocks_are_half_as_bf16_and_sums_are_whole(gather: Literal["fp32", "bf16"]) -> None:
    module = Blocks(nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    ranks = DistConfig(ranks=4, strategy="fsdp", gather=gather)
    trained, gathered = bytes_of_weights(module, ranks, "bf16")
    first, block = 4 * (3 * 8 + 8), 4 * (8 * 8 + 8)
    assert (trained, gathered) == (first + 2 * block, first + (1 if gather == "bf16" else 2) * block)
    assert bytes_of_weights(module, ranks, "fp32") == (trained, trained)
    rounds = [2 * gathered, trained]  # for the forward and the backward, and once to be summed: half a ring each
    assert talk_of(ranks, trained, 2, 1, gathered).bytes == sum(sent_by_a_ring(4, n) / 2 for n in rounds)


def test_a_step_waits_for_bytes_messages_and_votes() -> None:
    talk = Traffic(bytes=3e9, messages=4, votes=2)
    assert talk.seconds(Link("slow", 1e9, 0.5), 3) == pytest.approx(3 + 4 * 0.5 + 2 * (VOTE + 2 * 0.5))
    assert counts_up_to(2) == [1, 2]
    assert counts_up_to(6) == [1, 2, 4, 6]


def on_two(step: float, whole: float) -> Scaling:
    one = Scaled(1, 64, 1.0, 1.0, Traffic(), 100)
    return Scaling("operator", (one, Scaled(2, 32, step, whole, Traffic(1e8, 2, 1), 60)), (FAST,))


def test_a_second_device_pays_with_a_larger_batch_or_not_at_all() -> None:
    assert on_two(0.5, 1.0).sentence().startswith("a second device would pay: operator would take its steps 1.67 times")
    larger = on_two(0.9, 1.0).sentence()
    assert "with a larger batch alone: 1.00 times the steps" in larger
    assert "1.82 times the samples" in larger
    worse = on_two(8.0, 9.0).sentence()
    assert "would not pay: 0.12 times the steps" in worse
    assert "ups sweep --jobs 2" in worse


def test_work_that_is_shared_out_takes_its_share_and_memory_falls() -> None:
    config = settings(strategy="fsdp")
    rates = Ceilings(flops=1e9, bytes=1e30, launch=0.0)
    more = scaling(config, costs(config, "cpu"), 2, torch.device("cpu"), rates, False, 1.0, "operator")
    assert [row.ranks for row in more.rows] == [1, 2]
    assert [row.share for row in more.rows] == [8, 4]
    for row in more.rows:
        assert row.step == pytest.approx(more.rows[0].step / row.ranks, rel=0.05)
        assert row.whole == pytest.approx(more.rows[0].step, rel=0.05)
    assert more.rows[0].memory > more.rows[1].memory
    assert len({len(row) for row in more.table()}) == 1


def test_the_command_times_the_shares_and_says_whether_a_second_device_pays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.0)  # reckoned, not timed
    (tmp_path / "c.yaml").write_text(json.dumps(settings().model_dump(mode="json")))
    with pytest.raises(SystemExit) as ended:
        main(["estimate", str(tmp_path / "c.yaml"), "--ranks", "2", "--json", str(tmp_path / "e.json")])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "on more devices like this one" in out
    assert "a second device would" in out
    rows = json.loads((tmp_path / "e.json").read_text())["scaling"]["rows"]
    assert [row["ranks"] for row in rows] == [1, 2]
    assert rows[1]["talk"]["bytes"] > 0


@pytest.mark.parametrize(
    ("device", "ranks", "why"),
    [("cpu", 1, "more than one"), ("cpu", 9, "cannot share a batch of 8"), ("cuda", 2, "no cuda device")],
)
def test_a_question_without_an_answer_is_refused(device: str, ranks: int, why: str) -> None:
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(module.ConfigError, match=why):
        forecast(settings(), device, ranks=ranks)
