"""Judging a simulator: whole rollouts on unseen trajectories, beside persistence and the baselines asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import torch

from ups.config import dump, fingerprint
from ups.data.windows import Trajectories, whole
from ups.engine.dist import Dist
from ups.engine.loop import Trainer
from ups.engine.train import Outcome
from ups.eval.baselines import BaselineConfig, NeuralOpBaseline
from ups.eval.report import Cost, Entry, Report, TaskResult
from ups.eval.rollout import EvalProtocol, evaluate, persistence, protocol, reconstruct
from ups.jobs.sets import DataSet, Screen, windows_of
from ups.jobs.settings import RunConfig
from ups.models import Simulator
from ups.stages.operator import condition_of
from ups.tensors import Window


class SimulatorPredictor:
    """A simulator as a predictor."""

    name = "ups"

    def __init__(self, simulator: Simulator, device: torch.device) -> None:
        self.simulator, self.device = simulator.to(device).eval(), device

    @torch.no_grad()
    def predict(self, window: Window, steps: int) -> torch.Tensor:
        window = window.to(self.device)
        return self.simulator.simulate(window.context, steps, condition_of(window)).cpu()

    @torch.no_grad()
    def coded(self, frames: torch.Tensor, window: Window) -> torch.Tensor:
        """Frames `(B, *S, C)` through the codec alone."""
        state = self.simulator.codec.encode(frames.to(self.device), window.task, window.periodic)
        return self.simulator.codec.decode(state, window.task, tuple(frames.shape[1:-1])).cpu()


def judge(
    config: RunConfig,
    simulator: Simulator,
    sets: Sequence[DataSet],
    budget: Mapping[str, Outcome],
    device: torch.device,
    screen: Screen,
) -> Report:
    """Whole rollouts on the test part of every task, beside persistence and the baselines asked for."""
    asked = protocol(config.evaluation.protocol, config.model.operator.context)
    numbers = sum(p.numel() for p in simulator.parameters())
    seconds, steps = sum(o.seconds for o in budget.values()), sum(o.steps for o in budget.values())
    cost = Cost(numbers, steps, seconds, str(device))
    ours = SimulatorPredictor(simulator, device)
    results = []
    for data in sets:
        test = data.part("test")

        def windows(test: Trajectories = test) -> Iterator[Window]:
            return whole([test], asked.context)

        results.append(
            TaskResult(
                ours=Entry(evaluate(ours, windows(), asked), cost),
                persistence=Entry(evaluate(persistence, windows(), asked)),
                baselines=tuple(
                    _baseline(kind, config, data, windows, asked, seconds / len(sets), screen)
                    for kind in config.evaluation.baselines
                ),
                reconstruction=Entry(reconstruct(ours.coded, windows(), asked), cost),
            )
        )
    facts = tuple(data.fact() for data in sets)
    return Report(config.name, tuple(results), dump(config), fingerprint(config), config.seed, facts)


def _baseline(
    kind: Literal["fno", "uno"],
    config: RunConfig,
    data: DataSet,
    windows: Callable[[], Iterator[Window]],
    asked: EvalProtocol,
    seconds: float,
    screen: Screen,
) -> Entry:
    """A network of neuraloperator trained on one task for the same time, judged on the same windows."""
    network = NeuralOpBaseline(data.source.task, asked.context, BaselineConfig(kind=kind))
    batches = windows_of(config, [data], config.operator)
    network.fit(whole(batches.train, asked.context))
    train = dataclasses.replace(config.operator.train, steps=None, seconds=max(seconds, 1.0), lr=1e-3)
    with Dist.start(config.device) as dist:
        outcome = Trainer(train, network, batches, dist, report=screen.watch).fit()
        evaluation = evaluate(network.to("cpu"), windows(), asked)
    return Entry(evaluation, Cost(network.parameter_count, outcome.steps, outcome.seconds, str(dist.device)))
