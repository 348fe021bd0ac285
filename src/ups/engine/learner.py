"""Learner: the mathematics of a step on one rank: gradient, clipping, optimizer, average; no data, no vote, no log."""

from __future__ import annotations

import functools
import math
import platform
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ups.engine.meter import Meter
from ups.engine.optim import Ema, Optimizer
from ups.engine.ranks.dist import Dist
from ups.engine.ranks.parallelize import Parallel
from ups.engine.stage import Learnable
from ups.engine.state import TrainingState
from ups.engine.train import TrainConfig
from ups.heartbeat import Pulse
from ups.tensors import Window

ARM = ("aarch64", "arm64")


class Learner:
    """`compute` may fail and be repeated; `commit` moves the weights and cannot. `count` gives the samples of all ranks
    in a step.

    Neither `compute` nor `move`, a part of `commit`, waits for the device or a peer or decides by a tensor's value:
    each can be a CUDA graph (see `Graphs`).
    """

    def __init__(
        self,
        config: TrainConfig,
        stage: Learnable,
        parallel: Parallel,
        dist: Dist,
        state: TrainingState,
        pulse: Pulse,
        count: Callable[[int], int],
    ) -> None:
        self.config, self.stage, self.parallel, self.dist = config, stage, parallel, dist
        self.state, self.pulse, self.count = state, pulse, count
        rates = (config.lr, config.weight_decay, config.betas)
        self.optimizer = Optimizer(stage.module, config.optimizer, *rates, parallel.parameters)
        self.ema = Ema(parallel.parameters, config.ema)
        self.meter = Meter(dist.device)
        self.best: dict[str, Tensor] = {}  # the averaged weights of the best score; none before a validation
        self.terms: dict[str, Tensor] = {}  # of the loss of this step

    def tune(self, progress: float) -> None:
        """Tell the step its learning rate and the weight of its average, through tensors a graph can read."""
        c = self.config
        self.optimizer.lr.fill_(c.lr * c.share(progress))
        self.ema.weight.fill_(self.ema.ramp(self.state.step))

    def compute(self, window: Window) -> None:
        """This rank's gradient of the mean loss over the samples of all ranks, a microbatch at a time.

        Every rank runs as many microbatches as the fullest; one that has no sample left runs one that counts nothing.
        """
        self.optimizer.zero_grad()
        count = self.count(self.state.step)
        share = math.ceil(count / self.dist.world)
        size = min(self.state.microbatch or share, share)
        parts = [(part, len(part) * self.dist.world / count) for part in window.split(size)]
        parts += [(window.rows(0, 1), 0.0)] * (math.ceil(share / size) - len(parts))
        self.terms = {}
        with matrix_products(self.config, self.dist.device.type):
            for i, (part, weight) in enumerate(parts):
                self.parallel.begin(last=i == len(parts) - 1)
                self._microbatch(part, weight)
        self.parallel.pack()

    def _microbatch(self, part: Window, weight: float) -> None:
        """Add the gradient and the terms of some samples, which count by `weight`."""
        self.pulse.beat("forward")
        with precision(self.config, self.dist.device.type):
            losses = self.stage.loss(part)
        terms = {f"term/{name}": value.float() for name, value in losses.items()}
        if weight != 1:
            terms = {name: value * weight for name, value in terms.items()}
        loss = functools.reduce(torch.add, terms.values())
        self.pulse.beat("backward")
        # A loss that is not finite makes every gradient so, on every rank once they are reduced.
        poison = loss.detach() - loss.detach()
        loss.backward(1 + poison)  # type: ignore[no-untyped-call]
        for name, value in {"loss": loss, **terms}.items():
            self.terms[name] = self.terms[name] + value.detach() if name in self.terms else value.detach()

    def commit(self, window: Window) -> None:
        """Reduce the gradients and move the weights: the activations are gone, and a failure cannot be repeated."""
        self.reduce()
        self.move(window)

    def reduce(self) -> None:
        """The gradients of all ranks become their mean."""
        self.pulse.beat("reduce")
        self.parallel.reduce()

    def move(self, window: Window) -> None:
        """Clip the gradients, move the weights and their average, and note the losses."""
        gradients = self.optimizer.gradients()
        norm = self.parallel.norm(gradients)
        self.pulse.beat("step")
        if self.config.clip:
            self.optimizer.clip(norm, self.config.clip)
        ok = torch.isfinite(norm)
        with matrix_products(self.config, self.dist.device.type):
            self.optimizer.step(ok, self.ema)
        self.meter.add(window.task.name, {**self.terms, "gradient": norm}, ok)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Inside, no heart beats and no planned fault strikes: work is recorded, not done."""
        pulse, self.pulse = self.pulse, Pulse(None, self.dist.rank)
        try:
            yield
        finally:
            self.pulse = pulse

    def lasting(self) -> dict[str, Tensor]:
        """What every step builds on, by name: weights, moments, averages."""
        moments = {f"{key.replace('/', ' (')})": value for key, value in self.optimizer.state_dict().items()}
        averages = {f"{name} (averaged)": value for name, value in self.ema.average.items()}
        return {**self.parallel.parameters, **moments, **averages}

    def passing(self) -> dict[str, Tensor]:
        """The gradient of the last step, as all ranks together made it."""
        return {f"{name} (reduced gradient)": value for name, value in self.optimizer.gradients().items()}

    @torch.no_grad()
    def take_best(self) -> None:
        """The weights become the best averaged ones."""
        for name, value in self.best.items():
            self.parallel.parameters[name].copy_(value)

    def weights(self, keep: bool = True) -> dict[str, Tensor]:
        """The module's whole state on the CPU; all ranks must ask, and those that do not `keep` it get nothing."""
        weights: dict[str, Tensor] = {}
        trained = self.parallel.parameters
        for name, value in tensors_in(self.stage.module.state_dict()).items():
            whole = self.parallel.full(name, trained[name]) if name in trained else value
            if keep:
                weights[name] = whole.detach().to("cpu", copy=True)
        return weights


def precision(config: TrainConfig, device: str) -> AbstractContextManager[Any]:
    """Inside, a loss is computed in the precision of the config on a device of this kind."""
    return torch.autocast(device, torch.bfloat16) if config.precision == "bf16" else nullcontext()


@contextmanager
def matrix_products(config: TrainConfig, device: str) -> Iterator[None]:
    """Inside, a GPU multiplies matrices of float32 as the config says, and an ARM processor
    without oneDNN, which takes up to ten times as long for small ones."""
    before = torch.get_float32_matmul_precision(), torch.backends.mkldnn.enabled
    if config.precision == "tf32" and device == "cuda":
        torch.set_float32_matmul_precision("high")
    if device == "cpu" and platform.machine() in ARM:
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.mkldnn.enabled = before[1]


def tensors_in(values: dict[str, Any]) -> dict[str, Tensor]:
    """The values that are tensors: a module may keep other things in its state too."""
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}
