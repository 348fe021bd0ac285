"""A few samples of a source that stand for all of them, and the numbers that networks hear of one."""

from __future__ import annotations

from ups.data import Source
from ups.data.digits import FLOAT32_MAX
from ups.tensors import numeric_params


def sampled(source: Source, about: int) -> range:
    """About so many samples, evenly from the first on; all where there are fewer."""
    return range(0, len(source), max(1, len(source) // about))


def known_numbers(source: Source, i: int) -> tuple[float, ...] | None:
    """The parameters of a sample that are numbers in its task; None where it does not say them all, or where one is
    not a number that float32 can hold."""
    params = source.params_of(i)
    values = [params.get(name) for name in numeric_params(source.task)]
    numbers = [float(value) for value in values if isinstance(value, int | float) and abs(value) <= FLOAT32_MAX]
    return tuple(numbers) if len(numbers) == len(values) else None
