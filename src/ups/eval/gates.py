"""Gates: bounds that the results of a run must keep, decided from its records and its errors per trajectory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ups.eval.metrics import METRICS
from ups.eval.pairs import difference
from ups.eval.results import ResultRecord
from ups.eval.scores import SCORES
from ups.eval.trajectories import PerTrajectory
from ups.pages import Section
from ups.types import OURS, counted

LAW = "law "  # how the records of a law's residual begin
MODES = {True: "gate passed", False: "gate missed"}  # of the record of a gate
RATIO = "nrmse-over-persistence"
# What every evaluation measures beside METRICS; a task adds the residuals of its laws.
MEASURED = ("over_persistence", *(name for name in SCORES if name not in METRICS and name != RATIO))


def boundable() -> tuple[str, ...]:
    """What every evaluation measures and an upper bound makes sense of."""
    return (*(name for name, metric in METRICS.items() if not metric.larger_is_better), *MEASURED)


def metric_of(name: str) -> str:
    """The metric of the records that a gate of this name bounds; a law's by the law's own name."""
    plain = name.replace("_", "-")
    if plain == "over-persistence" or plain == RATIO:
        return RATIO
    if name in METRICS:
        return name
    return plain if plain in (*METRICS, *MEASURED) else f"{LAW}{name.removeprefix(LAW)}"


@dataclass(frozen=True)
class Gate:
    """One gate and what was measured for it. A `champion`'s bounds the mean difference to its errors, on the same
    trajectories: it is missed where all of the interval is above 0. `note` is what else there is to know."""

    task: str
    name: str
    value: float
    bound: float
    low: float
    high: float
    n: int
    champion: str = ""
    note: str = ""

    @property
    def passed(self) -> bool:
        """A value that is not finite misses its gate, unless it was the champion that diverged."""
        if self.champion:
            return self.value < math.inf and self.low <= self.bound
        return math.isfinite(self.value) and self.value <= self.bound

    @property
    def sentence(self) -> str:
        """Which gate, its value and its bound, without a full stop."""
        value = f"{self.value:.4g}" if math.isfinite(self.value) else "not a finite number"
        if not self.champion:
            relation = "within" if self.passed else "above" if math.isfinite(self.value) else "so it misses"
            return f"{self.task}: {self.name} is {value}, {relation} its gate {self.bound:g}"
        if self.undecidable:
            return (
                f"{self.task}: nrmse cannot be told from {self.champion}'s (difference {value}), for {self.n} test "
                "trajectories are too few"
            )
        worse = "not significantly worse than" if self.passed else "significantly worse than"
        return (
            f"{self.task}: nrmse is {worse} {self.champion}'s (difference {value}, interval {self.interval}, on "
            f"{counted(self.n, 'trajectory')})"
        )

    @property
    def undecidable(self) -> bool:
        """Whether there are too few trajectories for any difference to a champion to be significant."""
        return bool(self.champion) and math.isfinite(self.value) and self.low == -math.inf and self.high == math.inf

    @property
    def interval(self) -> str:
        return f"{self.low:.2g} … {self.high:.2g}"


def decide(
    bounds: Mapping[str, Mapping[str, float]], records: Sequence[ResultRecord], champions: Sequence[Gate] = ()
) -> tuple[Gate, ...]:
    """Every gate with what the records of the predictor `ups` say; those of a champion are given."""
    gates = []
    for task, wanted in bounds.items():
        for name, bound in wanted.items():
            r = _measured(records, task, metric_of(name))
            value, low, high, n = (math.nan, math.nan, math.nan, 0) if r is None else (r.value, r.low, r.high, r.n)
            note = "" if r else "was not measured"
            gates.append(Gate(task, name, value=value, bound=bound, low=low, high=high, n=n, note=note))
    return (*gates, *champions)


def against(champion: str, ours: PerTrajectory, theirs: PerTrajectory, note: str = "", comparisons: int = 1) -> Gate:
    """The gate of a champion's errors on the trajectories that both were judged on, as one of several."""
    mine, other = ours.by_mark, theirs.by_mark
    common = [mark for mark in mine if mark in other]
    gap = difference(np.array([mine[m] for m in common]), np.array([other[m] for m in common]), comparisons)
    return Gate(ours.task, "nrmse", gap.value, 0.0, gap.low, gap.high, gap.n, champion, note)


def missed(gates: Sequence[Gate]) -> str:
    """One sentence on the gates that are missed; empty where none is."""
    sentences = [gate.sentence for gate in gates if not gate.passed]
    more = f"; {len(sentences) - 3} more are missed" if len(sentences) > 3 else ""
    return f"{'; '.join(sentences[:3])}{more}." if sentences else ""


def records_of(gates: Sequence[Gate], records: Sequence[ResultRecord]) -> list[ResultRecord]:
    """A record for each gate: its bound is where it lies on the axis `bound`."""
    rows = []
    for gate in gates:
        like = _measured(records, gate.task, "nrmse")
        if like is not None:
            metric = "nrmse-difference" if gate.champion else metric_of(gate.name)
            like = dataclasses.replace(like, metric=metric, mode=MODES[gate.passed], axis="bound", at=gate.bound)
            rows.append(dataclasses.replace(like, value=gate.value, low=gate.low, high=gate.high, n=gate.n))
    return rows


def is_gate(record: ResultRecord) -> bool:
    """Whether a record is one of `records_of`."""
    return record.mode in MODES.values()


def gates_section(gates: Sequence[Gate]) -> Section:
    """The gates of a run on its page."""
    rows = [("task", "gate", "value", "bound", "", "remark")]
    for gate in gates:
        value = f"{gate.value:.4g}" if math.isfinite(gate.value) else "not finite"
        name = f"nrmse less that of {gate.champion}" if gate.champion else gate.name
        bound = f"{gate.interval} reaches 0" if gate.champion else f"{gate.bound:g}"
        bound = "too few trajectories to tell" if gate.undecidable else bound
        rows.append((gate.task, name, value, bound, "passed" if gate.passed else "MISSED", gate.note))
    text = "Bounds that this run had to keep (`gates` of its config), decided on the test trajectories."
    return Section("Gates", text, tuple(rows), verdict=missed(gates) or "Every gate is passed.", good=not missed(gates))


def _measured(records: Sequence[ResultRecord], task: str, metric: str) -> ResultRecord | None:
    """The number of the whole rollout on the first split, which is the run's own test part."""
    wanted = (task, metric, OURS, "strict", "")
    return next((r for r in records if (r.task, r.metric, r.predictor, r.mode, r.axis) == wanted), None)
