"""The lab: undisturbed runs first, then disturbed ones, several at a time, each result written down at once."""

from __future__ import annotations

import functools
import hashlib
import math
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ups.parsing import read_json
from ups.rundir import RunDir
from ups.types import DataError
from ups.verdict import Ending
from ups_fleet.fault_tests.case import CaseResult, FaultCase, Strategy
from ups_fleet.fault_tests.journal import FaultJournal, skipped
from ups_fleet.fault_tests.privileges import missing
from ups_fleet.supervise.forked_functions import FunctionName, run_ranks

# All that a rank would import, so that none has to.
NEEDED = (
    *("ups_fleet.fault_tests.case_run", "ups.cli.app", "ups_fleet.cli.worker", "ups_fleet.running.supervised"),
    *("ups.physics", "h5py", "rich.console", "safetensors.torch", "scipy.optimize", "matplotlib.figure"),
    *(
        "matplotlib.backends.backend_agg",
        "ups.cli.preflight",
        "ups_fleet.doctor.machine_checks",
        "ups.jobs.estimate.fits",
    ),
)
PATIENCE = 30.0  # the assumed seconds of an undisturbed run; the real ones are the measure for the disturbed runs
RUNS = "ups_fleet.fault_tests.case_run"  # by name: this process needs no torch
Kind = tuple[int, Strategy, tuple[Any, ...]]  # of an undisturbed run: ranks, strategy, what differs from the usual
Say = Callable[[str], None]


def _nobody(sentence: str) -> None:
    """Nobody listens."""


@dataclass(frozen=True)
class Lab:
    """Cases in `folder`, `jobs` at a time. A case whose promises are kept leaves nothing behind; others can be read."""

    folder: Path
    jobs: int = 2
    tries: int = 3  # at an undisturbed run: a busy machine may be too slow for any limit
    most: float = math.inf  # seconds for one case

    def run(
        self, cases: Sequence[FaultCase], say: Say = _nobody, journal: FaultJournal | None = None
    ) -> list[CaseResult]:
        """The result of every case, in their order; those that a journal knows are not run again.

        Ctrl-C: the cases under way are finished and noted, and no other is begun; a second one leaves at once.
        """
        data = self.data
        results = dict(journal.rows) if journal else {}
        lacking = {number: missing(case.around.needs) for number, case in enumerate(cases, 1)}
        begun = threading.Lock()

        def finish(number: int, result: CaseResult) -> None:
            with begun:
                results[number] = result
                if journal:
                    journal.add(number, result)
                say(f"{len(results):4d}/{len(cases)}  {_line(cases[number - 1], result)}")

        left = [number for number in range(1, len(cases) + 1) if number not in results]
        for number in (number for number in left if lacking[number]):
            finish(number, skipped(cases[number - 1], lacking[number]))
        left = [number for number in left if not lacking[number]]
        with ThreadPoolExecutor(self.jobs) as pool:
            kinds = sorted({reference_of(cases[number - 1]) for number in left}, key=str)
            pace = dict(zip(kinds, pool.map(self.undisturbed, kinds), strict=True))

            def one(number: int) -> None:
                case = cases[number - 1]
                seconds = pace[reference_of(case)]
                if isinstance(seconds, str):
                    finish(number, CaseResult(case.facts(), broken=[seconds]))
                else:
                    finish(number, self._case(case, number, data, seconds))

            _all_or_stopped(pool, [pool.submit(one, number) for number in left], say)
        return [results[number] for number in sorted(results)]

    def _case(self, case: FaultCase, number: int, data: Path, pace: float) -> CaseResult:
        folder, plain = self.folder / f"case-{number:04d}", self.plain(reference_of(case))
        result = self._try(case, folder, data, plain, pace)
        if result.starved:
            result = replace(self._try(case, folder, data, plain, 4 * pace), repeated=True)
        if not result.broken:
            shutil.rmtree(folder, ignore_errors=True)
        return result

    @functools.cached_property
    def data(self) -> Path:
        """A few small trajectories, made once and shared by all."""
        seconds = min(self.most, 600.0)
        [made] = run_ranks(FunctionName(RUNS, "made_data"), 1, self.folder / "data", seconds=seconds, preload=NEEDED)
        if not made.well:
            raise DataError(f"{self.folder}: there are no data to train on: {made.ending()}; mend that first.")
        path: Path = made.value
        return path

    def undisturbed(self, kind: Kind) -> float | str:
        """Seconds that it takes, or how it failed; one that an earlier lab of this folder has made is taken."""
        world, strategy, changes = kind
        folder = self.plain(kind)
        known = read_json(folder / "pace.json").get("seconds")
        if known:
            return float(known)
        case = FaultCase("F13", "reference", world, strategy, starts=1, changes=dict(changes))
        for _ in range(self.tries):
            result = self._try(case, folder, self.data, None, PATIENCE)
            if not result.broken:
                RunDir(folder).write(folder / "pace.json", {"seconds": result.seconds})
                return result.seconds
        return f"the undisturbed run failed ({'; '.join(result.broken)}): {folder}"

    def plain(self, kind: Kind) -> Path:
        """The folder of the undisturbed run."""
        world, strategy, changes = kind
        name = hashlib.sha256(repr(changes).encode()).hexdigest()[:8] if changes else "as-it-is"
        return self.folder / f"plain-{world}-{strategy}-{name}"

    def _try(self, case: FaultCase, folder: Path, data: Path, reference: Path | None, pace: float) -> CaseResult:
        args = (case, folder, data, reference, pace)
        seconds, env = min(self.most, 90 + 60 * pace), {"OMP_NUM_THREADS": "1"}
        [ended] = run_ranks(FunctionName(RUNS, "run_case"), 1, *args, seconds=seconds, env=env, preload=NEEDED)
        if not ended.well:
            failure = f"the trial itself failed: {ended.ending()}\n{ended.traceback}"
            return CaseResult(case.facts(), ["HUNG"], [failure], hung=True)
        return CaseResult(**ended.value)


