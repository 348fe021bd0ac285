"""`ups run`: a whole run, in this process or as one of the ranks that `torchrun` has started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    from ups.run.start import Start


@Parameter(name="*")
@dataclass(frozen=True)
class RunFlags:
    """How a run is begun, beside its config."""

    resume: bool = False
    """Go on with a run that was stopped; with another number of ranks, if you like."""
    overwrite: bool = False
    """Start again in a folder that holds a run."""
    force: bool = False
    """With --resume: go on although keys of `evaluation` have changed since; the simulator is then judged anew. Keys
    that decide what is learnt cannot be changed so, nor can data."""
    profile: bool | int = False
    """Trace 3 steps of every stage, or so many as are named, on every rank: `profile/STAGE/rank-R.json` in the run's
    folder, for chrome://tracing or Perfetto."""
    until: str | None = None
    """End after this phase, with code 0 and the verdict PAUSED; --resume goes on."""
    from_: Annotated[str | None, Parameter(name="--from")] = None
    """Begin with this phase, on what those before it have left, in a folder that holds the run: from calibrate on,
    what is there is made again; training goes on from its checkpoints."""
    dry_run: bool = False
    """End after a few real steps of every stage; short for `--until dry-run`."""

    def start(self, settings: RunConfig) -> Start:
        """What was asked for, of a run whose folder can be named; ConfigError for what contradicts itself."""
        from ups.run.start import Start

        resume = self.resume or self.from_ is not None
        if self.force and not resume:
            raise ConfigError(
                "--force changes the config of a run that is resumed; write --resume too, or leave it out."
            )
        span, traced = self._span(settings), 3 if self.profile is True else int(self.profile)
        if self.profile is not False and traced < 1:
            raise ConfigError("--profile traces at least 1 step; leave it out for none.")
        return Start(resume, self.overwrite, self.force, span, traced=traced)

    def _span(self, settings: RunConfig) -> Span:
        from ups.run.journal import Span
        from ups.rundir import RunDir

        first, last = self.from_, self.until
        if self.dry_run and last not in (None, "dry-run"):
            raise ConfigError(f"--dry-run ends after phase dry-run, and --until says {last}; leave one of them out.")
        span = Span.of(first, "dry-run" if self.dry_run else last)
        folder = RunDir(Path(settings.out) / settings.name)
        one_line(folder.folder.resolve())
        if first is not None and self.overwrite:
            raise ConfigError("--from goes on with what is there, and --overwrite deletes it; leave one of them out.")
        if first is not None and folder.known() is None:
            raise ConfigError(f"--from {first}: {folder.folder} holds no run to go on with; leave --from out.")
        return span


PLAIN = RunFlags()
ABOUT = """Make the data, train the stages of the plan, judge the simulator on unseen trajectories, hold it against its
gates, and write a report.

CONFIG is a YAML file (`ups config schema` explains its keys); any key is a flag, with dots for the levels, for
example `--operator.train.seconds 60`, or `--train.seconds 60` for every stage but those of 0 steps. The run's
folder holds the config, the environment, the logs, the simulator (`artifacts/simulator.safetensors`), `results.json`,
`report.html` and `verdict.json`, which says how it ended.

{by} The exit code says how the run ended: 0 is success and nothing else; 19 is a run that is complete and misses a
gate of its config (`gates`, docs/howto-gates.md).

The phases are check, data, doctor, estimate, dry-run, train, calibrate, evaluate, gates, report. Each is recorded
in `phases.jsonl` when it begins and when it ends, and skipped where what it left is there unchanged.
"""


def run(*arguments: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)], flags: RunFlags = PLAIN) -> int:
    settings, _, _ = settings_of(arguments, {})
    return in_this_process(settings, flags.start(settings))


run.__doc__ = ABOUT.format(
    by="The work is done by this process; under `torchrun` (`torchrun --nproc-per-node 2 -m ups run CONFIG`) by all "
    "that it starts, together."
)


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


def code_of(ending: Ending) -> int:
    """The exit code of a run that ended so: what --until asked for was done."""
    return 0 if ending == Ending.PAUSED else int(ending)


def in_this_process(settings: RunConfig, start: Start) -> int:
    """The run in this process, or its part in it where a launcher has started several; the exit code."""
    from ups.cli.preflight import PREFLIGHT
    from ups.run.disk_room import refused, say
    from ups.run.launched import finish_launched, ranks_here
    from ups.run.run import finish_alone
    from ups.rundir import RunDir

    saying, finish_here = Saying(), finish_launched if ranks_here() > 1 else finish_alone
    try:
        with following() as report:
            screen = Screen(saying, report, training())
            folder, finish = finish_here(settings, screen, replace(start, preflight=PREFLIGHT))
    except (OSError, UpsError) as error:
        return refused(RunDir(Path(settings.out) / settings.name), error)
    if finish is None:
        return 0
    if finish.table:
        show(finish.table, saying.new(finish.remarks), folder.report)
    if finish.ending != Ending.SUCCESS:
        say(finish.cause if finish.ending == Ending.PAUSED else f"{finish.ending.name}: {finish.cause}")
    return code_of(finish.ending)
