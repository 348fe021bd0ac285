"""The lab: undisturbed runs first, then disturbed ones, several at a time; what came of them in a table and as JSON."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ups.files import write_atomic
from ups.jobs.generate import generate
from ups.jobs.settings import GenerateConfig
from ups.lab.case import Case, Strategy
from ups.lab.case_run import Found, trained_on, trial
from ups.supervise.forked import run
from ups.rundir import environment

# All that a rank would import, so that none has to.
NEEDED = ("ups.lab.case_run", "ups.cli.worker", "ups.physics", "h5py", "rich.console", "safetensors.torch")
PATIENCE = 10.0  # seconds that the undisturbed run is given to begin with; how long it takes is what others are given


@dataclass(frozen=True)
class Lab:
    """Cases in `folder`, `jobs` at a time. A case whose promises are kept leaves nothing behind; others can be read."""

    folder: Path
    jobs: int = 2

    def run(self, cases: Sequence[Case], say: Callable[[str], None] = lambda sentence: None) -> list[Found]:  # noqa: ARG005
        """Every case, in order of its end."""
        data = self.data()
        found: list[Found] = []
        with ThreadPoolExecutor(self.jobs) as pool:
            plain = {_reference(case) for case in cases}
            pace = dict(pool.map(lambda kind: (kind, self._undisturbed(data, *kind)), sorted(plain, key=str)))

            def one(numbered: tuple[int, Case]) -> Found:
                number, case = numbered
                place, plain = self.folder / f"case-{number:04d}", _reference(case)
                result = self._try(case, place, data, self._plain(*plain), pace[plain])
                if result.starved:
                    result = self._try(case, place, data, self._plain(*plain), 4 * pace[plain])
                    result.repeated = True
                found.append(result)
                what = f"{case.family:4} {case.name:22} {case.world} × {case.strategy:7}"
                how = "; ".join(result.broken) or " → ".join(result.endings)
                say(f"{len(found):4d}/{len(cases)}  {what} {result.seconds:5.1f} s  {how}")
                return result

            list(pool.map(one, enumerate(cases, 1)))
        return found

    def data(self) -> Path:
        """A few small trajectories, made once and shared by all."""
        settings = GenerateConfig(
            task="burgers1d", samples=16, resolution=16, frames=6, seed=1, device="cpu", scheme="accurate"
        )
        return generate(settings, self.folder / "data", lambda progress: None).resolve()  # noqa: ARG005

    def _undisturbed(self, data: Path, world: int, strategy: Strategy, changes: tuple[Any, ...]) -> float:
        """Seconds that it takes."""
        case = Case("F13", "reference", world, strategy, starts=1, changes=dict(changes))
        place = self._plain(world, strategy, changes)
        found = self._try(case, place, data, None, PATIENCE)
        if found.broken or found.endings != ["SUCCESS"]:
            raise RuntimeError(f"the undisturbed run on {world} ranks ({strategy}) failed: {found.broken}; {place}")
        return found.seconds

    def _plain(self, world: int, strategy: Strategy, changes: tuple[Any, ...]) -> Path:
        kind = "-".join(str(value) for _, value in changes)
        return self.folder / f"plain-{world}-{strategy}{'-' if kind else ''}{kind}"

    def _try(self, case: Case, place: Path, data: Path, reference: Path | None, pace: float) -> Found:
        args = (case, place, data, reference, pace)
        [ended] = run(trial, 1, *args, seconds=90 + 60 * pace, env={"OMP_NUM_THREADS": "1"}, preload=NEEDED)
        if not ended.well:
            told = f"the trial itself failed: {ended.ending()}\n{ended.traceback}"
            return Found(case.to_dict(), ["HUNG"], [told], hung=True)
        return Found(**ended.value)


def _reference(case: Case) -> tuple[int, Strategy, tuple[Any, ...]]:
    """What the undisturbed run of a case is: its world, and whatever it changes that changes bits."""
    return *(case.like or (case.world, case.strategy)), tuple(sorted({**case.changes, **case.told}.items()))


def same_samples(lab: Lab, cases: Sequence[Case]) -> list[str]:
    """The sampler's proof over all worlds: every rank's samples apart, together the batches of one process."""
    kinds = sorted({_reference(case) for case in cases}, key=str)
    told = []
    alike: dict[tuple[Any, ...], dict[tuple[str, int], list[int]]] = {}
    for kind in kinds:
        steps = trained_on(lab._plain(*kind) / "run")
        sizes = tuple(change for change in kind[2] if change[0].endswith(".batch"))
        first = alike.setdefault(sizes, steps)
        for key, ids in steps.items():
            if sorted(ids) != sorted(first[key]):
                told.append(f"{kind[0]} ranks ({kind[1]}) saw other samples than others in step {key}")
            if len(set(ids)) != len(ids):
                told.append(f"{kind[0]} ranks ({kind[1]}) saw a sample twice in step {key}")
    return told


COLUMNS = (
    "fault",
    "injected",
    "hung",
    "lost steps",
    "dup. or missing",
    "false success",
    "broken",
    "equal bits",
    "repeated",
)
TIMES = ("detected", "recovered", "per case")


def summary(found: Iterable[Found]) -> list[tuple[str, ...]]:
    """One row per family and one for all; times are medians, lost steps the most of any case."""
    rows = list(found)
    families = sorted({r.case["family"] for r in rows}, key=lambda name: int(name[1:]))
    table: list[tuple[str, ...]] = [(*COLUMNS, *TIMES)]
    for name in [*families, "all"]:
        some = [r for r in rows if name in (r.case["family"], "all")]
        wanted = [r for r in some if r.case["bits"]]
        table.append(
            (
                name,
                str(len(some)),
                str(sum(r.hung for r in some)),
                str(max((r.lost for r in some), default=0)),
                str(sum(r.missing + r.duplicated for r in some)),
                str(sum(r.false_success for r in some)),
                str(sum(bool(r.broken) for r in some)),
                f"{sum(r.equal for r in wanted)} of {len(wanted)}",
                str(sum(r.repeated for r in some)),
                _median(r.detection for r in some),
                _median(r.recovery for r in some),
                _median(r.seconds for r in some),
            )
        )
    return table


def _median(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.2f} s" if known else "-"


def write(path: Path, found: Sequence[Found], asked: dict[str, Any], seconds: float) -> None:
    """Everything, with what it depends on."""
    head, *rows = summary(found)
    values = {
        "asked": asked,
        "environment": environment(),
        "load": os.getloadavg(),
        "seconds": round(seconds, 1),
        "summary": [dict(zip(head, row, strict=True)) for row in rows],
        "cases": [r.to_dict() for r in found],
    }
    write_atomic(path, json.dumps(values, indent=1, ensure_ascii=False, default=str) + "\n")
