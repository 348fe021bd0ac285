"""Makes a grid and times of the coordinates that a file holds: checks them, finds the box, replaces missing ones."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from ups.data.source import Remarks, is_uniform
from ups.definition import TIME
from ups.types import Array, DataError, Grid

Box = tuple[float, float]
# The end of a sentence that refuses a mesh, points or particles.
TO_GRID = (
    "which is read where an array `points` says in a row for each where they lie; particles, which move, are not: "
    "interpolate their fields to a uniform grid"
)
UNITS = {"Y": "years", "M": "months", "W": "weeks", "D": "days", "h": "hours", "m": "minutes", "s": "seconds"}
UNITS |= {"ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds", "ps": "picoseconds"}
# Parts of notes by which others find them: they deserve a look before anything is trained.
FALLS, NO_TIMES = "falls as it is stored, and is read from low to high", "no times are stored"
CONTRADICTED = "but the stored times are otherwise apart, and they hold"
UNEVEN_TIMES = "the times are not uniform"
UNEVEN = re.compile(r"the (\S+) axis is not uniform \(")


def space_axis(name: str, stored: Array, remarks: Remarks, where: Path) -> tuple[Array, bool]:
    """The coordinates of an axis of space in increasing order, and whether they are stored in decreasing order.

    Args:
        name: The axis.
        stored: What the file holds, `(n,)`.
        remarks: Gets a problem where the axis is not uniform.
        where: The file, for errors.

    Raises:
        DataError: They neither increase nor decrease throughout, or are not finite.
    """
    axis = np.asarray(stored, np.float64)
    if not np.isfinite(axis).all() or (len(axis) > 1 and not ((d := np.diff(axis)) > 0).all() and not (d < 0).all()):
        raise DataError(
            f"{where}: the coordinates {name} neither increase nor decrease throughout, so it looks like a mesh, "
            f"points or particles, {TO_GRID}; if they should, mend the file."
        )
    note_uneven(name, stored if stored.dtype.kind == "f" else axis, remarks)
    downwards = len(axis) > 1 and axis[0] > axis[-1]
    return (axis[::-1].copy(), True) if downwards else (axis, False)


def says_where(stored: Array | None) -> bool:
    """Whether coordinates are more than the numbers of cells, 0, 1, 2 … or 1, 2, 3 …; False for None."""
    if stored is None:
        return False
    return not any(np.array_equal(stored, np.arange(first, first + len(stored))) for first in (0, 1))


def read_words(name: str, words: Array, remarks: Remarks, where: Path) -> Array:
    """Coordinates that are stored as text: numbers, or for time dates as in ISO 8601, counted in the smallest unit that
    they name. DataError for other words."""
    text = np.char.strip(np.asarray([w.decode() if isinstance(w, bytes) else str(w) for w in words.flat], str))
    text = text.reshape(words.shape)
    with suppress(ValueError):
        return text.astype(np.float64)
    if name == TIME:
        with suppress(ValueError):
            days = np.char.rstrip(text, "Z").astype("datetime64")
            unit = np.datetime_data(days.dtype)[0]
            remarks.notes.append(f"the times are dates, which are counted in {UNITS.get(unit, unit)}")
            return dates_as_numbers(days)
    dates = " or as dates such as 2001-01-31T06:00" if name == TIME else ""
    raise DataError(
        f"{where}: the coordinates {name} are words, such as '{text.flat[0]}'; write them as numbers{dates}."
    )


def dates_as_numbers(dates: Array) -> Array:
    """numpy's dates as numbers in their own unit; NaN for NaT."""
    return np.where(np.isnat(dates), np.nan, dates.astype(np.float64))


def note_uneven(name: str, stored: Array, remarks: Remarks) -> None:
    """Add a problem to `remarks` if the cells along an axis differ in width."""
    if len(stored) > 2 and not is_uniform(stored):
        widths = np.abs(np.diff(stored.astype(np.float64)))
        remarks.problems.append(
            f"the {name} axis is not uniform (steps from {widths.min():.4g} to {widths.max():.4g}); "
            "`ups data import --resample` puts it on a uniform one"
        )


def uneven_axes(problems: Iterable[str]) -> list[str]:
    """The axes of space of which `note_uneven` has written a problem."""
    return [match.group(1) for text in problems if (match := UNEVEN.search(text))]


def bounds_of(axis: Array) -> Box:
    """Where the box of an axis begins and ends, told from the centres of its cells.

    Of a uniform axis half a cell beyond the outermost centres, rounded as float32 is; of an uneven one the outermost
    centres. A single cell is taken to be 1 wide.
    """
    lo, hi = float(axis.min()), float(axis.max())
    if len(axis) == 1:
        return lo - 0.5, hi + 0.5
    if not is_uniform(axis.astype(np.float32)):
        return lo, hi
    step = (hi - lo) / (len(axis) - 1)
    if not 0 < step * len(axis) < math.inf:
        return lo, hi
    digits = 6 - math.floor(math.log10(step * len(axis)))
    # Adding 0 makes −0 a 0.
    return round(lo - step / 2, digits) + 0.0, round(hi + step / 2, digits) + 0.0


