"""`ups run`: a whole run, in processes that a supervisor starts, watches and starts again."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ups.cli.numbers import Whole
from ups.cli.run import ABOUT, RunFlags, code_of, in_this_process, settings_of
from ups.screen import waiting
from ups.streams import delivered
from ups.types import ConfigError

if TYPE_CHECKING:
    from ups.run.config import RunConfig
    from ups.run.start import Start


@Parameter(name="*")
@dataclass(frozen=True)
class FleetFlags(RunFlags):
    """How a run is begun, beside its config, and who carries it out."""

    ranks: Whole | None = None
    """Processes on this machine, one per GPU or group of cores; short for `--dist.ranks`."""
    nodes: Whole | None = None
    """Machines that run this command together on a shared folder; short for `--dist.nodes`."""
    node_rank: Whole = 0
    """Which of them this one is, from 0."""
    rendezvous: str = ""
    """HOST:PORT of the first machine, where all meet."""
    forever: bool = False
    """Begin the run, or go on with it if it is there; after a hang, a lost rank or machine, memory or a disk that ran
    out, wait and try again, for ever. The same command line serves after a reboot; on SLURM a preempted job is
    queued again. docs/howto-run-for-weeks.md says what ends it."""
    unit: bool = False
    """With --forever: print a systemd unit that starts this very command at boot, and do nothing else."""
    here: bool = False
    """Work in this very process, without a supervisor: for a debugger, or as a rank of torchrun."""
    debug: bool = False
    """Have torch say more in the logs of the ranks, and wait for every kernel, so that an error names its line.
    Slow."""

    def start(self, settings: RunConfig) -> Start:
        if self.unit and not self.forever:
            raise ConfigError("--unit is of a run that goes on by itself; write --forever --unit.")
        if self.forever and self.overwrite:
            raise ConfigError("--forever with --overwrite would delete the run at every start; leave one of them out.")
        if self.forever and self.here:
            raise ConfigError("--forever needs a supervisor, and --here has none; leave one of them out.")
        return super().start(settings)


PLAIN = FleetFlags()


def run(*arguments: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)], flags: FleetFlags = PLAIN) -> int:
    given = {"dist.ranks": flags.ranks, "dist.nodes": flags.nodes}
    settings, file, overrides = settings_of(arguments, given, wait=flags.here or flags.unit)
    start = flags.start(settings)
    if flags.unit:
        print(_unit(settings, file, overrides, flags), end="")
        return delivered()
    if flags.debug:
        from ups_fleet.supervise.job import debugging

        os.environ.update(debugging(settings.device))  # torch itself reads them, here and in the ranks
    if flags.here:
        return in_this_process(settings, start)
    with waiting("loading what a run needs"):  # it must be over before ranks are forked
        from ups.run.disk_room import say
        from ups_fleet.running.forever import run_forever
        from ups_fleet.running.supervised import supervise

    say(f"{Path(settings.out) / settings.name}: {', '.join(settings.plan)} on {_ranks(settings)}.")
    node, meet = flags.node_rank, flags.rendezvous
    carry_out = partial(supervise, settings, command="ups_fleet.cli.worker", node=node, rendezvous=meet)
    if not flags.forever:
        return code_of(carry_out(start, last=True))
    return code_of(run_forever(settings, lambda *, resume: carry_out(replace(start, resume=resume)), say, node))


run.__doc__ = ABOUT.format(
    by="The work is done by processes of their own. One that dies, hangs or runs out of memory is ended, named and "
    "started again from the last verified checkpoint."
)


def _ranks(settings: RunConfig) -> str:
    count = settings.dist.ranks * settings.dist.nodes
    return f"{count} ranks" if count > 1 else "one rank"


def _unit(settings: RunConfig, file: Path, overrides: Mapping[str, Any], flags: FleetFlags) -> str:
    """The systemd unit of this command, with absolute paths."""
    from ups_fleet.running.forever import systemd_unit

    given = {"ranks": flags.ranks, "nodes": flags.nodes, "node-rank": flags.node_rank or None}
    options = {**overrides, **given, "rendezvous": flags.rendezvous or None}
    words = [sys.executable, "-m", "ups", "run", str(file.absolute()), "--forever"]
    words += [f"--{name}={value}" for name, value in options.items() if value is not None]
    return systemd_unit(settings, words, os.environ, Path.cwd())
