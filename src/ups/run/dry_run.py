"""The dry run: a few real steps of every stage on throw-away weights, before any of them is trained."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ups.data.windows import Windows
from ups.engine.loop import Trainer
from ups.engine.randomness import generators, set_generators
from ups.engine.ranks.dist import Dist
from ups.engine.train import DivergenceError, TrainConfig
from ups.models import Simulator
from ups.progress import TrainingProgress
from ups.run.config import RunConfig
from ups.run.data.datasets import DataSet
from ups.run.journal import PhaseJournal, Span
from ups.run.order import fit_stage, windows_of
from ups.tensors import Window

LOOKED_AT = 32  # steps among which each task is looked for
TWICE = 2  # the same batches again, so that their losses can be compared
# So many times the first loss of a batch, its second is no training; below so much a first loss may well grow.
WILD, SMALL = 100.0, 0.1
# A stage so short is its own dry run, and so are all stages of a run that trains no longer in all.
FEW_STEPS, FEW_SECONDS, SHORT_RUN = 100, 10.0, 60.0
PART = 0.02  # of the seconds of a stage, after which no further step is taken


@dataclasses.dataclass(frozen=True)
class FewSteps(TrainConfig):
    """A training that ends after its first steps, as the real one begins: after `most`, or as soon as they have taken
    `PART` of its seconds."""

    most: int = 1

    def progress(self, step: int, seconds: float) -> float:
        long = step > 0 and self.seconds is not None and seconds > PART * self.seconds
        return 1.0 if step >= self.most or long else min(super().progress(step, seconds), 1 - 1e-9)


class FirstBatches:
    """The first batch of each task that the real training will draw, one after the other and then again; one
    trajectory to validate."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        kinds = {windows.indices(step)[0]: step for step in reversed(range(LOOKED_AT))}
        self.steps = sorted(kinds.values())

    def __len__(self) -> int:
        return len(self.steps)

    def batch(self, step: int) -> Window:
        return self.windows.window(*self.windows.indices(self.steps[step % len(self)]))

    def kind(self, step: int) -> tuple[int, int]:
        return self.windows.kind(self.steps[step % len(self)])

    def count(self, step: int) -> int:
        return self.windows.count(self.steps[step % len(self)])

    def frames(self) -> tuple[int, int]:
        return self.windows.frames()

    def validation(self, step: int) -> Iterator[Window]:
        for window in itertools.islice(self.windows.validation(step), 1):
            yield window.rows(0, 1)


def worth_trying(config: RunConfig) -> list[str]:
    """The stages that are so long that a few steps before them cost nothing."""
    trains = {name: config.stage(name).train for name in config.plan}
    seconds = sum(0.0 if _few(train) else train.seconds or math.inf for train in trains.values())
    return [] if seconds <= SHORT_RUN else [name for name, train in trains.items() if not _short(train)]


def _few(train: TrainConfig) -> bool:
    return train.steps is not None and train.steps <= FEW_STEPS


def _short(train: TrainConfig) -> bool:
    return _few(train) or (train.seconds is not None and train.seconds <= FEW_SECONDS)


def no_dry_run(journal: PhaseJournal, span: Span, stages: Sequence[str], key: Sequence[Any]) -> str:
    """Why no dry run is made, in words; empty where one is. `key` is what its steps depend on."""
    if not span.wants("dry-run"):
        return f"--from {span.first}"
    if not stages:
        return "the training is so short that it is its own dry run"
    if journal.last("dry-run").get("of") == key and span.last != "dry-run":
        return "its steps were taken before"
    return ""


def dry_run(
    config: RunConfig,
    stages: Sequence[str],
    sets: Sequence[DataSet],
    untrained: Callable[[Dist, str], Simulator],
    dist: Dist,
    beat: Callable[[], None],
) -> dict[str, Mapping[str, Any]]:
    """Take the steps on all ranks: per stage the losses of each batch, before and after, bytes at the peak and seconds.

    DivergenceError where a loss is not finite or rises wildly; memory that runs out is found as in training. What draws
    random numbers afterwards draws the same as without it.
    """
    states, facts = generators(dist.device), {}
    for name in stages:
        beat()
        facts[name] = _stage(config, name, sets, untrained(dist, config.stages[name].makes), dist)
    set_generators(states, dist.device)
    return facts


def _stage(
    config: RunConfig, name: str, sets: Sequence[DataSet], simulator: Simulator, dist: Dist
) -> Mapping[str, Any]:
    settings, began, losses = config.stage(name), time.perf_counter(), dict[int, float]()
    stage = config.stages[name](simulator, settings)
    made = [kind.makes for kind in config.stages.values()]
    simulator.idle = frozenset(made[config.plan.index(name) + 1 :])
    learnt = [data for data in sets if stage.learns(data.task)]
    fit_stage(stage, config, learnt, dist.device)
    batches = FirstBatches(windows_of(config, learnt, settings, dist))

    def follow(progress: TrainingProgress) -> None:
        losses[progress.step] = progress.loss

    changes: dict[str, Any] = {"validate_every": 0, "validate_first": False, "log_every": 1, "max_bad": 0}
    changes |= {"checkpoint_steps": None, "checkpoint_seconds": None, "drift_every": 0, "straggler": 0.0}
    changes |= {"compile": False, "graph": False}
    train = FewSteps(**{**vars(settings.train), **changes}, most=TWICE * len(batches))
    trainer = Trainer(train, stage, batches, dist, report=follow)
    try:
        outcome = trainer.fit()
    except DivergenceError as error:
        raise DivergenceError(f"the dry run, before any training: {error}") from None
    if dist.config.strategy != "fsdp":
        trainer.release()
    again = range(len(batches), outcome.steps)  # the batches that came twice
    rows = [(losses[i - len(batches) + 1], losses[i + 1]) for i in again]
    for first, second in rows:
        if second > WILD * max(first, SMALL):
            raise DivergenceError(
                f"the dry run, before any training: the loss of stage '{name}' rises from {first:.3g} to {second:.3g} "
                f"in {TWICE * len(batches)} steps; lower {name}.train.lr, or raise its warmup."
            )
    seconds = round(time.perf_counter() - began, 3)
    return {"losses": rows, "memory": outcome.memory, "seconds": seconds}
