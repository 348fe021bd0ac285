"""Refuses data whose cells are no neighbours of each other: meshes, points and particles that are read as a grid."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ups.data.axes import TO_GRID
from ups.data.source import Source
from ups.types import Array, DataError

SAMPLES, FRAMES = 8, 6  # that are looked at, about, and of each
LAGS = (1, 2, 3)  # cells apart
ALIKE, OF_ONE = 0.15, 0.4  # from what any two cells differ by: what such cells differ by in all frames, and in one
FEWEST, EVIDENCE = 8, 256  # cells along an axis, and values in all, of which anything can be said
ORDERED = 0.5  # of what any two cells differ by, under which the cells of another axis lie in order
FAR = 10.0  # times the usual step along a line of points, which none of its steps is longer than
NEAR = 3.0  # times the distance to the nearest point, which the usual step of a line is not longer than
POSITIONS = ("position", "positions", "pos", "coordinates", "coords", "xyz", "xy", "location", "locations")
COORDINATES = ("x", "y", "z", "px", "py", "pz", "lat", "lon", "latitude", "longitude", "xs", "ys", "zs")


def check_neighbours(source: Source) -> None:
    """DataError for data whose cells are in an order that means nothing, so that no cell has neighbours; also where a
    field says that they are particles. Not of an axis whose place is stored, or stated by the task."""
    for field in source.task.fields if source.task.ndim == 1 else ():
        names, several = {c.lower() for c in field.channels}, len(field.channels) > 1
        if several and (field.name.lower() in POSITIONS or names <= {"x", "y", "z"}):
            _check_particles(source, field.name, field.channels)
    if not source.unplaced:
        return
    frames = list(_frames(source))
    axes, samples = source.task.axes[: source.task.ndim], min(SAMPLES, len(source))
    apart = {name: _apart(frames, axis, samples) for axis, name in enumerate(axes)}
    ordered = any(0 < apart[name][0] < ORDERED for name in apart)
    for name in source.unplaced:
        usual, mixed = apart.get(name, (0.0, False))
        if mixed and (source.task.ndim == 1 or ordered):
            n = source.grid.shape[source.task.axes.index(name)]
            raise DataError(
                f"{source.path}: the {n} cells along {name} resemble their neighbours no more than any other cells "
                f"({usual:.2f} of the difference of any two), so it looks like a mesh, points or particles, {TO_GRID}; "
                f"if they do lie side by side, say where: `bounds: {{{name}: [0, 1]}}` in the task."
            )


def is_line(points: Array) -> bool:
    """Whether points `(N, D)` follow each other along a line, as those of a string do: each next one is near."""
    from scipy.spatial import cKDTree

    if len(points) < 3:
        return True
    steps = np.linalg.norm(np.diff(points, axis=0), axis=1)
    nearest = np.asarray(cKDTree(points).query(points, 2)[0])[:, 1]
    usual = float(np.median(steps))
    return bool(steps.max() <= FAR * usual and usual <= NEAR * max(float(np.median(nearest)), 1e-300))


def _check_particles(source: Source, name: str, channels: tuple[str, ...]) -> None:
    """DataError where a field holds positions, and not those of a line."""
    chosen = [source.task.channels.index(c) for c in channels]
    first = source.read(0, slice(0, 1))[0][:, chosen].astype(np.float64)
    if not is_line(first[np.isfinite(first).all(1)]):
        raise DataError(
            f"{source.path}: the field {name} ({', '.join(channels)}) holds positions, so it looks like particles, "
            f"{TO_GRID}; if it is something else, give it another name in `fields`."
        )


def _frames(source: Source) -> Iterator[Array]:
    """Some frames `(*S, C)` of some samples, never the first alone: that one may be random."""
    for i in range(0, len(source), max(1, len(source) // SAMPLES)):
        last = len(source.times_of(i)) - 1
        for k in sorted({round(last * k / FRAMES) for k in range(1, FRAMES + 1)}):
            yield source.read(i, slice(k, k + 1))[0].astype(np.float64)


@np.errstate(over="ignore", invalid="ignore")
def _apart(frames: list[Array], axis: int, samples: int) -> tuple[float, bool]:
    """What neighbours along an axis differ by, in the mean square and as part of what any two cells of a line do (0
    where nothing can be said); and whether that is all of it in all frames, as where the order means nothing."""
    rows: list[list[float]] = []
    most = 0.0  # values of a frame that count, where a few that stand out count alone
    for frame in frames:
        lines = np.moveaxis(frame, axis, 0).reshape(frame.shape[axis], -1, frame.shape[-1])
        finite = np.isfinite(lines)
        n = finite.sum(0)
        mean = np.where(finite, lines, 0).sum(0) / np.maximum(n, 1)
        away = np.where(finite, lines - mean, np.nan) if len(lines) >= FEWEST else lines[:0]
        squares = np.nansum(away**2, 0)
        spread = np.where(n > 1, squares / np.maximum(n - 1, 1), 0).sum(0)
        values = np.nansum(away**2, (0, 1)) ** 2 / np.maximum(np.nansum(away**4, (0, 1)), 1e-300)
        for channel in np.flatnonzero(spread > 0) if len(away) else ():
            each = away[..., channel]
            part = spread[channel] / lines.shape[1]
            rows.append([np.nanmean((each[lag:] - each[:-lag]) ** 2) / (2 * part) for lag in LAGS])
            most = max(most, float(values[channel]))
    if not rows:
        return 0.0, False
    table = np.asarray(rows)
    mean = table.mean(0)
    loose = max(OF_ONE, 4 / np.sqrt(max(most, 1)))
    alike = bool((np.abs(mean - 1) < ALIKE).all() and (np.abs(table - 1) < loose).all())
    return float(mean[0]), alike and most * samples >= EVIDENCE
