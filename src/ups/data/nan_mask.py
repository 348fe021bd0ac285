"""Turns NaN in places that never change into an input channel, `mask`, which says which cells count."""

from __future__ import annotations

import dataclasses

import numpy as np

from ups.data.source import Source, View
from ups.types import Array, DataError, Field, TaskSpec

MASK = "mask"
# Samples whose first frame is looked at on opening, those whose last frame is too, and the bytes that may be read.
FIRST, LAST, BYTES = 32, 4, 16 * 2**20


class Masked(View):
    """Another source with one more input: 1 where every channel of a sample's first frame is a number, 0 elsewhere."""

    def __init__(self, source: Source, problems: tuple[str, ...] = ()) -> None:
        super().__init__(source, task=with_mask(source.task), problems=(*source.problems, *problems))

    def _inputs(self, index: int) -> Array:
        counts = ~np.isnan(self.source.read(index, slice(0, 1))[0]).any(axis=-1, keepdims=True)
        return np.concatenate([self.source.inputs(index), counts.astype(np.float32)], axis=-1)

    def _inputs_of(self, samples: range) -> Array:
        counts = ~np.isnan(self.source.read_several(samples, slice(0, 1))[:, 0]).any(axis=-1, keepdims=True)
        return np.concatenate([self.source.inputs_of(samples), counts.astype(np.float32)], axis=-1)


def with_mask(task: TaskSpec) -> TaskSpec:
    """The task with the input `mask`, which says which cells count."""
    return dataclasses.replace(task, inputs=(*task.inputs, Field.scalar(MASK)), mask=MASK)


def masked(source: Source, wanted: bool = False) -> Source:
    """The source with a mask if first frames of it hold NaN, or if one is `wanted`; otherwise as it is."""
    if source.task.mask or MASK in source.task.given:
        return source
    try:
        holes, moving = _look(source)
    except DataError:
        return source  # whoever reads the damaged sample is told
    problems = (f"NaN moves in time in sample {moving}; only NaN in fixed places is a mask",) if moving else ()
    if holes or wanted:
        return Masked(source, problems)
    return View(source, problems=(*source.problems, *problems)) if problems else source


def _look(source: Source) -> tuple[bool, str]:
    """Whether a first frame has holes, and the first sample found whose last frame has others."""
    frame = 8 * int(np.prod(source.grid.shape)) * len(source.task.channels)
    count = max(1, min(len(source), FIRST, BYTES // frame))
    places = [int(i) for i in np.unique(np.linspace(0, len(source) - 1, count).astype(int))]
    first = {i: np.isnan(source.read(i, slice(0, 1))) for i in places}
    holes = any(nothing.any() for nothing in first.values())
    for i in places[:: -(-count // LAST)]:
        last = len(source.times_of(i)) - 1
        if (first[i] != np.isnan(source.read(i, slice(last, last + 1)))).any():
            return holes, source.ids[i]
    return holes, ""
