"""`ups runs`, `show`, `logs`, `watch`, `leaderboard`, `compare`, `track`: runs, from their folders alone."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from ups.cli.numbers import Whole
from ups.cli.places import Place
from ups.screen import table, waiting
from ups.streams import delivered, printable
from ups.types import ConfigError

if TYPE_CHECKING:
    from ups_fleet.run_folders.state import RunState

RUNS = Path("runs")


def runs(
    folder: Path = RUNS,
    *,
    sort: Literal["changed", "error", "name", "time"] = "changed",
    state: str | None = None,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """List the runs of a folder with their true state, error and cost.

    The state is read from evidence: who holds the run's lock, its sign of life, its verdict, its log and checkpoints.
    A run that was killed is dead, with the step it had reached; one on another machine counts as dead only after two
    minutes without a sign of life. After the list, trackers of runs that have ended are told what they have missed, and
    how these ended, in at most ten seconds.

    Parameters
    ----------
    folder
        Where runs lie; those of sweeps, one folder deeper, are found too.
    sort
        By last sign of life, error, name or time of training.
    state
        Only runs in this state: running, finished, gate missed, paused, failed, stopped, dead …
    as_json
        Print a JSON list with everything that is known of each.
    """
    from ups_fleet.run_folders.runs import runs_in, summary_of, table_of
    from ups_fleet.run_folders.state import ENDED

    every = runs_in(folder, sort)
    states = [one for one in every if state in (None, one.word)]
    if as_json:
        print(json.dumps([one.to_dict() for one in states], indent=2, ensure_ascii=False), flush=True)
    elif not states:
        print(f"{folder}: no runs here{'' if state is None else f' that are {state}'}.", flush=True)
    else:
        print(printable(table(table_of(states))), printable(summary_of(states)) + ".", sep="\n", flush=True)
    ended = [one.folder for one in every if one.word in ENDED and (one.folder / "tracking").is_dir()]
    if ended:
        from ups_fleet.tracking import deliver_by_the_way

        for sentence in deliver_by_the_way(ended):
            print(printable(sentence), file=sys.stderr if as_json else sys.stdout, flush=True)
    return delivered()


def show(run: Path, *, curves: Annotated[bool, Parameter(negative="--no-curves")] = True) -> int:
    """Show one run: what it trains, where, how it ended, the error on each task, and its learning curves.

    Parameters
    ----------
    run
        A run folder.
    curves
        Draw the learning curves; --no-curves leaves them out.
    """
    from ups_fleet.run_folders.runs import run_at
    from ups_fleet.run_folders.show import curve_lines, errors_table, facts_of, report_path
    from ups_fleet.run_folders.state import COMPLETE

    folder = run_at(run)
    state, facts = facts_of(folder)
    parts = [state.name, table(facts)]
    rows, problem = errors_table(folder)
    if rows:
        parts += ["", table(rows)]
    elif state.word in COMPLETE:
        parts += ["", problem]
    if curves:
        parts += ["", *curve_lines(folder, shutil.get_terminal_size((80, 24)).columns)]
    parts += [path] if (path := report_path(folder)) else []
    print(printable("\n".join(parts)))
    return delivered()


def logs(
    run: Path, *, rank: Whole = 0, attempt: Whole | None = None, lines: Whole | None = None, follow: bool = False
) -> int:
    """Print what a rank of a run has written, of its newest start.

    Parameters
    ----------
    run
        A run folder.
    rank
        Which of its processes.
    attempt
        Which start of the ranks, from 1; the newest by default.
    lines
        Only so many of the last lines.
    follow
        Go on printing, also after the ranks were started again, until the run ends.
    """
    from ups_fleet.run_folders.follow import log_text
    from ups_fleet.run_folders.runs import run_at

    for text in log_text(run_at(run), rank, attempt, lines, follow):
        print(printable(text), end="", flush=True)
    return delivered()


def watch(run: Path, *, every: float = 1.0) -> int:
    """Follow a run from another terminal or another machine until it ends: step, losses, pace, time left.

    Needs no lock and disturbs nobody. On a terminal its curves are drawn anew in place; elsewhere a line is printed
    when something has changed. The exit code is 0 where the run has finished, or ended after the phase it
    was asked for, else 1.

    Parameters
    ----------
    run
        A run folder.
    every
        Seconds between two looks.
    """
    from ups_fleet.run_folders.follow import watch as follow
    from ups_fleet.run_folders.runs import run_at
    from ups_fleet.run_folders.show import curve_lines
    from ups_fleet.run_folders.state import WELL

    folder, pause = run_at(run), max(0.1, every)
    if not sys.stdout.isatty():

        def line(state: RunState, words: str) -> None:  # noqa: ARG001
            print(printable(words), flush=True)

        return 0 if follow(folder, line, pause).word in WELL else 1
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False) as screen:

        def draw(state: RunState, words: str) -> None:
            size = shutil.get_terminal_size((80, 24))
            charts = curve_lines(folder, size.columns, state.stage)[: max(0, size.lines - 4)]
            lines = (f"{state.name}: {words}", "", *charts)
            screen.update(Group(*(Text(printable(text)) for text in lines)), refresh=True)

        return 0 if follow(folder, draw, pause).word in WELL else 1


def leaderboard(folder: Path = RUNS, *, task: str | None = None, top: Whole = 10) -> int:
    """The best runs of each task with 95 % intervals; those judged on other test data are set apart, and that is said.

    Parameters
    ----------
    folder
        Where runs lie.
    task
        Only this task.
    top
        So many of each.
    """
    from ups_fleet.run_folders.runs import leaderboard as best
    from ups_fleet.run_folders.runs import runs_in

    rows, notes = best(runs_in(folder), task, top)
    shown = table(rows) if len(rows) > 1 else f"{folder}: no finished runs here{' with errors' if notes else ''}."
    print(printable(shown), *(printable(note) for note in notes), sep="\n")
    return delivered()


def compare(first: Path, *others: Path, out: Place | None = None) -> int:
    """Compare runs: which settings differ, and whose errors are lower on the same test trajectories, with intervals.

    Says in plain words which is better and whether that is significant. Runs that differ by their seed alone are taken
    together, and a difference must stand out of what seeds make. Runs judged on other test data are not paired.

    Parameters
    ----------
    first
        A run folder.
    others
        The others to compare it with.
    out
        Also write a page with everything, curves overlaid, to this file: `--out compare.html`.
    """
    from ups.run.config import without_effect, written_once
    from ups_fleet.run_folders.candidate import candidates
    from ups_fleet.run_folders.compare import compare as comparison_of
    from ups_fleet.run_folders.compare import page_of, write_page

    result = comparison_of(candidates((first, *others), without_effect(), written_once()))
    parts = []
    for rows in (result.settings_table(), result.errors_table(), result.pairs_table()):
        parts += [table(rows), ""] if rows else []
    print(printable("\n".join((*parts, *result.sentences()))), flush=True)
    if out is not None:
        print(write_page(page_of(result), out))
    return delivered()


def track(run: Path, *, to: str | None = None, project: str | None = None, wait: float = 600.0) -> int:
    """Send the trackers of a run what they have missed, and how it ended; with --to, show an old run to further ones.

    A run feeds its trackers (`tracking` in its config) while it trains. What one missed because it was down, slow, full
    or without a login, or because everything was killed, is sent here. Nothing is sent twice.

    Parameters
    ----------
    run
        A run folder.
    to
        Trackers that are to show the run from now on, for example wandb,tensorboard.
    project
        The project (W&B) or experiment (MLflow) for it.
    wait
        Seconds after which it is given up for now.
    """
    from ups.rundir import RunDir
    from ups_fleet.tracking import deliver, show_to

    folder = RunDir.at(run).folder
    if to is not None or project is not None:
        names = tuple(name.strip() for name in (to or "").split(",") if name.strip())
        show_to(folder, names, project, print)
    with waiting(f"sending what trackers have missed of {folder}"):
        states = deliver(folder, wait, by_user=True)
    if not states:
        raise ConfigError(f"{run}: is shown nowhere beside its log, metrics.jsonl; name trackers with --to.")
    for state in states:
        print(state.sentence(folder))
    return 0 if all(state.whole for state in states) else 1
