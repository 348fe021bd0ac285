"""What survives a training: the state a checkpoint holds, going on from one, and the proof that ranks agree."""

from __future__ import annotations

import errno
import zlib
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ups.engine.control import LostPeer
from ups.engine.dist import DivergedError
from ups.engine.randomness import random_state, set_random_state
from ups.engine.store import Saved
from ups.types import DataError
from ups.verdict import Ending

if TYPE_CHECKING:
    from ups.engine.loop import Trainer

COUNTS = ("step", "samples", "validations", "best_step", "recovered", "microbatch", "score", "last_score", "history")


class StorageError(DataError):
    """What must be kept cannot be written."""

    ending = Ending.STORAGE


class Keeper:
    """Saves and restores a trainer, on all ranks together."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def handshake(self) -> None:
        """Refuse ranks that would train different things."""
        t = self.trainer
        shapes = " ".join(f"{name}{tuple(p.shape)}" for name, p in t.module.named_parameters())
        t.dist.handshake(
            {
                "stage": t.stage.name,
                "training config": t.config,
                "parallel config": t.dist.config,
                "parameters of the model": f"{len(shapes.split())} tensors, digest {zlib.crc32(shapes.encode()):08x}",
                "size of a batch": t.batches.count(0),
                "version of torch": torch.__version__,
            }
        )

    def generators(self) -> tuple[Tensor, Tensor | None]:
        """The states of torch's generators, from which a repeated attempt draws the same numbers."""
        device = self.trainer.dist.device
        return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def set_generators(self, states: tuple[Tensor, Tensor | None]) -> None:
        torch.set_rng_state(states[0])
        if states[1] is not None:
            torch.cuda.set_rng_state(states[1], self.trainer.dist.device)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that the next step depends on, by part and name; in place, so that loading fills them."""
        t, whole = self.trainer, self.trainer.parallel.whole
        module = {name: value for name, value in t.module.state_dict().items() if isinstance(value, Tensor)}
        moments = t.optimizer.state_dict()
        best = t.best or {name: torch.zeros_like(value) for name, value in t.ema.average.items()}
        t.best = best
        return {
            **{f"module/{name}": value for name, value in module.items()},
            **{f"optimizer/{key}": self._moment(key, value) for key, value in moments.items()},
            **{f"ema/{name}": whole(name, value) for name, value in t.ema.average.items()},
            **{f"best/{name}": whole(name, value) for name, value in best.items()},
        }

    def _moment(self, key: str, value: Tensor) -> Tensor:
        """A moment has the shape of its parameter; a counter is one number, the same on all ranks."""
        name = key.rpartition("/")[0]
        parallel = self.trainer.parallel
        return parallel.whole(name, value) if value.shape == parallel.parameters[name].shape and value.ndim else value

    def save(self) -> None:
        """Begin to save; what could not be saved is said, and training goes on."""
        t = self.trainer
        judged = bool(t.best)
        facts: dict[str, Any] = {name: getattr(t, name) for name in COUNTS}
        facts |= {"stage": t.stage.name, "seconds": t.clock, "bad": t.meter.bad.tolist(), "judged": judged}
        try:
            t.store.save(Saved(t.step, self.tensors(), facts, random_state(t.dist.device)))
        except OSError as error:
            t._say(f"the checkpoint of step {t.step} could not be saved ({error}); training goes on.")
        if not judged:
            t.best = {}

    def wait(self) -> None:
        """Until the newest checkpoint is on the disk and verified."""
        try:
            self.trainer.store.wait()
        except OSError as error:
            if error.errno == errno.ECONNABORTED:
                raise LostPeer(f"the last checkpoint could not be saved: {error.strerror}.") from error
            raise StorageError(f"the last checkpoint was not saved ({error}); free the disk and resume.") from error

    def resume(self) -> None:
        """Go on from the newest checkpoint that all ranks find whole, if there is one."""
        t = self.trainer
        found = t.store.newest()
        if found is None:
            return
        t.store.load(found, self.tensors())
        facts = dict(found.facts)
        t.meter.bad.copy_(torch.tensor(facts.pop("bad")))
        t.earlier = facts.pop("seconds")
        if not facts.pop("judged"):
            t.best = {}
        facts.pop("stage")
        for name, value in facts.items():
            setattr(t, name, value)
        set_random_state(found.own, t.dist.device)
        t._say(f"stage '{t.stage.name}' goes on from the checkpoint of step {t.step}.")

    @torch.no_grad()
    def take_best(self) -> None:
        """The weights become the best averaged ones."""
        for name, value in self.trainer.best.items():
            self.trainer.parallel.parameters[name].copy_(value)

    def weights(self, keep: bool = True) -> dict[str, Tensor]:
        """The module's whole state on the CPU; all ranks must ask, and those that do not `keep` it get nothing."""
        t, found = self.trainer, dict[str, Tensor]()
        held = {name: value for name, value in t.module.state_dict().items() if isinstance(value, Tensor)}
        moved = t.parallel.parameters
        for name, value in held.items():
            whole = t.parallel.full(name, moved[name]) if name in moved else value
            if keep:
                found[name] = whole.detach().to("cpu", copy=True)
        return found

    def check_drift(self) -> None:
        """Prove that all ranks hold the same weights, or name the tensor and the rank that differ."""
        t = self.trainer
        if t.dist.world == 1:
            return
        rows = t.dist.gather(t.parallel.digests())
        for name in dict.fromkeys(name for row in rows for name in row):
            odd, common = _odd({rank: row[name] for rank, row in enumerate(rows) if name in row})
            if odd is not None:
                raise DivergedError(
                    f"at step {t.step} rank {odd} holds other values of '{name}' than rank {common}; the memory or the "
                    "network of one of them is faulty, so resume from the last checkpoint, on other hardware if it "
                    "happens again."
                )


def _odd(held: Mapping[int, str]) -> tuple[int | None, int]:
    """The first rank that holds other values than most (or than the first, if none has a majority), and one of most."""
    most, count = Counter(held.values()).most_common(1)[0]
    usual = most if count * 2 > len(held) else next(iter(held.values()))
    odd = next((rank for rank, value in held.items() if value != usual), None)
    return odd, next(rank for rank, value in held.items() if value == usual)
