"""A config's own model: built, run in one process, replicated and sharded; where it fails, the smallest such part."""

from __future__ import annotations

import functools
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ups.doctor import model_exercises
from ups.doctor.findings import Check, Finding, Line, State, bad, doubtful, good, look
from ups.doctor.model_exercises import Strategy, Subject
from ups.doctor.rank_checks import PRELOAD
from ups.doctor.module_trace import last_place, other_sums
from ups.jobs.run import STAGES
from ups.jobs.settings import RunConfig
from ups.supervise.forked import Result, first, run
from ups.types import ConfigError

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
class Failure:
    """A part that fails: where, how, and whether it does so alone as well."""

    kind: str  # a key of ADVICE
    part: str  # "" where no part had begun
    phase: str
    how: str
    alone: bool | None = None

    def finding(self, facts: dict[str, Any]) -> Finding:
        place = f"{self.part or 'the whole'}, in {self.phase}"
        also = {True: "; alone it does too", False: "; alone it does not", None: ""}[self.alone]
        named = {"part": self.part, "phase": self.phase, "kind": self.kind, "how": self.how, "alone": self.alone}
        return bad(f"{place}: {self.how}{also}", ADVICE[self.kind], **named, **facts)


def examine(
    config: RunConfig,
    ranks: int = 2,
    device: str = "cpu",
    limit: float = 60.0,
    change: Callable[[Any], None] = parts.unchanged,
    stages: tuple[str, ...] = tuple(STAGES),
) -> Iterator[Line]:
    """Every stage of a config: in one process, then on `ranks` in both strategies, whole and block by block."""
    if not config.data:
        raise ConfigError("the config names no data; add a data set under `data:`.")
    for stage in stages:
        folder = Path(tempfile.mkdtemp(prefix="ups-doctor-"))
        try:
            bench = Bench(Subject(config, stage, device, change), ranks, limit, folder)
            line = look(Check(GROUP, f"{stage}, one process", bench.one))
            yield line
            if line.state != State.BAD and bench.subject.compiles:
                yield look(Check(GROUP, f"{stage}, compiled", bench.compiled))
            if line.state != State.BAD:
                for strategy in STRATEGIES:
                    yield look(Check(GROUP, f"{stage}, {strategy} × {ranks}", functools.partial(bench.many, strategy)))
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class Bench:
    """Where one stage is taken apart."""

    def __init__(self, subject: Subject, ranks: int, limit: float, folder: Path) -> None:
        self.subject, self.ranks, self.limit, self.folder = subject, ranks, limit, folder
        self.known: dict[str, Any] = {}
        self.starts, self.refused = 0, ""

    def one(self) -> Finding:
        """The whole in one process: what the ranks are compared with."""
        failure, found = self._whole(1, "ddp")
        if failure is not None:
            return failure.finding({})
        self.known = found
        losses = ", ".join(f"{x:.3g}" for x in found["losses"])
        count, blocks = len(found["parts"]), len(found["units"])
        return good(f"{count} parts, {blocks} blocks; loss {losses}, gradient finite", blocks=found["units"])

    def compiled(self) -> Finding:
        """The whole in one process with its blocks compiled, as the config wants it: it ends, and is the same."""
        room, began = self._room(), time.monotonic()
        results = self._run(parts.compiled, 1, self.subject, room, seconds=max(self.limit, COMPILING))
        failure = self._ended(results, room) or self._differs(results[0].value, "", loose=COMPILED)
        if failure is not None:
            return replace(failure, kind="compile").finding({})
        took = time.monotonic() - began
        return good(f"loss and gradient as without a compiler; {took:.0f} s at first", seconds=took)

    def many(self, strategy: Strategy) -> Finding:
        """The whole on ranks, then its blocks one after the other, each alone."""
        failure, _ = self._whole(self.ranks, strategy)
        if failure is not None and failure.kind == "raise" and "ConfigError" in failure.how:
            how, own = failure.how.partition(": ")[2], self.subject.config.dist.strategy
            advice = "use the other strategy." if own == strategy else f"the config's own is {own}: ignore this."
            return (bad if own == strategy else doubtful)(f"refused: {how}", advice)
        if failure is not None:
            failure = self._smallest(failure, strategy)
            return failure.finding({"strategy": strategy})
        units = self._capture(self.known["units"])
        same = f"loss, gradient and {len(self.known['sums'])} outputs as in one process"
        if not units and self.known["units"]:
            said = f"{same}; no block could be run alone: {self.refused}"
            return doubtful(said, "nothing to mend in the model; its blocks cannot be looked at one by one.")
        failures = self._alone(units, strategy)
        if failures:
            return replace(failures[0], alone=True).finding({"strategy": strategy, "others": len(failures) - 1})
        return good(f"{same}; {len(units)} blocks alone too", strategy=strategy)

    def _smallest(self, failure: Failure, strategy: Strategy) -> Failure:
        """From the part where the whole failed outwards: the smallest that fails on what it was given, alone."""
        chain = failure.part.split(".")
        for length in range(len(chain), 1, -1):
            name = ".".join(chain[:length])
            used = self._capture([name])
            if not used:
                continue
            found = self._alone(used, strategy)
            if found:
                inner = found[0]
                part = inner.part if inner.part.startswith(failure.part) else name
                return replace(failure if inner.kind == failure.kind else inner, part=part, alone=True)
        return replace(failure, alone=False) if failure.part else failure

    def _whole(self, world: int, strategy: Strategy) -> tuple[Failure | None, dict[str, Any]]:
        room = self._room()
        results = self._run(parts.whole, world, self.subject, world, strategy, room)
        if failure := self._ended(results, room):
            return failure, {}
        found: dict[str, Any] = results[0].value
        for rank, result in enumerate(results):
            where = f" on rank {rank}" if world > 1 else ""
            if result.value["broken"]:
                phase, name = result.value["broken"]
                name = f"{self.subject.stage}.{name.rpartition('.')[0]}" if phase == "gradient" else name
                return Failure("finite", name.rstrip("."), phase, f"what comes out is not finite{where}"), {}
            if not all(map(math.isfinite, (*result.value["losses"], *result.value["norms"]))):
                return Failure("finite", "", "forward", f"the loss or the gradient is not finite{where}"), {}
            if failure := self._differs(result.value, where) if world > 1 else None:
                return failure, {}
        return None, found

    def _differs(self, found: dict[str, Any], where: str, loose: float = 1.0) -> Failure | None:
        near = loose * self.subject.near
        odd = other_sums(found["sums"], self.known["sums"], near)
        if odd is not None:
            return Failure("differs", odd[0], "forward", f"what comes out is off by {odd[1]:.1e}{where}")
        for what, phase in (("losses", "forward"), ("norms", "backward")):
            for mine, known in zip(found[what], self.known[what], strict=True):
                gap = abs(mine - known) / max(abs(known), parts.SMALL)
                if gap > 10 * near:
                    name = {"losses": "the loss", "norms": "the gradient"}[what]
                    return Failure("differs", "", phase, f"{name} is off by {gap:.1e}{where}")
        return None

    def _capture(self, names: list[str]) -> list[str]:
        """Those of the parts that are used, and in one process work alone."""
        results = self._run(parts.capture, 1, self.subject, names, self.folder / "given")
        self.refused = "" if results[0].well else results[0].ending()
        return list(results[0].value) if results[0].well else []

    def _alone(self, names: list[str], strategy: Strategy) -> list[Failure]:
        """Parts that fail alone; after one that ends its process, those behind it are run in another."""
        failures: list[Failure] = []
        left = list(names)
        while left:
            room = self._room()
            args = (self.subject, self.ranks, strategy, room, left, self.folder / "given")
            results = self._run(parts.alone, self.ranks, *args)
            failure = self._ended(results, room)
            if failure is None:
                for rank, result in enumerate(results):
                    for text in result.value[:1] if not failures else ():
                        name, _, how = text.partition(": ")
                        failures.append(Failure("differs", name, "backward", f"{how} on rank {rank}"))
                break
            failures.append(failure)
            at = next((i for i, name in enumerate(left) if self._is_in(failure.part, name)), None)
            if at is None:
                break
            left = left[at + 1 :]
        return failures

    @staticmethod
    def _is_in(part: str, name: str) -> bool:
        return part == name or part.startswith(f"{name}.")

    def _ended(self, results: list[Result], room: Path) -> Failure | None:
        """How the ranks ended, where not well, and at which part; None where all is well."""
        found = first(results)
        if found is None:
            return None
        rank, result = found
        if result.hung:  # the one that is behind holds the others up
            trails = [room / f"trail-{r}" for r in range(len(results))]
            rank = min(range(len(results)), key=lambda r: trails[r].stat().st_size if trails[r].exists() else 0)
        phase, part = last_place(room / f"trail-{rank}")
        if not part and " " in phase:
            phase, _, part = phase.partition(" ")
        kind = "hang" if result.hung else "raise" if result.error else "crash"
        where = f" on rank {rank}" if len(results) > 1 else ""
        return Failure(kind, part, phase, f"{result.ending()}{where}")

    def _room(self) -> Path:
        """Trails of different starts are kept apart."""
        self.starts += 1
        room = self.folder / f"start-{self.starts}"
        room.mkdir()
        return room

    def _run(self, function: Callable[..., Any], world: int, *args: Any, seconds: float | None = None) -> list[Result]:
        env = {"CUDA_LAUNCH_BLOCKING": "1"} if self.subject.device.startswith("cuda") else {}
        env["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no processes of its own that could outlive it
        return run(function, world, *args, seconds=seconds or self.limit, env=env, preload=PRELOAD)
