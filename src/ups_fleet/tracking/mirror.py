"""Mirror: the base of every tracker, a place besides the log that shows a run; and the facts that it shows."""

from __future__ import annotations

import importlib.util
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeGuard

from ups.files import write_atomic
from ups.parsing import fields_among, parse_json, parse_yaml, read_json, read_text
from ups.rundir import RunDir
from ups.types import OURS, ConfigError
from ups.verdict import Ending, Verdict
from ups_fleet.tracking.log_reader import LogRow
from ups_fleet.tracking.settings import TrackingConfig

KILLED = "KILLED"  # the ending of a run whose processes are gone and that has left no verdict
KILLED_CODE = 137
LEAST = 1 << 16  # bytes without which a disk is full
HEADLINE = {"predictor": OURS, "split": "test", "axis": "", "mode": "strict"}  # the numbers that a report begins with


@dataclass(frozen=True)
class RunEnding:
    """How a run ended: the name of an `ups.verdict.Ending` or KILLED, its exit code, and the cause in a sentence."""

    ending: str
    code: int
    cause: str

    @classmethod
    def of(cls, folder: RunDir) -> RunEnding:
        """What the verdict says; KILLED where there is none, for a run that nobody works on."""
        verdict = Verdict.read(folder.verdict)
        if verdict is None:
            return cls(KILLED, KILLED_CODE, "its processes are gone, and have left no verdict.")
        code = 0 if verdict.ending == Ending.PAUSED else int(verdict.ending)  # as the command ended
        return cls(verdict.ending.name, code, verdict.cause)

    @property
    def succeeded(self) -> bool:
        return self.ending == Ending.SUCCESS.name


@dataclass(frozen=True)
class RunFacts:
    """What mirrors show of a run beside its rows. `owner` is the process that carries it out, 0 where there is none."""

    folder: Path
    settings: TrackingConfig
    owner: int = 0

    @classmethod
    def read(cls, folder: Path, owner: int) -> RunFacts:
        """The facts of the run in a folder, with the settings that its last start had."""
        return cls(folder, TrackingConfig.model_validate(read_json(RunDir(folder).tracking("settings.json"))), owner)

    @cached_property
    def run(self) -> RunDir:
        return RunDir(self.folder)

    @property
    def name(self) -> str:
        return self.folder.name

    @cached_property
    def config(self) -> dict[str, Any]:
        """The whole config, defaults included."""
        config = parse_yaml(read_text(self.run.config))
        return config if isinstance(config, dict) else {}

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Versions, machine, device, git state, command."""
        return read_json(self.run.environment)

    @property
    def id(self) -> str:
        """The run's own id: the same after a resume, another one after an --overwrite."""
        return str(self.environment.get("run") or self.environment.get("fingerprint") or self.name)

    def summary(self, conclusion: RunEnding) -> dict[str, float | str]:
        """The numbers that remain: how it ended, what the stages took, and how good the simulator is on test data."""
        values: dict[str, float | str] = {"ending": conclusion.ending, "cause": conclusion.cause}
        for stage, facts in read_json(self.run.stages).items():
            numbers: dict[str, Any] = facts if isinstance(facts, dict) else {}
            for key in ("score", "steps", "seconds"):
                if _is_number(number := numbers.get(key)):
                    values[f"{stage}/{key}"] = float(number)
        for row in self._results():
            if all(row.get(key) == value for key, value in HEADLINE.items()):
                values[f"test/{row.get('task')}/{row.get('metric')}"] = float(row["value"])
        return values

    def products(self) -> dict[str, list[Path]]:
        """What the run has left, to be attached: its report and its simulator."""
        kinds = {"report": [self.run.report, self.run.results], "model": [self.run.artifact("simulator")]}
        there = {kind: [path for path in paths if path.is_file()] for kind, paths in kinds.items()}
        return {kind: paths for kind, paths in there.items() if paths and self.settings.attach}

    def _results(self) -> list[dict[str, Any]]:
        try:
            rows = parse_json(self.run.results.read_bytes())
        except (OSError, ValueError):
            return []
        rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        return [row for row in rows if row.get("value") in ("NaN", "Infinity", "-Infinity") or _is_number(row["value"])]


@dataclass
class MirrorReceipt:
    """What a mirror is known to hold: the log up to `position`, which is line `rows`, and the ending it was told.

    `trouble` is why the last attempt failed.
    """

    position: int = 0
    rows: int = 0
    ending: str = ""
    trouble: str = ""

    @classmethod
    def read(cls, path: Path) -> MirrorReceipt:
        """What was written; a new one where there is none, or something else in its place."""
        known = fields_among(read_json(path), cls())
        return cls(**known) if known.get("position", 0) >= 0 else cls()

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n")


@dataclass
class Mirror(ABC):
    """What every mirror is. It lives in a process of its own, which may be killed at any moment and is started again:
    whatever its library raises ends that process, and costs the training nothing.

    Whenever it is opened it is sent every row of the log, from the first on, without what a resumed run has overruled.
    So one that lies in the run's folder is written anew: it is a pure consequence of the log. A remote one asks its
    server what it holds already, and passes over that.
    """

    facts: RunFacts

    name: ClassVar[str]
    package: ClassVar[str] = ""  # that must be installed; the extra has the mirror's name

    @classmethod
    def require(cls, settings: TrackingConfig, say: Callable[[str], None]) -> None:  # noqa: ARG003
        """A ConfigError where it could never work, before work is spent; `say` what the user should know of it."""
        if cls.package and importlib.util.find_spec(cls.package) is None:
            raise ConfigError(
                f"the tracker {cls.name} needs a package that is not installed: "
                f"pip install 'universal-physics-stack[{cls.name}]'."
            )

    @abstractmethod
    def open(self) -> None:
        """Begin, or go on: afterwards the run is there, with its name, its config and the facts of its machine."""

    @abstractmethod
    def send(self, rows: Sequence[LogRow]) -> None:
        """Write rows; when it returns, a kill of this process no longer loses them."""

    def settle(self) -> None:  # noqa: B027  (most have nothing old)
        """All rows are sent that the log held when it was opened; what an earlier process has left may go."""

    @abstractmethod
    def close(self, conclusion: RunEnding) -> None:
        """The run has ended, or was killed: say how, with its summary and its products."""


def shortage(folder: Path) -> str:
    """That the disk of a folder is full, where it is."""
    room = os.statvfs(folder)
    return "" if room.f_bavail * room.f_frsize >= LEAST else f"the disk of {folder} is full"


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
