"""The training loop: it learns, its budget ends it, bad steps are skipped, resuming changes nothing."""

from __future__ import annotations

import math
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from small_training import Fitting, Waves
from still_clock import StillClock, of_training
from ups.engine import loop, meter
from ups.engine.checkpoint.checkpoint_store import CheckpointStore
from ups.engine.checkpoint.store import CorruptError, NoStore, Snapshot
from ups.engine.learner import matrix_products
from ups.engine.loop import Trainer
from ups.engine.ranks.dist import Dist
from ups.engine.train import DivergenceError, Outcome, TrainConfig
from ups.engine.validation import validations_of
from ups.progress import TrainingProgress
from ups.tensors import Losses, Window
from ups.types import ConfigError, DataError
from ups.verdict import Ending, StorageError, classify

# Bitwise laws are stated for one thread: several sum in the order they happen to run.
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def clock() -> Iterator[StillClock]:
    """Trainings go by a clock that stands still where nobody sleeps by it."""
    kept = loop.time, meter.time
    yield of_training()
    loop.time, meter.time = kept


def slowly(stage: type, clock: StillClock, step: float = 0.0, check: float = 0.0) -> Any:
    """A stage that takes so many seconds by this clock for a step, and for a window of a validation."""

    class Slow(stage):  # type: ignore[misc]
        def loss(self, w: Window) -> Losses:
            clock.sleep(step)
            return super().loss(w)

        def evaluate(self, w: Window) -> Any:
            clock.sleep(check)
            return super().evaluate(w)

    return Slow()


def config(**changes: Any) -> TrainConfig:
    return TrainConfig(**{"steps": 20, "lr": 1e-2, **changes})


