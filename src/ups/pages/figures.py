"""Pictures of trajectories: space-time maps, and films of moving lines and of maps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ups.pages.drawing import (
    ACCENTS,
    NOTHING_COLOUR,
    Film,
    balanced,
    captions,
    colour_map,
    library,
    masked,
    moving,
    opening,
    picked,
    png,
    shade,
)
from ups.pages.maps import Board, Panel
from ups.types import Array, Trajectory, counted

FRAMES = 41  # of a film, at most
SIZE = 260  # of a map, in pixels


def mask_of(sample: Trajectory) -> Array | None:
    """The cells of a trajectory that count, `(*S,)`; None where all do."""
    task = sample.task
    return np.asarray(sample.inputs[..., task.given.index(task.mask)] > 0.5) if task.mask else None


def space_time(samples: Sequence[Trajectory]) -> str:
    """Maps of the first channel of 1D trajectories, side by side: space to the right, time upwards, one colour scale.

    Returns:
        The picture as a data URI, for the `src` of an image in a page.
    """
    figure = library("figure").Figure(figsize=(3.1 * len(samples), 2.9), dpi=110, layout="constrained")
    panels = figure.subplots(1, len(samples), squeeze=False)[0]
    fields = [masked(s.values[..., 0], mask_of(s)) for s in samples]
    limit = _limit(fields)
    for panel, s, field in zip(panels, samples, fields, strict=True):
        panel.set_facecolor(NOTHING_COLOUR)
        x, t = s.grid.bounds[0], (float(s.times[0]), float(s.times[-1]))
        panel.imshow(
            field,
            origin="lower",
            aspect="auto",
            extent=(*x, *t),
            vmin=limit[0],
            vmax=limit[1],
            cmap=colour_map(limit),
        )
        panel.set(title=f"sample {s.id}", xlabel="x")
    panels[0].set_ylabel("t")
    figure.colorbar(panels[0].images[0], ax=panels, label=samples[0].task.channels[0], shrink=0.9)
    return png(figure)


def film_lines(samples: Sequence[Trajectory]) -> Film:
    """A film of the first channel of 1D trajectories as moving lines, as many of them as there are ACCENTS."""
    first = samples[0]
    fields = [masked(s.values[..., 0], mask_of(s)) for s in samples]
    low, high = _limit(fields)
    pad = 0.05 * (high - low or 1.0)
    shown = picked(len(first.times), FRAMES)
    figure = library("figure").Figure(figsize=(7.2, 2.9), dpi=90, layout="constrained")
    panel = figure.subplots()
    panel.set(xlim=first.grid.bounds[0], ylim=(low - pad, high + pad), xlabel="x", ylabel=first.task.channels[0])
    panel.grid(alpha=0.25)
    shade(panel, first.grid.coordinates[0], mask_of(first))
    lines = [
        panel.plot(s.grid.coordinates[0], field[0], color=colour, label=f"sample {s.id}", lw=1.6)[0]
        for s, field, colour in zip(samples, fields, ACCENTS, strict=False)
    ]
    panel.legend(loc="upper right", frameon=False, ncols=len(lines), fontsize=8)
    pictures = moving(figure, lines, ([field[t] for field in fields[: len(lines)]] for t in shown))
    alt, start = f"{first.task.title}: {counted(len(lines), 'sample')} moving in time", opening(fields[0], shown)
    return Film(pictures, captions(first.times, shown), alt, start)


def film_maps(sample: Trajectory) -> Film:
    """A film of a 2D trajectory as colour maps, one per channel, side by side."""
    shown = picked(len(sample.times), FRAMES)
    mask = mask_of(sample)
    scales = [_typical(masked(sample.values[..., c], mask)) for c in range(len(sample.task.channels))]
    channels, box = sample.task.channels, sample.grid.bounds
    panels = [Panel(name, scale) for name, scale in zip(channels, scales, strict=True)]
    board = Board([panels], (box[0], box[1]), SIZE, sample.task.axes)
    pictures = [board.picture([[sample.values[t, ..., c] for c in range(len(channels))]], mask) for t in shown]
    names = ", ".join(f"{name} ({low:.2g} to {high:.2g})" for name, (low, high) in zip(channels, scales, strict=True))
    alt = f"{sample.task.title}, sample {sample.id}: {names}"
    start = opening(masked(sample.values[..., 0], mask), shown)
    return Film(tuple(pictures), captions(sample.times, shown), alt, start)


def _limit(arrays: Sequence[Array]) -> tuple[float, float]:
    """The colour scale from the least value of all arrays to the greatest; around 0 where there are both signs."""
    return balanced(min(float(np.nanmin(a)) for a in arrays), max(float(np.nanmax(a)) for a in arrays))


def _typical(values: Array) -> tuple[float, float]:
    """A colour scale `(low, high)` that suits most frames of `values (T, *S)`: a noisy start or a spike is cut off."""
    flat = values.reshape(len(values), -1)
    low, high = (np.median(np.nanquantile(flat, q, axis=1)) for q in (0.002, 0.998))
    return balanced(float(low), float(high))
