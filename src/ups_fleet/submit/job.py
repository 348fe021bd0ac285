"""Job: a run to be carried out somewhere; Engine: what carries it out there; Status: how it is."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Literal, Protocol

from ups.types import ConfigError
from ups.verdict import Ending

State = Literal["queued", "running", "done", "failed", "stopped", "gone", "unknown"]
# Nothing of such a job runs, and nothing will: it costs no more.
OVER: frozenset[State] = frozenset({"done", "failed", "stopped", "gone"})
Option = str | int | float | bool
MOST_NODES, MOST_RANKS = 10_000, 1_024  # more are a mistake


@dataclass(frozen=True)
class LaunchJob:
    """One `ups run` on `nodes` machines with `ranks` processes each. It holds no secret, only names of variables.

    All paths are absolute. `key` tells it from all other jobs: an engine carries it along, so that a job can be found
    whose identity was never written down.
    """

    key: str
    name: str
    config: Path
    folder: Path
    """The run's folder."""
    place: Path
    """Where the command is run: relative paths of the config begin here."""
    flags: tuple[tuple[str, str], ...] = ()
    """Keys of the config that are set on the command line."""
    nodes: int = 1
    ranks: int = 1
    """Processes on each node."""
    gpus: int = 0
    """Graphics processors on each node."""
    seconds: float | None = None
    """The time limit; None: that of the engine."""
    grace: float = 150.0
    """Seconds from a request to stop to the last word of the run: its ranks save first."""
    interface: str = ""
    """The network interface on which nodes talk; empty: the one that leads to where they meet."""
    inputs: tuple[Path, ...] = ()
    """Files and folders that must be on every node before anything begins."""
    variables: tuple[str, ...] = ()
    """Names of environment variables that the job needs; their values are never written anywhere."""
    python: str = "python"
    points: tuple[tuple[tuple[str, str], ...], ...] = ()
    """Of a sweep: for each run the flags that are its own; `folder` is then the folder of them all."""
    options: Mapping[str, Option] = field(default_factory=dict)
    """What this engine alone knows: a partition, an image, a price."""

    def __post_init__(self) -> None:
        for what, count, most in (("nodes", self.nodes, MOST_NODES), ("ranks", self.ranks, MOST_RANKS)):
            if not 1 <= count <= most:
                raise ConfigError(f"{count} {what} cannot be had; ask for 1 to {most}.")
        if not 0 <= self.gpus <= MOST_RANKS:
            raise ConfigError(f"--gpus is {self.gpus}, but must be from 0 to {MOST_RANKS}, for each node.")
        if self.seconds is not None and not self.seconds > 0:
            raise ConfigError("--time must be longer than nothing, as 90m, 12h or 1-00:00:00.")

    @property
    def world(self) -> int:
        """Ranks of all nodes."""
        return self.nodes * self.ranks

    def words(self, python: str = "", config: PurePath | None = None) -> list[str]:
        """The command line of the run, to be quoted for a shell; with another Python or place of the config there."""
        flags = [f"--{key}={value}" for key, value in self.flags]
        shape = [f"--ranks={self.ranks}", f"--nodes={self.nodes}"]
        return [python or self.python, "-m", "ups", "run", str(config or self.config), *shape, *flags]


@dataclass(frozen=True)
class Status:
    """What an engine says of a job now: one word, its own words, and the exit code where it has ended."""

    state: State
    sentence: str
    code: int | None = None

    @property
    def over(self) -> bool:
        return self.state in OVER


class Engine(Protocol):
    """Where jobs are carried out. Made without arguments; it holds nothing between two calls."""

    def check(self, job: LaunchJob) -> None:
        """A ConfigError for what this engine cannot do, as far as that can be seen from here and costs nothing."""
        ...

    def render(self, job: LaunchJob) -> str:
        """Exactly what is submitted. A pure function of the job: no clock, no file, no environment."""
        ...

    def submit(self, job: LaunchJob, text: str) -> str:
        """Hand `text` over; the identity that the engine gave it."""
        ...

    def find(self, key: str) -> str | None:
        """The identity of the job that was submitted with this key; None where the engine knows of none."""
        ...

    def status(self, identity: str) -> Status:
        """What the engine itself says of it now."""
        ...

    def logs(self, identity: str) -> Iterable[str]:
        """What it has printed until now, in pieces."""
        ...

    def stop(self, identity: str) -> None:
        """End it; its run saves first where the engine gives it the time. Afterwards it is over, or the engine has
        promised to end it."""
        ...


def ended(code: int) -> Status:
    """The status of a job whose command has left with this code."""
    if code == 0:
        return Status("done", "it has ended well.", code)
    word = Ending(code).name if code in list(Ending) else f"signal {code - 128}" if code > 128 else "an error"
    if code in (Ending.PREEMPTED, Ending.INTERRUPTED):
        return Status("stopped", f"{word}: it was asked to stop, and has saved; launch it again to go on.", code)
    if code == 128 + signal.SIGTERM:
        return Status("stopped", "it was asked to stop before it could listen; launch it again to go on.", code)
    return Status("failed", f"{word}: it has ended with code {code}.", code)
