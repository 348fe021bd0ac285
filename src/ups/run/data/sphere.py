"""Recognises latitude and longitude among the axes of data, and says what a sphere is taken for."""

from __future__ import annotations

import math

from ups.data import Source

NAMES = (
    {"lat", "latitude", "lats", "nav_lat", "theta", "colatitude"},
    {"lon", "long", "longitude", "lons", "nav_lon", "phi"},
)
ANGLES = {"theta", "phi", "colatitude"}  # which may be those of another shape, unless they span all of a sphere
NEAR = 0.25  # of a cell, by which what spans the circle may miss it
WIDE = 10  # degrees of latitude over which the areas of cells differ enough to speak of them


def wrapping_already(source: Source) -> tuple[str, ...]:
    """The axes that wrap by what is said of them."""
    return tuple(name for name, wraps in zip(source.task.axes, source.grid.periodic, strict=False) if wraps)


class Sphere:
    """The axes of a source that are latitude and longitude; `there` is false where it has no such."""

    def __init__(self, source: Source) -> None:
        task, grid = source.task, source.grid
        axes = [name.lower() for name in task.axes[: task.ndim]]
        places = [[i for i, name in enumerate(axes) if name in names] for names in NAMES]
        self.there = not task.equation and [len(each) for each in places] == [1, 1]
        if not self.there:
            return
        lat, lon = (each[0] for each in places)
        self.lat, self.lon, self.wraps = task.axes[lat], task.axes[lon], grid.periodic[lon]
        (low, high), span = grid.bounds[lat], grid.lengths[lon]
        size, step = high - low, (high - low) / grid.shape[lat]
        degrees = size > 1.1 * math.pi or span > 2.2 * math.pi
        circle, cell = 360.0 if degrees else 2 * math.pi, span / grid.shape[lon]
        self.around = abs(span - circle) < NEAR * cell
        self.twice = abs(span - circle - cell) < NEAR * cell
        starts = (-circle / 4, 0.0) if axes[lat] in ANGLES else (-circle / 4,)
        start = min(starts, key=lambda here: abs(low - here))
        self.poles = min(abs(low - start), abs(start + circle / 2 - high)) < step
        inside = start - step < low and high < start + circle / 2 + step and span < circle + 2 * cell
        whole = self.poles and (self.around or self.twice)
        wide = degrees and size > WIDE
        self.there = inside and (whole if {axes[lat], axes[lon]} & ANGLES else whole or self.around or wide)

    @property
    def unsaid(self) -> tuple[str, ...]:
        """The longitude, where it goes once around and nobody says that it wraps."""
        return (self.lon,) if self.there and self.around and not self.wraps else ()

    def words(self, written: bool = False) -> list[str]:
        """What there is to say of it, in a sentence. `written`: the task of a config will say that it wraps."""
        if not self.there:
            return []
        around = ""
        if self.wraps or (written and self.unsaid):
            around = f"{self.lon} wraps{' (`periodic` in the config)' if not self.wraps else ''}, "
        elif self.around:
            around = f"{self.lon} goes once around, so write `periodic: [{self.lon}]` into the task; "
        elif self.twice:
            around = f"{self.lon} has its first meridian twice, so leave the last one out and then write `periodic: "
            around += f"[{self.lon}]` into the task; "
        poles = "the poles are taken for edges of a box, and " if self.poles else ""
        return [
            f"{self.lat} and {self.lon} lie on a sphere: {around}{poles}every cell counts alike in errors and laws, "
            "whatever its area"
        ]
