"""What a trained simulator predicts for the trajectories of a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import torch

from ups.data import open_source
from ups.data.trajectories import alike
from ups.engine.ranks.dist import device_of
from ups.files import draft
from ups.models import artifact
from ups.physics import TASKS
from ups.run.fitting import fitting, spaced
from ups.run.judge import predictor_of
from ups.run.load import load
from ups.types import ConfigError, DataError, Params

AXES = "xyz"


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
    with open_source(source_path, TASKS, task) as stored:
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
        own = float(window.dt[0])
        trained = 0.999 * low <= own <= 1.001 * high
        step = low if abs(own - low) <= 1e-3 * low or not (trained or context > 1) else own
        window = dataclasses.replace(window, dt=torch.full_like(window.dt, step))
        for sentence in simulator.outside(window.params, spec.name, None if spec.steady else step):
            say(sentence)
        found = predictor_of(simulator, device_of(device)).predict(window, steps).numpy()
        last = 0.0 if spec.steady else float(part.times[context - 1])
        coordinates = source.domain.coordinates
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with draft(out) as beside, h5py.File(beside, "w") as file:
            file["prediction"] = found
            file["t-coordinate"] = last + step * np.arange(1, steps + 1)
            for letter, axis in zip(AXES, coordinates, strict=False):
                file[f"{letter}-coordinate"] = axis
            file.attrs["channels"] = list(spec.channels)
            file.attrs["simulator"] = str(simulator.provenance.get("config", ""))
    except OSError as error:
        raise DataError(f"{out}: cannot be written ({error.strerror or error}); choose another --out.") from None
    return out
