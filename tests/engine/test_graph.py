"""On a GPU: a captured step does what the ordinary one does, for several tasks at once, and says when it cannot."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from grids import wrapping
from ups.engine.checkpoint.checkpoint_store import CheckpointStore
from ups.engine.graph import Graphs
from ups.engine.loop import Trainer
from ups.engine.ranks.dist import Dist
from ups.engine.train import DivergenceError, TrainConfig
from ups.graphs import record, signature
from ups.progress import TrainingProgress
from ups.types import ConfigError

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none here")
gpu = [pytest.mark.gpu, needs_gpu]


def deep() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 1)).cuda()


def two_tasks(toy: SimpleNamespace, bad: tuple[int, ...] = ()) -> Any:
    """Windows of two tasks in turn, of different sizes."""

    class Both:
        def batch(self, step: int) -> Any:
            window = toy.Lines(self.count(step), bad=bad).batch(step)
            return dataclasses.replace(window, task=dataclasses.replace(toy.task, name=f"toy{step % 2}"))

        def count(self, step: int) -> int:
            return 16 if step % 2 else 24

        def frames(self) -> tuple[int, int]:
            return 20, 24

        def validation(self, step: int) -> Iterator[Any]:  # noqa: ARG002
            yield self.batch(10**6)

    return Both()


def train(
    toy: SimpleNamespace, batches: Any, module: nn.Module, **changes: Any
) -> tuple[Trainer, Any, list[TrainingProgress]]:
    notes: list[TrainingProgress] = []
    config = TrainConfig(**{"steps": 60, "lr": 1e-2, **changes})
    with Dist.start("cuda") as dist:
        trainer = Trainer(config, toy.Regression(module), batches, dist, report=notes.append)
        return trainer, trainer.fit(), notes


def test_the_signature_tells_windows_apart_by_task_and_shape_only(toy: SimpleNamespace) -> None:
    one, other = toy.Lines().batch(0), toy.Lines().batch(1)
    assert signature(one) == signature(other)
    assert signature(one) != signature(toy.Lines(8).batch(0))
    assert signature(one) != signature(dataclasses.replace(one, task=dataclasses.replace(one.task, name="b")))
    assert signature(one) != signature(wrapping(one, False))


class TestOnAGpu:
    pytestmark = gpu

    @pytest.mark.parametrize("optimizer", ["adamw", "muon"])
    @pytest.mark.parametrize("precision", ["fp32", "bf16"])
    def test_a_captured_step_equals_the_ordinary_one(
        self, toy: SimpleNamespace, optimizer: str, precision: str
    ) -> None:
        found = []
        for graph in (True, False):
            module = deep()
            trainer, outcome, _ = train(
                toy, two_tasks(toy), module, graph=graph, optimizer=optimizer, precision=precision, microbatch=10
            )  # fmt: skip
            assert outcome.steps == 60
            found.append([p.detach().clone() for p in module.parameters()])
            if graph:
                assert isinstance(trainer.graph, Graphs)
                assert trainer.graph.captured.keys() == trainer.graph.seen.keys()
                assert len(trainer.graph.captured) == 2
        close = 1e-5 if (optimizer, precision) == ("adamw", "fp32") else 5e-3  # bf16 rounds, and Muon works in it
        for a, b in zip(*found, strict=True):
            assert torch.allclose(a, b, rtol=1e-4, atol=close)

    def test_complex_weights_learn_in_a_captured_step_as_in_an_ordinary_one(self, toy: SimpleNamespace) -> None:
        class Spectrum(nn.Linear):
            def __init__(self) -> None:
                super().__init__(4, 1)
                self.waves = nn.Parameter(torch.ones(3, dtype=torch.complex64))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return super().forward(torch.fft.irfft(torch.fft.rfft(x) * self.waves, n=4))

        found = []
        for graph in (True, False):
            torch.manual_seed(0)
            module = Spectrum().cuda()
            train(toy, two_tasks(toy), module, graph=graph, ema=0.9)
            assert module.waves.imag.abs().max() > 0
            found.append([p.detach().clone() for p in module.parameters()])
        for a, b in zip(*found, strict=True):
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)

    def test_a_graph_skips_bad_steps_and_counts_them(self, toy: SimpleNamespace) -> None:
        module = deep()
        _, outcome, _ = train(toy, two_tasks(toy, bad=(1, 20, 31, 32)), module, graph=True)
        assert outcome.skipped == 4
        assert all(torch.isfinite(p).all() for p in module.parameters())
        with pytest.raises(DivergenceError):
            train(toy, two_tasks(toy, bad=tuple(range(30, 45))), deep(), graph=True)

    def test_dropout_draws_anew_at_each_replay(self, toy: SimpleNamespace) -> None:
        drawn = []

        class Spy(nn.Linear):
            def __init__(self) -> None:
                super().__init__(4, 1)
                self.register_buffer("noise", torch.zeros(4))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.noise.copy_(torch.rand(4, device=x.device))
                return super().forward(x)

        module = Spy().cuda()
        trainer = Trainer(
            TrainConfig(steps=8, graph=True), toy.Regression(module), toy.Lines(), Dist(device=torch.device("cuda", 0))
        )
        for step in range(8):
            window = toy.Lines().batch(step).to("cuda")
            trainer.graph.compute(window)
            trainer.graph.commit(window)
            drawn.append(tuple(module.noise.tolist()))
        assert len(set(drawn)) == 8

    def test_what_cannot_be_captured_runs_anyway_and_is_said(self, toy: SimpleNamespace) -> None:
        class Peeking(nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                y = super().forward(x)
                return y if y.sum().item() > -1e9 else -y  # a decision by a tensor's value

        module = Peeking(4, 1).cuda()
        _, outcome, notes = train(toy, toy.Lines(), module, graph="auto", steps=200, lr=0.1, ema=0.9)
        assert sum("cannot be captured as a CUDA graph" in p.note for p in notes) == 1
        assert outcome.steps == 200
        assert outcome.score < outcome.history[0]["score"]
        torch.rand(3, device="cuda")  # the generator works as before
        with pytest.raises(ConfigError, match="cannot be captured"):
            train(toy, toy.Lines(), Peeking(4, 1).cuda(), graph=True)

    def test_a_resumed_run_ends_with_the_same_bits(self, toy: SimpleNamespace, tmp_path: Path) -> None:
        def run(folder: Path, fails_at: int | None) -> list[torch.Tensor]:
            stage = toy.Regression(toy.net())
            config = TrainConfig(steps=20, lr=1e-2, checkpoint_steps=5, graph=False)
            with Dist.start("cuda") as dist:
                Trainer(config, stage, toy.Lines(fails_at=fails_at), dist, CheckpointStore(folder)).fit()
            return [p.detach().clone() for p in stage.module.parameters()]

        straight = run(tmp_path / "a", None)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "b", 12)
        assert all(torch.equal(a, b) for a, b in zip(straight, run(tmp_path / "b", None), strict=True))

    def test_a_dead_graph_that_python_could_find_while_another_is_captured_spoils_nothing(self) -> None:
        x, stream = torch.zeros(8, device="cuda"), torch.cuda.Stream()
        old, _ = record(lambda: x + 1, torch.cuda.graph_pool_handle(), stream)
        circle: dict[str, Any] = {"graph": old}
        circle["itself"] = circle
        del circle, old

        def work() -> torch.Tensor:
            y = x + 2
            _ = [[number] for number in range(100_000)]  # so many objects that Python would look for dead ones
            return y + 1

        graph, y = record(work, torch.cuda.graph_pool_handle(), stream)
        graph.replay()
        assert y.tolist() == [3.0] * 8

    def test_a_graph_makes_small_steps_faster(self, toy: SimpleNamespace) -> None:
        speeds = {}
        for graph in (True, False):
            module = nn.Sequential(nn.Linear(4, 64), *[nn.Linear(64, 64) for _ in range(40)], nn.Linear(64, 1)).cuda()
            _, outcome, _ = train(toy, toy.Lines(), module, graph=graph, steps=600, validate_every=0)
            speeds[graph] = outcome.steps / outcome.seconds
        print(f"steps/s: graph {speeds[True]:.0f}, ordinary {speeds[False]:.0f}")
        assert speeds[True] > 1.5 * speeds[False]
