"""Speed of validations: whole rollouts as a training does them, replayed and not, and their share of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ups.engine.ranks.dist import Dist
from ups.engine.validation import validations_of
from ups.models.ensembles import Draws
from ups.models.replay import Replays
from ups.models.simulator_like import SimulatorLike
from ups.models.stepping import Stepping
from ups.tensors import Window
from ups_bench.engine import SameBatch
from ups_bench.speed_case import SpeedCase, SpeedNumbers, small_case
from ups_bench.turns import TurnSpread, Work, in_turn, over


class WholeValidation(SameBatch):
    """Batches whose validation is that of the case: all trajectories of its validation part, to their end."""

    def __init__(self, case: SpeedCase, device: torch.device) -> None:
        super().__init__(case.window(case.batch, device), case.batch)
        size, ahead, count = case.outline.whole(case.batch, case.config.context, "valid", device.type)
        self.rollouts = [case.window(size, device, ahead)] * count
        self.words = f"{count} × {size} trajectories of {ahead} steps"

    def validation(self, step: int) -> Iterator[Window]:  # noqa: ARG002
        yield from self.rollouts


class KernelByKernel(Replays):
    """Rollouts that are never captured."""

    def frames(
        self,
        simulator: SimulatorLike,
        window: Window,
        steps: int,
        points: Tensor | None = None,
        draw: Draws | None = None,
    ) -> Tensor:
        return Stepping(simulator, window, points).frames(steps, draw)


def validation(device: str) -> SpeedNumbers:
    """Seconds of a validation with the machinery of a training around it."""
    numbers = SpeedNumbers()
    with Dist.start(device) as dist:
        case = small_case(dist.device.type)
        batches, stage = WholeValidation(case, dist.device), case.stage(dist.device)
        trainer = case.trainer(dist, stage=stage)
        trainer.batches = batches
        simulator, train = stage.simulator, case.config.stage("operator").train
        replays_of: dict[str, Any] = {"replayed": simulator.replays, "kernel by kernel": KernelByKernel()}

        def way(replays: Replays) -> Work:
            def work() -> None:
                simulator.replays = replays
                trainer._means()

            return work

        names = replays_of if dist.device.type == "cuda" else ("kernel by kernel",)
        turns: list[tuple[str, Work | None]] = [(name, way(replays_of[name])) for name in names]
        times = in_turn(turns, max(2, case.sizes.rounds // 2), dist.device)
    numbers.what["validation"] = f"{case.words()}, {batches.words}"
    seconds = {name: TurnSpread.of(each) for name, each in times.items()}
    numbers.rates |= {
        f"a validation, {name}": f"{s.median:.3g} s ({s.low:.3g} – {s.high:.3g})" for name, s in seconds.items()
    }
    quicker = "validation kernel by kernel over replayed, time"
    if "replayed" in times:
        numbers.row(quicker, over(times["kernel by kernel"], times["replayed"]), batches.words)
    else:
        numbers.missing(quicker, "a rollout is replayed on a CUDA device alone")
    count, budget = validations_of(train), train.seconds or math.nan
    best = times.get("replayed", times["kernel by kernel"])
    shares = TurnSpread.of([count * s / (budget + count * s) for s in best])
    numbers.row("share of a run that its validations take", shares, f"{count} beside {budget:g} s of training")
    return numbers
