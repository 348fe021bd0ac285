"""Case: what is done to a run, and what must come of it; the stages and steps of a lab run."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from ups.rundir import RunDir
from ups_fleet.supervise.fault_plan import Fault
from ups_fleet.supervise.job import RankStart

Strategy = Literal["single", "ddp", "fsdp"]
# The stages of a lab run in their order: the steps of each, and how often it is saved. The last step is always saved.
STEPS = {"codec": 4, "operator": 8}
SAVED = {"codec": 2, "operator": 3}
LAST_STAGE = list(STEPS)[-1]
LAST = STEPS[LAST_STAGE]
BATCH = 8
# The data of a lab run, made once for all, or by the run itself.
DATA: dict[str, Any] = {
    **{"task": "burgers1d", "samples": 16, "resolution": 16, "frames": 6, "seed": 1},
    **{"device": "cpu", "scheme": "accurate"},
}
# Places of a run outside of its steps, in their order; and those to which rank 0 alone comes.
POINTS = ("import", "generate", "statistics", "cache", "judgement", "report", "between stages")
OF_FIRST = ("generate", "statistics", "judgement", "report")
# Called with the step and the samples of every loss.
Press = Callable[[int, int], None]


@dataclass(frozen=True)
class CaseDir:
    """The folder of one case: its run, what the command printed, and what disturbances leave beside it."""

    folder: Path
    data: Path  # the trajectories that it is trained on

    @cached_property
    def run(self) -> RunDir:
        return RunDir(self.folder / "run")

    @property
    def console(self) -> Path:
        """All that its commands printed."""
        return self.folder / "console.log"

    @property
    def canary(self) -> Path:
        """A file that only hostile code would make."""
        return self.folder / "canary"

    @property
    def beside(self) -> Path:
        """What processes beside the run printed: where they fail, the lab has failed."""
        return self.folder / "beside.log"

    @property
    def notes(self) -> Path:
        """Where processes beside the run write what they found."""
        return self.folder / "notes"


@dataclass(frozen=True)
class Disturbance:
    """Something wrong around a run; this one is nothing. Of several commands all but `meddle` concern the first."""

    needs: ClassVar[tuple[str, ...]] = ()  # what the machine must allow; see privileges.py

    def prepare(self, place: CaseDir) -> None:
        """Called in the process of the case, before anything else."""

    def data(self, place: CaseDir) -> Path:
        """The data file that the run is given."""
        return place.data

    def settings(self, place: CaseDir) -> dict[str, Any]:  # noqa: ARG002
        """What it changes in the config; nothing that changes bits."""
        return {}

    def streams(self, place: CaseDir) -> None:
        """Called in the process of a command: says where its output goes."""
        print_to(place.console)

    def command(self, place: CaseDir) -> None:
        """Called in the process of the command, before it begins."""

    def start(self, start: RankStart, place: CaseDir) -> None:
        """Called in the process of the command, before every start of the ranks."""

    def rank(self, rank: int) -> Press:  # noqa: ARG002
        """Called in every rank, before its work."""
        return lambda step, samples: None  # noqa: ARG005

    def at(self, point: str, rank: int) -> None:
        """Called in a rank, at a place outside of the steps; see rank_hooks.py."""

    def meddle(self, place: CaseDir) -> None:
        """Between a first command that did not succeed and the next one."""

    def mend(self, place: CaseDir) -> None:
        """Called before the last command: makes right what must be right for it to succeed."""

    def problems(self, place: CaseDir) -> list[str]:  # noqa: ARG002
        """Called at the end: what was promised besides and is not true."""
        return []


@dataclass(frozen=True)
class FaultCase:
    """One disturbed run and its promise.

    `endings`: how the first command may end; any but SUCCESS is followed by a --resume that must succeed. `first`: how
    its first start of the ranks ends, if they are started again; `named`: the rank that is named, `phase`: where.
    `starts`: how often the ranks are started by the first command. `bits`: its artifact is that of the undisturbed run
    to the bit; `close`: to rounding, losses and gradients to `NEAR`. `output`: words that must be in its output.
    `skipped`: steps that all ranks leave out. `refused`: how a --resume may end before everything is mended. `like`:
    the ranks of the undisturbed run it is compared with, if not as many; `reference_settings`: settings of that run
    which this one finds out by itself: their weights are the same, their configs are not.
    """

    family: str
    name: str
    world: int
    strategy: Strategy
    faults: tuple[Fault, ...] = ()
    endings: tuple[str, ...] = ("SUCCESS",)
    first: tuple[str, ...] = ()
    named: int | None = None
    phase: str = ""
    starts: int | None = None
    bits: bool = True
    close: bool = False
    output: str = ""
    skipped: int | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    onto: int | None = None  # ranks that go on after the first command
    around: Disturbance = field(default_factory=Disturbance)
    refused: tuple[str, ...] = ()
    like: tuple[int, Strategy] | None = None
    reference_settings: dict[str, Any] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """All of it as JSON can say it."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**values, "faults": [asdict(fault) for fault in self.faults], "around": repr(self.around)}


@dataclass
class CaseResult:
    """How a case went. `broken`: promises that were not kept, in words; `hung`: it did not end in time."""

    case: dict[str, Any]
    endings: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    hung: bool = False
    starved: bool = False
    false_success: bool = False
    starts: int = 0
    lost: int = 0  # steps that had to be made again
    missing: int = 0  # samples that the undisturbed run has trained on and this one has not
    duplicated: int = 0  # and the other way round
    repeated: bool = False  # the machine was too busy at first: ranks that were well stood still over their limits
    skipped: str = ""  # what the machine lacks to run it at all
    equal: bool = False  # the artifact is that of the undisturbed run, to the bit
    detection: float | None = None
    recovery: float | None = None
    seconds: float = 0.0


def run_here() -> RunDir:
    """The folder of the run that this rank is of."""
    return RunDir(Path(os.environ["UPS_HOME"]))


def first_start() -> bool:
    """Whether this rank belongs to the first start of the ranks of its run."""
    return os.environ.get("UPS_ATTEMPT") == "1"


def print_to(path: Path) -> None:
    """Let this process print to the end of a file."""
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
