"""`ups run`: a whole run, in processes that a supervisor starts, watches and starts again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ups.cli.numbers import Whole
from ups.screen import following, show, training
from ups.types import ConfigError, UpsError


def run(
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)],
    ranks: Whole | None = None,
    resume: bool = False,
    overwrite: bool = False,
    nodes: Whole | None = None,
    node_rank: Whole = 0,
    rendezvous: str = "",
    here: bool = False,
    debug: bool = False,
    profile: bool | int = False,
) -> int:
    """Make the data, train the stages of the plan, judge the simulator on unseen trajectories, and write a report.

    CONFIG is a YAML file (`ups config schema` explains its keys); any key is a flag, with dots for the levels, for
    example `--operator.train.seconds 60`. The run's folder holds the config, the environment, the logs, the simulator
    (`artifacts/simulator.safetensors`), `results.json`, `report.html` and `verdict.json`, which says how it ended.

    The work is done by processes of their own. One that dies, hangs or runs out of memory is ended, named and started
    again from the last verified checkpoint. The exit code says how the run ended: 0 is success and nothing else.

    Parameters
    ----------
    ranks
        Processes on this machine, one per GPU or group of cores; short for `--dist.ranks`.
    resume
        Go on with a run that was stopped; with another number of ranks, if you like.
    overwrite
        Start again in a folder that holds a run.
    nodes
        Machines that run this command together on a shared folder; short for `--dist.nodes`.
    node_rank
        Which of them this one is, from 0.
    rendezvous
        HOST:PORT of the first machine, where all meet.
    here
        Work in this very process, without a supervisor: for a debugger.
    debug
        Have torch say more in the logs of the ranks, and wait for every kernel, so that an error names its line. Slow.
    profile
        Trace 3 steps of every stage, or so many as are named, on every rank: `profile/STAGE/rank-R.json` in the run's
        folder, for chrome://tracing or Perfetto.
    """
    from ups.config import file_and_flags, load
    from ups.run.config import run_config

    file, overrides = file_and_flags(arguments)
    if file is None:
        raise ConfigError("no config was named; write `ups run CONFIG`.")
    given = {"dist.ranks": ranks, "dist.nodes": nodes}
    settings = load(
        run_config(), file, {**overrides, **{key: value for key, value in given.items() if value is not None}}
    )
    if debug:
        from ups.supervise.job import debugging

        os.environ.update(debugging(settings.device))
    if profile is not False:
        from ups.engine.profile import request
        from ups.rundir import RunDir

        steps = 3 if profile is True else profile
        if steps < 1:
            raise ConfigError("--profile traces at least 1 step; leave it out for none.")
        os.environ.update(request(steps, RunDir(Path(settings.out) / settings.name).profile))
    if here:
        from ups.run.datasets import Screen
        from ups.run.run import run_alone as job
        from ups.run.supervised import refused
        from ups.rundir import RunDir

        try:
            with following() as report:
                folder, found = job(settings, Screen(print, report, training()), resume=resume, overwrite=overwrite)
        except (OSError, UpsError) as error:
            return refused(RunDir(Path(settings.out) / settings.name), error)
        show(found.headline(), found.said(), folder.report)
        return 0
    from ups.run.supervised import supervise

    return supervise(
        settings, resume=resume, overwrite=overwrite, node=node_rank, rendezvous=rendezvous, command="ups.cli.worker"
    )
