"""What training took, stage by stage: how often it drew each task, its steps and seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DrawCount:
    """How often a stage of training drew a task: in `steps` of all `of` steps, where its mix asked for the share
    `asked`; `samples` of its windows, of which there are `windows`."""

    stage: str
    task: str
    steps: int
    of: int
    asked: float
    samples: int
    windows: int

    @property
    def share(self) -> float:
        return self.steps / self.of if self.of else 0.0

    @property
    def epochs(self) -> float:
        return self.samples / self.windows

    @property
    def repeated(self) -> int:
        """Samples that had been drawn before."""
        return max(0, self.samples - self.windows)

    def numbers(self) -> dict[str, float]:
        """Each number, by the name of its record."""
        return {
            "steps-drawn": self.steps,
            "share-drawn": self.share,
            "share-asked": self.asked,
            "epochs": self.epochs,
            "samples-repeated": self.repeated,
        }


@dataclass(frozen=True)
class TrialFact:
    """A short training of a size before the long one: the share of the budget that it had, the steps and seconds that
    it took, and its validation error; whether its size was chosen by it."""

    size: str
    share: float
    steps: int
    seconds: float
    error: float  # inf: it diverged
    chosen: bool = False


@dataclass(frozen=True)
class StageFact:
    """What a stage of training took: learnt numbers, steps, wall seconds, and the best score of its validations."""

    name: str
    params: int
    steps: int
    seconds: float
    score: float