def _line(case: FaultCase, result: CaseResult) -> str:
    what = f"{case.family:4} {case.name:30} {case.world} × {case.strategy:7}"
    how = "; ".join(result.broken) or " → ".join(result.endings)
    return f"{what} {result.seconds:5.1f} s  {f'skipped: needs {result.skipped}' if result.skipped else how}"


def _all_or_stopped(pool: ThreadPoolExecutor, work: Sequence[Future[None]], say: Say) -> None:
    """Wait for all; after a Ctrl-C for those that have begun, and then go on with the interruption."""
    try:
        for ended in as_completed(work):
            ended.result()
    except (KeyboardInterrupt, OSError, RuntimeError, ValueError):
        for future in work:
            future.cancel()
        say("stopping: the cases under way are finished first; Ctrl-C again leaves them.")
        try:
            pool.shutdown(wait=True)
        except KeyboardInterrupt:
            os._exit(int(Ending.INTERRUPTED))  # every result is on disk, and the cases die with this process
        raise


def reference_of(case: FaultCase) -> Kind:
    """What the undisturbed run of a case is: its world, and whatever it changes that changes bits."""
    settings = {**case.changes, **case.reference_settings}
    changes = {name: value for name, value in settings.items() if not name.startswith("limits.")}
    return *(case.like or (case.world, case.strategy)), tuple(sorted(changes.items()))


def same_samples(lab: Lab, cases: Sequence[FaultCase]) -> list[str]:
    """What is wrong with the samples of the undisturbed runs, over all worlds; nothing if all is well.

    Well: no two ranks share a sample of a step, and together they have the batches of one process.
    """
    from ups_fleet.fault_tests.case_run import trained_on  # imports torch

    kinds = sorted({reference_of(case) for case in cases if not missing(case.around.needs)}, key=str)
    problems = []
    alike: dict[tuple[Any, ...], dict[tuple[str, int], list[int]]] = {}
    for kind in kinds:
        steps = trained_on(RunDir(lab.plain(kind) / "run"))
        sizes = tuple(
            (key, value)
            for key, value in kind[2]
            if key.split(".")[-1] in ("batch", "steps") or key == "cache.use" or key.startswith("data.")
        )
        first = alike.setdefault(sizes, steps)
        for key, ids in steps.items():
            if sorted(ids) != sorted(first[key]):
                problems.append(f"{kind[0]} ranks ({kind[1]}) saw other samples than others in step {key}")
            if len(set(ids)) != len(ids) and not any(name.endswith(".steps") for name, _ in kind[2]):  # in one epoch
                problems.append(f"{kind[0]} ranks ({kind[1]}) saw a sample twice in step {key}")
    return problems
