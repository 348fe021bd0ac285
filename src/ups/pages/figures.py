"""Pictures of trajectories: space-time maps, and films as PNG frames; each a `data:` URI."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

from ups.types import Array, Trajectory

INK, ACCENTS = "#1d2733", ("#0b6e99", "#c8553d", "#588157", "#7b5ea7")


@dataclass(frozen=True)
class Film:
    """Frames to be shown one at a time under a slider, with a caption for each."""

    frames: tuple[str, ...]
    captions: tuple[str, ...]
    alt: str


def space_time(samples: Sequence[Trajectory], channel: int = 0) -> str:
    """One map per 1D trajectory: space to the right, time upwards, one colour scale for all."""
    figure = Figure(figsize=(3.1 * len(samples), 2.9), layout="constrained")
    panels = figure.subplots(1, len(samples), squeeze=False)[0]
    limit = _limit([s.values[..., channel] for s in samples])
    for panel, s in zip(panels, samples, strict=True):
        x, t = s.domain.bounds[0], (float(s.times[0]), float(s.times[-1]))
        panel.imshow(
            s.values[..., channel],
            origin="lower",
            aspect="auto",
            extent=(*x, *t),
            vmin=limit[0],
            vmax=limit[1],
            cmap=_map(limit),
        )
        panel.set(title=f"sample {s.id}", xlabel="x")
    panels[0].set_ylabel("t")
    figure.colorbar(panels[0].images[0], ax=panels, label=samples[0].task.channels[channel], shrink=0.9)
    return _png(figure)


def film_lines(samples: Sequence[Trajectory], channel: int = 0, frames: int = 41) -> Film:
    """1D trajectories as moving lines."""
    first = samples[0]
    low, high = _limit([s.values[..., channel] for s in samples])
    pad = 0.05 * (high - low or 1.0)
    shown = _picked(len(first.times), frames)
    figure = Figure(figsize=(7.2, 2.9), dpi=90, layout="constrained")
    panel = figure.subplots()
    panel.set(
        xlim=first.domain.bounds[0], ylim=(low - pad, high + pad), xlabel="x", ylabel=first.task.channels[channel]
    )
    panel.grid(alpha=0.25)
    lines = [
        panel.plot(s.domain.coordinates[0], s.values[0, :, channel], color=colour, label=f"sample {s.id}", lw=1.6)[0]
        for s, colour in zip(samples, ACCENTS, strict=False)
    ]
    panel.legend(loc="upper right", frameon=False, ncols=len(lines), fontsize=8)
    pictures = moving(figure, lines, ([s.values[t, :, channel] for s in samples[: len(lines)]] for t in shown))
    return Film(pictures, _captions(first, shown), f"{first.task.title}: {len(lines)} samples moving in time")


def film_maps(sample: Trajectory, frames: int = 41, size: int = 260) -> Film:
    """A 2D trajectory as colour maps, one per channel, side by side."""
    shown = _picked(len(sample.times), frames)
    scales = [_typical(sample.values[..., c]) for c in range(len(sample.task.channels))]
    maps = [mpl.colormaps[_map(scale)] for scale in scales]
    pictures = []
    for t in shown:
        tiles = []
        for c, (scale, colours) in enumerate(zip(scales, maps, strict=True)):
            unit = (sample.values[t, ..., c] - scale[0]) / (scale[1] - scale[0] or 1.0)
            pixels = (colours(np.flipud(unit.T).clip(0, 1))[..., :3] * 255).astype(np.uint8)
            tiles.append(np.asarray(Image.fromarray(pixels).resize((size, size), Image.Resampling.BICUBIC)))
            tiles.append(np.full((size, 8, 3), 255, np.uint8))
        pictures.append(_uri(Image.fromarray(np.concatenate(tiles[:-1], axis=1))))
    ranges = zip(sample.task.channels, scales, strict=True)
    names = ", ".join(f"{name} ({low:.2g} to {high:.2g})" for name, (low, high) in ranges)
    return Film(tuple(pictures), _captions(sample, shown), f"{sample.task.title}, sample {sample.id}: {names}")


def _picked(total: int, most: int) -> list[int]:
    return sorted({round(i) for i in np.linspace(0, total - 1, min(most, total))})


def _captions(sample: Trajectory, shown: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"t = {float(sample.times[t]):.3g}" for t in shown)


def _limit(arrays: Sequence[Array]) -> tuple[float, float]:
    """A common scale; symmetric around zero where values have both signs."""
    low, high = min(float(a.min()) for a in arrays), max(float(a.max()) for a in arrays)
    return _balanced(low, high)


def _typical(values: Array) -> tuple[float, float]:
    """The scale of most frames: what only a few hold (a noisy start, a spike) may saturate."""
    flat = values.reshape(len(values), -1)
    low, high = np.median(np.quantile(flat, 0.002, axis=1)), np.median(np.quantile(flat, 0.998, axis=1))
    return _balanced(float(low), float(high))


def _balanced(low: float, high: float) -> tuple[float, float]:
    if low < 0 < high:
        high = max(-low, high)
        low = -high
    return low, high


def _map(limit: tuple[float, float]) -> str:
    return "RdBu_r" if limit[0] < 0 < limit[1] else "viridis"


def moving(figure: Figure, lines: Sequence[Line2D], frames: Iterable[Sequence[Array]]) -> tuple[str, ...]:
    """A picture per frame, which gives every line its heights; all that stands still is drawn once."""
    canvas: Any = FigureCanvasAgg(figure)
    for line in lines:
        line.set_animated(True)
    canvas.draw()
    still = canvas.copy_from_bbox(figure.bbox)
    pictures = []
    for heights in frames:
        canvas.restore_region(still)
        for line, y in zip(lines, heights, strict=True):
            line.set_ydata(y)
            assert line.axes is not None
            line.axes.draw_artist(line)
        pictures.append(_uri(Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3]), flat=True))
    return tuple(pictures)


def _png(figure: Figure, dpi: int = 110) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return _encoded(buffer.getvalue())


def _uri(image: Image.Image, *, flat: bool = False) -> str:
    """As PNG with a palette; `flat` is for drawings of a few colours, which the quick way serves as well."""
    buffer = io.BytesIO()
    if flat:
        image.quantize(64, method=Image.Quantize.FASTOCTREE).save(buffer, format="png")
    else:
        image.quantize(128).save(buffer, format="png", optimize=True)
    return _encoded(buffer.getvalue())


def _encoded(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()
