"""The race of sizes: at most a tenth of the budget, decided by validation errors, and never decided twice."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from ups.config import load
from ups.eval.training_facts import TrialFact
from ups.models.config import SIZES, OperatorSize
from ups.progress import Screen
from ups.run import race as module
from ups.run.config import RunConfig, run_config
from ups.run.journal import PhaseJournal, read_journal
from ups.run.race import FIRST, LEAST, SECOND, SHARE, race, sized
from ups.run.run import run_alone
from ups.run.start import Start
from ups.run.trials import Trials, trials_in
from ups.rundir import RunDir
from ups.types import ConfigError

NUMBERS = {"tiny": 1, "small": 6, "base": 110, "large": 500}


def raced(own: str, errors: dict[str, float], steps: int = 1000) -> tuple[list[tuple[str, float]], str]:
    """The trials that were made, and the size that won, where a size ends with these errors in this many steps of the
    smallest."""
    made: list[tuple[str, float]] = []

    def learn(size: str, share: float) -> TrialFact:
        made.append((size, share))
        return TrialFact(size, share, steps // NUMBERS[size], 1.0, errors[size])

    trials = race(own, learn, NUMBERS.__getitem__)
    (chosen,) = [trial.size for trial in trials if trial.chosen]
    assert [(trial.size, trial.share) for trial in trials] == made
    return made, chosen


def test_three_sizes_then_the_best_two_take_a_tenth_of_the_budget() -> None:
    made, chosen = raced("small", {"tiny": 0.3, "small": 0.1, "base": 0.2}, 10**5)
    assert made == [("small", FIRST), ("tiny", FIRST), ("base", FIRST), ("small", SECOND), ("base", SECOND)]
    assert chosen == "small"
    assert sum(share for _, share in made) == pytest.approx(SHARE)


@pytest.mark.parametrize(
    ("small", "tiny", "winner"),
    [(0.1, 0.12, "small"), (0.1, 0.08, "tiny"), (0.1, 0.095, "small"), (math.inf, 1, "tiny")],
)
def test_the_smaller_error_wins_and_of_two_that_are_near_the_larger_size(
    small: float, tiny: float, winner: str
) -> None:
    assert raced("small", {"tiny": tiny, "small": small})[1] == winner


def test_what_has_no_time_for_its_steps_is_not_tried() -> None:
    assert raced("tiny", {"tiny": 0.1}, LEAST - 1) == ([("tiny", FIRST)], "tiny"), (
        "one trial of few steps tells nothing"
    )
    assert raced("tiny", {"tiny": 0.1, "small": 0.0}, 6 * LEAST - 1) == ([("tiny", FIRST)], "tiny")
    assert raced("tiny", {"tiny": 0.1, "small": 0.0}, 6 * LEAST)[1] == "small"
    assert raced("small", {"tiny": math.inf, "small": math.inf})[1] == "small", "where all fail, the config's own"


def config(**more: object) -> RunConfig:
    flags = {"data.d.task": "burgers1d", "data.d.scheme": "accurate", "device": "cpu", "tune": "auto"}
    flags |= {"operator.train.seconds": 100, "operator.train.lr": 1e-3, "model.operator.size": "small"}
    return load(run_config(), None, {**flags, **more})


def test_a_candidate_has_the_budget_the_rate_and_the_precision_of_its_size() -> None:
    trains = {size: sized(config(), size, "cuda", 0.1).stage("operator").train for size in ("tiny", "small", "base")}
    assert {size: train.lr for size, train in trains.items()} == {"tiny": 2e-3, "small": 1e-3, "base": 5e-4}
    assert [train.precision for train in trains.values()] == ["fp32", "fp32", "bf16"]
    assert {train.seconds for train in trains.values()} == {10.0}
    assert sized(config(), "base", "cpu", 0.1).stage("operator").train.precision == "fp32"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"model.operator.width": 32}, "tune is auto, which tries named sizes, and model.operator.width is given"),
        ({"start_from": "runs/a"}, "tune is auto, which tries sizes, and start_from goes on with a network that has"),
        ({"dist.ranks": 2, "dist.strategy": "fsdp"}, "tune is auto, and dist.strategy is fsdp"),
    ],
)
def test_a_race_that_cannot_be_run_is_refused_in_a_sentence(more: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config(**more)


CONFIG = """
name: raced
data:
  a: {task: advection1d, scheme: accurate, samples: 20, resolution: 32, device: cpu, reduce: {time: 20}}
model:
  codec: {dim: 16, patch: [4, 4, 2]}
tune: auto
batch: 4
codec: {train: {steps: 2}}
operator: {train: {steps: 60, lr: 0.003}}
evaluation: {ensemble: 0}
device: cpu
"""


class KilledError(Exception):
    """What a kill is here: nothing that follows is done."""


def test_a_run_that_is_killed_in_its_race_goes_on_to_the_same_size_and_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between its trials, it makes none of them twice."""
    monkeypatch.setitem(SIZES, "tiny", OperatorSize(width=16, depth=1, heads=2))
    monkeypatch.setitem(SIZES, "small", OperatorSize(width=32, depth=1, heads=2))
    monkeypatch.setattr(module, "LEAST", 0.1)
    (tmp_path / "config.yaml").write_text(CONFIG)

    def run(name: str, resume: bool) -> RunDir:
        config = load(run_config(), tmp_path / "config.yaml", {"out": str(tmp_path / name)})
        return run_alone(config, Screen.silent(), Start(resume=resume))[0]

    whole = run("whole", resume=False)
    learn, made = Trials.learn, list[tuple[str, float]]()

    def killed(self: Trials, size: str, share: float) -> TrialFact:
        """Ends the process after the third trial that it makes."""
        before = len(read_journal(self.journal.path))
        trial = learn(self, size, share)
        made.extend([(size, share)] * (len(read_journal(self.journal.path)) > before))
        if len(made) == 3:
            made.append(("killed", 0.0))
            raise KilledError
        return trial

    monkeypatch.setattr(Trials, "learn", killed)
    with pytest.raises(KilledError):
        run("killed", resume=False)
    broken = run("killed", resume=True)
    assert made[:2] == [("tiny", FIRST), ("small", FIRST)]
    assert {made[2], made[4]} == {("tiny", SECOND), ("small", SECOND)}
    assert len(made) == 5, "with the word of the kill"
    journals = [trials_in(PhaseJournal(run.journal)) for run in (whole, broken)]
    once, again = ([(trial.size, trial.steps, trial.error, trial.chosen) for trial in each] for each in journals)
    assert once == again
    assert sum(trial[3] for trial in once) == 1
    first, second = (load_file(run.artifact("simulator")) for run in (whole, broken))
    assert all((first[name] == second[name]).all() for name in first.keys() | second.keys())
    assert not broken.cache("trials").exists(), "no mess is left"
    assert broken.stage_facts()["operator"]["steps"] == 54, "the race had its tenth"
    assert "The race of sizes" in broken.report.read_text()
