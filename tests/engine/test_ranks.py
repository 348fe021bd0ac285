"""The loop on several ranks: the same losses as on one, one decision for all, no failure that wins."""

from __future__ import annotations

import functools
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as c10d
from torch import Tensor

from ranks import Ended, run_ranks, values
from small_training import SIZE, Failing, Fitting, Net, Rows, Waves, same_bits
from ups.engine import loop
from ups.engine.checkpoint.checkpoint_store import CheckpointStore
from ups.engine.loop import Trainer
from ups.engine.preemption import Preempted, StopFlag
from ups.engine.ranks.dist import Dist, DivergedError
from ups.engine.ranks.dist_config import DistConfig
from ups.engine.train import TrainConfig
from ups.heartbeat import Pulse
from ups.tensors import Window
from ups.types import DataError, UpsError
from ups.verdict import Failure

STRATEGIES = ("ddp", "fsdp")


def train(dist: Dist, faults: tuple[Any, ...] = (), **changes: Any) -> dict[str, Any]:
    """One rank of a short training; everything a law could be about."""
    settings = {"steps": 6, "lr": 0.05, "clip": 0.5, "ema": 0.9, "log_every": 1, "validate_every": 3, "prefetch": 0}
    batches = {"bad": changes.pop("bad", ()), "size": changes.pop("size", SIZE)}
    stage = changes.pop("stage", Fitting)()
    plans = [Failing(*fault) for fault in faults if fault[0] == dist.rank]
    rows, pulse = Rows(), Pulse(None, dist.rank, lambda p, s: [plan(p, s) for plan in plans] and None)
    trainer = Trainer(
        TrainConfig(**{**settings, **changes}), stage, Waves(dist, **batches), dist, trackers=[rows], pulse=pulse
    )
    outcome = trainer.fit()
    return {
        "weights": trainer.weights(),
        "losses": dist.gather(rows.losses)[0],
        "outcome": outcome,
        "microbatch": trainer.state.microbatch,
    }


def started(strategy: str) -> Any:
    return Dist.start("cpu", DistConfig(ranks=int(_env("WORLD_SIZE")), strategy=strategy, vote_timeout=140))  # type: ignore[arg-type]


def straight(strategy: str) -> dict[str, Any]:
    with started(strategy) as dist:
        return train(dist)


def _env(name: str) -> str:
    import os

    return os.environ[name]


OOM = torch.OutOfMemoryError("CUDA out of memory (injected)")


class Stumbling(Fitting):
    """Runs out of memory on rank 1 in its second evaluation, with the averaged weights in place."""

    evaluations = 0

    def evaluate(self, w: Window) -> dict[str, Tensor]:
        found = super().evaluate(w)
        self.evaluations += 1
        if self.evaluations == 2 and _env("RANK") == "1":
            raise OOM
        return found


ERRORS = ("data", "forward", "backward", "validate")
# One in a step, so that each is repeated once.
MOMENTS = (("data", 1), ("forward", 2), ("validate", 3), ("backward", 4))
# By name, what differs from a training that nothing happens to.
PLANS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "short on one": {"faults": tuple((1, phase, step, OOM) for phase, step in MOMENTS)},
    "short on both": {"faults": tuple((rank, phase, step, OOM) for rank in (0, 1) for phase, step in MOMENTS)},
    "short in the middle of validation": {"stage": Stumbling},
    "short in validate for good": {"faults": ((1, "validate", 3, OOM, 99),)},
    "short for long": {"faults": ((1, "backward", 0, OOM, 2),)},
    "small microbatches": {"microbatch": 2},
    "short for good": {"faults": ((1, "forward", 3, OOM, 99),)},
    **{f"error in {phase}": {"faults": ((1, phase, 3, DataError("sample 7 is torn")),)} for phase in ERRORS},
    "not finite": {"bad": (2, 5), "max_bad": 2, "ema": 0.0},
    "by the clock": {"steps": None, "seconds": 0.5, "validate_every": "auto"},
    "not finite for long": {"bad": (2, 3, 4), "max_bad": 2, "ema": 0.0},
}


