"""Bits that turn over on one rank: found, named by the majority, mended on request; no fault is blamed on the wrong."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ranks import run_ranks, values
from small_training import Fitting, Waves, same_bits
from ups.engine.loop import Trainer
from ups.engine.ranks.dist import Dist, DivergedError
from ups.engine.ranks.dist_config import DistConfig
from ups.engine.ranks.replicated import Replicated
from ups.engine.ranks.weight_sync import as_real, digests
from ups.engine.train import TrainConfig
from ups.heartbeat import Pulse

# By what is faulty: how to get at it, under which name it is found, and a bit that outlives a step.
FAULTS: dict[str, tuple[Callable[[Trainer], Tensor], str, int]] = {
    "weight": (lambda t: t.parallel.parameters["leave.weight"], "leave.weight", 0),
    "moment": (lambda t: t.learner.optimizer.state_dict()["leave.weight/exp_avg_sq"], "leave.weight (exp_avg_sq)", 4),
    "average": (lambda t: t.learner.ema.average["leave.weight"], "leave.weight (averaged)", 8),
}
RANKS = (0, 1, 2)
Plan = tuple[tuple[str, int, int], ...]  # what, on which rank, before which step
SECOND: Plan = (("weight", 1, 3), ("weight", 2, 5), ("moment", 1, 7))
UNSEEN: Plan = (("moment", 2, 3), ("average", 0, 5))  # the other ranks compute nothing from these
# Every kind and every rank, stopped and mended: which rank it is, is found alike in all kinds.
PAIRS = {
    "stop": (("weight", 0), ("weight", 1), ("moment", 1), ("average", 2)),
    "mend": (("weight", 1), ("moment", 2), ("average", 0)),
}
# By name: the faults, and what is done about them.
PLANS: dict[str, tuple[Plan, str]] = {
    "nothing": ((), "stop"),
    **{f"{how} {what} {rank}": (((what, rank, 3),), how) for how, pairs in PAIRS.items() for what, rank in pairs},
    "gradient": ((("gradient", 1, 3),), "stop"),
    "second": (SECOND, "mend"),
    "unseen": (UNSEEN, "mend"),
}


def flip(tensor: Tensor, bit: int) -> None:
    """Turn over one bit of a number in the middle of a tensor, in place."""
    words = tensor.detach().view(-1)[tensor.numel() // 2 :].view(torch.int32)
    words[0] ^= 1 << bit


def trained(dist: Dist, plan: Plan, on_drift: str) -> dict[str, Any]:
    """How a training ends in which bits turn over."""
    settings = TrainConfig(steps=8, log_every=1, drift_every=2, prefetch=0, on_drift=on_drift)  # type: ignore[arg-type]
    notes: list[str] = []
    trainer: Trainer | None = None

    def strike(phase: str, step: int) -> None:
        for what, rank, at in plan:
            if trainer is None or (rank, at) != (dist.rank, step):
                continue
            if what == "gradient" and phase == "reduce":  # this rank's own, before all are added up
                assert isinstance(trainer.parallel, Replicated)
                assert trainer.parallel.packed is not None
                packed = dict(zip(trainer.parallel.parameters, trainer.parallel.packed.gradients, strict=True))
                assert packed["leave.weight"] is not None
                flip(packed["leave.weight"], 20)
            elif what in FAULTS and phase == "data":
                flip(FAULTS[what][0](trainer), FAULTS[what][2])

    say = lambda progress: notes.append(progress.note) if progress.note else None  # noqa: E731
    trainer = Trainer(settings, Fitting(), Waves(dist), dist, pulse=Pulse(None, dist.rank, strike), report=say)
    try:
        outcome = trainer.fit()
    except DivergedError as error:
        return {"sentence": str(error), "first_hand": getattr(error, "first_hand", None), "notes": notes}
    return {"weights": trainer.weights(), "mended": outcome.mended, "notes": notes}


def every_plan(names: tuple[str, ...]) -> dict[str, Any]:
    with Dist.start("cpu", DistConfig(ranks=int(os.environ["WORLD_SIZE"]))) as dist:
        ends: dict[str, Any] = {name: trained(dist, *PLANS[name]) for name in names}
        for odd in range(dist.world):
            try:
                dist.handshake({"colour": "red" if dist.rank == odd else "blue"})
            except DivergedError as error:
                ends[f"colour {odd}"] = str(error)
    return ends


@functools.cache
def ends_on_three() -> list[dict[str, Any]]:
    return values(run_ranks(every_plan, 3, tuple(PLANS)))


def of(name: str) -> list[dict[str, Any]]:
    return [ends[name] for ends in ends_on_three()]


def alike(ends: list[dict[str, Any]]) -> bool:
    return all(same_bits(ends[0], other) for other in ends[1:])


@pytest.mark.parametrize(("what", "rank"), PAIRS["stop"])
def test_of_three_ranks_the_one_with_a_flipped_bit_is_named(what: str, rank: int) -> None:
    for number, end in enumerate(of(f"stop {what} {rank}")):
        assert f"at step 4 rank {rank} holds other values of '{FAULTS[what][1]}'" in end["sentence"]
        assert "than the 2 others" in end["sentence"]
        assert end["first_hand"] is (number == rank), "the verdict is about the rank that is wrong"


def test_of_two_ranks_it_is_said_that_nobody_can_tell_which_is_wrong() -> None:
    for end in (ends["stop weight 1"] for ends in values(run_ranks(every_plan, 2, ("stop weight 1",)))):
        assert "at step 4 ranks 0 and 1 hold different values of 'leave.weight'" in end["sentence"]
        assert "of two it cannot be told which is wrong" in end["sentence"]
        assert end["first_hand"] is None


@pytest.mark.parametrize(("what", "rank"), PAIRS["mend"])
def test_on_request_the_one_that_differs_takes_over_what_the_others_hold(what: str, rank: int) -> None:
    ends = of(f"mend {what} {rank}")
    assert alike(ends)
    for end in ends:
        assert end["mended"] == [rank]
        assert len(end["notes"]) == 1
        assert f"rank {rank} holds other values of" in end["notes"][0]
        assert "training goes on" in end["notes"][0]


def test_a_fault_that_no_other_rank_computes_with_is_mended_to_the_same_bits() -> None:
    ends = of("unseen")
    assert ends[0]["mended"] == [2, 0]
    assert alike([*ends, *of("nothing")])


def test_a_rank_that_differs_a_second_time_ends_the_run_and_is_named() -> None:
    for number, end in enumerate(of("second")):
        assert "at step 8 rank 1 holds other values" in end["sentence"]
        assert "for the second time, after rank 1 had been mended" in end["sentence"]
        assert len(end["notes"]) == 2
        assert end["first_hand"] is (number == 1)


def test_a_gradient_that_is_wrong_before_the_sum_is_wrong_for_all_alike() -> None:
    """No comparison can find it; the ranks stay together."""
    assert alike(of("gradient"))
    assert not same_bits(of("gradient")[0], of("nothing")[0]), "the fault was real"


@pytest.mark.parametrize("odd", RANKS)
def test_the_rank_that_differs_in_a_handshake_is_named_by_the_others(odd: int) -> None:
    for ends in ends_on_three():
        assert f"do not agree on the colour: rank {odd} has red, the 2 others blue; start all" in ends[f"colour {odd}"]


def test_a_digest_changes_with_every_bit_and_with_every_place() -> None:
    for tensor in (torch.randn(7, 5), torch.randn(3, dtype=torch.complex64), torch.zeros(5, dtype=torch.int8)):
        before = digests({"": tensor})
        assert digests({"": tensor.clone()}) == before
        data = as_real(tensor).view(-1).view(torch.uint8)
        for byte in range(data.numel()):
            for bit in (0, 3, 7):
                data[byte] ^= 1 << bit
                assert digests({"": tensor}) != before
                data[byte] ^= 1 << bit
    rows = torch.randn(4, 6)
    assert digests({"": rows}) != digests({"": rows.flip(0)})
    odd = torch.randn(9)[1:]
    assert digests({"": odd}) == digests({"": odd.clone()}), "wherever it lies in memory"
    assert digests({"empty": torch.zeros(0)}).keys() == {"empty"}