def box_without_coordinates(names: tuple[str, ...], shape: tuple[int, ...], given: Mapping[str, Box]) -> list[Box]:
    """The ends of each axis: those `given`; others begin at 0, with cells as wide as those given, or else such that
    the longest axis ends at 1."""
    known = [(hi - lo) / n for name, n in zip(names, shape, strict=True) for lo, hi in [given.get(name, (0.0, 0.0))]]
    width = next((w for w in known if w > 0), 1 / max(shape))
    return [given.get(name, (0.0, width * n)) for name, n in zip(names, shape, strict=True)]


def grid_and_flips(
    names: tuple[str, ...],
    shape: tuple[int, ...],
    stored: Mapping[str, Array],
    given: Mapping[str, Box],
    remarks: Remarks,
    where: Path,
) -> tuple[Grid, frozenset[str]]:
    """The grid of an array, and the axes that are stored from high to low.

    Args:
        names: The axes.
        shape: How many cells each has.
        stored: Coordinates by axis, where the file has them.
        given: Ends of the box by axis, where the user gives them.
        remarks: Gets notes and problems.
        where: The file, for errors.

    Returns:
        The grid, no axis of which is taken to wrap, and the axes along which values must be flipped.

    Raises:
        DataError: Coordinates neither increase nor decrease.
    """
    boxes = box_without_coordinates(names, shape, given)
    axes, bounds, flipped = [], [], set[str]()
    for name, n, box in zip(names, shape, boxes, strict=True):
        if name in stored:
            axis, downwards = space_axis(name, stored[name], remarks, where)
            if downwards:
                flipped.add(name)
                remarks.notes.append(f"{name} {FALLS}: arrays that are given to a simulator run the same way")
            box = given.get(name) or bounds_of(axis)
        else:
            axis = box[0] + (np.arange(n) + 0.5) * ((box[1] - box[0]) / n)
            if name not in given:
                remarks.notes.append(f"no coordinates of {name} are stored; it is taken to go from 0 to {box[1]:.6g}")
        axes.append(axis)
        bounds.append(box)
    return Grid.along(tuple(axes), (False,) * len(names), tuple(bounds)), frozenset(flipped)


def spacing(
    clock: Array | None, file_dt: Array | float | None, task_dt: float | None, remarks: Remarks
) -> Array | float | None:
    """The time between frames: as the task says, or else as a stored `dt` says; None where neither does.

    Args:
        clock: The stored times, if there are any. They are used before both, so they are only compared here.
        file_dt: The stored `dt`, one number or one per sample.
        task_dt: What the task says.
        remarks: Gets a note where two of these contradict each other.
    """
    steps_stored = None if file_dt is None else np.atleast_1d(file_dt)
    if clock is not None:
        steps = np.diff(np.atleast_2d(clock).astype(np.float64))
        rounding = 4 * np.finfo(clock.dtype if clock.dtype.kind == "f" else "f8").eps * float(np.abs(clock).max())
        if task_dt is not None and not _agree(steps, np.asarray(task_dt), rounding):
            remarks.notes.append(f"the task says dt = {task_dt:g}, {CONTRADICTED}")
        if steps_stored is not None and not _agree(steps, steps_stored[:, None], rounding):
            remarks.notes.append(f"a dt is stored, {CONTRADICTED}")
    elif task_dt is not None and steps_stored is not None and not _agree(steps_stored, np.asarray(task_dt)):
        remarks.notes.append(f"another dt is stored than the task says, which holds: dt = {task_dt:g}")
    return steps_stored if task_dt is None else task_dt


def _agree(steps: Array, dt: Array, rounding: float = 0.0) -> bool:
    """Whether all steps are `dt`, to a thousandth of it and `rounding`."""
    return bool((np.abs(steps - dt) <= 1e-3 * np.abs(dt) + rounding).all())


def times_of(frames: int, stored: Array | None, dt: float | Array | None, remarks: Remarks, where: Path) -> Array:
    """The times of frames, `(T,)`, or `(N, T)` where samples differ: those stored, or else `dt` apart, or else 1 apart.

    Args:
        frames: T.
        stored: The stored times, if there are any.
        dt: The time between frames, one number or one per sample.
        remarks: Gets a note where times are missing or not uniform.
        where: The file, for errors.

    Raises:
        DataError: A time is not finite, or times do not increase.
    """
    if stored is None and isinstance(dt, np.ndarray):
        stored = np.arange(frames) * dt[:, None] if len(dt) > 1 else np.arange(frames) * dt[0]
    if stored is None:
        if dt is None and frames > 1:
            remarks.notes.append(f"{NO_TIMES}; frames are taken to be 1 apart (`dt` in the task says otherwise)")
        return np.arange(frames) * float(1.0 if dt is None else dt)
    times = np.asarray(stored, np.float64)
    if not np.isfinite(times).all():
        raise DataError(f"{where}: a time is missing or not finite (NaN, NaT or infinite); mend the file.")
    if not (np.diff(times, axis=-1) > 0).all():
        raise DataError(f"{where}: the times do not increase from frame to frame; check the file.")
    rows = np.atleast_2d(stored if stored.dtype.kind == "f" else times)
    uneven = [i for i, row in enumerate(rows) if frames > 2 and not is_uniform(row)]
    if uneven:
        which = f" in {len(uneven)} of {len(rows)} samples" if len(rows) > 1 else ""
        remarks.notes.append(f"{UNEVEN_TIMES}{which}, and each step is learnt with its own length")
    return times
