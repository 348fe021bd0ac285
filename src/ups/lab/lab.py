"""The lab: undisturbed runs first, then disturbed ones, several at a time; their results as a table and as JSON."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ups.files import write_named
from ups.lab.case import Case, Strategy
from ups.lab.case_run import CaseResult, run_case, trained_on
from ups.run.data_config import GenerateConfig
from ups.run.generate import generate
from ups.rundir import RunDir, environment
from ups.supervise.forked_functions import run

# All that a rank would import, so that none has to.
NEEDED = ("ups.lab.case_run", "ups.cli.worker", "ups.physics", "h5py", "rich.console", "safetensors.torch")
PATIENCE = 10.0  # the assumed seconds of an undisturbed run; the real ones are the measure for the disturbed runs


@dataclass(frozen=True)
class Lab:
    """Cases in `folder`, `jobs` at a time. A case whose promises are kept leaves nothing behind; others can be read."""

    folder: Path
    jobs: int = 2

    def run(self, cases: Sequence[Case], say: Callable[[str], None] = lambda sentence: None) -> list[CaseResult]:  # noqa: ARG005
        """The result of every case, in the order in which they ended."""
        data = self.data()
        results: list[CaseResult] = []
        with ThreadPoolExecutor(self.jobs) as pool:
            plain = {_reference(case) for case in cases}
            pace = dict(pool.map(lambda kind: (kind, self._undisturbed(data, *kind)), sorted(plain, key=str)))

            def one(numbered: tuple[int, Case]) -> CaseResult:
                number, case = numbered
                folder, plain = self.folder / f"case-{number:04d}", _reference(case)
                result = self._try(case, folder, data, self._plain(*plain), pace[plain])
                if result.starved:
                    result = self._try(case, folder, data, self._plain(*plain), 4 * pace[plain])
                    result.repeated = True
                results.append(result)
                what = f"{case.family:4} {case.name:22} {case.world} × {case.strategy:7}"
                how = "; ".join(result.broken) or " → ".join(result.endings)
                say(f"{len(results):4d}/{len(cases)}  {what} {result.seconds:5.1f} s  {how}")
                return result

            list(pool.map(one, enumerate(cases, 1)))
        return results

    def data(self) -> Path:
        """A few small trajectories, made once and shared by all."""
        settings = GenerateConfig(
            task="burgers1d", samples=16, resolution=16, frames=6, seed=1, device="cpu", scheme="accurate"
        )
        return generate(settings, self.folder / "data", lambda progress: None)[0].resolve()  # noqa: ARG005

    def _undisturbed(self, data: Path, world: int, strategy: Strategy, changes: tuple[Any, ...]) -> float:
        """Seconds that it takes."""
        case = Case("F13", "reference", world, strategy, starts=1, changes=dict(changes))
        folder = self._plain(world, strategy, changes)
        result = self._try(case, folder, data, None, PATIENCE)
        if result.broken or result.endings != ["SUCCESS"]:
            raise RuntimeError(f"the undisturbed run on {world} ranks ({strategy}) failed: {result.broken}; {folder}")
        return result.seconds

    def _plain(self, world: int, strategy: Strategy, changes: tuple[Any, ...]) -> Path:
        """The folder of the undisturbed run."""
        kind = "-".join(str(value) for _, value in changes)
        return self.folder / f"plain-{world}-{strategy}{'-' if kind else ''}{kind}"

    def _try(self, case: Case, folder: Path, data: Path, reference: Path | None, pace: float) -> CaseResult:
        args = (case, folder, data, reference, pace)
        [ended] = run(run_case, 1, *args, seconds=90 + 60 * pace, env={"OMP_NUM_THREADS": "1"}, preload=NEEDED)
        if not ended.well:
            failure = f"the trial itself failed: {ended.ending()}\n{ended.traceback}"
            return CaseResult(asdict(case), ["HUNG"], [failure], hung=True)
        return CaseResult(**ended.value)


def _reference(case: Case) -> tuple[int, Strategy, tuple[Any, ...]]:
    """What the undisturbed run of a case is: its world, and whatever it changes that changes bits."""
    return *(case.like or (case.world, case.strategy)), tuple(sorted({**case.changes, **case.told}.items()))


def same_samples(lab: Lab, cases: Sequence[Case]) -> list[str]:
    """What is wrong with the samples of the undisturbed runs, over all worlds; nothing if all is well.

    Well: no two ranks share a sample of a step, and together they have the batches of one process.
    """
    kinds = sorted({_reference(case) for case in cases}, key=str)
    problems = []
    alike: dict[tuple[Any, ...], dict[tuple[str, int], list[int]]] = {}
    for kind in kinds:
        steps = trained_on(RunDir(lab._plain(*kind) / "run"))
        sizes = tuple(change for change in kind[2] if change[0].endswith(".batch"))
        first = alike.setdefault(sizes, steps)
        for key, ids in steps.items():
            if sorted(ids) != sorted(first[key]):
                problems.append(f"{kind[0]} ranks ({kind[1]}) saw other samples than others in step {key}")
            if len(set(ids)) != len(ids):
                problems.append(f"{kind[0]} ranks ({kind[1]}) saw a sample twice in step {key}")
    return problems


COLUMNS = (
    *("fault", "injected", "hung", "lost steps", "dup. or missing", "false success", "broken", "equal bits"),
    *("repeated", "detected", "recovered", "per case"),
)


def summary(results: Sequence[CaseResult]) -> list[tuple[str, ...]]:
    """One row per family and one for all; times are medians, lost steps the most of any case."""
    families = sorted({r.case["family"] for r in results}, key=lambda name: int(name[1:]))
    table: list[tuple[str, ...]] = [COLUMNS]
    for name in [*families, "all"]:
        some = [r for r in results if name in (r.case["family"], "all")]
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


def write(path: Path, results: Sequence[CaseResult], request: dict[str, Any], seconds: float) -> None:
    """All results as JSON, with what was asked for and the environment."""
    head, *rows = summary(results)
    values = {
        "asked": request,
        "environment": environment(),
        "load": os.getloadavg(),
        "seconds": round(seconds, 1),
        "summary": [dict(zip(head, row, strict=True)) for row in rows],
        "cases": [asdict(r) for r in results],
    }
    text = json.dumps(values, indent=1, ensure_ascii=False, default=str) + "\n"
    write_named(path, text, "choose another --json")
