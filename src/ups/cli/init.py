"""`ups init`: a config to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ups.cli.places import Place
from ups.screen import waiting
from ups.streams import printable


def init(
    *files: Path,
    out: Place = Path("config.yaml"),
    task: str = "",
    minutes: float = 5.0,
    device: str = "auto",
    overwrite: bool = False,
    try_: Annotated[bool, Parameter(name="--try", negative="")] = False,
) -> None:
    """Write a commented config for the data at hand, with a model and a batch that this machine can train.

    Reads the files, cuts long trajectories and fine grids down, and chooses size and batch by what the steps would cost
    here. Nothing is trained. The path of the config is the last line printed: `ups run` it.

    Parameters
    ----------
    files
        Files or folders, as for `ups data info`; none: a task whose data the run makes itself.
    out
        Where the config goes.
    task
        With files, what they hold, where they do not say so themselves: a name, or a YAML file that describes it.
        Without files, the task to be made, burgers1d by default; `ups data tasks` lists them.
    minutes
        How long the operator may be trained.
    device
        Where it will be trained: auto, cpu, cuda or cuda:N.
    overwrite
        Replace a config that is there.
    try_
        Write `tune: auto` too: the run then tries the next smaller and the next larger size for a tenth of its time,
        and trains the one with the least validation error.
    """
    with waiting(f"reading {files[0]}" if files else "getting ready") as show_activity:
        from ups.jobs.recipe.proposal import propose

        path, remarks = propose(files, task, out, minutes, device, overwrite, show_activity, race=try_)
    print(printable("\n".join(remarks)))
    print(path)
