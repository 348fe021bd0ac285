"""Pictures of predictions: curves with intervals, and films of truth, prediction and error."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ups.pages.drawing import (
    ACCENTS,
    INK,
    LINES,
    Band,
    Film,
    balanced,
    captions,
    drawing,
    library,
    masked,
    moving,
    opening,
    picked,
    shade,
)
from ups.pages.maps import Board, Bounds, Panel
from ups.types import Array

UNIT: Bounds = ((0.0, 1.0), (0.0, 1.0))


@dataclass(frozen=True)
class Curve:
    """A line of a chart; `low` and `high` bound a shaded band. Dashed ones are references: they have no
    colour, and dashes of their own."""

    label: str
    x: Array
    y: Array
    low: Array | None = None
    high: Array | None = None
    dashed: bool = False


def chart(curves: Sequence[Curve], xlabel: str, ylabel: str, log_x: bool = False, log_y: bool = True) -> str:
    """Curves on a logarithmic vertical axis; what is not finite or not positive leaves a gap. `log_y=False`: on a plain
    axis from 0."""
    figure = library("figure").Figure(figsize=(7.2, 3.1), dpi=132)
    panel = figure.add_axes((0.115, 0.16, 0.87, 0.81))  # a layout that is computed takes longer than the drawing
    panel.set(xlabel=xlabel, ylabel=ylabel, yscale="log" if log_y else "linear", xscale="log" if log_x else "linear")
    colours, dashes = itertools.cycle(LINES), itertools.cycle(("--", ":", "-."))
    for curve in curves:
        colour, style = (INK, next(dashes)) if curve.dashed else (next(colours), "-")
        y = _positive(curve.y) if log_y else curve.y
        # A point between two gaps has no line to be seen by.
        panel.plot(curve.x, y, style, color=colour, lw=1.6, marker=".", ms=4, label=curve.label)
        if curve.low is not None and curve.high is not None:
            panel.fill_between(curve.x, _positive(curve.low), _positive(curve.high), color=colour, alpha=0.18, lw=0)
    for axis, ends, log in ((panel.yaxis, panel.get_ylim(), log_y), (panel.xaxis, panel.get_xlim(), log_x)):
        if log:
            _plain_ticks(axis, ends)
    if not log_y:
        panel.set_ylim(bottom=0)
    panel.grid(alpha=0.25)
    panel.legend(frameon=False, fontsize=8)
    return drawing(figure)


def film_forecast_lines(
    truth: Array,
    forecast: Array,
    x: Array,
    times: Array,
    channels: Sequence[str],
    alt: str,
    frames: int = 31,
    mask: Array | None = None,
    bands: Array | None = None,
) -> Film:
    """1D: truth dashed, prediction drawn through, and below them the error; `truth` and `forecast` `(T, X, C)`. Where
    `mask (X,)` is false there is no line, and grey. `bands (4, T, X, C)`: the 5, 25, 75 and 95 % of an ensemble, drawn
    as a fan around its mean, which is then the prediction."""
    if mask is not None:
        truth, forecast = (masked(values, mask[:, None]) for values in (truth, forecast))
        bands = None if bands is None else masked(bands, mask[:, None])
    shown = picked(len(times), frames)
    count = min(len(channels), 3)
    width = 3.6 * count + 3.6 * (count == 1)
    figure = library("figure").Figure(figsize=(width, 3.6), dpi=100)
    panels = figure.subplots(2, count, squeeze=False, sharex=True, height_ratios=(3, 1))
    figure.subplots_adjust(
        left=0.75 / width,
        right=1 - 0.1 / width,
        bottom=0.13,
        top=0.9,
        hspace=0.25,
        wspace=0.35,
    )
    lines: list[Any] = []
    heights: list[Array | list[Band]] = []
    remarks = []
    for c in range(count):
        upper, lower = panels[0][c], panels[1][c]
        bottom, top = _range(truth[..., c], None if bands is None else bands[..., c])
        upper.set(xlim=(x[0], x[-1]), ylim=(bottom, top), ylabel=channels[c])
        error = masked(_capped(forecast[..., c] - truth[..., c], top - bottom), mask)
        remarks.append(_capping(channels[c], forecast[..., c] - truth[..., c], top - bottom))
        size = float(np.nanmax(np.abs(error))) or 1e-12
        lower.set(ylim=(-1.05 * size, 1.05 * size), xlabel="x", ylabel="error")
        for low, high, strength, name in _fan(bands, c):
            (band, words) = (Band(x, low[0], high[0]), {"color": ACCENTS[0], "alpha": strength, "lw": 0, "label": name})
            lines.append(upper.fill_between(*band, **words))
            heights.append([Band(x, *ends) for ends in zip(low, high, strict=True)])
        name = "prediction" if bands is None else "mean"
        (guess,) = upper.plot(x, forecast[0, :, c], color=ACCENTS[0], lw=1.8, label=name)
        (true,) = upper.plot(x, truth[0, :, c], "--", color=INK, lw=1.3, label="truth")
        (gap,) = lower.plot(x, error[0], color=ACCENTS[1], lw=1.2)
        lines += [guess, true, gap]
        heights += [forecast[..., c], truth[..., c], error]
        for panel in (upper, lower):
            panel.grid(alpha=0.25)
            shade(panel, x, mask)
    panels[0][0].legend(loc="lower right", bbox_to_anchor=(1.0, 0.97), frameon=False, ncols=4, fontsize=8)
    pictures = moving(figure, lines, ([rows[t] for rows in heights] for t in shown))
    return Film(pictures, captions(times, shown), alt + "".join(remarks), opening(truth[..., 0], shown))


def film_forecast_maps(
    truth: Array,
    forecast: Array,
    times: Array,
    channels: Sequence[str],
    alt: str,
    frames: int = 31,
    size: int = 240,
    mask: Array | None = None,
    spread: Array | None = None,
    bounds: Bounds = UNIT,
) -> Film:
    """2D: truth, prediction and error side by side, one row per channel, with the axes of the box `bounds`.

    Of a 3D field `(T, X, Y, Z, C)` the middle plane is shown. The error has a scale of its own. Cells in which
    `mask (*S,)` is false are grey. `spread (T, *S, C)`, that of an ensemble whose mean is the prediction, is a fourth
    picture, with a scale of its own too.
    """
    if truth.ndim == 5:
        middle = truth.shape[3] // 2
        truth, forecast = truth[:, :, :, middle], forecast[:, :, :, middle]
        mask = None if mask is None else mask[:, :, middle]
        spread = None if spread is None else spread[:, :, :, middle]
    if mask is not None:  # the scales are those of the cells that count
        forecast = np.where(mask[..., None], forecast, truth)
    shown = picked(len(times), frames)
    count = min(len(channels), 3)
    visible = [masked(truth[..., c], mask) for c in range(count)]
    scales = [balanced(float(np.nanmin(v)), float(np.nanmax(v))) for v in visible]
    errors = [_capped(forecast[..., c] - truth[..., c], high - low) for c, (low, high) in enumerate(scales)]
    worst = [float(np.abs(e).max()) or 1e-12 for e in errors]
    widest = [0.0 if spread is None else _largest(masked(spread[..., c], mask)) for c in range(count)]
    second = "prediction" if spread is None else "mean of the ensemble"
    rows = []
    for c in range(count):
        row = [Panel(f"{channels[c]}: truth", scales[c], bar=False), Panel(second, scales[c])]
        row.append(Panel("error", (-worst[c], worst[c])))
        rows.append([*row, *([Panel("spread", (0.0, widest[c]))] if spread is not None else [])])
    board, pictures = Board(rows, bounds, size), []
    for t in shown:
        fields = [[truth[t, ..., c], forecast[t, ..., c], errors[c][t]] for c in range(count)]
        if spread is not None:
            fields = [[*row, spread[t, ..., c]] for c, row in enumerate(fields)]
        pictures.append(board.picture(fields, mask))
    facts = zip(channels, scales, worst, widest, strict=False)
    ranges = "; ".join(
        f"{name}: {low:.2g} to {high:.2g}, error ±{e:.2g}" + (f", spread up to {s:.2g}" if s else "")
        for name, (low, high), e, s in facts
    )
    start = opening(visible[0], shown)
    gaps = (forecast[..., c] - truth[..., c] for c in range(count))
    remarks = [_capping(channels[c], gap, scales[c][1] - scales[c][0]) for c, gap in enumerate(gaps)]
    return Film(tuple(pictures), captions(times, shown), f"{alt} ({ranges})" + "".join(remarks), start)


def _fan(bands: Array | None, channel: int) -> list[tuple[Array, Array, float, str]]:
    """The bands of a fan, the widest first: lower and upper ends `(T, X)`, strength of the colour, name."""
    if bands is None:
        return []
    low, lower, upper, high = bands[..., channel]
    return [(low, high, 0.15, "5 – 95 %"), (lower, upper, 0.3, "25 – 75 %")]


def _plain_ticks(axis: Any, ends: tuple[float, float]) -> None:
    """Ticks of a logarithmic axis as plain numbers: its decades, 2 and 5 too where there are few, else even steps."""
    decades = math.log10(ends[1] / ends[0])
    subs = (1.0,) if decades > 2.5 else (1.0, 2.0, 5.0)
    ticker = library("ticker")
    axis.set_major_locator(ticker.AutoLocator() if decades < 0.7 else ticker.LogLocator(subs=subs, numticks=9))
    axis.set_major_formatter(
        ticker.FuncFormatter(lambda value, _: f"{value:.4g}".replace("e-0", "e-").replace("e+0", "e"))
    )
    axis.set_minor_locator(ticker.NullLocator())


def _range(values: Array, around: Array | None = None) -> tuple[float, float]:
    """The range of values, and a little more; at most half as much again where more lies `around` them."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    pad = 0.08 * (high - low) or 1.0
    if around is not None and np.isfinite(around).any():
        seen, half = around[np.isfinite(around)], 0.5 * (high - low)
        low, high = max(min(low, float(seen.min())), low - half), min(max(high, float(seen.max())), high + half)
    return low - pad, high + pad


def _largest(values: Array) -> float:
    """The largest finite value, or next to nothing."""
    return float(np.max(values, initial=1e-12, where=np.isfinite(values)))


def _capped(error: Array, limit: float) -> Array:
    """An error that can be drawn: at most as large as the truth's whole range."""
    return np.asarray(np.nan_to_num(error, nan=limit, posinf=limit, neginf=-limit).clip(-limit, limit))


def _capping(name: str, error: Array, limit: float) -> str:
    """Words for the caption of a picture whose errors are capped; none where all of them are drawn as they are."""
    most = float(np.nanmax(np.abs(error), initial=0.0))
    return (
        "" if most <= limit else f"; errors of {name} beyond ±{limit:.2g} are drawn as that, the largest is {most:.2g}"
    )


def _positive(values: Array) -> Array:
    return np.where(np.isfinite(values) & (values > 0), values, np.nan)
