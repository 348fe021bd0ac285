"""Study: lets Optuna choose the points of a sweep; its storage is in the sweep's folder."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ups.types import ConfigError, DataError
from ups_fleet.run_folders.state import RunState
from ups_fleet.sweep.axes import SweepAxis, SweepPoint, number, safe

INSTALL = "pip install 'universal-physics-stack[sweep]'"
STUDY = "ups"
FILE = "optuna.db"


def require() -> None:
    """A ConfigError that says what to install, where it is missing."""
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError(f"--optuna needs a package that is not installed: {INSTALL}.")


class Study:
    """`count` trials of an Optuna study, each a point with one run per seed; its value is the mean of their validation
    errors.

    A trial that a kill has left running is taken up again with its own parameters, and told when its runs have ended.
    """

    def __init__(self, folder: Path, axes: Sequence[SweepAxis], count: int, seeds: Sequence[int], seed: int) -> None:
        require()
        self.axes, self.count, self.seeds = axes, count, tuple(seeds)
        library = importlib.import_module("optuna")
        library.logging.set_verbosity(library.logging.WARNING)
        self.states = library.trial.TrialState
        refusals = (library.exceptions.OptunaError, importlib.import_module("sqlalchemy.exc").SQLAlchemyError)
        try:
            self.study = library.create_study(
                storage=f"sqlite:///{folder / FILE}",
                study_name=STUDY,
                sampler=library.samplers.TPESampler(seed=seed, constant_liar=True),
                load_if_exists=True,
                direction="minimize",
            )
            trials = self.study.get_trials(deepcopy=False)
        except refusals as error:
            reason = " ".join(str(error).split())[:200]
            raise DataError(
                f"{folder / FILE}: is no study that can be gone on with ({reason}); move it away."
            ) from error
        self.left = [trial for trial in trials if trial.state == self.states.RUNNING]
        self.begun = len(trials) - len(self.left)
        self.waiting: list[SweepPoint] = []
        self.values: dict[int, dict[str, float]] = {}
        self.trials: dict[str, int] = {}
        for trial in trials:  # what has ended before is looked at again, and its failed runs are tried again
            if trial.state != self.states.RUNNING and self._whole(trial):
                self.waiting += self._points(trial.number, trial.params)

    @property
    def total(self) -> int:
        return self.count * max(1, len(self.seeds))

    def next(self) -> SweepPoint | None:
        if not self.waiting:
            self._ask()
        return self.waiting.pop(0) if self.waiting else None

    def _ask(self) -> None:
        """The next trial: one that a kill has left, or a new one."""
        while self.left and not self.waiting:
            trial = self.left.pop(0)
            self.begun += 1
            if self._whole(trial):
                self.waiting = self._points(trial.number, trial.params)
            else:  # it was killed while it was asked for
                self.study.tell(trial.number, state=self.states.FAIL)
        if not self.waiting and self.begun < self.count:
            trial = self.study.ask()
            self.begun += 1
            try:
                for axis in self.axes:
                    _suggest(trial, axis)
            except ValueError as error:  # Optuna's word for choices that are not those of earlier trials
                self.study.tell(trial, state=self.states.FAIL)
                raise ConfigError(
                    f"the study in this folder was begun over other values ({error}); choose another --out."
                ) from None
            self.waiting = self._points(trial.number, trial.params)

    def done(self, point: SweepPoint, state: RunState) -> None:
        """Tell the study when the last run of a trial has ended; one that failed, or was not validated, is a failed
        trial."""
        number_of = self.trials[point.name]
        values = self.values.setdefault(number_of, {})
        values[point.name] = math.nan if state.validation is None else state.validation.value
        if len(values) < max(1, len(self.seeds)) or self._closed(number_of):
            return
        mean = sum(values.values()) / len(values)
        if math.isfinite(mean):
            self.study.tell(number_of, mean)
        else:
            self.study.tell(number_of, state=self.states.FAIL)

    def _whole(self, trial: Any) -> bool:
        """Whether a trial has a value for each axis, and for no other key."""
        return set(trial.params) == {axis.key for axis in self.axes}

    def _closed(self, number_of: int) -> bool:
        trials = self.study.get_trials(deepcopy=False)
        return bool(trials[number_of].state != self.states.RUNNING)

    def _points(self, number_of: int, params: dict[str, Any]) -> list[SweepPoint]:
        overrides = tuple((axis.key, _word(params[axis.key])) for axis in self.axes)
        points = []
        for seed in self.seeds or (None,):
            tail = "" if seed is None else f"_seed-{seed}"
            points.append(SweepPoint(safe(f"trial-{number_of:04d}{tail}"), overrides, seed))
        self.trials |= {point.name: number_of for point in points}
        return points


def _suggest(trial: Any, axis: SweepAxis) -> None:
    """Have a trial choose a value of an axis."""
    if axis.range is None:
        trial.suggest_categorical(axis.key, axis.values)
    elif axis.range.kind == "int":
        trial.suggest_int(axis.key, int(axis.range.low), int(axis.range.high))
    else:
        trial.suggest_float(axis.key, axis.range.low, axis.range.high, log=axis.range.kind == "log")


def _word(value: Any) -> str:
    return number(value) if isinstance(value, float) else str(value)
