"""Keeps a run going: begins or resumes it, tries again where that may help; has SLURM or systemd begin it again."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Protocol

from ups.eval.results import read_results
from ups.presence import HeldError
from ups.run.config import RunConfig
from ups.run.load import load
from ups.rundir import RunDir
from ups.types import ConfigError, DataError
from ups.verdict import Ending, classify
from ups_fleet.fetch.patience import UnreachableError
from ups_fleet.keys import fleet_keys
from ups_fleet.running.supervised import progress
from ups_fleet.supervise.children import Ended, UnansweredError, ask
from ups_fleet.supervise.forked_functions import failure_of, run_copy

# What another try may mend; docs/howto-run-for-weeks.md gives the reason for each ending that is or is not here.
MENDED_BY_TIME = frozenset({Ending.OOM, Ending.HANG, Ending.RANK_DIED, Ending.NO_PROGRESS, Ending.STORAGE})
PAUSE, LONGEST = 10.0, 900.0  # seconds before another try; doubled for each that brought no newer checkpoint
STOPS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
LOADING = 600.0  # seconds that a simulator may take to be loaded
ANSWER = 60.0  # seconds that a scheduler has for its answer

Say = Callable[[str], None]


class _Stopped(BaseException):
    """A request to stop that arrived while no supervisor was listening."""


class SupervisedStart(Protocol):
    """Supervises a run until it ends."""

    def __call__(self, *, resume: bool) -> Ending: ...


def run_forever(config: RunConfig, start: SupervisedStart, say: Say, node: int = 0, pause: float = PAUSE) -> Ending:
    """Start the run of `config` again and again until it has succeeded, or ended in a way that would repeat itself.

    A request to stop ends it, as it ends a run; a SLURM job is then asked to be queued again, by the first node.
    """
    with _listening():
        try:
            ending = _until_it_ends(config, start, say, pause)
        except _Stopped:
            ending = Ending.PREEMPTED
        except KeyboardInterrupt:
            ending = Ending.INTERRUPTED
    if ending in (Ending.PREEMPTED, Ending.INTERRUPTED) and not _unfinished(config):
        ending = Ending.SUCCESS  # the request came after the last word of the run
    if ending == Ending.PREEMPTED and node == 0 and "SLURM_JOB_ID" in os.environ:
        requeue(os.environ, say)
    return ending


def _until_it_ends(config: RunConfig, start: SupervisedStart, say: Say, pause: float) -> Ending:
    folder, wait, step = RunDir(Path(config.out) / config.name), pause, -1
    waiting = False
    while True:
        reason = _unfinished(config)
        if not reason:
            say(f"{folder.folder}: the run is finished; there is nothing left to do.")
            return Ending.SUCCESS
        if folder.ended() == Ending.SUCCESS and folder.is_of(config):
            say(f"{folder.folder}: the run had succeeded, but is no longer whole ({reason}), so it is resumed.")
        try:
            ending = start(resume=folder.known() is not None or fleet_keys(config).sync is not None)
        except HeldError as error:
            if not waiting:
                say(f"{error} It is looked at again every {pause:.0f} s.")
            waiting = True
            time.sleep(pause)
            continue
        except UnreachableError as error:
            ending = Ending.NO_PROGRESS
            say(str(error))
        except OSError as error:
            ending = classify(error).ending
            if ending not in MENDED_BY_TIME:
                raise
            say(f"{ending.name}: {error}")
        if ending not in MENDED_BY_TIME:
            return ending
        reached = _reached(folder, config)
        wait, step, waiting = (pause if reached > step else min(2 * wait, max(LONGEST, pause))), reached, False
        say(f"{ending.name} may pass: the next try is in {wait:.0f} s, from step {reached}.")
        time.sleep(wait)


def _unfinished(config: RunConfig) -> str:
    """What is left to do for the run of `config`, in words; empty where it has succeeded and all it left is there."""
    folder = RunDir(Path(config.out) / config.name)
    if not folder.is_of(config) or folder.ended() != Ending.SUCCESS:
        return "it has not succeeded yet"
    # In a process of its own: torch's threads, and what a damaged file does to it, must not be those of the ranks.
    return failure_of([run_copy(_load_products, folder, seconds=LOADING)])


def _load_products(folder: RunDir) -> None:
    """Read what a finished run has left: the simulator, its results and its report; DataError where one is damaged."""
    load(folder.folder)
    read_results(folder.results)
    if not folder.report.is_file() or not folder.report.stat().st_size:
        raise DataError(f"{folder.report}: is no report.")


def _reached(folder: RunDir, config: RunConfig) -> int:
    """The step of the newest checkpoint; 0 where the disk does not answer."""
    try:
        return progress(folder, config)
    except OSError:
        return 0


def requeue(environ: Mapping[str, str], say: Say) -> None:
    """Ask SLURM to queue this job again, unless somebody has cancelled it; a sentence where it will not."""
    job = environ["SLURM_JOB_ID"]
    with contextlib.suppress(OSError, UnansweredError):
        if "JobState=CANCELLED" in _scontrol("show", "job", "--oneliner", job).stdout:
            say(f"job {job} was cancelled, so it is not queued again; --forever goes on when it is submitted anew.")
            return
    try:
        done = _scontrol("requeue", job)
    except (OSError, UnansweredError) as error:
        reason = str(error)
    else:
        if not done.returncode:
            say(f"job {job} is queued again, and will go on from here.")
            return
        reason = " ".join(done.stderr.split()) or f"code {done.returncode}"
    say(f"job {job} could not be queued again ({reason}); submit it anew, and it goes on from here.")


def _scontrol(*words: str) -> Ended:
    return ask(["scontrol", *words], ANSWER)


@contextlib.contextmanager
def _listening() -> Iterator[None]:
    """Requests to stop are exceptions, except while a supervisor listens for them."""

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise _Stopped(number)

    before = {number: signal.signal(number, stop) for number in STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# How long systemd waits beyond the grace that the ranks have for their last checkpoint.
MARGIN = 30
# What a shell may have set and the run depends on.
VARIABLES = ("PYTHONPATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
# Endings after which the service is started again, should the command ever leave with them; PREEMPTED is one, for
# whoever wants a service to stay down stops the service.
AGAIN = MENDED_BY_TIME | {Ending.PREEMPTED}

UNIT = """\
# {name} as a service of this user. To install it:
#   ups run CONFIG --forever --unit > ~/.config/systemd/user/{service}
#   systemctl --user daemon-reload
#   systemctl --user enable --now {service}
#   loginctl enable-linger        # so that it begins at boot, and not when you log in
# What it says: journalctl --user --unit {service}. To stop it: systemctl --user stop {service}

