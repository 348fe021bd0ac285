"""The `ups` command: parses, calls a job, prints. Nothing heavy is imported before a job runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import cyclopts
from cyclopts import App, Parameter

from ups import __version__
from ups.cli.bench import bench
from ups.cli.config import config
from ups.cli.data import data
from ups.screen import following, table, training
from ups.types import ConfigError, UpsError

app = App(
    name="ups",
    help="The Universal Physics Stack: from equations to data you can trust, and on to neural simulators.",
    version=__version__,
    default_parameter=Parameter(negative=""),
    suppress_keyboard_interrupt=False,
    help_epilogue="Every command explains itself: `ups COMMAND --help`.",
)
for sub in (data, config, bench):
    app.command(sub)


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
    from ups.jobs.sets import Screen

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
    from ups.jobs.run import run as job
    from ups.jobs.sets import Screen
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
