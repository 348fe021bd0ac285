"""The interfaces of the training loop: Stage (what is learnt), Batches (its data), Tracker (where numbers go)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from torch import Tensor, nn

from ups.tensors import Losses, Window


class Learnable(Protocol):
    """What is learnt. `view` is the part of a window that is trained on at `progress` (0 … 1) of the budget.

    `loss` gives named, weighted terms whose sum is minimised; each is a mean over samples of what depends on that
    sample alone, so that microbatches and ranks add up to the whole batch. It decides nothing by the value of a
    tensor and changes no state. `evaluate` gives per-sample values `(B,)` in physical space, by name, and `score` of
    their means is what "best" means, lower being better. A stage that judges by more than one plain rollout says as how
    many its `rollouts` count. One whose `evaluate` runs more networks than its module has a context `at_rest`, given a
    function for remarks, in which none of them is in training; without it that is so of its module.
    """

    @property
    def name(self) -> str: ...
    @property
    def module(self) -> nn.Module: ...
    def view(self, window: Window, progress: float) -> Window: ...
    def loss(self, window: Window) -> Losses: ...
    def evaluate(self, window: Window) -> Mapping[str, Tensor]: ...
    def score(self, means: Mapping[str, float]) -> float: ...


class Tracker(Protocol):
    """Where numbers and notes go. It never raises into the training, and whoever made it closes it."""

    def log(self, step: int, values: Mapping[str, float | str]) -> None: ...


class RankBatches(Protocol):
    """The data of one rank. `batch` is a pure function of the step, safe to call from another thread; so a resumed run
    sees what the uninterrupted one would have seen. `count` is the samples of all ranks in a step, the rank's own
    being its share of them. `validation` gives whole windows to measure after `step` steps, and the trainer takes its
    rows of each. `frames` are the target frames of all samples in a step and in a validation: what each costs.

    Batches may have a `keep(device, room, steps)` too: told, before the first of so many steps (None where seconds end
    the training), how many bytes of a GPU nobody needs, they may keep data there, and say how many bytes of them.
    And a `kind(step)`: batches of one kind have windows of the same task, grid and shapes."""

    def batch(self, step: int) -> Window: ...
    def count(self, step: int) -> int: ...
    def frames(self) -> tuple[int, int]: ...
    def validation(self, step: int) -> Iterable[Window]: ...