def weights(module: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def test_a_stage_learns_the_analytic_solution(toy: SimpleNamespace) -> None:
    stage = toy.Regression()
    outcome = Trainer(config(steps=250, lr=0.2, weight_decay=0.0, ema=0.9), stage, toy.Lines(32)).fit()
    assert torch.allclose(stage.module.weight[0], toy.true, atol=1e-3)
    assert stage.module.bias.item() == pytest.approx(toy.offset, abs=1e-3)
    assert outcome.steps == 250
    assert outcome.samples == 250 * 32
    assert outcome.score < 1e-6
    assert outcome.verdict == "finished: 250 steps"
    assert len(outcome.history) == 10


@pytest.mark.parametrize("size", [1, 5, 16, 99])
def test_microbatches_add_up_to_the_whole_batch(toy: SimpleNamespace, size: int) -> None:
    whole, parts = toy.Regression(), toy.Regression()
    Trainer(config(), whole, toy.Lines()).fit()
    Trainer(config(microbatch=size), parts, toy.Lines()).fit()
    for a, b in zip(weights(whole.module), weights(parts.module), strict=True):
        assert torch.allclose(a, b, rtol=1e-6, atol=1e-6)


def test_the_log_tells_the_true_loss_and_gradient_norm(toy: SimpleNamespace) -> None:
    stage, ledger = toy.Regression(), toy.Ledger()
    expected = toy.Regression()
    expected.loss(toy.Lines().batch(0))["fit"].backward()
    norm = math.sqrt(sum(p.grad.square().sum().item() for p in expected.module.parameters()))
    Trainer(config(steps=1, clip=1e-3, microbatch=3), stage, toy.Lines(), trackers=[ledger]).fit()
    loss = expected.loss(toy.Lines().batch(0))["fit"].item()
    assert ledger.of("regression/loss") == pytest.approx([loss])
    assert ledger.of("regression/gradient") == pytest.approx([norm])
    assert len(ledger.of("regression/validation/score")) == 1


def test_bf16_trains_in_bf16_with_weights_in_fp32(toy: SimpleNamespace) -> None:
    seen = []

    class Spy(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            seen.append((self.training, y.dtype))
            return y

    stage = toy.Regression(Spy(4, 1))
    outcome = Trainer(config(steps=50, lr=0.1, precision="bf16"), stage, toy.Lines()).fit()
    assert {dtype for training, dtype in seen if training} == {torch.bfloat16}
    assert {dtype for training, dtype in seen if not training} == {torch.float32}
    assert stage.module.weight.dtype == torch.float32
    assert outcome.score < outcome.history[0]["score"]


def test_a_bad_step_is_skipped_and_counted(toy: SimpleNamespace) -> None:
    stage = toy.Regression()
    outcome = Trainer(config(steps=100, lr=0.1, ema=0.0), stage, toy.Lines(bad=[0, 7, 8])).fit()
    assert outcome.skipped == 3
    assert all(torch.isfinite(p).all() for p in stage.module.parameters())
    assert outcome.score < 0.1


def test_too_many_bad_steps_in_a_row_stop_the_training(toy: SimpleNamespace) -> None:
    allowed = Trainer(config(max_bad=3), toy.Regression(), toy.Lines(bad=[5, 6, 7])).fit()
    assert allowed.skipped == 3
    with pytest.raises(DivergenceError, match=r"4 steps in a row .* lower train\.lr"):
        Trainer(config(max_bad=3), toy.Regression(), toy.Lines(bad=[5, 6, 7, 8])).fit()
    with pytest.raises(DivergenceError, match="for 2 steps in a row before step 2"):  # and there are no others
        Trainer(config(max_bad=3, steps=2), toy.Regression(), toy.Lines(bad=[0, 1])).fit()


def run(toy: SimpleNamespace, folder: Path, optimizer: str, fails_at: int | None) -> tuple[list[torch.Tensor], Outcome]:
    stage, store = toy.Regression(toy.net()), CheckpointStore(folder)
    train = config(optimizer=optimizer, checkpoint_steps=5, validate_every=4, max_bad=3, log_every=3)
    trainer = Trainer(train, stage, toy.Lines(bad=[2], fails_at=fails_at), store=store)
    try:
        outcome = trainer.fit()
    finally:
        store.wait()  # what was begun is finished
    saved = store.newest()
    assert saved is not None
    held = {name: torch.zeros_like(value) for name, value in trainer.checkpoint.tensors().items()}
    store.load(saved, held)
    return weights(stage.module) + [held[name] for name in sorted(held)], outcome


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_resumed_run_ends_with_the_same_bits(toy: SimpleNamespace, tmp_path: Path, optimizer: str) -> None:
    straight, outcome = run(toy, tmp_path / "straight", optimizer, None)
    with pytest.raises(KeyboardInterrupt):
        run(toy, tmp_path / "broken", optimizer, 12)
    torch.manual_seed(999)  # a new process would not know the generator's state either
    resumed, again = run(toy, tmp_path / "broken", optimizer, None)
    assert all(torch.equal(a, b) for a, b in zip(straight, resumed, strict=True))
    assert (again.steps, again.samples, again.score, again.best_step) == (20, 320, outcome.score, outcome.best_step)
    assert [row["score"] for row in again.history] == [row["score"] for row in outcome.history]
    assert again.skipped == outcome.skipped == 1


def test_a_finished_run_does_nothing_more_when_resumed(toy: SimpleNamespace, tmp_path: Path) -> None:
    first, outcome = run(toy, tmp_path, "adamw", None)
    second, again = run(toy, tmp_path, "adamw", 0)  # would fail if any window were asked for
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert again.score == outcome.score


def test_a_damaged_checkpoint_falls_back_to_the_one_before(toy: SimpleNamespace, tmp_path: Path) -> None:
    straight, _ = run(toy, tmp_path / "straight", "adamw", None)
    with pytest.raises(KeyboardInterrupt):
        run(toy, tmp_path / "broken", "adamw", 12)
    newest = next(max((tmp_path / "broken").iterdir()).glob("rank-*.safetensors"))
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    notes: list[TrainingProgress] = []
    stage, store = toy.Regression(toy.net()), CheckpointStore(tmp_path / "broken")
    train = config(checkpoint_steps=5, validate_every=4, max_bad=3, log_every=3)
    Trainer(train, stage, toy.Lines(bad=[2]), store=store, report=notes.append).fit()
    assert any("checkpoint of step 5" in progress.note for progress in notes)
    assert all(torch.equal(a, b) for a, b in zip(straight, weights(stage.module), strict=False))


def test_a_stage_whose_checkpoints_are_all_damaged_stops_and_begins_again_once_they_are_deleted(
    toy: SimpleNamespace, tmp_path: Path
) -> None:
    straight, _ = run(toy, tmp_path / "straight", "adamw", None)
    with pytest.raises(KeyboardInterrupt):
        run(toy, tmp_path / "broken", "adamw", 12)
    for path in (tmp_path / "broken").iterdir():
        (path / "facts.json").write_text("{}")
    with pytest.raises(CorruptError, match="none can be read back") as error:
        run(toy, tmp_path / "broken", "adamw", None)
    assert classify(error.value).ending == Ending.CORRUPT
    shutil.rmtree(tmp_path / "broken")
    again, _ = run(toy, tmp_path / "broken", "adamw", None)
    assert all(torch.equal(a, b) for a, b in zip(straight, again, strict=True))


def test_a_checkpoint_of_another_model_is_refused(toy: SimpleNamespace, tmp_path: Path) -> None:
    Trainer(config(steps=2), toy.Regression(), toy.Lines(), store=CheckpointStore(tmp_path)).fit()
    with pytest.raises(ConfigError, match="belongs to another model"):
        Trainer(config(steps=3), toy.Regression(toy.net()), toy.Lines(), store=CheckpointStore(tmp_path)).fit()


class Refusing(NoStore):
    """A disk that is full for these of the saves, counted from 1; it is known when the next begins, or is awaited."""

    def __init__(self, *full: int) -> None:
        self.full, self.saves, self.awaited = full, 0, 0

    def save(self, snapshot: Snapshot) -> OSError | None:  # noqa: ARG002
        earlier, self.saves = self._failure(), self.saves + 1
        return earlier

    def wait(self) -> None:
        if failure := self._failure():
            raise failure

    def _failure(self) -> OSError | None:
        known, self.awaited = self.awaited == self.saves, self.saves
        return OSError(28, "No space left on device") if self.saves in self.full and not known else None


@pytest.mark.parametrize(
    ("full", "stops_at", "notes"),
    [
        ((1, 2, 3, 4, 5, 6, 7, 8), 10, 1),  # nothing is trained for after the second failure
        ((2,), None, 1),
        ((1, 3, 5), None, 3),  # never two in a row
        ((2, 3), 15, 1),
    ],
)
def test_training_goes_on_after_a_failed_save_and_stops_after_two_in_a_row(
    toy: SimpleNamespace, full: tuple[int, ...], stops_at: int | None, notes: int
) -> None:
    train = config(steps=40, checkpoint_steps=5)
    reports: list[TrainingProgress] = []
    trainer = Trainer(train, toy.Regression(), toy.Lines(), store=Refusing(*full), report=reports.append)
    if stops_at is None:
        trainer.fit()
    else:
        with pytest.raises(StorageError, match=r"No space left on device.*free the disk and --resume") as error:
            trainer.fit()
        assert trainer.step == stops_at
        assert classify(error.value).ending == Ending.STORAGE
    assert sum("training goes on without that checkpoint" in report.note for report in reports) == notes


def test_the_last_checkpoint_must_be_saved(toy: SimpleNamespace) -> None:
    train = config(steps=10, checkpoint_steps=None)
    with pytest.raises(StorageError, match="last checkpoint was not saved"):
        Trainer(train, toy.Regression(), toy.Lines(), store=Refusing(1)).fit()


def test_seconds_end_the_training_and_its_learning_rate_at_the_floor(toy: SimpleNamespace, clock: StillClock) -> None:
    ledger = toy.Ledger()
    train = config(steps=None, seconds=0.5, min_lr=0.1, warmup=0.1, log_every=1)
    outcome = Trainer(train, slowly(toy.Regression, clock, 0.01), toy.Lines(), trackers=[ledger]).fit()
    assert clock.now == pytest.approx(0.5)
    rates = ledger.of("regression/lr")
    assert rates[0] < 0.5e-2
    assert max(rates) == pytest.approx(1e-2, rel=0.05)
    assert rates[-1] == pytest.approx(1e-3, rel=0.05)
    assert outcome.verdict.startswith("finished: 0.5 s")


def test_seconds_are_spent_on_training_and_validations_are_counted_apart(
    toy: SimpleNamespace, clock: StillClock
) -> None:
    stage = slowly(toy.Regression, clock, 0.01, 0.2)
    outcome = Trainer(config(steps=None, seconds=0.4, validate_every=0.5), stage, toy.Lines()).fit()
    assert len(outcome.history) == 2
    assert outcome.seconds == pytest.approx(0.4), "of training alone"
    assert clock.now >= outcome.seconds + 2 * 0.2


def test_the_budget_used_up_first_ends_the_training(toy: SimpleNamespace) -> None:
    assert Trainer(config(steps=5, seconds=100.0), toy.Regression(), toy.Lines()).fit().steps == 5
    assert Trainer(config(steps=10**9, seconds=0.1), toy.Regression(), toy.Lines()).fit().steps < 10**6


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        *((0.25, [5, 10, 15, 20]), (8, [8, 16, 20]), (30, [20]), (0, [20]), (0.0, [20])),
        *((0.3, [6, 12, 18, 20]), (0.34, [7, 14, 20]), (0.5, [10, 20]), (1.0, [20])),
        (0.01, list(range(1, 21))),
    ],
)
def test_validation_comes_when_it_is_due_as_often_as_is_foretold(
    toy: SimpleNamespace, every: float, expected: list[int]
) -> None:
    settings = config(validate_every=every)
    outcome = Trainer(settings, toy.Regression(), toy.Lines()).fit()
    assert [row["step"] for row in outcome.history] == expected
    assert validations_of(settings, 20) == len(expected)


