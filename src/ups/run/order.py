"""The windows that a stage is trained on, and a log of their order; validation errors lead it if the mix says so."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from ups.data.draw_checksum import WRAP, expected, share
from ups.data.loader import Loader
from ups.data.sampler import LEAD, Mix, Sampler, Validations
from ups.data.trajectories import balanced
from ups.data.windows import CELLS, Samples, Windows, spread
from ups.engine.ranks.dist import Dist, DivergedError
from ups.engine.stage import Tracker
from ups.engine.state import TrainingState
from ups.eval.training_facts import DrawCount
from ups.lazy_imports import torch
from ups.run.config import RunConfig
from ups.run.data.datasets import DataSet
from ups.rundir import RunDir
from ups.stages import Stage, StageConfig
from ups.tensors import Window
from ups.types import ConfigError


class OrderTracker:
    """A tracker beside another: whenever tasks have ended an epoch since the last line, it says which, the digest of
    the windows drawn in it, and which share of all steps each task has had so far."""

    def __init__(self, sampler: Sampler, stage: str, tracker: Tracker) -> None:
        self.sampler, self.stage, self.tracker = sampler, stage, tracker
        self.ended: tuple[int, ...] = ()

    def log(self, step: int, values: Mapping[str, float | str]) -> None:  # noqa: ARG002
        s = self.sampler
        ended, turns = s.epochs(step), s.turns(step)
        before = self.ended or ended  # the process before this one logged what had ended before this one began
        self.ended = ended
        rows: dict[str, float | str] = {}
        for i, name in enumerate(s.names):
            if ended[i] > before[i]:
                rows |= {f"epoch/{name}": ended[i], f"digest/{name}": s.digest(i, ended[i] - 1)}
        if rows:
            rows |= {f"share/{name}": turns[i] / step for i, name in enumerate(s.names)}
            self.tracker.log(step, {f"{self.stage}/{name}": value for name, value in rows.items()})


class ProvenBatches:
    """Batches that begin each validation with a proof: what all ranks were given since the last adds up to the order.

    So the shares are disjoint and together what one process would draw, whoever built them. It costs one gather at each
    validation and none at a step.
    """

    def __init__(
        self, batches: Windows | Loader, windows: Windows, dist: Dist, stage: str, trackers: Sequence[Tracker]
    ) -> None:
        self.batches, self.windows, self.dist, self.stage, self.trackers = batches, windows, dist, stage, trackers
        self.first = self.last = self.sum = 0  # steps that are proven, and the number of all that they drew

    def batch(self, step: int) -> Window:
        return self.batches.batch(step)

    def count(self, step: int) -> int:
        return self.batches.count(step)

    def keep(self, device: torch.device, room: int, steps: int | None) -> int:
        return self.batches.keep(device, room, steps)

    def frames(self) -> tuple[int, int]:
        return self.batches.frames()

    def validation(self, step: int) -> Iterable[Window]:
        self.prove(step)
        return self.batches.validation(step)

    def prove(self, step: int) -> None:
        """Compare all that was drawn before `step`; all ranks must ask."""
        sampler, world = self.windows.sampler, self.dist.world
        rows = self.dist.gather((*self.windows.drawn.until(step), step))
        first, _, _ = rows[0]
        if any((row[0], row[2]) != (first, step) for row in rows):
            raise DivergedError(f"ranks have drawn other steps than each other, {rows}; start all of them again.")
        if first != self.first:
            self.first, self.last, self.sum = first, first, 0
        self.sum, self.last = (self.sum + expected(sampler, self.last, step)) & WRAP, step
        if sum(row[1] for row in rows) & WRAP != self.sum:
            odd = (r for r in range(world) if rows[r][1] != share(sampler, first, step, r, world))
            raise DivergedError(
                f"rank {next(odd)} was given other windows in steps {first} to {step - 1} than its share of the order; "
                "its memory or its loader is faulty, so resume from the last checkpoint, on other hardware if it "
                "happens again."
            )
        if step > first:
            values: dict[str, float | str] = {"order/proven_steps": step - first, "order/digest": f"{self.sum:016x}"}
            for tracker in self.trackers:
                tracker.log(step, {f"{self.stage}/{name}": value for name, value in values.items()})


def drawn(sampler: Sampler, stage: str, steps: int) -> list[DrawCount]:
    """How often each task was drawn by the `steps` of a stage."""
    turns, wanted_shares = sampler.turns(steps), sampler.wanted_shares(steps)
    totals: dict[str, tuple[int, float, int]] = {}
    for name, n, wanted, count in zip(sampler.tasks, turns, wanted_shares, sampler.counts, strict=True):
        before = totals.get(name, (0, 0.0, 0))
        totals[name] = (before[0] + n, before[1] + wanted, before[2] + count)
    sizes = dict(zip(sampler.tasks, sampler.sizes, strict=True))
    return [DrawCount(stage, name, n, steps, part, n * sizes[name], count) for name, (n, part, count) in totals.items()]


def drawn_in(folder: RunDir, tasks: Collection[str]) -> tuple[DrawCount, ...]:
    """How often the stages of a run drew some tasks, as its folder says since each ended; nothing where it does not."""
    stages = folder.read(folder.stages) if folder.stages.is_file() else {}
    rows = [DrawCount(**row) for facts in stages.values() for row in facts.get("drawn", ())]
    return tuple(row for row in rows if row.task in tasks)


def validations_of(state: TrainingState, names: Sequence[str], mix: Mix, ahead: int) -> Callable[[], Validations]:
    """The errors of all validations so far, as the state of a training holds them: part of every checkpoint, and the
    same on every rank. `ahead` windows are built before they are needed."""
    if mix.policy == "error" and ahead >= LEAD:
        raise ConfigError(
            f"mix.policy is error, which allows {LEAD - 1} windows ahead, and prefetch and workers build {ahead}; "
            "lower train.prefetch or workers."
        )
    return lambda: [(int(row["step"]), _by_task(row, tuple(names))) for row in state.history]


def _by_task(row: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, float]:
    """The error of each task: the first number named after it."""
    errors = {name: next((v for key, v in row.items() if key.startswith(f"{name} ")), None) for name in names}
    return {name: float(value) for name, value in errors.items() if value is not None}


def fit_stage(
    stage: Stage, config: RunConfig, sets: Sequence[DataSet], device: torch.device, inherited: Collection[str] = ()
) -> None:
    """Show a stage windows from all over the data of each task, for its losses to be measured by; `inherited` are the
    tasks that its part knew before."""
    for data in sets:
        windows = spread(data.parts("train"), config.looks_back(data.task), config.stage(stage.name).ahead)
        if windows:
            stage.fit(*(window.to(device) for window in windows), inherited=inherited)


def windows_of(
    config: RunConfig,
    sets: Sequence[DataSet],
    settings: StageConfig,
    dist: Dist,
    encoded: Sequence[Samples] = (),
    validations: Callable[[], Validations] = tuple,
    context: int | None = None,
) -> Windows:
    """What a stage is trained and validated on, from where it is judged; `encoded` parts take the place of those for
    training. `context`: frames that are looked back on, as many as the networks of the config do by default."""
    train, valid = ([part for data in sets for part in data.parts(name)] for name in ("train", "valid"))
    names = {data.task.name for data in sets}
    weights = {name: weight for name, weight in config.mix.weights.items() if name in names}
    mix = dataclasses.replace(config.mix, weights=weights) if len(names) > 1 else None
    return Windows(
        encoded or train,
        valid,
        settings.batch,
        context or config.context,
        settings.ahead,
        config.seed,
        ranks=dist,
        mix=mix,
        validations=validations,
        cells=CELLS.get(dist.device.type, 0),
        draws=[balanced(part.params) for part in train],
        given=config.evaluation.given_to(context or config.context),
        contexts=None if context else {data.task.name: config.looks_back(data.task) for data in sets},
        batches=settings.batches,
    )
