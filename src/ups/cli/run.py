"""`ups run`: a whole run, in this process or as one of the ranks that `torchrun` has started."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ups.files import one_line
from ups.open_files import require
from ups.progress import Screen
from ups.screen import Saying, following, show, training, waiting
from ups.streams import never_wait
from ups.types import ConfigError, UpsError
from ups.verdict import Ending

if TYPE_CHECKING:
    from ups.run.config import RunConfig
    from ups.run.journal import Span


def run(
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)],
    resume: bool = False,
    overwrite: bool = False,
    force: bool = False,
    profile: bool | int = False,
    until: str | None = None,
    from_: Annotated[str | None, Parameter(name="--from")] = None,
    dry_run: bool = False,
) -> int:
    """Make the data, train the stages of the plan, judge the simulator on unseen trajectories, hold it against its
    gates, and write a report.

    CONFIG is a YAML file (`ups config schema` explains its keys); any key is a flag, with dots for the levels, for
    example `--operator.train.seconds 60`, or `--train.seconds 60` for every stage. The run's folder holds the config,
    the environment, the logs, the simulator (`artifacts/simulator.safetensors`), `results.json`, `report.html` and
    `verdict.json`, which says how it ended.

    The work is done by this process; under `torchrun` (`torchrun --nproc-per-node 2 -m ups run CONFIG`) by all that it
    starts, together. The exit code says how the run ended: 0 is success and nothing else; 19 is a run that is complete
    and misses a gate of its config (`gates`, docs/howto-gates.md).

    Parameters
    ----------
    resume
        Go on with a run that was stopped; with another number of ranks, if you like.
    overwrite
        Start again in a folder that holds a run.
    force
        With --resume: go on although keys of `evaluation` have changed since; the simulator is then judged anew.
    profile
        Trace 3 steps of every stage, or so many as are named, on every rank.
    until
        End after this phase, with code 0 and the verdict PAUSED; --resume goes on.
    from_
        Begin with this phase, on what those before it have left, in a folder that holds the run.
    dry_run
        End after a few real steps of every stage; short for `--until dry-run`.
    """
    settings, _, _ = settings_of(arguments, {})
    resume = resume or from_ is not None
    check_options(resume=resume, force=force)
    span = span_of(settings, from_, until, dry_run=dry_run, overwrite=overwrite)
    trace(settings, profile)
    return in_this_process(settings, span, resume=resume, overwrite=overwrite, force=force)


def check_options(*, resume: bool, force: bool) -> None:
    """ConfigError for options that contradict each other."""
    if force and not resume:
        raise ConfigError("--force changes the config of a run that is resumed; write --resume too, or leave it out.")


def settings_of(
    arguments: tuple[str, ...], given: Mapping[str, Any], *, wait: bool = True
) -> tuple[RunConfig, Path, dict[str, Any]]:
    """The config that the words of the command line mean, its file, and the keys among them; `given` are keys that
    have flags of their own. Unless it may `wait`, nobody who reads slowly holds it up from here on."""
    from ups.config import file_and_flags, load

    file, overrides = file_and_flags(arguments)
    if file is None:
        raise ConfigError("no config was named; write `ups run CONFIG`.")
    require("the run")
    if not wait:
        never_wait()
    flags = {**overrides, **{key: value for key, value in given.items() if value is not None}}
    with waiting("getting ready"):
        from ups.run.config import run_config

        return load(run_config(), file, flags), file, dict(overrides)


def trace(settings: RunConfig, profile: bool | int) -> None:
    """Have ranks trace some of their steps, where that is asked for."""
    if profile is not False:
        from ups.engine.profile import request
        from ups.rundir import RunDir

        steps = 3 if profile is True else profile
        if steps < 1:
            raise ConfigError("--profile traces at least 1 step; leave it out for none.")
        os.environ.update(request(steps, RunDir(Path(settings.out) / settings.name).profile))


def code_of(ending: Ending) -> int:
    """The exit code of a run that ended so: what --until asked for was done."""
    return 0 if ending == Ending.PAUSED else int(ending)


def span_of(settings: RunConfig, first: str | None, last: str | None, *, dry_run: bool, overwrite: bool) -> Span:
    """The phases that were asked for, of a run whose folder can be named."""
    from ups.run.journal import Span
    from ups.rundir import RunDir

    if dry_run and last not in (None, "dry-run"):
        raise ConfigError(f"--dry-run ends after phase dry-run, and --until says {last}; leave one of them out.")
    span = Span.of(first, "dry-run" if dry_run else last)
    folder = RunDir(Path(settings.out) / settings.name)
    one_line(folder.folder.resolve())
    if first is not None and overwrite:
        raise ConfigError("--from goes on with what is there, and --overwrite deletes it; leave one of them out.")
    if first is not None and folder.known() is None:
        raise ConfigError(f"--from {first}: {folder.folder} holds no run to go on with; leave --from out.")
    return span


def in_this_process(settings: RunConfig, span: Span, *, resume: bool, overwrite: bool, force: bool) -> int:
    """The run in this process, or its part in it where a launcher has started several; the exit code."""
    from ups.cli.preflight import PREFLIGHT
    from ups.run.launched import finish_launched, ranks_here
    from ups.run.room import refused, say
    from ups.run.run import finish_alone
    from ups.rundir import RunDir

    saying, finish_here = Saying(), finish_launched if ranks_here() > 1 else finish_alone
    try:
        with following() as report:
            screen = Screen(saying, report, training())
            start = partial(finish_here, settings, screen, preflight=PREFLIGHT, span=span)
            folder, finish = start(resume=resume, overwrite=overwrite, force=force)
    except (OSError, UpsError) as error:
        return refused(RunDir(Path(settings.out) / settings.name), error)
    if finish is None:
        return 0
    if finish.table:
        show(finish.table, saying.new(finish.remarks), folder.report)
    if finish.ending != Ending.SUCCESS:
        say(finish.cause if finish.ending == Ending.PAUSED else f"{finish.ending.name}: {finish.cause}")
    return code_of(finish.ending)
