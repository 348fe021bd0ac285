"""What a trained simulator predicts for the trajectories of a file."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import torch

from ups.data import open_source
from ups.files import draft
from ups.jobs.judge import SimulatorPredictor
from ups.models import Simulator
from ups.physics import TASKS
from ups.rundir import RunDir
from ups.tensors import Window, numbers_of
from ups.types import ConfigError, DataError

AXES = "xyz"


def load(path: str | Path, device: str = "cpu") -> Simulator:
    """The simulator of a run folder, or of an artifact by itself."""
    place = Path(path)
    if (place / "config.yaml").is_file():
        place = RunDir.at(place).artifact("simulator")
    return Simulator.load(place, device)


def rollout(run: Path, source_path: Path, steps: int, out: Path, samples: int, task: str | None) -> Path:
    """Continue the first `samples` trajectories of a file by `steps` frames; write and return `out`."""
    if steps < 1 or samples < 1:
        raise ConfigError("steps and samples must be at least 1.")
    simulator = load(run)
    context = simulator.operator.config.context
    with open_source(source_path, TASKS, task) as source:
        spec = simulator.codec.task(source.task)
        step = float(simulator.dt[list(simulator.codec.tasks).index(spec.name), 0])
        every = max(1, round(step / (source.times[1] - source.times[0]))) if len(source.times) > 1 else 1
        given = slice(0, (context - 1) * every + 1, every)
        rows = range(min(samples, len(source)))
        values = np.stack([source.read(i, given) for i in rows]).astype(np.float32)
        params = [[float(source.params_of(i)[name]) for name in numbers_of(spec)] for i in rows]
        window = Window(
            task=spec,
            context=torch.as_tensor(values),
            targets=torch.zeros(0),
            inputs=torch.zeros(0),
            params=torch.tensor(params, dtype=torch.float32).reshape(len(rows), -1),
            dt=torch.full((len(rows),), step),
            periodic=source.domain.periodic,
            box=source.domain.lengths,
        )
        found = SimulatorPredictor(simulator, torch.device("cpu")).predict(window, steps).numpy()
        last = float(source.times[given][-1])
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
