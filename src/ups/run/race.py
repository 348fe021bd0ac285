"""The race of sizes: where no rule can know which is best, short trainings on the data themselves decide."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from ups.engine.train import TrainConfig
from ups.eval.training_facts import TrialFact
from ups.models.config import FORECASTER
from ups.run.config import RunConfig
from ups.run.sizing import RULES, precision_of

SHARE = 0.1  # of the budget of the forecasting stage, for all trials together
FIRST, SECOND = SHARE / 9, SHARE / 3  # of the budget: each of up to three trials, then each of the best two
LEAST = 50  # steps of a first trial, below which it tells nothing
NEAR = 1.1  # so near to the best error the larger size wins, for it gains more from the time that is left

Learn = Callable[[str, float], TrialFact]


def race(own: str, learn: Learn, parameters: Callable[[str], int]) -> tuple[TrialFact, ...]:
    """Trials of a size and its neighbours, of which one is chosen by its validation error.

    All are trained for a ninth of the time there is for trials, then the best two from the beginning for a third each.
    A larger size is left out where its steps would be so long that the first trial had too few.

    Args:
        own: The size that the config names.
        learn: Trains a size for a share of the budget.
        parameters: How many numbers a size learns; its steps are taken to be as much longer than those of another.
    """
    mine = learn(own, FIRST)
    if mine.steps < LEAST:
        return _decided((mine,), own)
    work = {size: parameters(size) for size in _neighbours(own)}
    room = mine.steps * parameters(own) / LEAST
    first = (mine, *(learn(size, FIRST) for size, numbers in work.items() if numbers <= room))
    best = sorted(first, key=lambda trial: trial.error)[:2]
    if len(best) == 1:
        return _decided(first, own)
    last = tuple(learn(trial.size, SECOND) for trial in best)
    if not math.isfinite(least := min(trial.error for trial in last)):
        return _decided((*first, *last), own)
    order = list(RULES)
    near = [trial.size for trial in last if trial.error <= NEAR * least]
    return _decided((*first, *last), max(near, key=order.index))


def _neighbours(size: str) -> list[str]:
    """The next smaller and the next larger size."""
    order = list(RULES)
    at = order.index(size)
    return [*order[max(0, at - 1) : at], *order[at + 1 : at + 2]]


def _decided(trials: tuple[TrialFact, ...], size: str) -> tuple[TrialFact, ...]:
    """The trials, the last of the size that won marked."""
    at = max(i for i, trial in enumerate(trials) if trial.size == size)
    return tuple(dataclasses.replace(trial, chosen=i == at) for i, trial in enumerate(trials))


def stage_of(config: RunConfig) -> str:
    """The name of the stage whose sizes race."""
    return next(name for name, stage in config.stages.items() if stage.makes == FORECASTER)


def sized(config: RunConfig, size: str, kind: str, share: float) -> RunConfig:
    """The config with another size of the network that forecasts, trained for a share of the budget on a `kind` of
    device. Its own size keeps its learning rate and precision; of others the rate is as much higher or lower as the
    sizes' usual rates are."""
    name, network = stage_of(config), config.model.part(FORECASTER)
    stage, train = config.stage(name), config.stage(name).train
    changes: dict[str, object] = {
        "steps": None if train.steps is None else max(1, int(share * train.steps)),
        "seconds": None if train.seconds is None else share * train.seconds,
    }
    if size != network.size:
        changes["lr"] = train.lr * RULES[size].rate / RULES[network.size].rate
        changes["precision"] = "tf32" if train.precision == "tf32" else precision_of(size, kind)
    networks = config.model.model_copy(update={FORECASTER: dataclasses.replace(network, size=size)})
    stage = stage.model_copy(update={"train": dataclasses.replace(train, **changes)})  # type: ignore[arg-type]
    return config.model_copy(update={"model": networks, name: stage})


def trial_of(config: RunConfig) -> RunConfig:
    """The config of a trial: validated once, at its end."""
    name = stage_of(config)
    train: TrainConfig = dataclasses.replace(config.stage(name).train, validate_every=0, validate_first=False)
    return config.model_copy(update={name: config.stage(name).model_copy(update={"train": train})})
