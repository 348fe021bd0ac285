"""Divides the trajectories of a source as its config asks, and adds mirror images of all cells for training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ups.data import Source
from ups.data.reduction import Reduction
from ups.data.splits import AS_GIVEN, IN_TIME, PARTS, Split, as_given, given_split, held_out, make_split, parts_of
from ups.data.views import CutInTime, Mirrored
from ups.physics.symmetries import mirrors_of
from ups.run.data.data_config import Between, DataConfig, SplitConfig
from ups.types import Array, ConfigError, Grid, TaskSpec, check_known, counted, same_value

# Parameter sets up to which each of them is in every part of a split.
STRATA = 64
LOOKED_AT = 8  # names, by which it is seen whether files hold the same initial states


def divided(data: DataConfig, source: Source) -> tuple[Source, Split]:
    """The parts of a source as its config asks for them, and the source in which they are."""
    settings, seed = data.split, data.seed
    if settings.time is not None:
        cut = CutInTime(source, settings.time, settings.pieces)
        return cut, given_split(cut.ids, cut.parts, IN_TIME, settings.time, seed)
    if settings.hold_out:
        out = held_aside(settings, source)
        ways = (settings.convention, settings.fractions, seed, starts_of(source, out))
        return source, held_out(source.ids, out, *ways)
    if settings.record is not None:
        return source, Split.load(Path(settings.record), source.ids)
    own = parts_of(source.ids)
    if own is not None and (settings.files or settings == SplitConfig()):
        return source, as_given(source.ids, own, settings.fractions, seed, strata_of(source))
    return source, make_split(source.ids, settings.convention, settings.fractions, seed, strata_of(source))


def with_images(source: Source, split: Split, reduction: Reduction) -> tuple[Source, Split]:
    """A source and its split with mirror images of what is for training, which are for training too: of samples whose
    `reduction` leaves cells out between walls. Of all their cells, for those left have no images among themselves."""
    odd, training = mirrors_of(source.task), set(split.train)
    rows = [row for row, name in enumerate(source.ids) if name in training]
    grids = set(map(source.grid_of, rows))
    picked = {grid for grid in grids if picks_between_walls(reduction, grid, source.task)}
    rows = [row for row in rows if source.grid_of(row) in picked]
    if odd is None or not rows:
        return source, split
    both = Mirrored(source, rows, odd)
    where = {name: part for part in PARTS for name in getattr(split, part)} | dict.fromkeys(both.images, "train")
    used = [name for name in both.ids if name in where]
    return both, given_split(used, where, split.convention, split.fractions, split.seed)


def picks_between_walls(reduction: Reduction, grid: Grid, task: TaskSpec) -> bool:
    """Whether a reduction makes a grid one-sided (see `Grid.one_sided`) that is not so in its file."""
    stored, used = (grid._replace(corner=r.corner(grid, task.bounds)) for r in (Reduction(), reduction))
    return bool(used.one_sided and not stored.one_sided)


def strata_of(source: Source) -> list[object]:
    """A label per sample: its grid, and its parameters where there are few sets of them."""
    params: list[tuple[tuple[str, float | str], ...]] = []
    distinct = set(params)
    for i in range(len(source)):
        params.append(tuple(source.params_of(i).items()))
        distinct.add(params[-1])
        if len(distinct) > STRATA:
            params = [()] * len(source)
            break
    return list(zip(params, (source.grid_of(i).shape for i in range(len(source))), strict=True))


def starts_of(source: Source, out: Sequence[bool]) -> list[str]:
    """What each sample begins from, by name: files that were made from one seed at several parameters hold the same
    initial states under the same names (`FILE/NAME`). Where those that share a name are seen to begin otherwise, each
    sample has a start of its own."""
    names = [name.rpartition("/")[2] for name in source.ids]
    held, others = ({name: row for row, name in enumerate(names) if out[row] is side} for side in (True, False))
    shared = [name for name in held if name in others][:LOOKED_AT]
    return names if any(_begin_alike(source, held[name], others[name]) for name in shared) else list(source.ids)


def _begin_alike(source: Source, one: int, other: int) -> bool:
    """Whether two samples have the same first frame, which a steady task does not have, and the same inputs, where
    there are any: what is driven may begin from rest each time. Cells without a number are alike."""
    pairs: list[tuple[Array, Array]] = []
    if not source.task.steady:
        pairs.append((source.read(one, slice(0, 1)), source.read(other, slice(0, 1))))
    if source.task.given:
        pairs.append((source.inputs(one), source.inputs(other)))
    return bool(pairs) and all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)


def cut_besides(split: Split) -> str:
    """A sentence where the data bring a split that lacks a part, which is cut from what is for training."""
    begin, _, cut = split.convention.partition(", ")
    if begin != AS_GIVEN or not cut:
        return ""
    counts = ", ".join(f"{part} {len(getattr(split, part))}" for part in PARTS)
    return (
        f"the data bring a split without {cut.removesuffix(' cut from train')}, cut from what is for training: {counts}"
    )


def left_out(data: DataConfig, source: Source, split: Split) -> str | None:
    """A sentence on how many samples with held-out values are not tested, as training begins from the same; or None."""
    if not data.split.hold_out:
        return None
    aside = sum(held_aside(data.split, source))
    few = aside - len(split.test)
    if not few:
        return None
    are = "is" if few == 1 else "are"
    return (
        f"{few} of the {counted(aside, 'sample')} that split.hold_out names {are} not tested, because other values are "
        "trained or validated from the same initial states."
    )


def held_aside(settings: SplitConfig, source: Source) -> list[bool]:
    """Which samples have the parameters that are for testing alone; ConfigError for a value that none has."""
    aside = [True] * len(source)
    for name, wanted in settings.hold_out.items():
        check_known("parameter", (name,), [p.name for p in source.task.parameters])
        values = [source.params_of(i).get(name) for i in range(len(source))]
        if isinstance(wanted, Between):
            fits = [isinstance(v, float | int) and wanted.low <= v <= wanted.high for v in values]
        else:
            check_held(name, wanted, values)
            fits = [any(same_value(v, w) for w in wanted) for v in values]
        aside = [a and b for a, b in zip(aside, fits, strict=True)]
    return aside


def check_held(name: str, wanted: Sequence[float | str], values: Sequence[float | str | None]) -> None:
    """ConfigError for the first value to hold out that no sample has, or will have."""
    for value in wanted:
        if not any(same_value(there, value) for there in values):
            raise ConfigError(f"split.hold_out: no sample has {name} = {value}; {_nearest(value, values)}.")


def _nearest(wanted: float | str, values: Sequence[float | str | None]) -> str:
    """The values there are, the nearest first, for a sentence."""
    there = list(dict.fromkeys(v for v in values if v is not None))
    if not isinstance(wanted, str):
        there.sort(key=lambda v: abs(v - wanted) if not isinstance(v, str) else math.inf)
    words = ", ".join(f"{v:.6g}" if not isinstance(v, str) else v for v in there[:4])
    return f"the nearest are {words}" if len(there) > 4 else f"there are {words}"
