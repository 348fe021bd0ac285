"""The `ups` command: parses, calls a job, prints. Nothing heavy is imported before a job runs."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import cyclopts
from cyclopts import App, Group, Parameter

from ups.cli.assignments import assignments
from ups.cli.cache import cache
from ups.cli.config import config
from ups.cli.data import data
from ups.cli.estimate import estimate
from ups.cli.init import init
from ups.cli.numbers import Whole
from ups.cli.places import Place
from ups.cli.run import code_of, run
from ups.files import no_text, one_line
from ups.open_files import spent
from ups.progress import Screen, reporting
from ups.screen import Saying, following, show, training, waiting
from ups.streams import finish, printable, protect
from ups.types import ConfigError, UpsError, counted
from ups.verdict import Ending, classify
from ups.version import __version__
from ups.wings import BEGIN, CHECK, HEADINGS, TRAIN, USE, Command, commands

# What the machine did not give, and what to do; with a run it is the supervisor who says it.
LACKING = {
    Ending.OOM: "memory ran out here. Give the command more of it (ulimit -v, its container, its machine).",
    Ending.STORAGE: "the disk did not take or give what was asked. See `df -h` and `df -i`, and run the command again.",
}

# What HDF5 says of a disk: its cause stands among the places of memory and of the file that it was at.
_HDF5, _CAUSE = (
    re.compile(r"file (?:write|read) failed: time = .*?error message = '([^']*)', buf = .*?offset = \d+"),
    r"\1",
)

app = App(
    name="ups",
    help="The Universal Physics Stack: from equations to data you can trust, and on to neural simulators.",
    version=__version__,
    default_parameter=Parameter(negative=""),
    suppress_keyboard_interrupt=False,
    help_epilogue="Every command explains itself: `ups COMMAND --help`.",
)


def demo(*, out: Place = Path("runs/demo"), config: Path | None = None) -> int:
    """From nothing to a trained simulator of three tasks, judged and shown: minutes on a laptop.

    Makes Burgers, advection and 2D reaction-diffusion data, checks them and shows them on a page
    (`<out>-data/data.html`); trains one simulator on all three, on two ranks where there are two cores; judges it on
    unseen trajectories beside persistence; holds it against its gates; writes the report. Then it learns what that
    simulator misses of Burgers, and judges ensembles (`<out>-ensemble`). Code 0 only if every gate is passed.

    Parameters
    ----------
    out
        The run's folder; a demo that is there is replaced.
    config
        A YAML file with another demo than the built-in one.
    """
    with waiting("getting ready"):
        from ups.jobs.demo import demo as job
        from ups.run.run import finish_alone
        from ups.wings import starter

        carry_out = starter() or finish_alone

    saying = Saying()
    with following() as report:
        runs = job(out, config, Screen(saying, report, training()), carry_out=carry_out)
    for folder, end in runs:
        if end.report is not None:  # a rank has shown what it judged
            show(end.table, saying.new(end.remarks), folder.report)
    return code_of(next((end.ending for _, end in runs if end.ending != Ending.SUCCESS), Ending.SUCCESS))


def evaluate(
    run: Path,
    *,
    file: Path | None = None,
    task: str | None = None,
    split: Literal["test", "valid", "train"] = "test",
    resolution: str | None = None,
    params: str | None = None,
    baselines: str | None = None,
    samples: Whole | None = None,
    out: Place | None = None,
    device: str = "auto",
) -> None:
    """Judge the simulator of a finished run again, and write results.json and report.html.

    By default on the run's own test part; with --file on data it has never seen, also at a resolution or at parameters
    that were not trained.

    Parameters
    ----------
    run
        A run folder.
    file
        A file or folder in any format that `ups data info` reads, of a task the simulator knows; judged whole.
    task
        Only this task of the run; with --file, which of them it holds, or a YAML file that describes it. Without it the
        file is read as those of training were.
    split
        The part of the run's own data.
    resolution
        Cells per axis, for example 256 or 64,64: picked from the file, or from the run's data where they are fine
        enough, else made.
    params
        For example nu=0.02,rho=1: new trajectories are made at these values; with --file, what the simulator is told.
    baselines
        fno, uno, linear, or several (fno,linear): made of the run's data, networks in the same time, to stand beside;
        '' for none. By default those of the run that need no training.
    samples
        Only the first so many trajectories; 16 where they are made, all otherwise.
    out
        Folder for the two files. By default the run's own, or one in its `evaluations` if other data were asked for.
    device
        auto, cpu, cuda or cuda:N.
    """
    one_line(out or run)
    with following(f"opening {run}") as report:
        from ups.jobs.evaluate import Question, evaluate_run
        from ups.run_files import REPORT

        question = Question(
            file=file,
            task=task,
            split=split,
            resolution=_whole_numbers(resolution),
            params=assignments(params),
            baselines=None if baselines is None else tuple(word.strip() for word in baselines.split(",") if word),
            samples=samples,
            out=out,
            device=device,
        )
        folder, results = evaluate_run(run, question, Screen(print, report, training()))
    show(results.headline(), results.remarks(), folder / REPORT)


def rollout(
    run: Path,
    *,
    input: Path,
    steps: Whole,
    out: Place,
    samples: Whole = 8,
    task: str | None = None,
    params: str | None = None,
    device: str = "auto",
    overwrite: bool = False,
) -> None:
    """Continue the trajectories of a file with a trained simulator, and write what it predicts.

    Parameters
    ----------
    run
        A run folder, or a simulator artifact.
    input
        A file or folder in any format that `ups data info` reads, whose first frames are given.
    steps
        Frames to predict.
    out
        HDF5 file for the result, in The Well's layout: the frames that were given and those predicted after them, with
        coordinates, times and parameters. `ups data info`, `ups data validate` and `ups evaluate --file` read it.
    samples
        How many trajectories to continue, from the first on.
    task
        Which task of the simulator the input holds, or a YAML file that describes it. Without it the input is read as
        the files of training were.
    params
        For example nu=0.02: what the simulator is told, in the place of what the input says.
    device
        auto, cpu, cuda or cuda:N.
    overwrite
        Replace a file that is there.
    """

    def warn(sentence: str) -> None:
        print(f"ups: {sentence}", file=sys.stderr)

    with waiting(f"opening {run}") as show_activity:
        from ups.jobs.rollout import rollout as job

        doing = f"predicting {counted(steps, 'frame')} after those of {input}"
        show_activity(doing)
        with reporting(lambda share: show_activity(f"{doing}: {share:.0%}")):
            path = job(run, input, steps, out, samples, task, device, assignments(params), warn, overwrite)
    print(path)


def begin() -> int:
    """`ups` alone: what lies here and what to do next."""
    from ups.jobs.first_look import first_look

    print(printable("\n".join(first_look(Path(), [name for name in app if not name.startswith("-")]))))
    return 0


def _whole_numbers(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.replace("x", ",").split(",")) if text else ()
    except ValueError:
        raise ConfigError(f"--resolution is '{text}', but must be cells per axis, such as 256 or 64,64.") from None


OWN = (
    Command("demo", demo, BEGIN),
    Command("init", init, BEGIN, "Usage: ups init [FILES ...] [OPTIONS]"),
    Command("data", data, BEGIN),
    Command("config", config, BEGIN),
    Command("estimate", estimate, TRAIN, "Usage: ups estimate CONFIG [OPTIONS] [--KEY.OF.CONFIG VALUE ...]"),
    Command("run", run, TRAIN, "Usage: ups run CONFIG [OPTIONS] [--KEY.OF.CONFIG VALUE ...]"),
    Command("evaluate", evaluate, USE),
    Command("rollout", rollout, USE),
    Command("cache", cache, CHECK),
)


def _complete() -> None:
    """Give `ups` its own commands and those that wings add; one of a wing replaces that of its name."""
    every = {(command.parent, command.name): command for command in (*OWN, *commands())}
    titles = dict.fromkeys((*HEADINGS, *(command.group for command in every.values() if not command.parent), "Options"))
    places = {title: Group(title, sort_key=number) for number, title in enumerate(titles)}
    for number, command in enumerate(sorted(every.values(), key=lambda command: bool(command.parent)), start=1):
        parent = app[command.parent] if command.parent else app
        if isinstance(command.run, App):
            parent.command(command.run, name=command.name)
        else:
            parent.command(command.run, name=command.name, usage=command.usage)
        one = parent[command.name]
        if not command.parent:
            one.group, one.sort_key = places[command.group], number
        elif command.group:
            one.group = command.group
    for flag in ("--help", "--version"):
        app[flag].group = places["Options"]


_complete()


def main(words: list[str] | None = None) -> None:
    """Run the command; a user's mistake is one sentence and exit code 2, one about a full disk 18. Printing decides
    no exit code."""
    protect()
    try:
        sys.exit(_code(words))
    finally:
        finish()
        if words is None:  # the process ends: from here on a signal could only give it another code than was decided
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def _require_folder() -> None:
    """ConfigError where the current folder is gone: libraries look for their own parts from there, and end the process
    where it has no name."""
    try:
        Path.cwd()
    except OSError as error:
        raise ConfigError(
            f"the folder that this command was given in is gone ({error.strerror}); cd to another."
        ) from None


def _mistake(error: cyclopts.CycloptsError, words: Sequence[str]) -> str:
    """What is wrong with the words of a command."""
    if "Dictionary of tokens" in str(error):  # a dot in a flag that names a parameter of an equation
        flag = next((word for word in words if word.startswith("--") and "." in word), "")
        name = flag.split("=")[0].rpartition(".")[2]
        return f"there is no flag '{flag}'; a parameter of the equation is a flag of its own: --{name} VALUE."
    return f"{' '.join(str(error).split())} See `ups --help`."


def _lacking(ending: Ending, words: list[str] | None) -> int:
    """The exit code of a command that lacked something. HDF5 writes to a full disk once more when its files are let go
    of, and crashes: a process that ends does so before."""
    if words is None and ending == Ending.STORAGE and "h5py" in sys.modules:
        finish()
        os._exit(int(ending))
    return int(ending)


def _code(words: list[str] | None) -> int:
    """The exit code of the command."""
    try:
        _require_folder()
        given = sys.argv[1:] if words is None else words
        code = app(given, exit_on_error=False, print_error=False) if given else begin()
    except cyclopts.CycloptsError as error:
        print(f"ups: {printable(_mistake(error, sys.argv[1:] if words is None else words))}", file=sys.stderr)
        return 2
    except UpsError as error:
        sentence = spent(error) or _HDF5.sub(_CAUSE, str(error))
        print(f"ups: {printable(sentence.replace(chr(10), ' '))}", file=sys.stderr)
        return _lacking(ending, words) if (ending := classify(error).ending) in LACKING else int(Ending.USER)
    except UnicodeEncodeError as error:
        print(f"ups: {printable(no_text(error.object))}", file=sys.stderr)
        return int(Ending.USER)
    except KeyboardInterrupt:
        print("ups: stopped; run the same command again to go on (`ups run` with --resume).", file=sys.stderr)
        return 130
    except (MemoryError, OSError, ImportError, RuntimeError) as error:
        if sentence := spent(error):
            print(f"ups: {printable(sentence)}", file=sys.stderr)
            return int(Ending.USER)
        if (ending := classify(error).ending) not in LACKING:
            raise
        print(
            f"ups: {type(error).__name__}: {printable(_HDF5.sub(_CAUSE, ' '.join(str(error).split())))}; "
            f"{LACKING[ending]}",
            file=sys.stderr,
        )
        return _lacking(ending, words)
    return code if isinstance(code, int) else 0