@pytest.mark.parametrize("first", [True, False])
def test_what_was_better_before_the_first_step_is_kept_where_it_is_looked_at(toy: SimpleNamespace, first: bool) -> None:
    stage = toy.Regression()
    stage.module.weight.data, stage.module.bias.data = toy.true[None].clone(), torch.tensor([toy.offset])
    before = weights(stage.module)

    class Away(toy.Lines):  # type: ignore[misc, name-defined]
        def batch(self, step: int) -> Window:
            given = super().batch(step)
            return given if step == 10**6 else toy.window(given.params, -given.targets[:, 0, :, 0])

    outcome = Trainer(config(validate_first=first, validate_every=10, ema=0.0), stage, Away()).fit()
    assert [row["step"] for row in outcome.history] == ([0, 10, 20] if first else [10, 20])
    assert outcome.best_step == (0 if first else 10)
    assert all(torch.equal(a, b) is first for a, b in zip(weights(stage.module), before, strict=True))


@pytest.mark.parametrize(
    ("frames", "expected"), [((16, 16), [4, 7, 10, 14, 17, 20]), ((1, 3), [10, 20]), ((1, 1000), [20]), ((9, 0), 10)]
)
def test_validations_space_themselves_out_by_what_they_cost(
    toy: SimpleNamespace, frames: tuple[int, int], expected: Any
) -> None:
    batches = toy.Lines()
    batches.frames = lambda: frames
    steps = [row["step"] for row in Trainer(config(), toy.Regression(), batches).fit().history]
    assert steps == (expected if isinstance(expected, list) else list(range(2, 21, 2)))


