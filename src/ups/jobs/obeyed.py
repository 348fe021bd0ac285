"""Whether data obey the equation and the laws that are claimed for them, on a few trajectories looked at closely."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ups.data import Source
from ups.later import torch
from ups.physics import TASKS
from ups.physics.balances import UNFITTABLE
from ups.physics.fit import Fitted, contradicts, fit
from ups.physics.laws import laws_of
from ups.tensors import mask_of
from ups.types import Params, Trajectory

# Trajectories that are looked at closely, the bytes of each that may be in memory, and the fewest frames of use.
CLOSELY, MEMORY, FEWEST = 8, 2**27, 9


def close_ups(source: Source) -> Iterator[Trajectory]:
    """A few trajectories spread over the file, one at a time, with as many leading frames as may be in memory."""
    chosen = np.unique(np.linspace(0, len(source) - 1, min(CLOSELY, len(source))).astype(int))
    frame = 8 * int(np.prod(source.domain.shape)) * len(source.task.channels)
    frames = slice(0, max(FEWEST, MEMORY // frame))
    for i in map(int, chosen):
        values, times = source.read(i, frames), source.times_of(i)[frames]
        yield Trajectory(
            source.ids[i], source.task, values, source.domain_of(i), times, source.params_of(i), source.inputs(i)
        )


def law_residuals(source: Source) -> list[tuple[str, float, float]]:
    """(law, largest violation, what sampling on this grid explains) over the trajectories looked at closely."""
    params = source.params_of(0)  # those that differ from sample to sample are numbers, on which no law depends
    if {p.name for p in source.task.parameters} != set(params):
        return []
    laws = laws_of(source.task, source.domain.periodic, params)
    worst, blur = [0.0] * len(laws), [0.0] * len(laws)
    for sample in close_ups(source) if laws else ():
        # Copies: what a reader gives may be read-only, which torch warns of.
        u = torch.from_numpy(np.array(sample.values, np.float64)).unsqueeze(0)
        mask = mask_of(source.task, torch.from_numpy(np.array(sample.inputs)).unsqueeze(0))
        for i, law in enumerate(laws):
            worst[i] = max(worst[i], float(law.residual(u, source.domain, mask)))
            blur[i] = max(blur[i], float(law.sampling_error(u, source.domain, mask)))
    return [(law.says, worst[i], blur[i]) for i, law in enumerate(laws)]


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
    found = [f for _, _, each in fits for f in each]
    if not found:
        why = UNFITTABLE.get(source.task.equation, "none is known for this task")
        return [f"  coefficients: {why}"]
    if all(math.isnan(f.value) for f in found):
        return [f"  coefficients: too few frames or too little change to fit any (at least {FEWEST} frames are needed)"]
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
    return ", ".join(f"{name} = {value}" for name, value in params.items())
