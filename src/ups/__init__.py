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
    """Load a simulator: `ups.load("runs/demo").rollout(u0, steps=100)`.

    Args:
        path: The folder of a run, or the file of a simulator.
        device: `cpu`, `cuda`, `cuda:1` or `auto`.

    Raises:
        DataError: There is no simulator, or its file is damaged.
    """
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
    """Train a simulator on trajectories in memory: `ups.fit(values, minutes=5).rollout(u0, steps=100)`.

    Args:
        data: An array `(sample, time, x[, y[, z]], channel)` of numpy or torch, a dict of arrays by channel, an
            `xarray.Dataset`, the path of files, or a `ups.Data`, which says more about them. One simulator of several
            tasks: a dict of `ups.Data` by their names.
        minutes: For everything, from the call on: what preparing the data has taken, and judging is estimated to take,
            is not trained. On a busy machine the call may last longer. On a laptop 5 show whether it learns; 30 on a
            GPU are usual.
        name: Of the run; its folder, `<out>/<name>`, keeps the report, and the data lie beside it.
        out: Where runs are kept.
        device: `auto` takes a GPU where there is one.
        overwrite: Replace a run of this name.
        quiet: Show nothing.
        settings: Keys of a run's config, with `__` for the dot: `model__operator__size="small"`.

    Returns:
        The simulator, as `ups.load` of the run's folder gives it.

    Raises:
        DataError: The data cannot be used as they are; the sentence says what to do.
        ConfigError: A setting is unknown or makes no sense.
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
