"""Estimates how long making the data of a run takes, by solving a few of their samples."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from ups.engine.ranks.dist import device_of
from ups.lazy_imports import torch
from ups.physics import EQUATIONS
from ups.physics.random import Draw
from ups.physics.solver import simulate_each
from ups.progress import reporting
from ups.run.data.data_config import DataConfig, GenerateConfig
from ups.run.data.generate import DTYPES, batch_of
from ups.run.data.params import FileParams, files_of

MOST = 3.0  # seconds spent on a data set
GROWTH = 4  # times as many samples in the next trial


class LateError(Exception):
    """Ends a solution that takes too long to be waited for."""


def making_seconds(data: Mapping[str, DataConfig]) -> float:
    """Seconds for all data sets that a run makes itself."""
    return sum(_seconds(entry.generation()) for entry in data.values() if not entry.there)


def _seconds(config: GenerateConfig) -> float:
    files = files_of(config.params)
    return sum(_file_seconds(config, params, MOST / len(files)) for params in files)


def _file_seconds(config: GenerateConfig, params: FileParams, most: float) -> float:
    """The seconds to make a file, told from a trial of at most about `most` seconds.

    A transient task is tried with its first batch, as far as it comes. A steady one, whose solution says nothing before
    it is there, is tried with more and more samples while that is quick.
    """
    equation = params.equation(EQUATIONS[config.task])
    grid = equation.grid(config.resolution or equation.task.resolution)
    spec, frames = equation.spec(), len(equation.times()[: config.frames])
    batch = batch_of(config, frames, grid, len(spec.channels), device_of(config.device))
    if not spec.steady:
        return trial_of(config, params, batch, most) * config.samples / batch
    end, trials, size = time.monotonic() + most, list[tuple[int, float]](), min(2, batch)
    while True:
        seconds = trial_of(config, params, size, most)
        trials.append((size, seconds))
        if size == batch or time.monotonic() + GROWTH * seconds > end:
            return extrapolated(trials, config.samples)
        size = min(batch, GROWTH * size)


def extrapolated(trials: Sequence[tuple[int, float]], samples: int) -> float:
    """Seconds for so many samples, given the seconds of a few sizes: in a straight line through the last two, so that
    what is paid once is not paid for each."""
    size, seconds = trials[-1]
    if len(trials) > 1:
        before, less = trials[-2]
        if seconds > less:
            return seconds + (seconds - less) / (size - before) * (samples - size)
    return seconds / size * samples


def trial_of(config: GenerateConfig, params: FileParams, size: int, most: float) -> float:
    """The seconds that the first `size` samples take; after `most` of them, judged from how far their solution is."""
    kind, scheme = EQUATIONS[config.task], config.scheme or EQUATIONS[config.task].schemes[0]
    equation = params.equation(kind)
    grid = equation.grid(config.resolution or equation.task.resolution)
    dtype = getattr(torch, config.dtype or DTYPES[scheme])
    draw = Draw(config.seed, range(size), device_of(config.device), dtype)
    drawn = params.drawn(config.seed, range(size))
    rows = [{**params.shared, **{name: float(values[i]) for name, values in drawn.items()}} for i in range(size)]
    times, began = equation.times()[: config.frames], time.monotonic()
    readings: list[tuple[float, float]] = []  # (share of the solution, seconds)

    def look(share: float) -> None:
        readings.append((share, time.monotonic() - began))
        if readings[-1][1] > most and len(readings) > 2:
            raise LateError

    try:
        with reporting(look):
            if params.ranges:
                simulate_each(kind, rows, draw, grid, times, scheme)
            else:
                equation.simulate(draw, grid, times, scheme)
        if draw.device.type == "cuda":
            torch.cuda.synchronize(draw.device)
    except LateError:
        return whole_of(readings)
    return time.monotonic() - began


def whole_of(readings: Sequence[tuple[float, float]]) -> float:
    """The seconds of a whole solution, from those of its first shares; the first pays for what is made once."""
    (start, first), (share, seconds) = readings[0], readings[-1]
    return first + (seconds - first) / (share - start) * (1 - start)
