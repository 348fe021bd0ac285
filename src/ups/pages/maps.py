"""Draws maps of fields with axes and colour bars: the frame of a map once, then the field of each time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ups.pages.drawing import GREYS, INK, LEVELS, MAPS, WHITE, colour_map, library, map_picture, tile
from ups.types import Array

Bounds = tuple[tuple[float, float], tuple[float, float]]
LEFT, TOP, BOTTOM, GAP = 46, 20, 36, 22  # pixels around the maps, and between two of them
BAR, BESIDE, NUMBERS = 10, 6, 46  # width of a colour bar, pixels before it, and those for its numbers
DPI = 100
TALLEST = 1.5  # times as high as wide; a box beyond that, or as flat, is squeezed


@dataclass(frozen=True)
class Panel:
    """One map: what is written above it, its scale, and whether a colour bar stands to its right."""

    title: str
    scale: tuple[float, float]
    bar: bool = True


class Board:
    """Rows of maps of one box `bounds`, each row with the same columns; `size` is the width of a map in pixels."""

    def __init__(self, rows: Sequence[Sequence[Panel]], bounds: Bounds, size: int, axes: Sequence[str] = "xy") -> None:
        (x, y), self.rows, self.size = bounds, rows, size
        ratio = (y[1] - y[0]) / (x[1] - x[0])
        self.height = round(size * min(max(ratio, 1 / TALLEST), TALLEST))
        columns = [max((row[c].bar for row in rows), default=False) for c in range(len(rows[0]))]
        widths = [size + (BESIDE + BAR + NUMBERS if bar else 0) + GAP for bar in columns]
        self.lefts = [LEFT + sum(widths[:c]) for c in range(len(columns))]
        self.tops = [TOP + r * (self.height + TOP + BESIDE) for r in range(len(rows))]
        self.shape = (self.tops[-1] + self.height + BOTTOM, LEFT + sum(widths))
        self.still = self._still(bounds, axes)

    def picture(self, fields: Sequence[Sequence[Array]], mask: Array | None = None) -> str:
        """The maps of one frame: a field `(X, Y)` for each panel; cells in which `mask` is false are grey."""
        places = self.still.copy()
        for top, panels, row in zip(self.tops, self.rows, fields, strict=True):
            for left, panel, field in zip(self.lefts, panels, row, strict=True):
                square = tile(field, panel.scale, self.size, mask, self.height)
                places[top : top + self.height, left : left + self.size] = square
        return map_picture(places)

    def _still(self, bounds: Bounds, axes: Sequence[str]) -> Array:
        """Axes, titles and colour bars, as places in the palette."""
        high, wide = self.shape
        figure = library("figure").Figure(figsize=(wide / DPI, high / DPI), dpi=DPI)
        bars = []
        for r, (top, panels) in enumerate(zip(self.tops, self.rows, strict=True)):
            for c, (left, panel) in enumerate(zip(self.lefts, panels, strict=True)):
                axis = self._axes(figure, left, top, self.size)
                axis.set(xlim=bounds[0], ylim=bounds[1])
                axis.set_title(panel.title, fontsize=9, pad=4)
                axis.set(xlabel=axes[0] if r == len(self.rows) - 1 else "", ylabel=axes[1] if c == 0 else "")
                axis.tick_params(labelbottom=r == len(self.rows) - 1, labelleft=c == 0)
                if panel.bar:
                    at = left + self.size + BESIDE
                    bars.append((top, at, panel.scale))
                    bar = self._axes(figure, at, top, BAR)
                    bar.set(xticks=[], ylim=_ends(panel.scale))
                    bar.yaxis.tick_right()
        canvas = library("backends.backend_agg").FigureCanvasAgg(figure)
        canvas.draw()
        grey = np.asarray(canvas.buffer_rgba())[..., :3].mean(-1)
        places: Array = (WHITE + 1 - GREYS + grey // (256 // GREYS)).astype(np.uint8)
        for top, left, scale in bars:
            ramp = np.linspace(LEVELS - 1, 0, self.height).round() + LEVELS * MAPS.index(colour_map(scale))
            places[top : top + self.height, left : left + BAR] = ramp.astype(np.uint8)[:, None]
        return places

    def _axes(self, figure: Any, left: int, top: int, width: int) -> Any:
        high, wide = self.shape
        place = (left / wide, 1 - (top + self.height) / high, width / wide, self.height / high)
        axes = figure.add_axes(place, facecolor="none")
        axes.tick_params(labelsize=7, length=3, colors=INK)
        for label in (axes.xaxis.label, axes.yaxis.label):
            label.set_size(8)
        axes.locator_params(nbins=5)
        return axes


def _ends(scale: tuple[float, float]) -> tuple[float, float]:
    """A scale that has a length."""
    low, high = scale
    return (low, high) if high > low else (low, low + (abs(low) or 1.0))
