"""What was measured: a task's evaluations and costs, their verdict, and every number of them as a record."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ups.eval.by_parameter import by_channel, by_parameter, varied
from ups.eval.ensembles import EnsembleScores
from ups.eval.error_estimates import ErrorScores
from ups.eval.intervals import Number, all_strict, ratio_of_means, strict, with_interval
from ups.eval.learnt import Shortfall, shortfall
from ups.eval.pairs import decidable, surely_lower
from ups.eval.refinement import RefinementScores
from ups.eval.rollout import Evaluation
from ups.eval.searches import SearchScores
from ups.files import write_atomic
from ups.parsing import encoded
from ups.types import Array, DataError, counted

RECONSTRUCTION, BEFORE, LINEAR = "reconstruction", "before", "linear"
MANY = 64  # values of a parameter, above which what lies between them counts as trained


@dataclass(frozen=True)
class Cost:
    """What a predictor took: learnt real numbers, training steps, wall seconds of training, and where.

    −1 steps: trained, but nothing records how long.
    """

    params: int = 0
    steps: int = 0
    seconds: float = 0.0
    device: str = "none"


@dataclass(frozen=True)
class Scored:
    """An evaluation and what its predictor cost; a forecast that is not learnt costs nothing."""

    evaluation: Evaluation
    cost: Cost = Cost()


@dataclass(frozen=True)
class DataFact:
    """The data of one task: where they come from, their version (what decides their bytes), and how much there is."""

    task: str
    source: str
    version: str
    samples: str
    grid: str
    frames: int
    params: str

    @property
    def fingerprint(self) -> str:
        """The version, or a hash of it where it is long."""
        if len(self.version) <= 24:
            return self.version
        return hashlib.sha256(self.version.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class TaskResult:
    """One task: ours, persistence, the baselines, the codec alone, the mean of training in each cell (where it is known
    on the grid that is judged), and evaluations beyond the training set-up.

    `beyond` holds zero-shot resolutions and unseen parameters, each predictor in turn; the split of each says which it
    is. `unseen` are sentences on parameters outside the trained range. `trained` holds the values of each parameter
    that training saw; nothing where nobody knows. `ensemble` is what draws are worth, where there are any,
    and `undrawn` a sentence where some could be and do not pay;
    `refinement` what iterations make of predicted steady states, where their equations are known; `errors` how well
    the simulator estimates its own, where it can; `search` what compute buys, where there is a critic. `laws` is how
    much each rollout breaks the laws of the task, by name; `left_range_at` the step after which each rollout left what
    training saw; `champion` is another run's simulator, where it was judged;
    `long` is what becomes of rollouts far beyond the truth, by predictor and name.
    """

    ours: Scored
    persistence: Scored
    baselines: tuple[Scored, ...] = ()
    reconstruction: Scored | None = None
    mean: Scored | None = None
    beyond: tuple[Scored, ...] = ()
    unseen: tuple[str, ...] = ()
    trained: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    ensemble: EnsembleScores | None = None
    undrawn: str = ""
    refinement: RefinementScores | None = None
    errors: ErrorScores | None = None
    search: SearchScores | None = None
    laws: Mapping[str, Array] = field(default_factory=dict)
    left_range_at: tuple[int | None, ...] = ()
    champion: Scored | None = None
    long: Mapping[str, Mapping[str, Array]] = field(default_factory=dict)

    def was_trained(self, name: str, values: Array) -> Array:
        """Which values of a parameter training saw, or lie among very many that it saw; all, where nobody knows."""
        known = np.array(self.trained.get(name, ()))
        if not len(known):
            return np.ones(len(values), bool)
        if len(known) > MANY:
            return np.asarray((values >= known.min()) & (values <= known.max()))
        gaps = np.abs(np.asarray(values)[:, None] - known)
        return np.asarray((gaps <= 1e-5 * np.maximum(np.abs(known), np.abs(values)[:, None])).any(1))

    def entries(self) -> Iterator[Scored]:
        yield self.ours
        yield from self.baselines
        yield self.persistence
        yield from (entry for entry in (self.mean, self.reconstruction) if entry is not None)
        yield from self.beyond

    @cached_property
    def shortfall(self) -> Shortfall:
        """What ours fall short of on the test part, as a whole and field by field."""
        mean = None if self.mean is None else self.mean.evaluation
        linear = next((b.evaluation for b in self.baselines if b.evaluation.predictor == LINEAR), None)
        return shortfall(self.ours.evaluation, self.persistence.evaluation, mean, linear)

    @cached_property
    def verdict(self) -> tuple[str, bool]:
        """A sentence, and whether it is a good one; where the samples are too few for confidence, it says how few."""
        mine, steps = self.ours.evaluation, self.ours.cost.steps
        if steps == 0:
            return "UNTRAINED: no training step was taken; these numbers are those of random weights", False
        words, lost = self.shortfall.words, int(mine.diverged.sum())
        after = f" after {counted(steps, 'training step')}" if steps > 0 and words.startswith("NOT") else ""
        tail = f" ({lost} of {len(mine)} rollouts diverged)" if lost else ""
        worse = ", but its ensembles are WORSE than the operator alone" if self.worse_drawn else ""
        good = words == "learnt" and not lost and not worse
        off = " (ensembles do not pay here)" if self.undrawn else ""
        return f"{words}{after}{tail}{how_few(len(mine))}{worse}{off}", good

    @property
    def worse_drawn(self) -> bool:
        """Whether its ensembles know less than the operator alone."""
        return self.ensemble is not None and self.ensemble.worse

    @property
    def before(self) -> Scored | None:
        """The simulator that training started from, where it knew the task."""
        return next((b for b in self.baselines if b.evaluation.predictor == BEFORE), None)

    @property
    def got_worse(self) -> bool:
        """Whether training made it worse: as surely as `verdict` says better, and by more than a twentieth."""
        if self.before is None:
            return False
        mine, old = self.ours.evaluation, self.before.evaluation
        return mine.score > 1.05 * old.score and surely_lower(old.per_sample(), mine.per_sample())

    def persistence_for(self, entry: Scored) -> Scored | None:
        """The forecast that nothing changes on the very samples of `entry`; none for persistence and the codec."""
        e = entry.evaluation
        name = self.persistence.evaluation.predictor
        if e.predictor in (name, RECONSTRUCTION):
            return None
        still = (other for other in self.entries() if other.evaluation.predictor == name)
        same = (e.split, e.ids, len(e), e.steps)
        return next((o for o in still if same == ((b := o.evaluation).split, b.ids, len(b), b.steps)), None)


def how_few(trajectories: int) -> str:
    """Words after a verdict on too few trajectories for confidence; none where they are enough."""
    return "" if decidable(trajectories) else f" (on {counted(trajectories, 'trajectory')} only)"


@dataclass(frozen=True)
class ResultRecord:
    """One line of results.json: a number, or a point of a curve.

    `axis` names what a curve runs along ("time" after the last given frame, "wavenumber", or a parameter), and `at`
    where on it the point lies; a number over the whole rollout has no axis, and `at` is 0. `low` and `high` bound the
    95 % interval over `n` samples. `steps`, `seconds` and `params` are the cost of training the predictor.

    What training drew is told by records of mode "drawn": the protocol is the stage, `steps` are all of its steps, and
    `n` the windows that there are to draw. Where the time of a run went is told by records of mode "phase": the metric
    is the phase, the value its seconds; they belong to no task. A gate is a record of mode "gate passed" or "gate
    missed": its bound is `at` on the axis "bound". Records of mode "verdict" are 1 where a task, or a field of it, is
    learnt, else 0. A metric "law NAME" says how much rollouts break that law.
    """

    task: str
    split: str
    metric: str
    mode: str
    protocol: str
    predictor: str
    axis: str
    at: float
    value: float
    low: float
    high: float
    n: int
    rollout_steps: int
    steps: int
    seconds: float
    params: int
    device: str
    config: str
    data: str
    seed: int

    @property
    def words(self) -> str:
        """The value with its interval."""
        return with_interval(self.value, self.low, self.high, self.n)


@dataclass(frozen=True)
class CurvePoint:
    """A number, and where on a curve it lies."""

    number: Number
    predictor: str
    axis: str = ""
    at: float = 0.0


def points_of(task: TaskResult, entry: Scored) -> list[CurvePoint]:
    """Every number of an entry: its metrics, its ratio to persistence, its error against time and parameters, its
    spectrum."""
    e, still = entry.evaluation, task.persistence_for(entry)
    label, n = e.protocol.label, len(e)
    numbers = [*e.metrics(), *by_channel(e)]
    if still is not None:
        mine, theirs = e.per_sample(), still.evaluation.per_sample()
        numbers.append(ratio_of_means(mine, theirs, label, "nrmse-over-persistence"))
    points = [CurvePoint(number, e.predictor) for number in numbers]
    for at, value, low, high in zip(times_of(e), *e.against_time, strict=True):
        number = Number("nrmse-at-time", "strict", label, float(value), float(low), float(high), n)
        points.append(CurvePoint(number, e.predictor, "time", float(at)))
    for curve in (by_parameter([e], name) for name in varied([e])):
        rows = zip(curve.values, curve.numbers, strict=True)
        points += [CurvePoint(number, e.predictor, curve.name, float(at)) for at, number in rows]
    scored = (("ensemble", task.ensemble), ("error-estimate", task.errors), ("search", task.search))
    for kind, scores in scored if entry is task.ours else ():
        if scores is not None:
            points += _points_of(kind, scores, e)
    verdicts = task.shortfall.numbers(task.ours.cost.steps != 0) if entry is task.ours else {}
    points += [CurvePoint(Number(name, "verdict", label, v, v, v, n), e.predictor) for name, v in verdicts.items()]
    if task.laws and entry is task.ours:
        # One by one: a law may hold under the boundary of some of the trajectories only.
        points += [CurvePoint(strict(f"law {name}", values, label), e.predictor) for name, values in task.laws.items()]
    if task.left_range_at and entry is task.ours:
        share = np.array([step is not None for step in task.left_range_at], float)
        points.append(CurvePoint(strict("left-range", share, label), e.predictor))
    if task.refinement is not None and entry is task.ours:
        points += [CurvePoint(number, e.predictor) for number in all_strict(task.refinement.values(), label)]
    if e.predictor in task.long and any(entry is main for main in (task.ours, *task.baselines)):
        points += [
            CurvePoint(strict(name, values, label), e.predictor) for name, values in task.long[e.predictor].items()
        ]
    finite = int((~e.diverged).sum())
    curves = [(e.predictor, e.spectra[1])] + [("truth", e.spectra[0])] * (entry is task.ours)
    for who, power in curves:
        for wave, value in enumerate(np.asarray(power)[1:].sum(-1), start=1):
            number = Number("power", "strict", label, float(value), float(value), float(value), finite)
            points.append(CurvePoint(number, who, "wavenumber", float(wave)))
    return points


def _points_of(kind: str, scores: EnsembleScores | ErrorScores | SearchScores, e: Evaluation) -> list[CurvePoint]:
    """Scores of ensembles, estimates or searches: numbers over the whole rollout, and those at each step."""
    label, n, ends, curve_ends = e.protocol.label, scores.samples, scores.ends(), scores.curve_ends()

    def point(name: str, value: float, low: float, high: float, axis: str = "", at: float = 0.0) -> CurvePoint:
        number = Number(f"{kind} {name}", "strict", label, float(value), float(low), float(high), n)
        return CurvePoint(number, e.predictor, axis, float(at))

    points = [point(name, v, *ends.get(name, (v, v))) for name, v in scores.numbers().items()]
    for name, values in scores.curves().items():
        rows = zip(values, *curve_ends.get(name, (values, values)), times_of(e), strict=True)
        points += [point(f"{name} at time", v, low, high, "time", at) for v, low, high, at in rows]
    return points


def times_of(e: Evaluation) -> Any:
    """The times of the predicted frames after the last given one, `(T,)`."""
    return np.arange(1, e.steps + 1) * float(e.dt.mean()) if e.dt.ndim == 1 else e.dt.mean(0).cumsum()


def rows_of(records: Sequence[ResultRecord]) -> list[dict[str, object]]:
    """Records as JSON can say them."""
    return [{k: encoded(v) for k, v in vars(r).items()} for r in records]


def write_results(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """results.json, replaced in one step."""
    write_atomic(path, "[\n" + ",\n".join(json.dumps(row, allow_nan=False) for row in rows) + "\n]\n")


def read_results(path: Path) -> list[ResultRecord]:
    """The records of a results.json."""
    try:
        rows = json.loads(path.read_text())
        return [ResultRecord(**{k: _decoded(k, v) for k, v in row.items()}) for row in rows]
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is not a results.json of this version ({error}); evaluate the run again.") from error


def _decoded(key: str, value: Any) -> Any:
    floats = ("value", "low", "high", "seconds", "at")
    return float(value) if key in floats and isinstance(value, str | int) else value
