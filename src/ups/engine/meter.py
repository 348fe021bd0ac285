"""Measures a training: losses summed on the device, seconds per phase, peak memory."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import torch
from torch import Tensor

from ups.engine.ranks.dist import Dist

Totals = Mapping[str, tuple[float, float]]
NOTHING: Totals = MappingProxyType({})
BESIDE = "beside "


class Meter:
    """Means over the steps since the last reading, without making the host wait for the device at each step.

    A step that was skipped (`ok` false) counts as bad and adds nothing to the means. Accumulators appear with the
    first window of a task, outside any graph, and stay where they are.
    """

    def __init__(self, device: torch.device) -> None:
        self.sums: dict[tuple[str, tuple[str, ...]], Tensor] = {}
        self.bad = torch.zeros(3, device=device)  # in a row now, most in a row, in all
        self.row, self.most, self.total = self.bad.unbind()
        self.one, self.none = torch.ones((), device=device), torch.zeros((), device=device)

    @torch.no_grad()
    def add(self, task: str, terms: Mapping[str, Tensor], ok: Tensor) -> None:
        """One step's terms (scalar tensors)."""
        key = (task, tuple(terms))
        values = torch.stack([*terms.values(), self.one])
        if key not in self.sums:
            self.sums[key] = torch.zeros_like(values)
        self.sums[key] += torch.where(ok, values, self.none)
        bad = ~ok
        self.row.add_(1).mul_(bad)
        torch.maximum(self.most, self.row, out=self.most)
        self.total.add_(bad)

    def read(self, dist: Dist, beside: Totals = NOTHING) -> tuple[dict[str, float], Totals]:
        """Means since the last reading over ranks: each term over all tasks, the `loss` also per task; waits for the
        device. Each rank's terms are scaled so that their mean over ranks is the mean over samples.

        What ranks have `beside` it travels in the same exchange: its sums over ranks."""
        totals: dict[str, tuple[float, float]] = {}
        for (task, names), sums in self.sums.items():
            *values, count = sums.tolist()
            if count:
                rows = dict(zip(names, values, strict=True))
                if len(self.sums) > 1 and "loss" in rows:
                    rows[f"loss/{task}"] = rows["loss"]
                for name, value in rows.items():
                    total = totals.get(name, (0.0, 0.0))
                    totals[name] = (total[0] + value, total[1] + count)
            sums.zero_()
        means = dist.sums({**totals, **{f"{BESIDE}{name}": row for name, row in beside.items()}})
        own = {name.removeprefix(BESIDE): means.pop(name) for name in list(means) if name.startswith(BESIDE)}
        return {name: value / count for name, (value, count) in means.items()}, own

    def skipped(self) -> tuple[int, int]:
        """How many steps in a row were bad at worst, and how many in all."""
        _, most, total = self.bad.tolist()
        return int(most), int(total)


class Stopwatch:
    """Seconds by phase. A phase inside another counts for itself alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inside = 0.0  # seconds of the phases inside the one under way

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        began, outer, self._inside = time.perf_counter(), self._inside, 0.0
        try:
            yield
        finally:
            spent = time.perf_counter() - began
            self.add(phase, spent - self._inside)
            self._inside = outer + spent

    def add(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds


def peak_memory(device: torch.device) -> int:
    """Bytes at the peak so far: what torch has taken of a GPU, or what this process has held."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
