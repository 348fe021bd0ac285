"""The memory probe: before the first step, the microbatch that fits every kind of window with memory to spare."""

from __future__ import annotations

from contextlib import nullcontext

import torch

from ups.engine.graph import Graphs
from ups.engine.learner import Learner
from ups.engine.randomness import generators, set_generators
from ups.engine.ranks.vote import Consensus
from ups.engine.stage import Batches
from ups.graphs import signature
from ups.tensors import Window

LOOKED_AT = 32  # batches among which the kinds of windows are looked for
SPARE = 0.1  # of the memory this rank can have, that must be left at the peak
ALL_OF_IT = 1 - 1e-9  # the part of the budget at which a curriculum asks for most


def probe(learner: Learner, batches: Batches, consensus: Consensus, graph: Graphs | None) -> None:
    """Run every kind of window forward and backward, on all ranks alike; weights, moments and generators stay.

    The moments exist already, so the peak is that of training. On the host memory is not limited by an allocator that
    could say no, and nothing is probed.
    """
    device = learner.dist.device
    if device.type != "cuda":
        return
    states = generators(device)
    torch.cuda.synchronize(device)
    _every_kind(learner, batches, consensus, graph)
    torch.cuda.synchronize(device)
    learner.optimizer.zero_grad()
    set_generators(states, device)
    torch.cuda.empty_cache()


def _every_kind(learner: Learner, batches: Batches, consensus: Consensus, graph: Graphs | None) -> None:
    device, seen = learner.dist.device, set()
    for ahead in range(LOOKED_AT):
        window = learner.stage.view(batches.batch(learner.state.step + ahead).to(device), ALL_OF_IT)
        if signature(window) in seen:
            continue
        seen.add(signature(window))

        def fits(window: Window = window) -> None:
            torch.cuda.reset_peak_memory_stats(device)
            # Where the steps will run: each stream that multiplies matrices keeps a workspace for good.
            with graph.recorder.aside(window) if graph else nullcontext():
                learner.compute(window)
            _spare(device)

        consensus.repeated(fits)
        learner.parallel.recover()


def _spare(device: torch.device) -> None:
    """Raise what the allocator would if it had a tenth less."""
    free, _ = torch.cuda.mem_get_info(device)
    mine = free + torch.cuda.memory_reserved(device)
    peak = torch.cuda.max_memory_reserved(device)
    if peak > (1 - SPARE) * mine:
        raise torch.OutOfMemoryError(f"{peak / 1e9:.1f} GB of {mine / 1e9:.1f} GB leave less than a tenth to spare")
