"""Tracker: where the numbers of a run go while it trains; it never raises into the training."""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

Values = Mapping[str, float | str]
WHOLE_RUN = "run"  # stands for the stage of values without one


def to_stderr(sentence: str) -> None:
    """Say something where nobody else does."""
    print(sentence, file=sys.stderr, flush=True)


class Tracker(ABC):
    """What every tracker is. A new one says where it writes and fills in `write`, and perhaps `finish` and `require`.

    `folder` is the run's. Values are named `<stage>/<name>`. The owner of a tracker closes it once, with the ending of
    the run: the name of an `ups.verdict.Ending`, such as SUCCESS, OOM or INTERRUPTED. A resumed run makes a tracker of
    the same folder again: it appends, and where a step is there twice, the later one is true.

    An error of a kind in `refusals` is said once and counted in `lost`; the next values are tried again, and closing
    says how many were lost.
    """

    place: ClassVar[str]  # the file or folder in the run's folder that it writes
    refusals: ClassVar[tuple[type[Exception], ...]] = (OSError,)

    def __init__(self, folder: Path, say: Callable[[str], None] = to_stderr) -> None:
        self.path, self.say, self.lost = folder / self.place, say, 0

    @classmethod  # noqa: B027  (most need nothing)
    def require(cls) -> None:
        """Raise a ConfigError that says what to install where a package is missing; called before the training."""

    def log(self, step: int, values: Values) -> None:
        """Write the values of a step."""
        try:
            self.write(step, values)
        except self.refusals as error:
            self.lost += 1
            if self.lost == 1:
                reason = getattr(error, "strerror", None) or error
                self.say(f"{self.path}: cannot be written ({reason}); training goes on without this log.")

    def close(self, ending: str) -> None:
        """Write what is left, and let go of all files."""
        try:
            self.finish(ending)
        except self.refusals:
            self.lost += 1
        if self.lost:
            self.say(f"{self.path}: {self.lost} line{'s'[: self.lost - 1]} could not be written.")

    @abstractmethod
    def write(self, step: int, values: Values) -> None:
        """Write the values of a step; when it returns, a kill of the process no longer loses them."""

    def finish(self, ending: str) -> None:  # noqa: B027  (some have nothing open)
        """Close what is open; `ending` says how the run ended."""


def by_stage(values: Values) -> dict[str, dict[str, float | str]]:
    """Values named `<stage>/<name>`, by stage and name; those without a stage belong to the whole run.

    Each stage is fit to be the name of a file.
    """
    stages: dict[str, dict[str, float | str]] = {}
    for full, value in values.items():
        stage, slash, name = full.partition("/")
        stage, name = (re.sub(r"[^\w-]", "_", stage), name) if slash else (WHOLE_RUN, full)
        stages.setdefault(stage, {})[name] = value
    return stages
