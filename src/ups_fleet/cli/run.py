"""`ups run`: a whole run, in processes that a supervisor starts, watches and starts again."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ups.cli.numbers import Whole
from ups.cli.run import check_options, code_of, in_this_process, settings_of, span_of, trace
from ups.screen import waiting
from ups.streams import delivered
from ups.types import ConfigError

if TYPE_CHECKING:
    from ups.run.config import RunConfig


def run(
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)],
    ranks: Whole | None = None,
    resume: bool = False,
    overwrite: bool = False,
    force: bool = False,
    nodes: Whole | None = None,
    node_rank: Whole = 0,
    rendezvous: str = "",
    forever: bool = False,
    unit: bool = False,
    here: bool = False,
    debug: bool = False,
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

    The work is done by processes of their own. One that dies, hangs or runs out of memory is ended, named and started
    again from the last verified checkpoint. The exit code says how the run ended: 0 is success and nothing else; 19 is
    a run that is complete and misses a gate of its config (`gates`, docs/howto-gates.md).

    The phases are check, data, doctor, estimate, dry-run, train, calibrate, evaluate, gates, report. Each is recorded
    in `phases.jsonl` when it begins and when it ends, and skipped where what it left is there unchanged.

    Parameters
    ----------
    ranks
        Processes on this machine, one per GPU or group of cores; short for `--dist.ranks`.
    resume
        Go on with a run that was stopped; with another number of ranks, if you like.
    overwrite
        Start again in a folder that holds a run.
    force
        With --resume: go on although keys of `evaluation` have changed since; the simulator is then judged anew. Keys
        that decide what is learnt cannot be changed so, nor can data.
    nodes
        Machines that run this command together on a shared folder; short for `--dist.nodes`.
    node_rank
        Which of them this one is, from 0.
    rendezvous
        HOST:PORT of the first machine, where all meet.
    forever
        Begin the run, or go on with it if it is there; after a hang, a lost rank or machine, memory or a disk that ran
        out, wait and try again, for ever. The same command line serves after a reboot; on SLURM a preempted job is
        queued again. docs/howto-run-for-weeks.md says what ends it.
    unit
        With --forever: print a systemd unit that starts this very command at boot, and do nothing else.
    here
        Work in this very process, without a supervisor: for a debugger, or as a rank of torchrun.
    debug
        Have torch say more in the logs of the ranks, and wait for every kernel, so that an error names its line. Slow.
    profile
        Trace 3 steps of every stage, or so many as are named, on every rank: `profile/STAGE/rank-R.json` in the run's
        folder, for chrome://tracing or Perfetto.
    until
        End after this phase, with code 0 and the verdict PAUSED; --resume goes on.
    from_
        Begin with this phase, on what those before it have left, in a folder that holds the run: from calibrate on,
        what is there is made again; training goes on from its checkpoints.
    dry_run
        End after a few real steps of every stage; short for `--until dry-run`.
    """
    given = {"dist.ranks": ranks, "dist.nodes": nodes}
    settings, file, overrides = settings_of(arguments, given, wait=here or unit)
    resume = resume or from_ is not None
    _check_options(forever=forever, unit=unit, resume=resume, overwrite=overwrite, force=force, here=here)
    span = span_of(settings, from_, until, dry_run=dry_run, overwrite=overwrite)
    if unit:
        options: dict[str, Any] = {
            "ranks": ranks,
            "nodes": nodes,
            "node-rank": node_rank or None,
            "rendezvous": rendezvous or None,
        }
        print(_unit(settings, file, {**overrides, **options}), end="")
        return delivered()
    if debug:
        from ups_fleet.supervise.job import debugging

        os.environ.update(debugging(settings.device))
    trace(settings, profile)
    if here:
        return in_this_process(settings, span, resume=resume, overwrite=overwrite, force=force)
    with waiting("loading what a run needs"):  # it must be over before ranks are forked
        from ups.run.room import say
        from ups_fleet.running.forever import run_forever
        from ups_fleet.running.supervised import supervise

    say(f"{Path(settings.out) / settings.name}: {', '.join(settings.plan)} on {_ranks(settings)}.")
    start = partial(supervise, settings, command="ups_fleet.cli.worker", overwrite=overwrite, force=force)
    start = partial(start, node=node_rank, rendezvous=rendezvous, span=span)
    return code_of(run_forever(settings, start, say, node_rank) if forever else start(resume=resume, last=True))


def _ranks(settings: RunConfig) -> str:
    count = settings.dist.ranks * settings.dist.nodes
    return f"{count} ranks" if count > 1 else "one rank"


def _check_options(*, forever: bool, unit: bool, resume: bool, overwrite: bool, force: bool, here: bool) -> None:
    """ConfigError for options that contradict each other."""
    check_options(resume=resume, force=force)
    if unit and not forever:
        raise ConfigError("--unit is of a run that goes on by itself; write --forever --unit.")
    if forever and overwrite:
        raise ConfigError("--forever with --overwrite would delete the run at every start; leave one of them out.")
    if forever and here:
        raise ConfigError("--forever needs a supervisor, and --here has none; leave one of them out.")


def _unit(settings: RunConfig, file: Path, options: Mapping[str, Any]) -> str:
    """The systemd unit of this command, with absolute paths."""
    from ups_fleet.running.forever import systemd_unit

    words = [sys.executable, "-m", "ups", "run", str(file.absolute()), "--forever"]
    words += [f"--{name}={value}" for name, value in options.items() if value is not None]
    return systemd_unit(settings, words, os.environ, Path.cwd())
