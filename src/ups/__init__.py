"""The Universal Physics Stack: trajectories of a physical system become a fast, trustworthy neural simulator."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from ups.definition import Definition
from ups.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from ups.jobs.fit import Data
    from ups.models import Simulator
    from ups.models.search import Search

__all__ = ["Data", "Definition", "Search", "__version__", "fit", "load"]


def __getattr__(name: str) -> Any:
    """`ups.Data` and `ups.Search`, imported at their first use: a config is read without networks."""
    if name == "Data":
        from ups.jobs.fit import Data

        return Data
    if name == "Search":
        from ups.models.search import Search

        return Search
    raise AttributeError(f"module 'ups' has no attribute '{name}'")


def load(path: str | Path, device: str = "cpu") -> Simulator:
    """The simulator of a run folder (or of an artifact): `ups.load("runs/demo").rollout(u0, steps=100)`."""
    from ups.run.load import load as load_simulator

    return load_simulator(path, device)


def fit(
    data: Any,
    minutes: float = 5.0,
    *,
    name: str = "fit",
    out: str | Path = "runs",
    device: str = "auto",
    overwrite: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> Simulator:
    """A simulator trained on trajectories in memory: `ups.fit(values, minutes=5).rollout(u0, steps=100)`.

    `data` is a `ups.Data`, or what its `values` may be: an array `(sample, time, x[, y[, z]], channel)` of numpy or
    torch, a dict of arrays by channel, an `xarray.Dataset`; or the path of files. One simulator for several tasks: a
    dict of `ups.Data` by their names. The run's folder, with its report, is
    `<out>/<name>`, and the data lie beside it. `settings` are keys of a run's config, with `__` for the dot:
    `model__operator__size="small"`.
    """
    from pathlib import Path

    from ups.screen import Saying, following, show, training, waiting

    began, saying = time.time(), Saying()
    with nullcontext() if quiet else waiting("getting ready"):
        from ups.jobs.fit import fit as job
        from ups.progress import Screen
        from ups.run.start import Start

    dotted = {key.replace("__", "."): value for key, value in settings.items()}
    with following() as report:
        screen = Screen.silent() if quiet else Screen(saying, report, training())
        start = Start(overwrite=overwrite, began=began)
        simulator, folder, judged = job(data, minutes, name, Path(out), device, dotted, screen, start)
    if not quiet:
        show(judged.headline(), saying.new(judged.remarks()), folder.report)
    return simulator
