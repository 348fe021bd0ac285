"""Trials of sizes within a run: each a short training by the stage itself, in the journal when it has ended."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Callable, Mapping
from typing import Any

from ups.engine.randomness import generators, set_generators
from ups.engine.train import DivergenceError
from ups.eval.training_facts import TrialFact
from ups.models import Simulator
from ups.models.config import FORECASTER
from ups.run.check import new_simulator
from ups.run.config import RunConfig
from ups.run.journal import PhaseJournal
from ups.run.load import part_kinds
from ups.run.race import race, sized, stage_of, trial_of
from ups.run.training import StageTraining

RACE = "race of sizes"  # the part of phase train that says how it ended


@dataclasses.dataclass(frozen=True)
class Trials:
    """The race of sizes of a run. One that was decided is not run again, nor a trial that has ended; one that was
    stopped goes on from its checkpoint. `simulator_of` builds what a trial trains."""

    training: StageTraining  # of the run
    journal: PhaseJournal
    simulator_of: Callable[[RunConfig], Simulator]

    def race(self, own: str) -> tuple[TrialFact, ...]:
        """The trials, one of which won; `own` is the size of the config. All ranks must ask, and rank 0 answers."""
        training, dist = self.training, self.training.dist
        if decided := dist.gather(trials_in(self.journal))[0]:
            return decided
        states = generators(dist.device)
        with self.journal("train", RACE) as mark:
            trials = race(own, self.learn, self.parameters)
            mark.facts.update(trials=[_plain(trial) for trial in trials])
        set_generators(states, dist.device)
        if dist.leads:
            shutil.rmtree(training.folder.cache("trials"), ignore_errors=True)
        return trials

    def learn(self, size: str, share: float) -> TrialFact:
        """A trial of a size with a share of the budget."""
        training, part = self.training, f"trial of {size} with {share:.3f} of the budget"
        before = training.dist.gather(self.journal.last("train", part))[0]
        if before:
            return _fact(before["trial"])
        config = trial_of(sized(training.config, size, training.dist.device.type, share))
        name, apart = stage_of(config), training.folder.cache("trials") / f"{size}-{share:.3f}"
        stage = config.stages[name](self.simulator_of(config), config.stage(name))
        short = dataclasses.replace(training, config=config, apart=apart, trackers=(), traced=0)
        with self.journal("train", part) as mark:
            try:
                learnt, _ = short.learn(stage)
                outcome = learnt.outcome
                trial = TrialFact(size, share, outcome.steps, outcome.seconds, outcome.score)
            except DivergenceError:
                trial = TrialFact(size, share, 0, 0.0, math.inf)
            mark.facts.update(trial=_plain(trial))
        return trial

    def parameters(self, size: str) -> int:
        """How many numbers a size learns; it is built without memory."""
        config = sized(self.training.config, size, self.training.dist.device.type, 1.0)
        network = new_simulator(config, self.training.sets, None, part_kinds()).parts[FORECASTER]
        return sum(p.numel() for p in network.parameters())


def trials_in(journal: PhaseJournal) -> tuple[TrialFact, ...]:
    """The trials of a race that was decided; none where there was no race."""
    return tuple(_fact(row) for row in journal.last("train", RACE).get("trials", ()))


def _plain(trial: TrialFact) -> dict[str, Any]:
    """A trial fit for JSON, which knows no infinity."""
    return {**vars(trial), "error": trial.error if math.isfinite(trial.error) else None}


def _fact(row: Mapping[str, Any]) -> TrialFact:
    """The inverse."""
    return TrialFact(**{**row, "error": math.inf if row["error"] is None else float(row["error"])})
