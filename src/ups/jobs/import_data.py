"""Any data that can be read, written as a data set of The Well with its splits and statistics."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ups.data import Source
from ups.data.axes import uneven_axes
from ups.data.neighbours import check_neighbours
from ups.data.resample import Resampled
from ups.data.splits import FRACTIONS, PARTS, make_split, parts_of
from ups.data.views import CutInTime
from ups.data.write_well import write_data_set
from ups.definition import Definition
from ups.progress import OnProgress, Progress
from ups.run.data.datasets import open_files
from ups.run.data.doubts import lost_digits, question
from ups.types import ConfigError, DataError, counted

TOO_FEW = "too few trajectories to divide: each is cut in time, its past for training"


def import_data(
    paths: Sequence[Path],
    definition: Definition,
    out: Path,
    report: OnProgress,
    *,
    name: str = "",
    fractions: tuple[float, float, float] | None = None,
    resample: bool = False,
    overwrite: bool = False,
) -> tuple[Path, list[str]]:
    """Write the samples of `paths` to a data set in `out`; its path, and what is worth saying.

    A split that the data bring is kept unless `fractions` ask for another. One or two trajectories are cut in time.
    """
    with open_files([str(path) for path in paths], definition) as source:
        remarks: list[str] = []
        if resample:
            source, error = _resampled(source)
            remarks.append(f"resampled to uniform axes; back on its own axes it differs by {error:.1e} of its size")
        if uneven := uneven_axes(source.problems):
            raise DataError(f"{source.path}: the cells along {', '.join(uneven)} are not equally wide; add --resample.")
        check_neighbours(source)
        if source.task.domain != "grid":
            raise DataError(f"{source.path}: a data set of The Well has a grid, and {source.grid.words} are none.")
        for words in question([source]):
            raise ConfigError(f"{source.path}: {words}.")
        if too_few_to_divide(source):
            source, parts = cut_in_time(source, fractions or FRACTIONS)
            remarks.append(TOO_FEW)
        else:
            parts = _split(source, fractions)
        remarks.append(", ".join(f"{part} {len(ids)}" for part, ids in parts.items()))
        remarks += [f"PROBLEM: {problem}" for problem in (*source.problems, *lost_digits(source))]
        label = _checked(name or source.task.name)
        path = write_data_set(
            *(source, out, label, parts, overwrite),
            lambda done, total: report(Progress(done, total, label)),
        )
    return path, remarks


def _resampled(source: Source) -> tuple[Source, float]:
    resampled = Resampled(source)
    return resampled, resampled.error()


def too_few_to_divide(source: Source) -> bool:
    """Whether there are not enough trajectories for each part to have one, and nothing says which part they are of."""
    return len(source) < len(PARTS) and parts_of(source.ids) is None and not source.task.steady


def cut_in_time(source: Source, fractions: tuple[float, float, float]) -> tuple[Source, Mapping[str, Sequence[str]]]:
    """The past, what comes after it and the future of each trajectory, as trajectories of their own."""
    cut = CutInTime(source, fractions)
    parts = {part: [name for name in cut.ids if cut.parts[name] == part] for part in PARTS}
    for part, share in zip(PARTS, fractions, strict=True):
        rows = [row for row, name in enumerate(cut.ids) if cut.parts[name] == part]
        if share > 0 and (not rows or min(len(cut.times_of(row)) for row in rows) < 2):
            raise DataError(
                f"{source.path}: {counted(len(source), 'trajectory')} of {counted(min(source.lengths()), 'frame')} can "
                f"be divided neither as they are nor in time, for {part} would have no two frames; give {len(PARTS)} "
                f"trajectories, or {math.ceil(2 / share)} frames."
            )
    return cut, {part: ids for part, ids in parts.items() if ids}


def _split(source: Source, fractions: tuple[float, float, float] | None) -> Mapping[str, Sequence[str]]:
    """The split that the ids state, `train/…`; otherwise a seeded one in which every part has all parameters."""
    own = parts_of(source.ids)
    if fractions is None and own is not None:
        return {part: ids for part in PARTS if (ids := [name for name in source.ids if own[name] == part])}
    strata = [tuple(sorted(source.params_of(i).items())) for i in range(len(source))]
    split = make_split(source.ids, "seeded", fractions or FRACTIONS, strata=strata)
    return {part: ids for part in PARTS if (ids := getattr(split, part))}


def _checked(name: str) -> str:
    if not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
        raise ConfigError(f"'{name}' cannot be the name of a data set; choose letters, digits, _ and - with --name.")
    return name


def with_parameters(definition: Definition, params: Mapping[str, float | str]) -> Definition:
    """The definition with further parameters that hold for every sample."""
    return dataclasses.replace(definition, parameters={**definition.parameters, **params})
