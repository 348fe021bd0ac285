"""Measures how many FLOPs large operators reach, over what the device reaches in matrix products."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ups.engine.graph import WARM
from ups.engine.memory import held_memory, training_work
from ups.engine.ranks.dist import Dist
from ups.engine.ranks.dist_config import DistConfig
from ups.stages import OperatorStage
from ups_bench.engine import steps_of
from ups_bench.kernels import kernel_seconds, summary
from ups_bench.speed_case import SpeedCase, SpeedNumbers, large_case
from ups_bench.turns import TurnSpread, Work, in_turn, over, repeated

PRODUCTS = 20  # that are timed as one
BLOCK = 2  # steps that are timed as one
PROFILED = 2
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
ROOM = 0.8  # of the free memory that a step may take


def products(n: int, dtype: torch.dtype, device: torch.device) -> tuple[Work, float]:
    """Some products of square matrices, and their floating-point operations."""
    count = PRODUCTS if device.type == "cuda" else 2
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    return repeated(lambda: torch.matmul(a, b, out=out), count), 2.0 * count * n**3


@dataclass(frozen=True)
class Demand:
    """What steps of any number of samples cost: both numbers grow by the same with every sample."""

    flops: tuple[int, int]  # of one sample, and of two
    peak: tuple[int, int]  # bytes of them, gradients included

    @classmethod
    def of(cls, case: SpeedCase, stage: OperatorStage, device: torch.device) -> Demand:
        """What a step demands, told from two small ones, forwards and backwards."""
        train, works = case.config.stage("operator").train, []
        for samples in (1, 2):
            works.append(training_work(stage.loss, case.window(samples, device), device.type, train))
            stage.module.zero_grad()
        one, two = works
        return cls((one.flops, two.flops), (one.peak, two.peak))

    def flops_of(self, samples: int) -> int:
        return self.flops[0] + (samples - 1) * (self.flops[1] - self.flops[0])

    def samples_in(self, room: float) -> float:
        return 1 + (room - self.peak[0]) / max(1, self.peak[1] - self.peak[0])


def fitting(case: SpeedCase, stage: OperatorStage, demand: Demand, device: torch.device) -> int:
    """The batch that is wanted, or the largest half of half of it … that fits on the GPU."""
    batch = case.batch
    if device.type == "cuda":
        torch.cuda.empty_cache()
        held = held_memory(stage.module, stage.simulator, case.config.stage("operator").train, "cuda", DistConfig())
        room = ROOM * torch.cuda.mem_get_info(device)[0] - held.without_gradients - held.step
        while batch > max(1.0, demand.samples_in(room)):
            batch //= 2
    return batch


def large(device: str, core: str, compiled: bool) -> SpeedNumbers:
    """A step of a large operator: TFLOP in a second over those of matrix products, timed in turn with it; and
    what the step spends its time on."""
    numbers = SpeedNumbers()
    with Dist.start(device) as dist:
        place = dist.device
        case = large_case(place.type, core)
        stage = case.stage(place)
        demand = Demand.of(case, stage, place)
        batch = fitting(case, stage, demand, place)
        flops = demand.flops_of(batch)
        trainer = case.trainer(dist, batch=batch, stage=stage, compile=compiled)
        step = steps_of(trainer)
        repeated(step, WARM + 1)()  # the last of them is captured as a graph: none of that is in a round
        multiply, of_products = products(case.sizes.matrix, DTYPES[case.sizes.precision], place)
        turns: list[tuple[str, Work | None]] = [("step", repeated(step, BLOCK)), ("products", multiply)]
        times = in_turn(turns, case.sizes.rounds, place)
        spent = summary(kernel_seconds(step, PROFILED, place))
        parameters = sum(p.numel() for p in stage.module.parameters())
        microbatch = trainer.state.microbatch
    rates = {
        "step": [BLOCK * flops / s for s in times["step"]],
        "products": [of_products / s for s in times["products"]],
    }
    name = f"{core}, compiled" if compiled else core
    rate, limit = (TurnSpread.of(rates[key]) for key in ("step", "products"))
    tokens = math.prod(-(-n // 4) for n in case.outline.shape)
    samples = f"{batch} samples" + (f" in microbatches of {microbatch}" if microbatch else "")
    numbers.what[name] = f"{parameters / 1e6:.4g} M parameters, {tokens} tokens, {samples}, {case.sizes.precision}"
    seen = (
        f"{numbers.what[name]}: {flops / 1e12:.4g} TFLOP in {flops / rate.median:.3g} s, "
        f"{rate.median / 1e12:.4g} of {limit.median / 1e12:.4g} TFLOP/s"
    )
    numbers.row(f"{name}: TFLOP/s over those of matrix products", over(rates["step"], rates["products"]), seen)
    numbers.rates[f"{name}, samples/s"] = f"{batch * rate.median / flops:.4g}"
    numbers.kernels[name] = spent
    return numbers
