"""What pictures are made of: scales, colours, moving lines, tiles of a field, PNG as `data:` URIs."""

from __future__ import annotations

import base64
import importlib
import io
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from ups.types import Array

INK, ACCENTS = "#1d2733", ("#0b6e99", "#c8553d", "#588157", "#7b5ea7")
# Lines of a chart, as many as can be told from each other.
LINES = (*ACCENTS, "#d99a2b", "#2a9d8f", "#8c564b", "#d977b2", "#7f7f7f", "#1f4e79", "#9aa51e", "#6b1d1d")
# A map is drawn in colours of one palette: so many of each colour map, then greys from black to white.
MAPS, LEVELS, GREYS = ("viridis", "RdBu_r"), 120, 16
WHITE = LEVELS * len(MAPS) + GREYS - 1
NOTHING, NOTHING_COLOUR = WHITE - 4, "#bbbbbb"  # grey, for cells that do not count
QUICK = 4  # of zlib's nine levels: half the time of the usual six, a tenth larger


def library(module: str = "") -> Any:
    """matplotlib, or a module of it, imported when something is drawn: most commands draw nothing."""
    return importlib.import_module(f"matplotlib.{module}" if module else "matplotlib")


class Band(NamedTuple):
    """What lies between two lines over `x`, each `(X,)`."""

    x: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Film:
    """Frames to be shown one at a time under a slider, with a caption for each; it opens at frame `start`."""

    frames: tuple[str, ...]
    captions: tuple[str, ...]
    alt: str
    start: int = 0


def picked(total: int, most: int) -> list[int]:
    """At most so many of `total` frames, evenly spread, the first and the last among them."""
    return sorted({round(i) for i in np.linspace(0, total - 1, min(most, total))})


def opening(field: Array, shown: Sequence[int]) -> int:
    """The place among the frames `shown` at which a film of a `field (T, *S)` opens: the first that varies at least
    half as much in space as any other. Only what is larger than a sixteenth of an axis counts: a start may be noise."""
    coarse = np.asarray(field, np.float64)[list(shown)]
    for axis in range(1, coarse.ndim):
        cells = coarse.shape[axis] // (block := max(1, coarse.shape[axis] // 16)) * block
        cut = np.take(coarse, range(cells), axis).reshape(*coarse.shape[:axis], -1, block, *coarse.shape[axis + 1 :])
        coarse = cut.mean(axis + 1)
    flat = coarse.reshape(len(shown), -1)
    seen = np.isfinite(flat)
    means = np.where(seen, flat, 0.0).sum(1) / np.maximum(seen.sum(1), 1)
    spread = np.where(seen, (flat - means[:, None]) ** 2, 0.0).sum(1)
    return int(np.argmax(spread >= 0.25 * spread.max()))


def captions(times: Array, shown: Sequence[int]) -> tuple[str, ...]:
    """The time of each frame."""
    return tuple(f"t = {float(times[t]):.3g}" for t in shown)


def balanced(low: float, high: float) -> tuple[float, float]:
    """A scale that is symmetric around zero where values have both signs."""
    if low < 0 < high:
        high = max(-low, high)
        low = -high
    return low, high


def colour_map(scale: tuple[float, float]) -> str:
    """Two colours around zero where a scale has both signs."""
    return "RdBu_r" if scale[0] < 0 < scale[1] else "viridis"


def drawn(figure: Any) -> Any:
    """The canvas of a figure, with everything on it."""
    canvas = library("backends.backend_agg").FigureCanvasAgg(figure)
    canvas.draw()
    return canvas


def moving(figure: Any, artists: Sequence[Any], frames: Iterable[Sequence[Array | Band]]) -> tuple[str, ...]:
    """A picture per frame, which gives every line its heights, and every band its ends; all that stands still is drawn
    once."""
    for artist in artists:
        artist.set_animated(True)
    canvas = drawn(figure)
    still = canvas.copy_from_bbox(figure.bbox)
    pictures = []
    for heights in frames:
        canvas.restore_region(still)
        for artist, y in zip(artists, heights, strict=True):
            if isinstance(y, Band):
                artist.set_data(y.x, y.low, y.high)
            else:
                artist.set_ydata(y)
            artist.axes.draw_artist(artist)
        pictures.append(_few_colours(canvas))
    return tuple(pictures)


