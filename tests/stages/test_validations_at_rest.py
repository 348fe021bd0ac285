"""A validation inside a training: no network is in training, rollouts are replayed, and nothing captured is left."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from grids import grid_of
from ups.engine.loop import Trainer
from ups.engine.optim import Ema
from ups.engine.ranks.dist import Dist
from ups.engine.train import TrainConfig
from ups.engine.validation import measure
from ups.heartbeat import Pulse
from ups.models import CodecConfig, OperatorConfig, Simulator, assemble, replay
from ups.models.config import ResidualConfig
from ups.models.replay import Replays, at_rest
from ups.models.residual import ResidualFlow
from ups.models.simulator import CORE
from ups.physics import TASKS
from ups.stages import OperatorStage
from ups.tensors import Window

TASK = TASKS["burgers1d"]
NET: dict[str, Any] = {"width": 16, "depth": 1, "heads": 2, "modes": 4}
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def simulator() -> Simulator:
    configs = {"codec": CodecConfig(dim=4), "operator": OperatorConfig(**NET), "residual": ResidualConfig(**NET)}
    sim = assemble([TASK], configs, shapes={TASK.name: (32,)}, kinds={**CORE, "residual": ResidualFlow})
    sim.idle = frozenset({"residual"})
    return sim


def window(seed: int, samples: int = 4, frames: int = 6) -> Window:
    values = torch.randn(samples, 1 + frames, 32, 1, generator=torch.Generator().manual_seed(seed)).cumsum(2) / 8
    nu, dt = torch.full((samples, 1), 0.01), torch.full((samples,), 0.05)
    inputs = torch.zeros(samples, 32, 0)
    return Window(TASK, values[:, :1], values[:, 1:], inputs, nu, dt, grid_of(inputs, (True,), (1.0,)))


def stage(device: str = "cpu") -> OperatorStage:
    made = OperatorStage(simulator().to(device))
    made.fit(window(0).to(device))
    return made


def test_only_networks_that_take_part_must_be_at_rest() -> None:
    sim = simulator().eval()
    assert at_rest(sim, TASK)
    sim.parts["residual"].train()
    assert at_rest(sim, TASK), "it is idle"
    sim.training = True
    assert at_rest(sim, TASK), "no network"
    sim.idle = frozenset()
    assert not at_rest(sim, TASK)
    sim.eval()
    next(m for m in sim.operator.modules() if not list(m.children())).training = True
    assert not at_rest(sim, TASK)
    sim.eval()
    sim.operator._compiled_call_impl = print  # as `compile` leaves it
    assert not at_rest(sim, TASK), "what is compiled runs as it is"


@pytest.mark.parametrize("fails", [False, True])
def test_a_validation_puts_all_parts_to_rest_and_back(fails: bool) -> None:
    trained = stage()
    sim = trained.simulator
    sim.codec.eval()
    before = [m.training for m in sim.modules()]
    assert any(before)
    seen = []

    def evaluate(_: Window) -> dict[str, torch.Tensor]:
        seen.append(at_rest(sim, TASK))
        if fails:
            raise torch.OutOfMemoryError("planned")
        return {"error": torch.ones(4)}

    trained.evaluate = evaluate  # type: ignore[method-assign]
    sim.replays.captured["of a rollout"] = None  # type: ignore[assignment]
    ema = Ema(dict(sim.operator.named_parameters()), 0.9)
    with pytest.raises(torch.OutOfMemoryError) if fails else torch.no_grad():
        measure(trained, [window(1)], ema, Dist(), Pulse(None, 0))
    assert seen == [True]
    assert [m.training for m in sim.modules()] == before
    assert not sim.replays.captured


def test_why_a_rollout_is_not_replayed_is_said_once() -> None:
    replays, notes = Replays(), list[str]()
    for _ in range(2):
        with replays.lent(notes.append):
            replays._refuse("a", window(0), RuntimeError("the host looked"))
            replays._refuse("b", window(0, samples=2), RuntimeError("the host looked"))
    assert notes == ["a rollout of task 'burgers1d' is not replayed as CUDA graphs (the host looked), which is slower."]
    assert replays.refused == {"a", "b"}
    replays._refuse("c", window(0), RuntimeError("another"))
    assert len(notes) == 1, "nobody is told outside"


class Batches:
    """The same few windows, and two to validate."""

    def batch(self, step: int) -> Window:
        return dataclasses.replace(one := window(step % 5), targets=one.targets[:, :1])

    def count(self, step: int) -> int:  # noqa: ARG002
        return 4

    def frames(self) -> tuple[int, int]:
        return 4, 48

    def validation(self, step: int) -> Iterator[Window]:  # noqa: ARG002
        yield from (window(100 + i, frames=8) for i in range(3))


class TestOnAGpu:
    pytestmark = gpu

    @pytest.mark.parametrize("graph", [False, True])
    def test_a_validation_is_replayed_to_the_same_numbers_and_leaves_nothing(
        self, monkeypatch: pytest.MonkeyPatch, graph: bool
    ) -> None:
        replays = [0]
        frames = replay._Replay.frames

        def counted(self: Any, *args: Any) -> torch.Tensor:
            replays[0] += 1
            return frames(self, *args)

        monkeypatch.setattr(replay._Replay, "frames", counted)
        histories, notes = [], list[str]()
        for replayed in (True, False):
            if not replayed:
                monkeypatch.setattr(replay, "replayable", lambda *_: False)
            with Dist.start("cuda") as dist:
                made = stage("cuda")
                config = TrainConfig(steps=24, lr=1e-3, validate_every=6, graph=graph)
                trainer = Trainer(config, made, Batches(), dist, report=lambda p: notes.append(p.note))
                outcome = trainer.fit()
            assert not made.simulator.replays.captured
            assert not any("not replayed" in note for note in notes), notes
            if replayed:
                assert replays[0] >= 3 * 4 - 4, "all but the first of each validation at the most"
            histories.append([{k: v for k, v in row.items() if k != "seconds"} for row in outcome.history])
        assert len(histories[0]) == 4
        assert histories[0] == histories[1]

    def test_a_validation_gives_its_memory_back(self) -> None:
        made = stage("cuda")
        ema = Ema(dict(made.simulator.operator.named_parameters()), 0.9)
        with Dist.start("cuda") as dist:
            taken = []
            for _ in range(4):
                measure(made, Batches().validation(0), ema, dist, Pulse(None, 0))
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
                taken.append(torch.cuda.memory_reserved())
        assert taken[1] == taken[2] == taken[3], "the first leaves a stream's workspace behind"