def test_validations_by_themselves_come_at_the_same_steps_after_a_resume(toy: SimpleNamespace, tmp_path: Path) -> None:
    found = []
    for name, fails_at in (("straight", None), ("broken", 12), ("broken", None)):
        stage, store = toy.Regression(toy.net()), CheckpointStore(tmp_path / name)
        trainer = Trainer(config(checkpoint_steps=5), stage, toy.Lines(fails_at=fails_at), store=store)
        try:
            found.append(([row["step"] for row in trainer.fit().history], weights(stage.module)))
        except KeyboardInterrupt:
            store.wait()
    straight, resumed = found
    assert straight[0] == resumed[0] == [4, 7, 10, 14, 17, 20]
    assert all(torch.equal(a, b) for a, b in zip(straight[1], resumed[1], strict=True))


def test_a_released_module_is_as_it_was_but_for_its_weights() -> None:
    stage = Fitting()
    stage.module.leave.eval()
    before = {name: (dict(vars(m)), m.training) for name, m in stage.module.named_modules()}
    Trainer(config(activations="recompute", compile=True), stage, Waves(Dist())).release()
    trainer = Trainer(config(activations="recompute"), stage, Waves(Dist()))
    trainer.fit()
    kept = trainer.weights()
    assert any("forward" in vars(m) for m in stage.module.modules())
    trainer.release()
    for name, m in stage.module.named_modules():
        attributes, training = before[name]
        assert vars(m).keys() == attributes.keys()
        assert m.training is training
        assert m._compiled_call_impl is None
    assert all(p.grad is None for p in stage.module.parameters())
    assert all(torch.equal(value, kept[name]) for name, value in stage.module.state_dict().items())


