"""What a step of a config would cost on a device, by size, batch and precision, from counts and the device's limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ups.engine.train import Precision
from ups.jobs.estimate.costs import Costs, Counts, costs
from ups.jobs.estimate.timing import Ceilings, ceilings
from ups.models.frames_memory import free_memory
from ups.run.check import check
from ups.run.config import RunConfig
from ups.run.data.outlines import Outline
from ups.run.sizing import Price, SizeChoice, choose

SLOWER = 2.0  # times what the ceilings of a device promise that a step takes
KERNEL = 2.5e-6  # seconds that a kernel takes at least, in a CUDA graph too
SHARE = 0.5  # of the free memory that may be taken


class Pricing:
    """Prices of the steps of configs that differ in size and batch: `config_of(size, batch)`."""

    def __init__(self, config_of: Callable[[str, int], RunConfig], device: torch.device) -> None:
        self.config_of, self.device, self.free = config_of, device, free_memory(device)
        self.outlined: Sequence[Outline] = ()
        self.roofs: dict[bool, Ceilings] = {}
        self.counts: dict[str, Counts] = {}
        self.bills: dict[tuple[str, int], Costs] = {}

    def __call__(self, size: str, batch: int, precision: Precision) -> Price:
        """What a step costs. Its numbers are counted in fp32, which for bf16 is more memory than it takes."""
        if (size, batch) not in self.bills:
            config = self.config_of(size, batch)
            self.outlined = self.outlined or check(config, asking=False)
            counts = self.counts.setdefault(size, {})
            self.bills[size, batch] = costs(config, self.device.type, sets=self.outlined, rough=counts)
        if (bf16 := precision == "bf16") not in self.roofs:
            self.roofs[bf16] = ceilings(self.device, bf16)
        bill, roof = self.bills[size, batch], self.roofs[bf16]
        work, captured = bill.stages[-1].work, bill.stages[-1].captured
        floor = KERNEL * work.operations if self.device.type == "cuda" else 0.0
        return Price(max(floor, SLOWER * roof.seconds(work, captured)), bill.needed)

    def choose(self, seconds: float) -> SizeChoice:
        """What so many seconds of training have room for."""
        return choose(self, self.device.type, seconds, SHARE * self.free)
