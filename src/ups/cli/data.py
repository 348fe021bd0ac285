"""`ups data`: make PDE data, look at files, check and split them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Group, Parameter

from ups.cli.assignments import assignments, shares
from ups.cli.numbers import Whole
from ups.cli.places import Place
from ups.files import one_line
from ups.screen import following, waiting
from ups.streams import delivered, printable
from ups.types import ConfigError

Scheme = Literal["pdebench", "accurate"]
Dtype = Literal["float32", "float64"]
Findings = list[tuple[Path, str]]  # a file, and what there is to say of it
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
    out: Place = Path("data"),
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
    with waiting(f"getting ready to solve {task}"):
        from ups.config import load
        from ups.run.data.data_config import GenerateConfig
        from ups.run.data.generate import generate as job

        settings = load(GenerateConfig, overrides=given)
    with following() as report:
        paths = job(settings, out, report, overwrite)
    print(*paths, sep="\n")


@data.command
def tasks() -> int:
    """List the tasks: what each solves, its parameters, its schemes, its file name."""

    from ups.jobs.inspect import task_table

    print(task_table())
    return delivered()


@data.command
def info(file: Path, *, task: str | None = None) -> int:
    """Say what a file holds, in words and numbers, with the coefficients of its equation fitted from its own data.

    The last lines are its task as YAML, to be edited and used.

    Parameters
    ----------
    file
        A file or a folder: PDEBench, The Well, netCDF, Zarr, MATLAB, numpy, PyTorch, or any HDF5.
    task
        What it holds, where it does not say so itself: the name of a task, or a YAML file that describes it.
    """
    with waiting(f"reading {file}"):
        from ups.definition import definition_from
        from ups.jobs.inspect import describe

        text = describe(file, definition_from(task) if task else None)
    print(printable(text))
    return delivered()


@data.command
def validate(*files: Path, task: str | None = None, params: str | None = None) -> int:
    """Look for what is wrong with files, one line each; the exit code is 1 if anything is.

    Finds NaN, constant and duplicated trajectories, a wrong time axis, truncation, a parameter that the data
    contradict, broken conservation and wrong signs; uneven axes, and NaN that moves; trajectories that are
    pieces of one simulation; given several files, also those that stand in more than one. What differs from sample to
    sample is a note. Reads piece by piece.

    Parameters
    ----------
    files
        Files or folders, as for `ups data info`.
    task
        What they hold, where they do not say so themselves: the name of a task, or a YAML file that describes it.
    params
        Parameters that hold for every sample, in the place of what the files say, such as nu=0.01,rho=1.
    """
    if not files:
        raise ConfigError("no file was named; write `ups data validate FILE`.")
    with waiting(f"checking {files[0]}{f' and {len(files) - 1} more' if files[1:] else ''}"):
        from ups.definition import definition_from
        from ups.jobs.import_data import with_parameters
        from ups.jobs.inspect import notes, problems

        definition = with_parameters(definition_from(task or ""), assignments(params))
        faults, remarks = problems(files, definition), notes(files, definition)
    return _told(files, faults, remarks)


def checked(files: tuple[Path, ...]) -> int:
    """Say what is wrong with files; 1 if anything is."""
    with waiting(f"checking {files[0]}{f' and {len(files) - 1} more' if files[1:] else ''}"):
        from ups.jobs.inspect import notes, problems

        faults, remarks = problems(files), notes(files)
    return _told(files, faults, remarks)


def _told(files: tuple[Path, ...], faults: Findings, remarks: Findings) -> int:
    """Print what was found, a line each; the exit code."""
    for file, problem in faults:
        print(printable(f"{file}: {problem}"))
    for file, note in remarks:
        print(printable(f"{file}: note: {note}"))
    for file in files:
        if all(file != where for where, _ in faults):
            print(printable(f"{file}: nothing wrong found"))
    return 1 if faults else 0


@data.command(name="import")
def import_(
    *files: Path,
    task: str | None = None,
    out: Place = Path("data"),
    name: str = "",
    resample: bool = False,
    split: str | None = None,
    params: str | None = None,
    overwrite: bool = False,
) -> None:
    """Write any data that can be read as a data set of The Well, which trains fast; its path is the last line printed.

    Makes OUT/NAME/data/{train,valid,test}/*.hdf5 and stats.yaml, whole or not at all. A config then names the folder
    under `file:`.

    Parameters
    ----------
    files
        Files or folders, as for `ups data info`.
    task
        What they hold, where they do not say so themselves: the name of a task, or a YAML file that describes it.
    out
        Folder for the data set.
    name
        Its name; that of the task by default.
    resample
        Put axes of uneven steps on uniform ones by cubic splines, and say how much that changes the data.
    split
        Shares of train, valid and test, such as 0.8,0.1,0.1; those that the files have by default.
    params
        Parameters that hold for every sample, in the place of what the files say, such as nu=0.01,rho=1.
    overwrite
        Replace a data set that is there.
    """
    if not files:
        raise ConfigError("no file was named; write `ups data import FILE --out DIR`.")
    fractions = shares(split)
    with following(f"reading {files[0]}") as report:
        from ups.definition import definition_from
        from ups.jobs.import_data import import_data, with_parameters

        definition = with_parameters(definition_from(task or ""), assignments(params))
        path, remarks = import_data(
            files, definition, out, report, name=name, fractions=fractions, resample=resample, overwrite=overwrite
        )
    print(*remarks, path, sep="\n")


@data.command
def split(
    file: Path,
    *,
    out: Place | None = None,
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
        A file or a folder, as for `ups data info`.
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
    one_line(out or file)
    with waiting(f"reading {file}"):
        from ups.definition import definition_from
        from ups.jobs.inspect import record_split

        path, counts = record_split(file, out, convention, fractions, seed, definition_from(task) if task else None)
    print(", ".join(f"{part} {count}" for part, count in counts.items()))
    print(path)