def test_an_outcome_says_where_the_time_went(toy: SimpleNamespace, tmp_path: Path, clock: StillClock) -> None:
    stage = slowly(toy.Regression, clock, check=0.05)
    trainer = Trainer(config(validate_every=10), stage, toy.Lines(), store=CheckpointStore(tmp_path))
    trainer.pace.finish = lambda: clock.sleep(0.03)  # type: ignore[method-assign]  # a device that is behind the host
    outcome = trainer.fit()
    assert outcome.phases["steps"] >= 0.09 > outcome.phases["logging"], "to wait for steps is no logging"
    assert set(outcome.phases) == {"resume", "probe", "data wait", "steps", "validation", "checkpoints", "logging"}
    assert outcome.phases["validation"] >= 0.1
    assert all(seconds >= 0 for seconds in outcome.phases.values())
    assert sum(outcome.phases.values()) == pytest.approx(clock.now)


def test_the_best_averaged_weights_are_kept(toy: SimpleNamespace) -> None:
    class Worse(toy.Regression):  # type: ignore[misc,name-defined]
        """Best at its second validation."""

        def score(self, means: Any) -> float:  # noqa: ARG002
            return abs(len(self.seen) - 2.0)

        def evaluate(self, window: Any) -> dict[str, torch.Tensor]:
            self.seen = [*getattr(self, "seen", []), weights(self.module)]
            return dict(super().evaluate(window))

    stage = Worse()
    outcome = Trainer(config(validate_every=5), stage, toy.Lines()).fit()
    assert (outcome.best_step, outcome.score) == (10, 0.0)
    assert all(torch.equal(a, b) for a, b in zip(stage.seen[1], weights(stage.module), strict=True))


def test_windows_are_asked_for_in_order_whatever_the_prefetch(toy: SimpleNamespace) -> None:
    results = []
    for depth in (0, 1, 4):
        stage = toy.Regression()
        Trainer(config(prefetch=depth), stage, toy.Lines()).fit()
        results.append(weights(stage.module))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_an_error_in_the_data_thread_reaches_the_caller(toy: SimpleNamespace) -> None:
    class Broken(toy.Lines):  # type: ignore[misc,name-defined]
        def batch(self, step: int) -> Any:
            if step == 3:
                raise DataError("sample 7 is torn; make the file again.")
            return super().batch(step)

    with pytest.raises(DataError, match="sample 7"):
        Trainer(config(), toy.Regression(), Broken()).fit()


