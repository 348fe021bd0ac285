"""The loop on several ranks: the same losses as on one, one decision for all, no failure that wins."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from ranks import run_ranks, values
from small_training import SIZE, Failing, Fitting, Net, Rows, Waves, same_bits
from ups.engine.dist import Dist, DistConfig, DivergedError
from ups.engine.loop import Trainer
from ups.engine.preemption import Preempted, StopFlag
from ups.engine.train import DivergenceError, TrainConfig
from ups.engine.vault import Vault
from ups.heartbeat import Pulse
from ups.types import DataError

STRATEGIES = ("ddp", "fsdp")


def train(strategy: str = "ddp", faults: tuple[Any, ...] = (), **changes: Any) -> dict[str, Any]:
    """One rank of a short training; everything a law could be about."""
    settings = {"steps": 8, "lr": 0.05, "clip": 0.5, "ema": 0.9, "log_every": 1, "validate_every": 4, "prefetch": 0}
    batches = {"bad": changes.pop("bad", ()), "size": changes.pop("size", SIZE)}
    folder: Path | None = changes.pop("folder", None)
    with Dist.start("cpu", DistConfig(ranks=int(_env("WORLD_SIZE")), strategy=strategy, vote_timeout=20)) as dist:  # type: ignore[arg-type]
        plans = [Failing(*fault) for fault in faults if fault[0] == dist.rank]
        rows, pulse = Rows(), Pulse(None, dist.rank, lambda p, s: [plan(p, s) for plan in plans] and None)
        store = Vault(folder, dist.rank, dist.world, dist.saver) if folder else None
        trainer = Trainer(
            TrainConfig(**{**settings, **changes}), Fitting(), Waves(dist, **batches), dist, store, [rows], pulse=pulse
        )
        outcome = trainer.fit()
        return {
            "weights": trainer.weights(),
            "losses": dist.gather(rows.losses)[0],
            "outcome": outcome,
            "microbatch": trainer.microbatch,
        }


def _env(name: str) -> str:
    import os

    return os.environ[name]


def ended(results: list[Any]) -> list[dict[str, Any]]:
    found = values(results)
    for other in found[1:]:
        assert all(torch.equal(a, other["weights"][n]) for n, a in found[0]["weights"].items()), "ranks differ"
        assert other["outcome"].score == found[0]["outcome"].score
    return found


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return ended(run_ranks(train, 1))[0]


@pytest.fixture(scope="module")
def undisturbed() -> dict[tuple[str, int], dict[str, Any]]:
    return {(s, w): ended(run_ranks(train, w, s))[0] for s in STRATEGIES for w in (2,)}


@pytest.mark.parametrize(("strategy", "world"), [("ddp", 2), ("ddp", 4), ("fsdp", 1), ("fsdp", 2), ("fsdp", 4)])
def test_any_number_of_ranks_gives_the_losses_of_one(alone: dict[str, Any], strategy: str, world: int) -> None:
    found = ended(run_ranks(train, world, strategy))[0]
    assert found["losses"] == pytest.approx(alone["losses"], rel=1e-6)
    assert len(found["losses"]) == 8
    assert found["outcome"].score == pytest.approx(alone["outcome"].score, rel=1e-5)
    assert found["outcome"].samples == alone["outcome"].samples == 8 * SIZE
    assert set(found["weights"]) == set(Net().state_dict())


def test_sharded_and_replicated_ranks_are_equal_to_the_bit(undisturbed: dict[tuple[str, int], dict[str, Any]]) -> None:
    assert undisturbed["ddp", 2]["losses"] == undisturbed["fsdp", 2]["losses"]
    assert same_bits(undisturbed["ddp", 2], undisturbed["fsdp", 2])


OOM = torch.OutOfMemoryError("CUDA out of memory (injected)")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("phase", ["data", "forward", "backward"])
@pytest.mark.parametrize("ranks", [(1,), (0, 1)], ids=["one", "both"])
def test_memory_that_was_short_for_a_moment_changes_no_bit(
    undisturbed: dict[tuple[str, int], dict[str, Any]], strategy: str, phase: str, ranks: tuple[int, ...]
) -> None:
    faults = tuple((rank, phase, 3, OOM) for rank in ranks)
    found = ended(run_ranks(train, 2, strategy, faults))[0]
    assert same_bits(found, undisturbed[strategy, 2])
    assert found["outcome"].recovered == 1
    assert found["losses"] == undisturbed[strategy, 2]["losses"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_memory_that_stays_short_is_met_by_smaller_microbatches(strategy: str) -> None:
    found = ended(run_ranks(train, 2, strategy, ((1, "backward", 0, OOM, 2),)))[0]
    small = ended(run_ranks(small_train, 2, strategy))[0]
    assert (found["microbatch"], found["outcome"].recovered) == (2, 2)
    assert same_bits(found, small)


def small_train(strategy: str) -> dict[str, Any]:
    return train(strategy, microbatch=2)


def stopping(strategy: str, kind: type[Exception], phase: str, text: str, times: int = 1) -> tuple[str, str, float]:
    """How a training ends in which rank 1 fails."""
    began = time.monotonic()
    try:
        train(strategy, ((1, phase, 3, kind(text), times),))
    except Exception as error:  # noqa: BLE001
        return type(error).__name__, str(error), time.monotonic() - began
    return "", "", time.monotonic() - began


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("phase", ["data", "forward", "backward", "validate"])
def test_an_error_on_one_rank_stops_all_at_once_and_is_named(strategy: str, phase: str) -> None:
    first, second = values(run_ranks(stopping, 2, strategy, DataError, phase, "sample 7 is torn"))
    assert second[:2] == ("DataError", "sample 7 is torn")
    assert first[0] == "PeerError"
    assert "rank 1" in first[1]
    assert "sample 7 is torn" in first[1]
    assert phase in first[1]
    assert max(first[2], second[2]) < 10


def test_memory_short_with_one_sample_stops_all_ranks_and_names_the_first() -> None:
    first, second = values(run_ranks(stopping, 2, "ddp", torch.OutOfMemoryError, "forward", "no memory", 99))
    for kind, sentence, _ in (first, second):
        assert kind == "MemoryStop"
        assert "rank 1 in phase 'forward' of step 3 with one sample at a time" in sentence


def not_finite(strategy: str, bad: tuple[int, ...]) -> Any:
    try:
        return train(strategy, bad=bad, max_bad=2, ema=0.0)
    except DivergenceError as error:
        return str(error)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_loss_that_is_not_finite_on_one_rank_is_one_decision_for_all(strategy: str) -> None:
    for found in ended(run_ranks(not_finite, 2, strategy, (2, 5))):
        assert found["outcome"].skipped == 2
        assert all(torch.isfinite(w).all() for w in found["weights"].values())
    for sentence in values(run_ranks(not_finite, 2, strategy, (2, 3, 4))):
        assert "3 steps in a row" in sentence


def other_config() -> str:
    import os

    try:
        train(lr=0.1 if os.environ["RANK"] == "1" else 0.2)
    except DivergedError as error:
        return str(error)
    return ""


def test_ranks_with_different_configs_are_named_before_anything_runs() -> None:
    for sentence in values(run_ranks(other_config, 2)):
        assert "do not agree on the training config" in sentence
        assert "rank 1" in sentence


def drifting(world: int) -> str:
    settings = TrainConfig(steps=8, log_every=1, drift_every=2, prefetch=0)
    with Dist.start("cpu", DistConfig(ranks=world)) as dist:

        def nudge(phase: str, step: int) -> None:
            if phase == "data" and step == 3 and dist.rank == 1:
                weight = stage.module.leave.weight.detach().view(-1)
                weight[5] = torch.nextafter(weight[5], torch.tensor(9.0))

        stage = Fitting()
        try:
            Trainer(settings, stage, Waves(dist), dist, pulse=Pulse(None, dist.rank, nudge)).fit()
        except DivergedError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("world", [2, 3])
def test_a_weight_that_drifts_by_one_ulp_is_found_and_named(world: int) -> None:
    for sentence in values(run_ranks(drifting, world, world)):
        assert "at step 4 rank 1 holds other values of 'leave.weight'" in sentence


def stopped_then_resumed(strategy: str, folder: Path, stop_at: int | None, signalled: int) -> Any:
    """A training with checkpoints; asked to stop at a step, on one rank alone."""
    flag = StopFlag()
    with Dist.start("cpu", DistConfig(ranks=int(_env("WORLD_SIZE")), strategy=strategy, vote_timeout=20)) as dist:  # type: ignore[arg-type]

        def ask(phase: str, step: int) -> None:
            if phase == "forward" and step == stop_at and dist.rank == signalled:
                flag.raised, flag.signal = True, "SIGTERM"

        store = Vault(folder, dist.rank, dist.world, dist.saver)
        settings = TrainConfig(steps=8, lr=0.05, clip=0.5, ema=0.9, log_every=1, validate_every=4, prefetch=0)
        pulse, rows = Pulse(None, dist.rank, ask), Rows()
        trainer = Trainer(settings, Fitting(), Waves(dist), dist, store, [rows], pulse=pulse, stop=flag)
        try:
            outcome = trainer.fit()
        except Preempted as error:
            return str(error)
        return {"weights": trainer.weights(), "outcome": outcome, "losses": dist.gather(rows.losses)[0]}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_stopped_run_saves_one_common_step_and_goes_on_to_the_same_bits(
    undisturbed: dict[tuple[str, int], dict[str, Any]], strategy: str, tmp_path: Path
) -> None:
    for sentence in values(run_ranks(stopped_then_resumed, 2, strategy, tmp_path, 5, 1)):
        assert "at step 6" in sentence
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000006"]
    resumed = ended(run_ranks(stopped_then_resumed, 2, strategy, tmp_path, None, 0))[0]
    assert same_bits(resumed, undisturbed[strategy, 2])


@pytest.mark.parametrize(("strategy", "world"), [("ddp", 1), ("ddp", 3), ("fsdp", 4), ("fsdp", 1)])
def test_a_checkpoint_goes_on_with_any_number_of_ranks(
    undisturbed: dict[tuple[str, int], dict[str, Any]], strategy: str, world: int, tmp_path: Path
) -> None:
    values(run_ranks(stopped_then_resumed, 2, strategy, tmp_path, 5, 1))
    resumed = ended(run_ranks(stopped_then_resumed, world, strategy, tmp_path, None, 0))[0]
    straight = undisturbed[strategy, 2]
    assert resumed["losses"] == pytest.approx(straight["losses"][6:], rel=1e-6)
    assert resumed["outcome"].score == pytest.approx(straight["outcome"].score, rel=1e-5)