[Unit]
Description=ups run {name}
StartLimitIntervalSec=0
RequiresMountsFor={places}

[Service]
Type=exec
WorkingDirectory={folder}
{variables}ExecStart={command}
Restart=always
RestartSec=30
# Finished, or an ending that another start would only repeat.
RestartPreventExitStatus={final}
# Stopped with a checkpoint.
SuccessExitStatus={preempted}
# The command itself tells the ranks, which save and leave; systemd ends what is left after that.
KillMode=mixed
TimeoutStopSec={patience}
# A rank that the kernel ends for its memory is started again by the command.
OOMPolicy=continue

[Install]
WantedBy=default.target
"""


def systemd_unit(config: RunConfig, words: Sequence[str], environ: Mapping[str, str], folder: Path) -> str:
    """The unit that runs the command `words` from `folder`."""
    final = sorted(int(ending) for ending in Ending if ending not in AGAIN)
    set_here = [f"{name}={environ[name]}" for name in VARIABLES if environ.get(name)]
    limits = fleet_keys(config).limits
    safe = "".join(c if c.isascii() else "_" for c in config.name)
    return UNIT.format(
        name=config.name,
        service=f"ups-{safe}.service",
        places=" ".join(_quoted(path, dollars=False) for path in _places(config, folder)),
        folder=str(folder).replace("%", "%%"),
        variables="".join(f"Environment={_quoted(pair, dollars=False)}\n" for pair in set_here),
        command=" ".join(_quoted(word) for word in words),
        final=" ".join(map(str, final)),
        preempted=int(Ending.PREEMPTED),
        patience=round(limits.grace + limits.teardown + MARGIN),
    )


def _places(config: RunConfig, folder: Path) -> list[str]:
    """Folders whose disks must be there: the command's, the run's, and those of data and caches."""
    names: list[str] = [".", config.out, config.cache.folder or ".", config.start_from or "."]
    for data in config.data.values():
        names += data.paths
    fixed = [name.split("*")[0].split("?")[0].split("[")[0] for name in names]
    return list(dict.fromkeys(os.path.abspath(folder / name) for name in fixed))


def _quoted(word: str, dollars: bool = True) -> str:
    """A word as systemd reads it: no specifier, no variable, one word of one line."""
    if any(ord(character) < 32 and character != "\t" for character in word):
        raise ConfigError(f"{word!r}: has a line break or a control character, which no unit can hold; rename it.")
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    text = text.replace("$", "$$") if dollars else text
    return text if text and not set(text) & set(" \t;'\"\\") else f'"{text}"'