def test_a_parameter_no_loss_touches_stays_as_it_is(toy: SimpleNamespace) -> None:
    module = nn.Linear(4, 1)
    module.register_parameter("idle", nn.Parameter(torch.ones(3, 3)))
    Trainer(config(weight_decay=0.5), toy.Regression(module), toy.Lines()).fit()
    assert torch.equal(module.get_parameter("idle"), torch.ones(3, 3))


def test_progress_is_reported_with_what_a_user_wants_to_know(toy: SimpleNamespace) -> None:
    seen: list[TrainingProgress] = []
    Trainer(config(log_every=5), toy.Regression(), toy.Lines(), report=seen.append).fit()
    last = seen[-1]
    assert (last.step, last.fraction, last.eta) == (20, 1.0, 0.0)
    assert last.samples_per_second > 0
    assert last.memory > 10**6
    assert math.isfinite(last.loss)
    assert math.isfinite(last.score)
    assert all(0 <= p.fraction <= 1 for p in seen)


def test_the_wait_for_data_is_measured_and_told(toy: SimpleNamespace, clock: StillClock) -> None:
    """Windows that take 30 ms each before steps of 10."""

    class Slow(toy.Lines):  # type: ignore[misc, name-defined]
        def batch(self, step: int) -> Window:
            clock.sleep(0.03)
            return super().batch(step)

    ledger, seen, stage = toy.Ledger(), list[TrainingProgress](), slowly(toy.Regression, clock, 0.01)
    train = config(log_every=5, prefetch=0, validate_every=0)
    outcome = Trainer(train, stage, Slow(), trackers=[ledger], report=seen.append).fit()
    shares = (outcome.input_wait, ledger.of("regression/input_wait")[-1], seen[-1].input_wait)
    assert shares == pytest.approx((0.75, 0.75, 0.75))
    assert Trainer(config(prefetch=0), stage, toy.Lines()).fit().input_wait == 0.0


def test_windows_are_built_beside_the_steps(toy: SimpleNamespace) -> None:
    """The second is there before the first step is over."""
    built = threading.Event()

    class Telling(toy.Lines):  # type: ignore[misc, name-defined]
        def batch(self, step: int) -> Window:
            if step == 1:
                built.set()
            return super().batch(step)

    class Patient(toy.Regression):  # type: ignore[misc, name-defined]
        def loss(self, w: Window) -> Losses:
            assert built.wait(600)
            return super().loss(w)

    Trainer(config(steps=3, prefetch=2), Patient(), Telling()).fit()


@pytest.mark.parametrize(
    "changes",
    [{"steps": None}, {"lr": 0.0}, {"warmup": 1.0}, {"ema": 1.0}, {"microbatch": 0}, {"validate_every": 1.5}],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"must be|no end"):
        config(**changes)


def test_a_graph_without_a_gpu_is_refused_and_auto_goes_on(toy: SimpleNamespace) -> None:
    with pytest.raises(ConfigError, match="needs a CUDA device"):
        Trainer(config(graph=True), toy.Regression(), toy.Lines())
    Trainer(config(graph="auto", steps=1), toy.Regression(), toy.Lines()).fit()


def test_one_process_is_a_world_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with Dist.start("cpu") as dist:
        assert (dist.rank, dist.world, dist.leads) == (0, 1, True)
        assert dist.sums({"a": (3.0, 2.0)}) == {"a": (3.0, 2.0)}
        assert dist.gather("a") == ["a"]
        assert dist.agree(2.5) == 2.5
        dist.barrier()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="WORLD_SIZE is 2"), Dist.start("cpu"):
        pass
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(ConfigError, match="no device"), Dist.start("gpu0"):
        pass


@pytest.mark.parametrize(
    ("machine", "device", "inside"), [("aarch64", "cpu", False), ("x86_64", "cpu", True), ("arm64", "cuda", True)]
)
def test_only_an_arm_processor_multiplies_without_onednn_and_only_while_it_trains(
    machine: str, device: str, inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("torch.backends.mkldnn.enabled", True)
    with matrix_products(config(), device):
        assert torch.backends.mkldnn.enabled is inside
    assert torch.backends.mkldnn.enabled is True
