"""What of a training a checkpoint holds; saves it to a store and restores it, on all ranks together."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ups.engine.checkpoint.store import CorruptError, Snapshot, StateStore
from ups.engine.checkpoint.together import line
from ups.engine.learner import Learner, tensors_in
from ups.engine.randomness import random_state, set_random_state
from ups.engine.ranks.control import LostPeer
from ups.verdict import StorageError

FAILED_SAVES = 2  # in a row, after which nothing is trained for


class TrainingCheckpoint:
    """Saves the state of a learner, and restores it."""

    def __init__(self, learner: Learner, store: StateStore, say: Callable[[str], None]) -> None:
        self.learner, self.store, self.say = learner, store, say
        self.failures = 0  # saves in a row

    def tensors(self, best: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Every tensor that the next step depends on, by part and name; in place, so that loading fills them."""
        learner, whole = self.learner, self.learner.parallel.whole
        average = learner.ema.average
        best = best or learner.best or self._blank()
        return {
            **{f"module/{name}": value for name, value in tensors_in(learner.stage.module.state_dict()).items()},
            **{f"optimizer/{key}": self._moment(key, value) for key, value in learner.optimizer.state_dict().items()},
            **{f"ema/{name}": whole(name, value) for name, value in average.items()},
            **{f"best/{name}": whole(name, value) for name, value in best.items()},
        }

    def _blank(self) -> dict[str, Tensor]:
        """What stands for the best weights while there are none yet."""
        return {name: torch.zeros_like(value) for name, value in self.learner.ema.average.items()}

    def _moment(self, key: str, value: Tensor) -> Tensor:
        """A moment has the shape of its parameter; a counter is one number, the same on all ranks."""
        name = key.rpartition("/")[0]
        parallel = self.learner.parallel
        return parallel.whole(name, value) if value.shape == parallel.parameters[name].shape and value.ndim else value

    def save(self) -> None:
        """Begin to save; a save that failed is said, and training goes on unless too many have failed in a row."""
        learner, state = self.learner, self.learner.state
        facts: dict[str, Any] = state.state_dict()
        facts |= {"stage": learner.stage.name, "bad": learner.meter.bad.tolist(), "judged": bool(learner.best)}
        try:
            earlier = self.store.save(Snapshot(state.step, self.tensors(), facts, random_state(learner.dist.device)))
            if earlier is not None:
                self._failed(earlier)
            if self.failures:  # the disk is in doubt, so it is known at once whether this one fails too
                self.store.wait()
                self.failures = 0
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        """Stop if this was one failure too many."""
        if error.errno == errno.ECONNABORTED:
            raise LostPeer(f"a checkpoint could not be saved: {error.strerror}.") from error
        self.failures += 1
        if self.failures >= FAILED_SAVES:
            raise StorageError(
                f"checkpoints could not be saved {self.failures} times in a row ({error.strerror}), and the training "
                "was stopped rather than go on for nothing; free the disk and --resume."
            ) from error
        self.say(
            f"training goes on without that checkpoint; after {FAILED_SAVES} in a row that cannot be saved it stops."
        )

    def wait(self) -> None:
        """Wait until the newest checkpoint is on the disk and verified."""
        try:
            self.store.wait()
        except OSError as error:
            if error.errno == errno.ECONNABORTED:
                raise LostPeer(f"the last checkpoint could not be saved: {error.strerror}.") from error
            raise StorageError(
                f"the last checkpoint was not saved ({error.strerror}); free the disk and --resume."
            ) from error

    def resume(self) -> bool:
        """Go on from the newest checkpoint that all ranks find whole; false if there is none."""
        learner, checkpoint = self.learner, self.store.newest()
        if checkpoint is None:
            return False
        best = self._blank()
        self.store.load(checkpoint, self.tensors(best))
        try:
            facts = checkpoint.facts
            if facts["step"] != checkpoint.step:
                raise ValueError(f"it is called {checkpoint.step} and says {facts['step']}")
            learner.best = best if facts["judged"] else {}
            learner.meter.bad.copy_(torch.tensor(facts["bad"]))
            learner.state.load_state_dict(facts)
            set_random_state(checkpoint.own, learner.dist.device)
        except (KeyError, ValueError, TypeError, RuntimeError, OverflowError) as error:
            raise CorruptError(
                f"{checkpoint.path}: what it says of the training makes no sense ({line(error)}); delete this folder "
                "to go on from the checkpoint before it."
            ) from error
        return True
