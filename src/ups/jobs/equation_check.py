"""Tests on a few trajectories whether data obey the equation that is claimed for them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ups.data import Source
from ups.physics import TASKS
from ups.physics.balances import UNFITTABLE
from ups.physics.fit import Fitted, contradicts, fit
from ups.run.data.doubts import FEWEST_FRAMES, close_ups
from ups.types import Params


def contradictions(source: Source) -> list[str]:
    """Coefficients that the data contradict, a sentence each."""
    return [
        f"the data{where} contradict {stated(params) or 'the task'}, by which {f.meaning} is {f.claimed:.4g}: "
        f"they obey {f.value:.4g} ± {f.error:.1g}"
        for where, params, coefficients in _fitted(source)
        for f in coefficients
        if contradicts(f)
    ]


def coefficients(source: Source) -> list[str]:
    """The coefficients of the equation as the data have them, beside what is claimed; lines of `data info`."""
    if not source.task.equation:
        return []
    fits = list(_fitted(source))
    fitted = [f for _, _, each in fits for f in each]
    if not fitted:
        why = UNFITTABLE.get(source.task.equation, "none is known for this task")
        return [f"  coefficients: {why}"]
    if all(math.isnan(f.value) for f in fitted):
        few = f"too few frames or too little change to fit any (at least {FEWEST_FRAMES} frames are needed)"
        return [f"  coefficients: {few}"]
    lines = ["  coefficients of the equation, fitted from the data:"]
    for where, _, each in fits:
        for f in each:
            mark = "   CONTRADICTS THE CLAIM" if contradicts(f) else ""
            value = f"{f.name}{where} {f.value:.4g} ± {f.error:.1g}"
            lines.append(f"    {value:<42} claimed {f.claimed:.4g} ({f.meaning}){mark}")
    return lines


def _fitted(source: Source) -> Iterator[tuple[str, Params, list[Fitted]]]:
    """(of what, what is claimed, coefficients): of all trajectories together, or of each where each has its own; of
    nothing where not all parameters of the equation are said."""
    equation = source.task.equation
    if not equation or not {p.name for p in TASKS[equation].parameters} <= set(source.params_of(0)):
        return
    if not _varying(source):
        yield "", source.params, fit(equation, close_ups(source), source.params)
        return
    for sample in close_ups(source):
        yield f" of sample {sample.id}", sample.params, fit(equation, [sample], sample.params)


def _varying(source: Source) -> list[str]:
    """Parameters that differ from sample to sample."""
    return [name for name in source.params_of(0) if name not in source.params]


def stated(params: Params) -> str:
    """Parameters as words: `nu = 0.01, beta = 1`."""
    return ", ".join(f"{name} = {value}" for name, value in params.items())
