"""Meter: sums of losses and counts of bad steps kept on the device, read only now and then."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ups.engine.dist import Dist


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

    def read(self, dist: Dist) -> dict[str, float]:
        """Means since the last reading over ranks: each term over all tasks, the `loss` also per task; waits for the
        device. Each rank's terms are scaled so that their mean over ranks is the mean over samples."""
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
        return {name: value / count for name, (value, count) in dist.sums(totals).items()}

    def skipped(self) -> tuple[int, int]:
        """How many steps in a row were bad at worst, and how many in all."""
        _, most, total = self.bad.tolist()
        return int(most), int(total)
