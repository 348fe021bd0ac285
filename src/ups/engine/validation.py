"""Validation: every rank measures its rows of every window with the averaged weights; sums and counts add up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ups.engine.loop import Trainer


@torch.no_grad()
def measured(trainer: Trainer) -> dict[str, tuple[float, float]]:
    """Per name the sum over this rank's rows of every validation window, and their count."""
    dist, module = trainer.dist, trainer.module
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    found: dict[str, tuple[float, float]] = {}
    try:
        with trainer.ema.swapped():
            for window in trainer.batches.validation():
                first, last = (len(window) * rank // dist.world for rank in (dist.rank, dist.rank + 1))
                # A rank without a row runs one all the same: in a sharded model all must take part.
                part = window.rows(first, last) if last > first else window.rows(0, 1)
                trainer.pulse.beat("validate")
                for name, values in trainer.stage.evaluate(part.to(dist.device)).items():
                    total, count = found.get(name, (0.0, 0.0))
                    rows = values.double()[: last - first]
                    found[name] = (total + float(rows.sum()), count + len(rows))
    finally:  # also where memory ran out: it is done again
        for m, mode in modes:
            m.training = mode
    return found