def every_plan(strategy: str) -> dict[str, Any]:
    """How each training ends: with its result, or with the name and text of an error and the seconds it took."""
    found: dict[str, Any] = {}
    with started(strategy) as dist:
        for name, changes in PLANS.items():
            began = time.monotonic()
            try:
                found[name] = train(dist, **changes)
            except (UpsError, torch.OutOfMemoryError) as error:
                found[name] = type(error).__name__, str(error), time.monotonic() - began
    return found


@functools.cache
def _tried(strategy: str) -> list[Ended]:
    return run_ranks(every_plan, 2, strategy)


def planned(strategy: str) -> list[dict[str, Any]]:
    """How every plan went, tried once for all tests, also where that has failed."""
    return values(_tried(strategy))


def ended(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for other in found[1:]:
        assert all(torch.equal(a, other["weights"][n]) for n, a in found[0]["weights"].items()), "ranks differ"
        assert other["outcome"].score == found[0]["outcome"].score
    return found


def of(strategy: str, name: str) -> dict[str, Any]:
    """The result of a plan, which all ranks agree on."""
    return ended([ends[name] for ends in planned(strategy)])[0]


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return ended(values(run_ranks(straight, 1, "ddp")))[0]


# Four replicas add up as two do, and four shards are tried below: on purpose only.
FOUR_REPLICAS = pytest.param("ddp", 4, marks=pytest.mark.slow)


@pytest.mark.parametrize(("strategy", "world"), [("ddp", 2), FOUR_REPLICAS, ("fsdp", 1), ("fsdp", 2), ("fsdp", 4)])
def test_any_number_of_ranks_gives_the_losses_of_one(alone: dict[str, Any], strategy: str, world: int) -> None:
    found = of(strategy, "nothing") if world == 2 else ended(values(run_ranks(straight, world, strategy)))[0]
    assert found["losses"] == pytest.approx(alone["losses"], rel=1e-6)
    assert len(found["losses"]) == 6
    assert found["outcome"].score == pytest.approx(alone["outcome"].score, rel=1e-5)
    assert found["outcome"].samples == alone["outcome"].samples == 6 * SIZE
    assert set(found["weights"]) == set(Net().state_dict())


def test_sharded_and_replicated_ranks_are_equal_to_the_bit() -> None:
    assert of("ddp", "nothing")["losses"] == of("fsdp", "nothing")["losses"]
    assert same_bits(of("ddp", "nothing"), of("fsdp", "nothing"))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("ranks", ["one", "both"])
def test_memory_that_was_short_for_a_moment_of_any_phase_changes_no_bit(strategy: str, ranks: str) -> None:
    found = of(strategy, f"short on {ranks}")
    assert same_bits(found, of(strategy, "nothing"))
    assert found["outcome"].recovered == len(MOMENTS)
    assert found["losses"] == of(strategy, "nothing")["losses"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_memory_short_in_the_middle_of_validation_changes_no_bit(strategy: str) -> None:
    found = of(strategy, "short in the middle of validation")
    assert same_bits(found, of(strategy, "nothing"))
    assert found["outcome"].recovered == 1
    assert found["outcome"].score == of(strategy, "nothing")["outcome"].score


class StumblingInside(Fitting):
    """Runs out of memory on rank 1 inside a block, in its third evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0
        self.module.blocks[1].register_forward_hook(self._pass)

    def _pass(self, *_: Any) -> None:
        self.passed += not torch.is_grad_enabled()
        if self.passed == 3 and _env("RANK") == "1":
            self.passed += 1
            raise OOM


def gathered_as_bf16() -> dict[str, dict[str, Any]]:
    config = DistConfig(ranks=2, strategy="fsdp", gather="bf16", vote_timeout=140)
    plans = {
        "nothing": {},
        "in forward": {"faults": ((1, "forward", 3, OOM),)},
        "in a block": {"stage": StumblingInside},
    }
    with Dist.start("cpu", config) as dist:
        return {name: train(dist, precision="bf16", **plan) for name, plan in plans.items()}


def test_memory_short_anywhere_changes_no_bit_where_blocks_are_gathered_as_bf16() -> None:
    for ends in values(run_ranks(gathered_as_bf16, 2)):
        clean = ends.pop("nothing")
        first = of("fsdp", "nothing")["losses"][0]  # before steps of this size make roundings grow
        assert clean["losses"][0] == pytest.approx(first, rel=0.01)
        assert clean["losses"][0] != first
        assert {weight.dtype for weight in clean["weights"].values()} == {torch.float32}
        for found in ends.values():
            assert same_bits(found, clean)
            assert found["outcome"].recovered == 1
            assert found["outcome"].score == clean["outcome"].score


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_memory_that_stays_short_is_met_by_smaller_microbatches(strategy: str) -> None:
    found = of(strategy, "short for long")
    assert (found["microbatch"], found["outcome"].recovered) == (2, 2)
    assert same_bits(found, of(strategy, "small microbatches"))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("phase", ERRORS)
def test_an_error_on_one_rank_stops_all_at_once_and_is_named(strategy: str, phase: str) -> None:
    first, second = (ends[f"error in {phase}"] for ends in planned(strategy))
    assert second[:2] == ("DataError", "sample 7 is torn")
    assert first[0] == "PeerError"
    assert f"rank 1 failed in phase '{phase}' of step" in first[1]
    assert "DataError: sample 7 is torn" in first[1]
    assert max(first[2], second[2]) < 100, "nobody has waited for a vote that nobody comes to"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_memory_short_with_one_sample_stops_all_ranks_and_names_the_first(strategy: str) -> None:
    for kind, sentence, _ in (ends["short for good"] for ends in planned(strategy)):
        assert kind == "MemoryStop"
        assert "rank 1 in phase 'forward' of step 3 with one sample at a time" in sentence


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_memory_that_stays_short_in_validation_stops_all_ranks(strategy: str) -> None:
    first, second = (ends["short in validate for good"] for ends in planned(strategy))
    assert "rank 1 failed in phase 'validate' of step 3" in first[1]
    assert second[0] == "OutOfMemoryError"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_loss_that_is_not_finite_on_one_rank_is_one_decision_for_all(strategy: str) -> None:
    found = of(strategy, "not finite")
    assert found["outcome"].skipped == 2
    assert all(torch.isfinite(w).all() for w in found["weights"].values())
    for kind, sentence, _ in (ends["not finite for long"] for ends in planned(strategy)):
        assert kind == "DivergenceError"
        assert "3 steps in a row" in sentence


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ranks_validate_at_the_same_steps_by_the_clock_of_one(strategy: str) -> None:
    first, second = (ends["by the clock"]["outcome"].history for ends in planned(strategy))
    assert [row["step"] for row in first] == [row["step"] for row in second]


def beyond_votes() -> tuple[str, float]:
    """Rank 1 runs out of memory inside a collective that all have voted for; rank 0 waits in it."""
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather

    real, calls = DefaultAllGather.__call__, iter(range(10**6))

    def call(*args: Any, **kwargs: Any) -> Any:
        if _env("RANK") == "1" and next(calls) == 20:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:113] DefaultCPUAllocator: not enough memory")
        return real(*args, **kwargs)

    DefaultAllGather.__call__ = call  # type: ignore[method-assign]
    began = time.monotonic()
    with started("fsdp") as dist:
        try:
            train(dist)
        except (RuntimeError, UpsError) as error:
            c10d.destroy_process_group()  # as the end of this process would: the other notices at once
            return Failure.of(error, dist.rank, 0, "").ending.name, time.monotonic() - began
    return "", 0.0


def test_memory_short_inside_a_collective_ends_the_rank_at_once_and_by_its_name() -> None:
    (first, _), (second, seconds) = values(run_ranks(beyond_votes, 2))
    assert (first, second) == ("RANK_DIED", "OOM")
    assert seconds < 100, "it has not waited for a vote that nobody comes to"


def in_turn(rebuild: bool) -> dict[str, Any]:
    """Two trainings one after the other: of one module that is released between them, or of one built anew."""
    settings = TrainConfig(steps=4, lr=0.05, activations="recompute", prefetch=0)
    with started("ddp") as dist:
        stage = Fitting()
        first = Trainer(settings, stage, Waves(dist), dist)
        first.fit()
        if rebuild:
            stage = Fitting()
            stage.module.load_state_dict(first.weights())
        else:
            assert all(m._forward_pre_hooks for m in (stage.module, *stage.module.blocks))
            first.release()
            assert not any(m._forward_pre_hooks or "forward" in vars(m) for m in stage.module.modules())
        second = Trainer(settings, stage, Waves(dist), dist)
        second.fit()
        return {"weights": second.weights()}


def test_a_released_module_trains_on_as_one_built_anew() -> None:
    released, rebuilt = (values(run_ranks(in_turn, 2, rebuild))[0] for rebuild in (False, True))
    assert same_bits(released, rebuilt)


def lr_of_its_own() -> str:
    try:
        with started("ddp") as dist:
            train(dist, lr=0.1 if dist.rank == 1 else 0.2)
    except DivergedError as error:
        return str(error)
    return ""


def test_ranks_with_different_configs_are_named_before_anything_runs() -> None:
    for sentence in values(run_ranks(lr_of_its_own, 2)):
        assert "do not agree on the training config" in sentence
        assert "rank 0 has TrainConfig(" in sentence
        assert "rank 1 has TrainConfig(" in sentence


def with_a_fast_clock() -> int:
    """On rank 1 time passes ten times as fast."""
    with started("ddp") as dist:
        pace, true = 1 + 9 * dist.rank, Trainer._seconds
        Trainer._seconds = lambda self: pace * true(self)  # type: ignore[method-assign]
        loop.PATIENCE = 0.0
        train(dist, steps=40, log_every=1000, validate_every=0.25, checkpoint_seconds=0.05)
        return dist.rank


def test_what_is_due_by_the_clock_is_due_by_one_clock() -> None:
    assert values(run_ranks(with_a_fast_clock, 2)) == [0, 1]


def drifting_replica() -> str:
    """Ranks 1 and 3 hold the second piece of everything; one number of it changes on rank 3."""
    settings = TrainConfig(steps=8, log_every=1, drift_every=2, prefetch=0)
    with Dist.start("cpu", DistConfig(ranks=4, strategy="fsdp", shard=2)) as dist:

        def nudge(phase: str, step: int) -> None:
            if phase == "data" and step == 3 and dist.rank == 3:
                piece = trainer.parallel.parameters["enter.weight"].view(-1)
                piece[5] = torch.nextafter(piece[5], torch.tensor(9.0))

        trainer = Trainer(settings, Fitting(), Waves(dist), dist, pulse=Pulse(None, dist.rank, nudge))
        try:
            trainer.fit()
        except DivergedError as error:
            return str(error)
    return ""


def test_a_replica_of_a_piece_that_drifts_by_one_ulp_is_found_and_named() -> None:
    for sentence in values(run_ranks(drifting_replica, 4)):
        assert "at step 4 ranks 1 and 3 hold different values of 'piece 2 of 2 of enter.weight'" in sentence
        assert "of two it cannot be told" in sentence


class Twice(Fitting):
    """Runs its module twice before each backward, as an unrolled operator does."""

    def _errors(self, w: Window) -> Tensor:
        found = self.module(w.params) + self.module(2 * w.params)
        return (found - w.targets[:, 0, :, 0]).square().mean(1)


def reductions(strategy: str, shard: int | None) -> list[Counter[str]]:
    """How often each step of three microbatches reduced gradients, by kind of collective, in both stages."""
    import torch.distributed as c10d

    steps: list[Counter[str]] = []

    def counted(kind: str, real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            steps[-1][kind] += 1
            return real(*args, **kwargs)

        return call

    scatter = "reduce_scatter_single" if hasattr(c10d, "reduce_scatter_single") else "reduce_scatter_tensor"
    for kind, name in (("all-reduce", "all_reduce"), ("reduce-scatter", scatter)):
        setattr(c10d, name, counted(kind, getattr(c10d, name)))
    config = DistConfig(ranks=int(_env("WORLD_SIZE")), strategy=strategy, shard=shard)  # type: ignore[arg-type]
    with Dist.start("cpu", config) as dist:
        pulse = Pulse(None, dist.rank, lambda phase, _: steps.append(Counter()) if phase == "data" else None)
        settings = TrainConfig(steps=3, microbatch=-(-SIZE // dist.world // 3), prefetch=0, validate_every=0)
        for stage in (Fitting(), Twice()):
            Trainer(settings, stage, Waves(dist), dist, pulse=pulse).fit()
    return steps


# A sharded module has three units: two blocks and the rest; replicas of it add up what each has scattered.
@pytest.mark.parametrize(
    ("strategy", "world", "shard", "expected"),
    [
        ("ddp", 2, None, {"all-reduce": 1}),
        ("fsdp", 2, None, {"reduce-scatter": 3}),
        ("fsdp", 4, 2, {"reduce-scatter": 3, "all-reduce": 3}),
    ],
)
def test_gradients_are_reduced_once_per_optimizer_step(
    strategy: str, world: int, shard: int | None, expected: dict[str, int]
) -> None:
    for steps in values(run_ranks(reductions, world, strategy, shard)):
        assert steps == [expected] * 6


def stopped_then_resumed(strategy: str, folder: Path, stop_at: int | None, signalled: int) -> Any:
    """A training with checkpoints; asked to stop at a step, on one rank alone."""
    flag = StopFlag()
    with started(strategy) as dist:

        def ask(phase: str, step: int) -> None:
            if phase == "forward" and step == stop_at and dist.rank == signalled:
                flag.raised, flag.signal = True, "SIGTERM"

        store = CheckpointStore(folder, dist.rank, dist.world, dist.saver)
        settings = TrainConfig(steps=6, lr=0.05, clip=0.5, ema=0.9, log_every=1, validate_every=3, prefetch=0)
        pulse, rows = Pulse(None, dist.rank, ask), Rows()
        trainer = Trainer(settings, Fitting(), Waves(dist), dist, store, [rows], pulse=pulse, stop=flag)
        try:
            outcome = trainer.fit()
        except Preempted as error:
            return str(error)
        return {"weights": trainer.weights(), "outcome": outcome, "losses": dist.gather(rows.losses)[0]}


@pytest.fixture(scope="module", params=STRATEGIES)
def stopped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A strategy, and what two ranks left that were asked to stop."""
    folder = tmp_path_factory.mktemp(request.param)
    for sentence in values(run_ranks(stopped_then_resumed, 2, request.param, folder, 3, 1)):
        assert "at step 4" in sentence
    assert [path.name for path in folder.iterdir()] == ["step-000000004"]
    return request.param, folder


# Three is as odd as one and as many as four: on purpose only.
@pytest.mark.parametrize("world", [1, 2, pytest.param(3, marks=pytest.mark.slow), 4])
def test_a_stopped_run_goes_on_from_one_common_step_with_any_number_of_ranks(
    stopped: tuple[str, Path], world: int, tmp_path: Path
) -> None:
    strategy, folder = stopped
    shutil.copytree(folder, tmp_path / "copy")
    resumed = ended(values(run_ranks(stopped_then_resumed, world, strategy, tmp_path / "copy", None, 0)))[0]
    undisturbed = of(strategy, "nothing")
    assert resumed["losses"] == pytest.approx(undisturbed["losses"][4:], rel=1e-6)
    assert resumed["outcome"].score == pytest.approx(undisturbed["outcome"].score, rel=1e-5)
    assert world != 2 or same_bits(resumed, undisturbed), "to the bit with as many ranks"
