"""Checks of a config's own model: in one process, replicated and sharded; names the smallest part that fails."""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ups.run.config import RunConfig
from ups.types import ConfigError, counted
from ups_fleet.doctor import model_exercises
from ups_fleet.doctor.findings import DoctorLine, Finding, State, bad, doubtful, good, run_check
from ups_fleet.doctor.model_exercises import ExercisedModel, Strategy, first_difference, last_module
from ups_fleet.doctor.rank_checks import PRELOAD
from ups_fleet.supervise.forked_functions import Result, first_failure, run_ranks

GROUP = "model"
COMPILING = 300.0  # seconds that a compiler may take
COMPILED = 100.0  # how many times further apart numbers may be if a compiler has chosen the order of sums
STRATEGIES: tuple[Strategy, ...] = ("ddp", "fsdp")
ADVICE = {
    "crash": "it is below Python: try another torch or driver; `ups run CONFIG --debug` leaves its stack in the log.",
    "raise": "the sentence says what it wants; `ups run CONFIG --here` shows the whole traceback.",
    "hang": "ranks wait for each other there: look for branches by rank or by the values of tensors in this part.",
    "finite": "look at divisions, square roots and logarithms in this part, or at train.precision.",
    "compile": "set train.compile: false (eager is the reference), or mend the compiler that the sentence names.",
    "differs": "this part depends on the batch, on the rank or on chance; a part of a model must not.",
}


@dataclass(frozen=True)
class ModuleFailure:
    """A part of a model that fails: where, how, and whether it does so alone as well."""

    kind: str  # a key of ADVICE
    part: str  # "" where no part had begun
    phase: str
    how: str
    alone: bool | None = None

    def finding(self, facts: dict[str, Any]) -> Finding:
        where = f"{self.part or 'the whole'}, in {self.phase}"
        also = {True: "; alone it does too", False: "; alone it does not", None: ""}[self.alone]
        named = {"part": self.part, "phase": self.phase, "kind": self.kind, "how": self.how, "alone": self.alone}
        return bad(f"{where}: {self.how}{also}", ADVICE[self.kind], **named, **facts)


