"""Describes how samples of a source differ (grids, boxes, lengths, times), and its task for a user to edit."""

from __future__ import annotations

import dataclasses

import numpy as np

from ups.data import Source
from ups.data.axes import UNEVEN_TIMES
from ups.data.clock import is_even
from ups.definition import Definition, definition_of
from ups.types import Array, counted, few

# Encoders halve a grid this often and more; an axis that does not allow it is padded.
HALVED = 8
# Values of a parameter up to which each is named.
LISTED = 12


def differences(source: Source) -> list[str]:
    """What differs from sample to sample, and grids that cannot be halved three times; none of it is a fault."""
    rows = range(len(source))
    domains = {id(domain): domain for domain in map(source.domain_of, rows)}.values()
    lengths = [len(source.times_of(i)) for i in rows]
    clocks = {id(t): np.asarray(t, np.float64) for t in map(source.times_of, rows)}.values()
    steps = sorted({step for t in clocks if len(t) > 1 and is_even(t) for step in _apart(t)})  # others: a problem
    grids = sorted({domain.shape for domain in domains})
    notes = []
    if len(grids) > 1:
        notes.append(f"the samples have {len(grids)} grids: {few((' × '.join(map(str, grid)) for grid in grids), 6)}")
    if len({domain.bounds for domain in domains}) > 1:
        notes.append("the samples lie in boxes of different sizes or places")
    if len(set(lengths)) > 1:
        notes.append(f"the samples have from {min(lengths)} to {max(lengths)} frames")
    if len(steps) > 1:
        notes.append(f"the time between frames differs from sample to sample, from {steps[0]:g} to {steps[-1]:g}")
    odd = sorted({n for grid in grids for n in grid if n % HALVED and n > 1})
    if odd:
        notes.append(
            f"axes of {few(map(str, odd), 6)} cells are no multiple of {HALVED}; larger patches than fit will pad them"
        )
    return notes


def times_in_words(source: Source) -> list[str]:
    """A line of `data info`: from when to when frames of all samples were taken, and how far apart."""
    rows = {id(t): np.asarray(t, np.float64) for t in map(source.times_of, range(len(source)))}.values()
    long = [t for t in rows if len(t) > 1]
    if not long:
        return []
    ends, steps = [float(t[-1]) for t in long], [step for t in long for step in _apart(t)]
    low, high = min(steps), max(steps)
    apart = f"dt = {low:g}" if low == high else f"dt from {low:g} to {high:g}"
    shortest = "" if _digits(min(ends)) == _digits(max(ends)) else f" (in the shortest to {min(ends):g})"
    return [f"  t from {min(float(t[0]) for t in long):g} to {max(ends):g}{shortest}, {apart}"]


def varying_parameters(source: Source) -> dict[str, str]:
    """The range of each parameter that differs from sample to sample, in words."""
    values: dict[str, dict[float | str, None]] = {}
    for i in range(len(source)) if len(source.params) < len(source.task.parameters) else ():
        for name, value in source.params_of(i).items():
            if name not in source.params:
                values.setdefault(name, {})[value] = None
    return {name: _range(list(distinct)) for name, distinct in values.items()}


def _range(values: list[float | str]) -> str:
    numbers = [value for value in values if not isinstance(value, str)]
    if len(numbers) < len(values):
        return f"among {few(map(str, values), 6)}"
    if len(numbers) <= LISTED:
        return f"among {', '.join(f'{number:.6g}' for number in sorted(numbers))}"
    return f"{len(numbers)} values from {min(numbers):.6g} to {max(numbers):.6g}"


def uneven_times(source: Source) -> list[str]:
    """A note where frames lie at uneven times within samples, unless the reader has said so."""
    if any("t axis is not uniform" in text or UNEVEN_TIMES in text for text in (*source.problems, *source.notes)):
        return []
    uneven = [source.ids[i] for i in range(len(source)) if not is_even(np.asarray(source.times_of(i), np.float64))]
    return [f"{UNEVEN_TIMES} in {len(uneven)} of {counted(len(source), 'sample')}"] if uneven else []


def single_cells(source: Source) -> list[str]:
    """A problem for each axis that has one cell in all samples: along it a network sees nothing."""
    most = np.max([source.domain_of(i).shape for i in range(len(source))], axis=0)
    flat = [name for name, cells in zip(source.task.axes, most, strict=False) if cells == 1]
    if len(flat) == source.task.ndim:
        what = (
            "there is one cell alone, and data without an extent in space, as those of ordinary differential equations"
        )
        return [f"{what}, cannot be learnt by ups"]
    wrong = "has one cell, and nothing can be learnt along it; write the data without it"
    return [f"the axis {name} {wrong}" for name in flat]


def described_task(source: Source, definition: Definition) -> Definition:
    """The task of a source in the user's words. Where axes and arrays lie stays as the user said it, and a box or
    boundary only stands there if all samples share it."""
    whole = definition_of(source.task)
    domains = [source.domain_of(i) for i in range(len(source))]
    boxes, wraps = {domain.bounds for domain in domains}, {domain.periodic for domain in domains}
    periodic = tuple(name for name, flag in zip(source.task.axes, domains[0].periodic, strict=False) if flag)
    return dataclasses.replace(
        whole,
        dims=definition.dims or whole.dims,
        datasets=definition.datasets,
        ignore=definition.ignore,
        bounds=dict(zip(source.task.axes, next(iter(boxes)), strict=False)) if len(boxes) == 1 else {},
        periodic=periodic if periodic and len(wraps) == 1 else None,
        steady=whole.steady or None,
        parameters=definition.parameters,
        dt=definition.dt if definition.dt is not None and _are_apart(source, definition.dt) else None,
    )


def _are_apart(source: Source, dt: float) -> bool:
    """Whether the frames of all samples are `dt` apart, to a thousandth of it."""
    each = {id(times): times for times in map(source.times_of, range(len(source)))}
    return all(bool((np.abs(np.diff(times) - dt) <= 1e-3 * dt).all()) for times in each.values())


def _apart(times: Array) -> tuple[float, ...]:
    """The time between frames: one number where they are even, and else the least and the greatest."""
    if is_even(times):
        return (_digits((times[-1] - times[0]) / (len(times) - 1)),)
    steps = np.diff(times)
    return _digits(steps.min()), _digits(steps.max())


def _digits(step: float) -> float:
    """A step of time without the rounding of float32."""
    return float(f"{step:.5g}")
