"""`ups sweep`: many runs of one config with different settings, side by side, in one folder."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from ups.cli.numbers import Whole
from ups.cli.places import Place
from ups.screen import table, waiting
from ups.streams import printable
from ups.types import ConfigError


def sweep(
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)],
    over: Annotated[tuple[str, ...], Parameter(consume_multiple=False)] = (),
    seeds: Whole | None = None,
    random: Whole | None = None,
    optuna: Whole | None = None,
    seed: Whole = 0,
    jobs: Whole | None = None,
    devices: str | None = None,
    out: Place | None = None,
) -> int:
    """Run a config at many settings, side by side, and say which is best on validation trajectories.

    Each point is a whole `ups run` with its own folder in the sweep's, on one device. Given again, the same command
    resumes what was killed and repeats nothing that is finished; a run that fails stops no other. `sweep.html` in the
    folder has the table and all learning curves; test errors are shown, and choose nothing. The exit code is 0 where
    every run has finished.

    Parameters
    ----------
    over
        What to vary: `operator.train.lr=1e-3,3e-3` (`train.lr`: of every stage), or for --random and --optuna also a
        range: `log:1e-4..1e-2`, `0..0.5`, `int:1..8`. Again for each key; a grid has every combination.
    seeds
        Run each setting with so many seeds, and show their mean with its interval.
    random
        So many points at random instead of a grid.
    optuna
        So many points that Optuna chooses, each with what it has learnt from those before.
    seed
        Of what --random and --optuna draw; that of the runs is the config's.
    jobs
        Runs at a time. On CPUs they share the cores.
    devices
        For example cuda:0,cuda:1: one run at a time on each.
    out
        The sweep's folder; `<out>/<name>-sweep` of the config by default.
    """
    with waiting("getting ready to sweep"):
        from ups.config import file_and_flags
        from ups.run.disk_room import say
        from ups_fleet.sweep.begin import SweepRequest
        from ups_fleet.sweep.begin import sweep as carry_out
        from ups_fleet.sweep.summary import PAGE, sentences_of, table_of

    file, flags = file_and_flags(arguments)
    if file is None:
        raise ConfigError("no config was named; write `ups sweep CONFIG --over KEY=VALUE,VALUE`.")
    named = tuple(word.strip() for word in (devices or "").split(",") if word.strip())
    request = SweepRequest(file, over, flags, out, jobs, named, random, optuna, seed, seeds)
    code, folder, settings = carry_out(request, say, sys.argv, waiting(f"checking the points of {file}"))
    print(printable(table(table_of(settings))))
    print(printable("\n".join(sentences_of(folder, settings))), folder / PAGE, sep="\n")
    return code
