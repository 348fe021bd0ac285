"""The memory probe: before the first step, the microbatch that fits every kind of window with memory to spare."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ups.engine.attempt import Attempt
from ups.engine.graph import signature

if TYPE_CHECKING:
    from ups.engine.loop import Trainer

LOOKED_AT = 32  # batches among which the kinds of windows are looked for
SPARE = 0.1  # of the memory this rank can have, that must be left at the peak
ALL_OF_IT = 1 - 1e-9  # the part of the budget at which a curriculum asks for most


def probe(trainer: Trainer) -> None:
    """Run every kind of window forward and backward, on all ranks alike; weights, moments and generators stay.

    The moments exist already, so the peak is that of training. On the host memory is not limited by an allocator that
    could say no, and nothing is probed.
    """
    device = trainer.dist.device
    if device.type != "cuda":
        return
    # Where the steps will run: each stream that multiplies matrices keeps a workspace for good.
    stream = trainer.graph.stream if trainer.graph else torch.cuda.current_stream()
    generators = trainer.keeper.generators()
    torch.cuda.synchronize(device)
    with torch.cuda.stream(stream):
        _every_kind(trainer)
    torch.cuda.synchronize(device)
    trainer.optimizer.zero_grad()
    trainer.keeper.set_generators(generators)
    torch.cuda.empty_cache()


def _every_kind(trainer: Trainer) -> None:
    device, seen = trainer.dist.device, set()
    for ahead in range(LOOKED_AT):
        window = trainer.stage.view(trainer.batches.batch(trainer.step + ahead).to(device), ALL_OF_IT)
        if signature(window) in seen:
            continue
        seen.add(signature(window))
        tries = 0
        while True:
            with Attempt(trainer.pulse, trainer.step) as attempt:
                torch.cuda.reset_peak_memory_stats(device)
                trainer._compute(window)
                _spare(device)
            words = trainer._vote(attempt)
            if all(word.ok for word in words):
                break
            tries = trainer._again(words, attempt, tries)
        trainer.parallel.recover()


def _spare(device: torch.device) -> None:
    """Raise what the allocator would if it had a tenth less."""
    free, _ = torch.cuda.mem_get_info(device)
    mine = free + torch.cuda.memory_reserved(device)
    peak = torch.cuda.max_memory_reserved(device)
    if peak > (1 - SPARE) * mine:
        raise torch.OutOfMemoryError(f"{peak / 1e9:.1f} GB of {mine / 1e9:.1f} GB leave less than a tenth to spare")
