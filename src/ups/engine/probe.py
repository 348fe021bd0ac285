"""Probes, before the first step, which microbatch fits every kind of window with memory to spare."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import nullcontext

import torch

from ups.engine.graph import Graphs
from ups.engine.learner import Learner
from ups.engine.randomness import generators, set_generators
from ups.engine.ranks.vote import StepVote
from ups.engine.stage import RankBatches
from ups.graphs import signature
from ups.tensors import Window
from ups.types import data_size

LOOKED_AT = 32  # batches among which the kinds of windows are looked for
SPARE = 0.1  # of the memory this rank can have, that must be left at the peak
ALL_OF_IT = 1 - 1e-9  # the part of the budget at which a curriculum asks for most


def probe(learner: Learner, batches: RankBatches, vote: StepVote, graph: Graphs | None) -> None:
    """Run every kind of window forward and backward, on all ranks alike; weights, moments and generators stay.

    The moments exist already, so the peak is that of training. On the host memory is not limited by an allocator that
    could say no, and nothing is probed; nor where no step is to come. What is left at the peak is offered to the data.
    """
    device, state = learner.dist.device, learner.state
    if device.type != "cuda" or learner.config.progress(state.step, state.seconds) >= 1:
        return
    states = generators(device)
    torch.cuda.synchronize(device)
    peak = _every_kind(learner, batches, vote, graph)
    torch.cuda.synchronize(device)
    learner.optimizer.zero_grad()
    set_generators(states, device)
    torch.cuda.empty_cache()
    _keep_data(learner, batches, vote, peak)


def _keep_data(learner: Learner, batches: RankBatches, vote: StepVote, peak: int) -> None:
    """Offer the data half of what ranks that share a GPU leave of it: graphs and validations take some of the rest."""
    keep = getattr(batches, "keep", None)
    if keep is None:
        return
    device, dist = learner.dist.device, learner.dist
    free, _ = torch.cuda.mem_get_info(device)
    mine = str(torch.cuda.get_device_properties(device).uuid)
    sharing = dist.gather(mine).count(mine)
    room = int(((1 - SPARE) * (free + torch.cuda.memory_reserved(device)) - peak * sharing) / 2 / sharing)
    dist.barrier()  # what others take now must not be taken for used
    steps, stored = learner.config.steps, 0
    try:
        stored = keep(device, room, None if steps is None else steps - learner.state.step) if room > 0 else 0
    except torch.OutOfMemoryError:  # somebody else took it meanwhile; windows come from the host as before
        torch.cuda.empty_cache()
    if stored:
        vote.say(f"{data_size(stored)} of data are kept on the GPU.")


def _every_kind(learner: Learner, batches: RankBatches, vote: StepVote, graph: Graphs | None) -> int:
    """The most memory that any took."""
    device, seen, peak = learner.dist.device, set(), 0
    for step in _unlike(batches, learner.state.step):
        window = learner.stage.view(batches.batch(step).to(device), ALL_OF_IT)
        if signature(window) in seen:
            continue
        seen.add(signature(window))

        def fits(window: Window = window) -> None:
            torch.cuda.reset_peak_memory_stats(device)
            # Where the steps will run: each stream that multiplies matrices keeps a workspace for good.
            with graph.recorder.aside(window) if graph else nullcontext():
                learner.compute(window)
            _spare(device)

        vote.repeated(fits)
        learner.parallel.recover()
        peak = max(peak, torch.cuda.max_memory_reserved(device))
    return peak


def _unlike(batches: RankBatches, first: int) -> list[int]:
    """The steps to look at: of those whose windows are said to be alike, the first; they need not be read to know."""
    steps = range(first, first + LOOKED_AT)
    kind: Callable[[int], Hashable] = getattr(batches, "kind", lambda step: step)
    return sorted({kind(step): step for step in reversed(steps)}.values())


def _spare(device: torch.device) -> None:
    """Raise what the allocator would if it had a tenth less."""
    free, _ = torch.cuda.mem_get_info(device)
    mine = free + torch.cuda.memory_reserved(device)
    peak = torch.cuda.max_memory_reserved(device)
    if peak > (1 - SPARE) * mine:
        raise torch.OutOfMemoryError(f"{peak / 1e9:.1f} GB of {mine / 1e9:.1f} GB leave less than a tenth to spare")
