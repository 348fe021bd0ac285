"""`ups data`: make PDE data, look at files, check and split them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Group, Parameter

from ups.cli.numbers import Whole
from ups.screen import following
from ups.types import ConfigError

Scheme = Literal["pdebench", "accurate"]
Dtype = Literal["float32", "float64"]
Convention = Literal["seeded", "pdebench-first", "pdebench-last"]

EQUATION = Group("Parameters of the equation", help="Each task has its own: `ups data tasks` lists them.")

data = App(name="data", help="Make PDE data, and check any file you were given.")


@data.command
def generate(
    task: str,
    *,
    samples: Whole = 100,
    resolution: Whole | None = None,
    frames: Whole | None = None,
    seed: Whole = 0,
    scheme: Scheme | None = None,
    device: str = "auto",
    batch: Whole | None = None,
    out: Path = Path("data"),
    dtype: Dtype | None = None,
    overwrite: bool = False,
    **params: Annotated[str, Parameter(group=EQUATION, show=False)],
) -> None:
    """Solve an equation from random initial states and write a PDEBench file; its path is the last line printed.

    Further flags are parameters of the equation: `--nu 0.01`, `--beta 0.4`, `--rho`, `--eta`, `--zeta`, `--mach`,
    `--init Shock`, `--boundary trans`, … A list, `--nu 0.001,0.01`, makes a file for each value, one path per line. A
    range, `--nu 0.001..1.0` or `--nu log:0.001..1.0`, makes one file in which each sample has a value of its own. A
    run that was stopped goes on where it was; the same seed gives the same data.

    Parameters
    ----------
    task
        Name of the equation, for example burgers1d; `ups data tasks` lists all.
    samples
        Number of trajectories in a file.
    resolution
        Cells along the first axis. PDEBench's own by default.
    frames
        Only the first so many of the task's saved frames.
    seed
        Same seed, same initial states, whatever the batch size; solutions then agree to round-off.
    scheme
        PDEBench's way (the default where there is one, for comparable results), or a more accurate way, which is often
        the faster one too.
    device
        auto, cpu, cuda or cuda:N.
    batch
        Trajectories solved at once. As many as fit by default.
    out
        Folder for the file, whose name is PDEBench's for the task and its parameters.
    dtype
        Precision of the solver: by default float32 for PDEBench's schemes, as there, float64 for accurate ones.
    overwrite
        Replace a file that is there, or one that was begun with other settings.
    """
    from ups.config import load
    from ups.run.data_config import GenerateConfig
    from ups.run.generate import generate as job

    given = {
        "task": task,
        "samples": samples,
        "resolution": resolution,
        "frames": frames,
        "seed": seed,
        "scheme": scheme,
        "device": device,
        "batch": batch,
        "dtype": dtype,
        **{f"params.{name}": value for name, value in params.items()},
    }
    settings = load(GenerateConfig, overrides=given)
    with following() as report:
        paths = job(settings, out, report, overwrite)
    print(*paths, sep="\n")


@data.command
def tasks() -> None:
    """List the tasks: what each solves, its parameters, its schemes, its file name."""

    from ups.jobs.inspect import task_table

    print(task_table())


@data.command
def info(file: Path, *, task: str | None = None) -> None:
    """Say what a file holds, in words and numbers, with the coefficients of its equation fitted from its own data.

    Parameters
    ----------
    file
        A PDEBench file, or a file or folder of The Well.
    task
        What it holds, where neither its name nor its attributes say so.
    """
    from ups.jobs.inspect import describe

    print(describe(file, task))


@data.command
def validate(*files: Path, task: str | None = None) -> int:
    """Look for what is wrong with files, one line each; the exit code is 1 if anything is.

    Finds NaN, constant and duplicated trajectories, a wrong time axis, truncation, a parameter that the data
    contradict, broken conservation and wrong signs; given several files, also trajectories that stand in more than
    one. Reads piece by piece.

    Parameters
    ----------
    files
        PDEBench files, or files or folders of The Well.
    task
        What it holds, where neither its name nor its attributes say so.
    """
    from ups.jobs.inspect import problems

    if not files:
        raise ConfigError("no file was named; write `ups data validate FILE`.")
    found = problems(files, task)
    for file, problem in found:
        print(f"{file}: {problem}")
    for file in files:
        if all(file != where for where, _ in found):
            print(f"{file}: nothing wrong found")
    return 1 if found else 0


@data.command
def split(
    file: Path,
    *,
    out: Path | None = None,
    convention: Convention = "seeded",
    fractions: tuple[float, float, float] = (0.8, 0.1, 0.1),
    seed: Whole = 0,
    task: str | None = None,
) -> None:
    """Divide the trajectories of a file into train, valid and test, and record by id which is which.

    The parts are disjoint and complete, and proven so. The record names the ids it was made for: it cannot be applied
    to other data.

    Parameters
    ----------
    file
        A PDEBench file, or a file or folder of The Well.
    out
        Where the record (JSON) goes; beside the file by default.
    convention
        seeded, or PDEBench's own: the first (single-array files) or the last (group files) part is for testing.
    fractions
        Shares of train, valid and test; PDEBench's are 0.9 0 0.1.
    seed
        Same seed, same split.
    task
        What the file holds, where neither its name nor its attributes say so.
    """
    from ups.jobs.inspect import record_split

    path, counts = record_split(file, out, convention, fractions, seed, task)
    print(", ".join(f"{part} {count}" for part, count in counts.items()))
    print(path)