def png(figure: Any) -> str:
    """A figure in all of its colours."""
    return _uri(Image.fromarray(np.asarray(drawn(figure).buffer_rgba())[..., :3]))


def drawing(figure: Any) -> str:
    """A figure that has no colours but shades of `INK` and `ACCENTS`: smaller than `png`, and sooner made."""
    return _few_colours(drawn(figure))


def tile(values: Array, scale: tuple[float, float], size: int, mask: Array | None, height: int) -> Array:
    """A field `(X, Y)` as places in the palette, `(height, size)`, y upwards; nan is drawn as the largest value, and
    cells in which `mask` is false in grey."""
    unit = (np.nan_to_num(values, nan=scale[1]) - scale[0]) / (scale[1] - scale[0] or 1.0)
    small = Image.fromarray(np.flipud(unit.T).clip(0, 1).astype(np.float32))
    large = np.asarray(small.resize((size, height), Image.Resampling.BICUBIC)).clip(0, 1)
    places = np.asarray(LEVELS * MAPS.index(colour_map(scale)) + (large * (LEVELS - 1) + 0.5), np.uint8)
    if mask is None:
        return places
    cells = Image.fromarray(np.flipud(np.asarray(mask, bool).T).astype(np.uint8))
    return np.where(np.asarray(cells.resize((size, height), Image.Resampling.NEAREST)) > 0, places, np.uint8(NOTHING))


def shade(panel: Any, x: Array, mask: Array | None) -> None:
    """Grey behind the places `x (X,)` of a line's panel that do not count."""
    if mask is not None and not mask.all():
        half = (x[-1] - x[0]) / (len(x) - 1) / 2
        for at in x[~np.asarray(mask, bool)]:
            panel.axvspan(at - half, at + half, color=NOTHING_COLOUR, lw=0, zorder=0)


def masked(values: Array, mask: Array | None) -> Array:
    """`(T, *S)` with nan in the cells that do not count."""
    return values if mask is None else np.where(mask, values, np.nan)


def map_picture(places: Array) -> str:
    """A picture given as places in the palette."""
    image = Image.fromarray(places)
    image.putpalette(_palette())
    return _uri(image)


@cache
def _palette() -> bytes:
    unit = np.linspace(0, 1, LEVELS)
    colours = [library().colormaps[name](unit)[:, :3] for name in MAPS]
    colours.append(np.linspace(0, 1, GREYS)[:, None].repeat(3, 1))
    return (np.concatenate(colours) * 255).astype(np.uint8).tobytes()


def _few_colours(canvas: Any) -> str:
    """What is drawn on a canvas, each pixel in the nearest colour of a small palette; no palette has to be sought."""
    pixels = np.asarray(canvas.buffer_rgba()).view("<u4")[..., 0]
    places, palette = _shades()
    # The upper five bits of red, green and blue.
    image = Image.fromarray(places[(pixels & 0xF8) << 7 | (pixels >> 6) & 0x3E0 | (pixels >> 19) & 0x1F])
    image.putpalette(palette)
    return _uri(image)


@cache
def _shades() -> tuple[Array, bytes]:
    """The nearest place in a palette for every colour of 15 bits, and that palette: mixtures of drawn colours."""
    bases = [np.array(library("colors").to_rgb(colour)) for colour in ("black", INK, *ACCENTS)]
    mixed = [(a + b) / 2 for a, b in itertools.combinations(bases[1:], 2)]
    colours = [1 - t * (1 - base) for base in bases for t in np.linspace(0, 1, 18)]
    colours += [1 - t * (1 - base) for base in mixed for t in np.linspace(0.1, 1, 9)]
    palette = np.array(colours) * 255
    steps = np.arange(32) * 255 / 31
    cube = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), -1).reshape(-1, 3)
    distance = (palette**2).sum(1) - 2 * cube @ palette.T
    return distance.argmin(1).astype(np.uint8), palette.round().astype(np.uint8).tobytes()


def _uri(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, format="png", compress_level=QUICK)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
