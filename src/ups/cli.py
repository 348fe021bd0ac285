"""The `ups` command: parses, calls a job, prints. Nothing heavy is imported before a job runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import cyclopts
from cyclopts import App, Group, Parameter

from ups import __version__
from ups.screen import following, table, training
from ups.types import ConfigError, UpsError

Scheme = Literal["pdebench", "accurate"]
Dtype = Literal["float32", "float64"]
Convention = Literal["seeded", "pdebench-first", "pdebench-last"]

app = App(
    name="ups",
    help="The Universal Physics Stack: from equations to data you can trust, and on to neural simulators.",
    version=__version__,
    default_parameter=Parameter(negative=""),
    suppress_keyboard_interrupt=False,
    help_epilogue="Every command explains itself: `ups COMMAND --help`.",
)
data = App(name="data", help="Make PDE data, and check any file you were given.")
config = App(name="config", help="Show and explain configuration.")
bench = App(name="bench", help="Measure speed, as ratios to a peer measured in the same run.")
for sub in (data, config, bench):
    app.command(sub)

EQUATION = Group("Parameters of the equation", help="Each task has its own: `ups data tasks` lists them.")


@app.command
def demo(*, out: Path = Path("runs/demo"), config: Path | None = None) -> None:
    """From nothing to a trained simulator of three tasks, judged and shown: minutes on a laptop.

    Makes Burgers, advection and 2D reaction-diffusion data, checks them and shows them on a page
    (`<out>-data/data.html`); trains one simulator on all three; judges it on unseen trajectories beside persistence;
    writes the report.

    Parameters
    ----------
    out
        The run's folder; a demo that is there is replaced.
    config
        A YAML file with another demo than the built-in one.
    """
    from ups.jobs.demo import demo as job
    from ups.jobs.run import Screen

    with following() as report:
        folder, found = job(out, config, Screen(print, report, training()))
    print(table(found.headline()))
    print(folder.report)


@app.command(name="run", usage="Usage: ups run CONFIG [--resume] [--overwrite] [--KEY.OF.CONFIG VALUE ...]")
def run_command(
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)],
    resume: bool = False,
    overwrite: bool = False,
) -> None:
    """Make the data, train codec and operator, judge the simulator on unseen trajectories, and write a report.

    CONFIG is a YAML file (`ups config schema` explains its keys); any key is a flag, with dots for the levels, for
    example `--operator.train.seconds 60`. The run's folder holds the config, the environment, the log, the simulator
    (`artifacts/simulator.safetensors`), `results.json` and `report.html`.

    Parameters
    ----------
    resume
        Go on with a run that was stopped.
    overwrite
        Start again in a folder that holds a run.
    """
    from ups.config import file_and_flags, load
    from ups.jobs.run import Screen
    from ups.jobs.run import run as job
    from ups.jobs.settings import RunConfig

    file, overrides = file_and_flags(arguments)
    if file is None:
        raise ConfigError("no config was named; write `ups run CONFIG`.")
    settings = load(RunConfig, file, overrides)
    with following() as report:
        folder, found = job(settings, Screen(print, report, training()), resume=resume, overwrite=overwrite)
    print(table(found.headline()))
    print(folder.report)


@app.command
def rollout(run: Path, *, input: Path, steps: int, out: Path, samples: int = 8, task: str | None = None) -> None:
    """Continue the trajectories of a file with a trained simulator, and write what it predicts.

    Parameters
    ----------
    run
        A run folder, or a simulator artifact.
    input
        A PDEBench file, or a file or folder of The Well, whose first frames are given.
    steps
        Frames to predict.
    out
        HDF5 file for the result: `prediction` (samples, steps, cells, channels), coordinates and times.
    samples
        How many trajectories to continue, from the first on.
    task
        What the input holds, where neither its name nor its attributes say so.
    """
    from ups.jobs.predict import rollout as job

    print(job(run, input, steps, out, samples, task))


@data.command
def generate(
    task: str,
    *,
    samples: int = 100,
    resolution: int | None = None,
    frames: int | None = None,
    seed: int = 0,
    scheme: Scheme | None = None,
    device: str = "auto",
    batch: int | None = None,
    out: Path = Path("data"),
    dtype: Dtype | None = None,
    overwrite: bool = False,
    **params: Annotated[str, Parameter(group=EQUATION, show=False)],
) -> None:
    """Solve an equation from random initial states and write a PDEBench file; its path is the last line printed.

    Further flags are parameters of the equation: `--nu 0.01`, `--beta 0.4`, `--rho`, `--eta`, `--zeta`, `--mach`,
    `--init Shock`, `--boundary trans`, … A run that was stopped goes on where it was; the same seed gives the same
    data.

    Parameters
    ----------
    task
        Name of the equation, for example burgers1d; `ups data tasks` lists all.
    samples
        Number of trajectories.
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
    from ups.jobs.generate import generate as job
    from ups.jobs.settings import GenerateConfig

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
        path = job(settings, out, report, overwrite)
    print(path)


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
    seed: int = 0,
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


@config.command(usage="Usage: ups config show [FILE] [--KEY.OF.CONFIG VALUE ...]")
def show(*arguments: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]) -> None:
    """Print a whole config: FILE, its bases, the flags and every default.

    FILE is a YAML config; without one, the defaults alone. Any key is a flag, with dots for the levels, for example
    `--data.burgers.seed 1`.
    """
    from ups.config import dump, file_and_flags, fingerprint, load
    from ups.jobs.settings import RunConfig

    file, overrides = file_and_flags(arguments)
    resolved = load(RunConfig, file, overrides)
    print(dump(resolved), end="")
    print(f"# fingerprint {fingerprint(resolved)}")


@config.command
def schema() -> None:
    """Print the JSON schema of a config: every key, its type, its default, and what it is for."""
    import json

    from ups.config import schema_of
    from ups.jobs.settings import RunConfig

    print(json.dumps(schema_of(RunConfig), indent=2, ensure_ascii=False))


@bench.command(name="generate")
def bench_generate(
    *,
    task: list[str] | None = None,
    device: str = "auto",
    seconds: float = 5.0,
    json_out: Annotated[Path | None, Parameter(name="--json")] = None,
) -> None:
    """Trajectories per second of every generator, and the ratio to exponax for Burgers where it is installed.

    Parameters
    ----------
    task
        Only these tasks; may be given several times.
    device
        auto, cpu, cuda or cuda:N.
    seconds
        How long to measure each, roughly.
    json_out
        Also write the numbers, with their provenance, to this file.
    """
    from ups.jobs.bench import bench_generate as job

    job(task, device, seconds, json_out, say=print)


def main(words: list[str] | None = None) -> None:
    """Run the command; a user's mistake is one sentence and exit code 2."""
    try:
        code = app(sys.argv[1:] if words is None else words, exit_on_error=False, print_error=False)
    except cyclopts.CycloptsError as error:
        print(f"ups: {' '.join(str(error).split())} See `ups --help`.", file=sys.stderr)
        sys.exit(2)
    except UpsError as error:
        print(f"ups: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("ups: stopped; run the same command again to go on (`ups run` with --resume).", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)
