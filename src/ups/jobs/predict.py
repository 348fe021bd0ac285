"""What a trained simulator predicts for the trajectories of a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import torch

from ups.data.trajectories import alike
from ups.engine.ranks.dist import device_of
from ups.files import writing
from ups.models import artifact
from ups.run.fitting import fitting, open_for, spaced
from ups.run.judge import predictor_of
from ups.run.load import load
from ups.types import ConfigError, DataError, Params


def rollout(
    run: Path,
    source_path: Path,
    steps: int,
    out: Path,
    samples: int,
    task: str | None,
    device: str = "cpu",
    params: Params | None = None,
    say: Callable[[str], None] = lambda sentence: None,  # noqa: ARG005
) -> Path:
    """Continue the first `samples` trajectories of a file by `steps` frames; write and return `out`."""
    if steps < 1 or samples < 1:
        raise ConfigError("steps and samples must be at least 1.")
    if out.exists() and source_path.exists() and out.samefile(source_path):
        raise ConfigError(f"{out}: is the input itself, which would be lost; choose another --out.")
    simulator = load(run, device)
    context = simulator.context
    for sentence in artifact.strangers(simulator.origins):
        say(sentence)
    with open_for(simulator, source_path, task) as stored:
        source = fitting(simulator, stored, params or {}, 0)
        spec = simulator.codec.task(source.task)
        if spec.steady and steps > 1:
            raise ConfigError(f"{spec.name} is steady, so there is one step to its solution, not {steps}; ask for one.")
        low, high = simulator.ranges()[spec.name]["dt"]
        part, *others = alike(source, source.ids[:samples], spaced(source, low, None))
        if others:
            raise DataError(
                f"{source_path}: its first {samples} samples are on several grids; ask for fewer --samples."
            )
        window = part.window(list(range(len(part))), [0] * len(part), context, 0)
        if not bool(window.context.isfinite().all()):
            raise DataError(f"{source_path}: its first frames have values that are not finite; mend or leave them out.")
        # One given frame says nothing of the spacing; several must be told theirs, which the file's frames may miss.
        own = window.dt
        trained = (own >= 0.999 * low) & (own <= 1.001 * high)
        same = (own - low).abs() <= 1e-3 * low
        keep = trained if context == 1 else torch.ones_like(trained)
        window = dataclasses.replace(window, dt=torch.where(same | ~keep, torch.full_like(own, low), own))
        for step in (None,) if spec.steady else sorted(set(window.dt.tolist())):
            for sentence in simulator.outside(window.params, spec.name, step):
                say(sentence)
        found = predictor_of(simulator, device_of(device)).predict(window, steps).numpy()
        clocks = [source.times_of(row)[part.reduction.frames] for row in part.rows]
        starts = [0.0 if spec.steady else float(clock[context - 1]) for clock in clocks]
        times = np.array(starts)[:, None] + window.dt.double().numpy()[:, None] * np.arange(1, steps + 1)
        coordinates = dict(zip(spec.axes, part.domain.coordinates, strict=False))
    with writing(out, "choose another --out") as beside, h5py.File(beside, "w") as file:
        file["prediction"] = found
        # One row for all samples, or one for each where their times differ.
        file["t-coordinate"] = times[0] if (times == times[0]).all() else times
        for name, axis in coordinates.items():
            file[f"{name}-coordinate"] = axis
        file.attrs["channels"] = list(spec.channels)
        file.attrs["simulator"] = str(simulator.provenance.get("config", ""))
    return out
