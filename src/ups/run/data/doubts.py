"""Finds in a few trajectories what speaks against training on them: broken laws, and lost digits."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ups.data import Source
from ups.data.digits import Digits
from ups.lazy_imports import torch
from ups.physics import TASKS
from ups.physics.laws import laws_of
from ups.tensors import mask_of
from ups.types import Array, Trajectory, few

if TYPE_CHECKING:  # commands that only look at files do without torch
    from ups.run.data.datasets import DataSet

# Trajectories that are looked at closely, the bytes of each that may be in memory, and the fewest frames of use.
CLOSELY, MEMORY, FEWEST_FRAMES = 8, 2**27, 9
# What a law may be off in float32 data of a second-order scheme before it counts as broken.
TOLERANCE = 1e-3
FAR = 3  # times the range of all other values, by which a number that fills cells lies beside it
ENFORCED = "predictions are made to obey it unless `model.simulator.guard` is false; take it out of the task"


def close_ups(source: Source) -> Iterator[Trajectory]:
    """A few trajectories spread over the file, one at a time, with as many leading frames as may be in memory."""
    chosen = np.unique(np.linspace(0, len(source) - 1, min(CLOSELY, len(source))).astype(int))
    frame = 8 * int(np.prod(source.grid.shape)) * len(source.task.channels)
    frames = slice(0, max(FEWEST_FRAMES, MEMORY // frame))
    for i in map(int, chosen):
        values, times = source.read(i, frames), source.times_of(i)[frames]
        yield Trajectory(
            source.ids[i], source.task, values, source.grid_of(i), times, source.params_of(i), source.inputs(i)
        )


def law_residuals(source: Source) -> list[tuple[str, float, float]]:
    """(law, largest violation, what sampling on this grid explains) over the trajectories looked at closely; nan where
    a value is not finite."""
    params = source.params_of(0)  # those that differ from sample to sample are numbers, on which no law depends
    if {p.name for p in source.task.parameters} != set(params):
        return []
    laws = laws_of(source.task, source.grid.periodic, params)
    worst, blur = [0.0] * len(laws), [0.0] * len(laws)
    for sample in close_ups(source) if laws else ():
        # Copies: what a reader gives may be read-only, which torch warns of.
        u = torch.from_numpy(np.array(sample.values, np.float64)).unsqueeze(0)
        mask = mask_of(source.task, torch.from_numpy(np.array(sample.inputs)).unsqueeze(0))
        for i, law in enumerate(laws):
            worst[i] = float(np.maximum(worst[i], float(law.residual(u, source.grid, mask))))
            blur[i] = max(blur[i], float(law.sampling_error(u, source.grid, mask)))
    return [(law.says, worst[i], blur[i]) for i, law in enumerate(laws)]


def broken(law: str, worst: float, blur: float) -> str:
    """A sentence where a law does not hold; nothing where it does."""
    return f"it does not hold that {law}: off by {worst:.1e} of its size" if worst > TOLERANCE + 2 * blur else ""


def laws_in_words(source: Source) -> tuple[list[str], list[str]]:
    """How well each law holds, and a sentence for each that does not."""
    measured = law_residuals(source)
    wrong = {law: words for law, *numbers in measured if (words := broken(law, *numbers))}
    unknown = "could not be measured: some values are not finite"
    holds = [
        f"that {law} {unknown}" if math.isnan(worst) else f"{law}, but for up to {worst:.1e} of its size"
        for law, worst, _ in measured
        if law not in wrong
    ]
    return holds, list(wrong.values())


def lost_digits(source: Source) -> list[str]:
    """A sentence for each field that float32 can hardly tell apart, seen in the trajectories looked at closely, and for
    each parameter."""
    digits = Digits(source.task.channels)
    for i in range(len(source)):
        digits.sample(source.params_of(i))
    if source.read(0, slice(1)).dtype.itemsize > 4:
        for sample in close_ups(source):
            digits.frames(sample.values)
    return digits.problems()


def fill_values(source: Source) -> list[str]:
    """A sentence for each channel that has one and the same number in some cells of all frames of a trajectory looked
    at closely, farther from all its other values than these are from each other."""
    filled: dict[str, tuple[float, int, int]] = {}
    for sample in () if source.task.steady else close_ups(source):
        frames = np.asarray(sample.values, np.float64).reshape(len(sample.values), -1, len(source.task.channels))
        inside = _inside(source, sample.inputs)
        for name, cells in zip(source.task.channels, np.moveaxis(frames, -1, 0), strict=True):  # (T, cells)
            still = (cells == cells[0]).all(0)
            sound = len(cells) > 1 and np.isfinite(cells).all()
            if name in filled or not sound or not (still & inside).any() or still.all():
                continue
            low, high = cells[:, ~still].min(), cells[:, ~still].max()
            far = still & inside & ((cells[0] < low - FAR * (high - low)) | (cells[0] > high + FAR * (high - low)))
            numbers, counts = np.unique(cells[0][far], return_counts=True)
            if len(numbers) == 1 and counts[0] > 1:
                filled[name] = (float(numbers[0]), int(counts[0]), len(still))
    return [
        f"{name} is {number:.6g} in {count} of {cells} cells of all frames, far from all its other values: where these "
        "cells do not count, write NaN there"
        for name, (number, count, cells) in filled.items()
    ]


def _inside(source: Source, inputs: Array) -> Array:
    """Which cells `(cells,)` count, and do not lie at walls, where a field may be held at any number."""
    inside = np.ones(inputs.shape[:-1], bool)
    if source.task.mask:
        inside &= inputs[..., source.task.given.index(source.task.mask)] > 0.5
    for axis, wraps in enumerate(source.grid.periodic):
        if not wraps and source.task.domain == "grid":
            ends = np.moveaxis(inside, axis, 0)
            ends[0] = ends[-1] = False
    return inside.ravel()


def question(sources: Sequence[Source], answered: Collection[str] = ()) -> list[str]:
    """A sentence that asks about numbers that differ between the samples of a task and that nobody calls parameters.

    They may be results, which give away what is to be predicted. Those of the names `answered` are not asked about.
    """
    unnamed = {name: key for source in sources for name, key in source.unnamed.items() if name not in answered}
    if not unnamed:
        return []
    equation = sources[0].task.equation
    own = {p.name for p in TASKS[equation].parameters} if equation else set()
    values: dict[str, set[float | str]] = {name: set() for name in unnamed if name not in own}
    for source in sources:
        for i in range(len(source)) if values else ():
            for name, value in source.params_of(i).items():
                if name in values:
                    values[name].add(value)
    keys = {name: unnamed[name] for name, distinct in values.items() if len(distinct) > 1}
    if not keys:
        return []
    several = len(keys) > 1
    names, there = ", ".join(f"{name}: {key}" for name, key in keys.items()), ", ".join(keys.values())
    return [
        f"{few(keys)} {'differ' if several else 'differs'} from sample to sample, and nothing says what "
        f"{'they are' if several else 'it is'}: what is known beforehand (a parameter) or a result, which gives the "
        f"answer away; say `datasets: {{{names}}}` in the task for the one, `ignore: [{there}]` for the other"
    ]


def doubts_of(source: Source) -> list[str]:
    """What is doubtful of a source, a sentence each."""
    return [*lost_digits(source), *fill_values(source), *(f"{words}; {ENFORCED}" for words in laws_in_words(source)[1])]


def doubts(sets: Iterable[DataSet]) -> list[str]:
    """What is doubtful of the data of a run, each sentence once; data that the run makes itself are not doubted."""
    sentences = [
        f"{data.task.name}: {words}"
        for data in sets
        for entry in data.entries
        if entry.config.there
        for words in doubts_of(entry.source)
    ]
    return list(dict.fromkeys(sentences))