def model_checks(
    config: RunConfig,
    ranks: int = 2,
    device: str = "cpu",
    limit: float = 60.0,
    change: Callable[[Any], None] = model_exercises.unchanged,
    stages: tuple[str, ...] = (),
) -> Iterator[DoctorLine]:
    """Every stage that a config plans, or only `stages`: in one process, then on `ranks`, whole and block by block."""
    if not config.data:
        raise ConfigError("the config names no data; add a data set under `data:`.")
    for stage in stages or config.plan:
        folder = Path(tempfile.mkdtemp(prefix="ups-doctor-"))
        try:
            checks = StageChecks(ExercisedModel(config, stage, device, change), ranks, limit, folder)
            line = run_check(GROUP, f"{stage}, one process", checks.one)
            yield line
            if line.state != State.BAD and config.stage(stage).train.compile:
                yield run_check(GROUP, f"{stage}, compiled", checks.compiled)
            if line.state != State.BAD:
                for strategy in STRATEGIES:
                    yield run_check(GROUP, f"{stage}, {strategy} × {ranks}", partial(checks.many, strategy))
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class StageChecks:
    """The checks of one stage."""

    def __init__(self, subject: ExercisedModel, ranks: int, limit: float, folder: Path) -> None:
        self.subject, self.ranks, self.limit, self.folder = subject, ranks, limit, folder
        self.reference: dict[str, Any] = {}  # what one process computes
        self.starts, self.refused = 0, ""

    def one(self) -> Finding:
        """The whole in one process: what the ranks are compared with."""
        failure, self.reference = self._whole(1, "ddp")
        if failure is not None:
            return failure.finding({})
        losses = ", ".join(f"{x:.3g}" for x in self.reference["losses"])
        blocks = self.reference["units"]
        words = (
            f"{counted(len(self.reference['parts']), 'part')}, {counted(len(blocks), 'block')}; loss {losses}, "
            "gradient finite"
        )
        return good(words, blocks=blocks)

    def compiled(self) -> Finding:
        """The whole in one process with its blocks compiled, as the config wants it: it ends, with the same numbers."""
        folder, began = self._traces(), time.monotonic()
        results = self._run(
            model_exercises.whole, 1, self.subject, 1, "ddp", folder, True, seconds=max(self.limit, COMPILING)
        )
        failure = self._failure_of(results, folder) or self._differs(results[0].value, "", loose=COMPILED)
        if failure is not None:
            return replace(failure, kind="compile").finding({})
        took = time.monotonic() - began
        return good(f"loss and gradient as without a compiler; {took:.0f} s at first", seconds=took)

    def many(self, strategy: Strategy) -> Finding:
        """The whole on ranks, then each of its blocks alone."""
        failure, _ = self._whole(self.ranks, strategy)
        if failure is not None and failure.kind == "raise" and "ConfigError" in failure.how:
            how, own = failure.how.partition(": ")[2], self.subject.config.dist.strategy
            advice = "use the other strategy." if own == strategy else f"the config's own is {own}: ignore this."
            return (bad if own == strategy else doubtful)(f"refused: {how}", advice)
        if failure is not None:
            failure = self._smallest(failure, strategy)
            return failure.finding({"strategy": strategy})
        units = self._capture(self.reference["units"])
        same = f"loss, gradient and {len(self.reference['sums'])} outputs as in one process"
        if not units and self.reference["units"]:
            words = f"{same}; no block could be run alone: {self.refused}"
            return doubtful(words, "nothing to mend in the model; its blocks cannot be looked at one by one.")
        failures = self._alone(units, strategy)
        if failures:
            return replace(failures[0], alone=True).finding({"strategy": strategy, "others": len(failures) - 1})
        return good(f"{same}; {counted(len(units), 'block')} alone too", strategy=strategy)

    def _smallest(self, failure: ModuleFailure, strategy: Strategy) -> ModuleFailure:
        """The smallest part that fails alone too, on its captured input: where the whole failed, or around that."""
        chain = failure.part.split(".")
        for length in range(len(chain), 1, -1):
            name = ".".join(chain[:length])
            used = self._capture([name])
            if not used:
                continue
            failures = self._alone(used, strategy)
            if failures:
                inner = failures[0]
                part = inner.part if inner.part.startswith(failure.part) else name
                return replace(failure if inner.kind == failure.kind else inner, part=part, alone=True)
        return replace(failure, alone=False) if failure.part else failure

    def _whole(self, world: int, strategy: Strategy) -> tuple[ModuleFailure | None, dict[str, Any]]:
        folder = self._traces()
        results = self._run(model_exercises.whole, world, self.subject, world, strategy, folder)
        if failure := self._failure_of(results, folder):
            return failure, {}
        for rank, result in enumerate(results):
            where = f" on rank {rank}" if world > 1 else ""
            if result.value["broken"]:
                phase, name = result.value["broken"]
                name = f"{self.subject.stage}.{name.rpartition('.')[0]}" if phase == "gradient" else name
                return ModuleFailure("finite", name.rstrip("."), phase, f"what comes out is not finite{where}"), {}
            if not all(map(math.isfinite, (*result.value["losses"], *result.value["norms"]))):
                return ModuleFailure("finite", "", "forward", f"the loss or the gradient is not finite{where}"), {}
            if failure := self._differs(result.value, where) if world > 1 else None:
                return failure, {}
        return None, results[0].value

    def _differs(self, numbers: dict[str, Any], where: str, loose: float = 1.0) -> ModuleFailure | None:
        """Where the numbers of a rank differ from those of one process by more than rounding."""
        near = loose * self.subject.near
        difference = first_difference(numbers["sums"], self.reference["sums"], near)
        if difference is not None:
            how = f"what comes out is off by {difference[1]:.1e}{where}"
            return ModuleFailure("differs", difference[0], "forward", how)
        for what, phase in (("losses", "forward"), ("norms", "backward")):
            for mine, wanted in zip(numbers[what], self.reference[what], strict=True):
                gap = abs(mine - wanted) / max(abs(wanted), model_exercises.SMALL)
                if gap > 10 * near:
                    name = {"losses": "the loss", "norms": "the gradient"}[what]
                    return ModuleFailure("differs", "", phase, f"{name} is off by {gap:.1e}{where}")
        return None

    def _capture(self, names: list[str]) -> list[str]:
        """Capture the inputs of these parts; the names of those that are used and work alone in one process."""
        results = self._run(model_exercises.capture, 1, self.subject, names, self.folder / "captured")
        self.refused = "" if results[0].well else results[0].ending()
        return list(results[0].value) if results[0].well else []

    def _alone(self, names: list[str], strategy: Strategy) -> list[ModuleFailure]:
        """Parts that fail alone; after one that ends its process, those behind it are run in another."""
        failures: list[ModuleFailure] = []
        left = list(names)
        while left:
            folder = self._traces()
            args = (self.subject, self.ranks, strategy, folder, left, self.folder / "captured")
            results = self._run(model_exercises.alone, self.ranks, *args)
            failure = self._failure_of(results, folder)
            if failure is None:
                for rank, result in enumerate(results):
                    for text in result.value[:1] if not failures else ():
                        name, _, how = text.partition(": ")
                        failures.append(ModuleFailure("differs", name, "backward", f"{how} on rank {rank}"))
                break
            failures.append(failure)
            at = next((i for i, name in enumerate(left) if f"{failure.part}.".startswith(f"{name}.")), None)
            if at is None:
                break
            left = left[at + 1 :]
        return failures

    def _failure_of(self, results: list[Result], folder: Path) -> ModuleFailure | None:
        """How a rank failed, and at which part, from the traces in `folder`; None where all is well."""
        failure = first_failure(results)
        if failure is None:
            return None
        rank, result = failure
        if result.hung:  # the one that is behind holds the others up
            traces = [folder / f"trace-{r}" for r in range(len(results))]
            rank = min(range(len(results)), key=lambda r: traces[r].stat().st_size if traces[r].exists() else 0)
        phase, part = last_module(folder / f"trace-{rank}")
        if not part and " " in phase:
            phase, _, part = phase.partition(" ")
        kind = "hang" if result.hung else "raise" if result.error else "crash"
        where = f" on rank {rank}" if len(results) > 1 else ""
        return ModuleFailure(kind, part, phase, f"{result.ending()}{where}")

    def _traces(self) -> Path:
        """A new folder for the traces of one start of ranks."""
        self.starts += 1
        folder = self.folder / f"start-{self.starts}"
        folder.mkdir()
        return folder

    def _run(self, function: Callable[..., Any], world: int, *args: Any, seconds: float | None = None) -> list[Result]:
        env = {"CUDA_LAUNCH_BLOCKING": "1"} if self.subject.device.startswith("cuda") else {}
        env["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no processes of its own that could outlive it
        return run_ranks(function, world, *args, seconds=seconds or self.limit, env=env, preload=PRELOAD)
