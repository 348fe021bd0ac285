"""Vault: checkpoints of any number of ranks, copied at once, written in the background, verified, resharded."""

from __future__ import annotations

import errno
import json
import shutil
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor

from ups.engine.checkpoint import manifest
from ups.engine.checkpoint.dcp_format import joined, line, pack, plain, read_shards, unpack, write_shards
from ups.engine.checkpoint.manifest import FACTS, own_name, step_name, verify
from ups.engine.checkpoint.store import Checkpoint, CorruptError, Snapshot
from ups.engine.randomness import derived_state
from ups.types import ConfigError

T = TypeVar("T")


def _nothing(what: str) -> None:
    """Nobody listens."""


@dataclass
class _Job:
    """A save under way: this rank's copies, and how it ended."""

    step: int
    state: dict[str, Tensor]  # what DCP plans by: DTensors as they are, plain tensors as copies
    copies: dict[str, Tensor]  # what DCP writes: this rank's part, in CPU memory
    facts: bytes
    own: bytes
    thread: threading.Thread | None = None
    done: bool = False
    failure: OSError | None = None


class Vault:
    """The checkpoints in `folder`, one folder `step-N` each; at least the `keep` newest verified ones stay.

    `save` copies this rank's part to (pinned) CPU memory and returns; a thread writes it with torch's distributed
    checkpoint: shards, then a manifest with the SHA-256 of every file, then the rename to `step-N`, then all of it read
    back, and only then are older ones deleted. Nothing is ever overwritten, so a kill at any moment leaves the older
    ones untouched. `group` is a gloo group that nothing else uses (None for one process); its timeout bounds every
    wait for another rank, so it has to exceed the time one rank may need to write its part.

    Facts and `own` are JSON. DCP's own index `.metadata` is a pickle: it is read only after its hash was verified,
    which protects against damage, not against someone who may write to the folder.
    """

    def __init__(
        self,
        folder: Path,
        rank: int = 0,
        world: int = 1,
        group: dist.ProcessGroup | None = None,
        keep: int = 2,
        say: Callable[[str], None] = _nothing,
        at: Callable[[str], None] = _nothing,  # called at each point of a save, where a fault may be injected
        patience: float = 3600.0,  # seconds a save may take before it counts as stuck
    ) -> None:
        if (group is None) != (world == 1):
            raise ValueError("a group is needed by several ranks, and only by them")
        self.folder, self.rank, self.world, self.group, self.keep = Path(folder), rank, world, group, keep
        self.say, self.at, self.patience = say, at, patience
        self._staging: dict[str, Tensor] = {}  # reused by every save
        self._notes: list[str] = []  # said by the next call: the writing thread says nothing itself
        self._warned = False
        self._job: _Job | None = None

    def save(self, snapshot: Snapshot) -> None:
        """Copy now, write in the background. An earlier save is awaited first, and its failure said."""
        self._settle()
        own = json.dumps(snapshot.own, default=pack).encode()
        mine = self._mine(snapshot.tensors)
        copies = self._copied(mine)
        state = {name: t.detach() if isinstance(t, DTensor) else copies[name] for name, t in mine.items()}
        job = _Job(snapshot.step, state, copies, json.dumps(snapshot.facts).encode(), own)
        # A daemon, so that a rank that has to leave does so; whoever wants the checkpoint calls `wait`.
        job.thread = threading.Thread(target=self._write, args=(job,), daemon=True, name=f"save {snapshot.step}")
        self._job = job
        job.thread.start()

    def wait(self) -> None:
        """Until the last save is published and verified; OSError if it could not be."""
        failure = self._settle()
        if failure is not None:
            raise failure

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole in the eyes of every rank. Damaged ones are set aside with a sentence.

        None where there is none, or where the only one there has ever been is damaged: what came before it is the
        beginning. Where several are and none is whole there is work to lose, so CorruptError, and all are left alone.
        """
        self._settle()
        damaged: dict[Path, str] = {}
        whole: Path | None = None
        paths = self._all(self._tidy)[0]
        for path in paths:
            problem = self._check(path)
            if problem is None:
                whole = path
                break
            damaged[path] = problem
        if whole is None and damaged:
            self._refuse(damaged)
        for path, problem in damaged.items():
            if self.rank == 0:
                self._pass_over(path, problem)
        return None if whole is None else self._all(lambda: self._opened(whole))[self.rank]

    def load(self, checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> None:
        """Read a checkpoint into `tensors`, in place, each rank its part; ConfigError if it is another model's."""
        self._settle()
        wrong = next(filter(None, self._all(lambda: read_shards(checkpoint.path, tensors))), None)
        if wrong is not None:
            raise ConfigError(wrong)

    # The snapshot.

    def _mine(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What this rank writes: its shards, and its share of what all ranks hold alike."""
        load, mine = [0] * self.world, dict[str, Tensor]()
        for name in sorted(tensors, key=lambda n: (-tensors[n].nbytes, n)):
            tensor = tensors[name]
            if not isinstance(tensor, DTensor):
                writer = load.index(min(load))
                load[writer] += tensor.nbytes + 1
                if writer != self.rank:
                    continue
            mine[name] = tensor
        return mine

    def _copied(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies in CPU memory that is kept for the next time, pinned for those that come from a GPU."""
        before, self._staging, moving = self._staging, {}, False
        for name, tensor in tensors.items():
            local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()
            copy = before.get(name)
            if copy is None or copy.shape != local.shape or copy.dtype != local.dtype:
                copy = torch.empty(local.shape, dtype=local.dtype, pin_memory=local.is_cuda)
            self._staging[name] = copy.copy_(local, non_blocking=local.is_cuda)
            moving |= local.is_cuda
        if moving:
            torch.cuda.current_stream().synchronize()
        return self._staging

    # The writing thread.

    def _write(self, job: _Job) -> None:
        try:
            self._publish(job)
        except OSError as error:
            job.failure = error
        except CheckpointException as error:
            job.failure = plain(error)
        except RuntimeError as error:  # of the process group, inside DCP
            job.failure = OSError(errno.ECONNABORTED, f"the ranks lost each other ({line(error)})")

    def _publish(self, job: _Job) -> None:
        opening = self._all(lambda: self._open(job))
        steps, sizes, names = zip(*opening, strict=True)
        if len(set(steps)) > 1:
            raise OSError(errno.EINVAL, f"the ranks save different steps: {', '.join(map(str, steps))}")
        if not names[0]:
            job.done = True  # the same step of the same run is there already
            return
        beside, final = self.folder / names[0], self.folder / step_name(job.step)
        try:
            own = self._all(lambda: self._own(job, beside, sum(sizes)))
            shards = self._shards(job, beside)
            files = {name: entry for part in (*own, *shards) for name, entry in part.items()}
            self._all(lambda: self._name(job, beside, final, files))
        finally:
            if self.rank == 0:
                shutil.rmtree(beside, ignore_errors=True)
        problem = self._check(final, cold=True)
        if problem is not None:
            if self.rank == 0:
                manifest.set_aside(final)
            raise OSError(errno.EIO, f"it did not read back as written: {problem}")
        job.done = True
        self._retain(final)

    def _open(self, job: _Job) -> tuple[int, int, str]:
        """Step, bytes to write here, and from rank 0 the folder to write to ("" if nothing has to be written)."""
        size, name, final = sum(c.nbytes for c in job.copies.values()), "", self.folder / step_name(job.step)
        if self.rank == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            manifest.clear_leftovers(self.folder)
            if not final.exists() or verify(final) is not None:
                name = f"{final.name}.tmp-{uuid.uuid4().hex}"
                (self.folder / name).mkdir()
        return job.step, size, name

    def _own(self, job: _Job, beside: Path, need: int) -> dict[str, Any]:
        """Check the disk, write what is this rank's alone, and from rank 0 the facts.

        It fails on a rank that does not see rank 0's folder, before DCP would make one of its own.
        """
        free = shutil.disk_usage(beside).free
        if free < need:
            raise OSError(errno.ENOSPC, f"it needs {_size(need)} and the disk has {_size(free)} free")
        if free < 2 * need and not self._warned and self.rank == 0:
            self._warned = True
            self._notes.append(
                f"the disk of {self.folder} has {_size(free)} free and two checkpoints need {_size(2 * need)}; "
                "free some space, or soon none can be saved."
            )
        written = {own_name(self.rank): manifest.write(beside / own_name(self.rank), job.own)}
        if self.rank == 0:
            written[FACTS] = manifest.write(beside / FACTS, job.facts)
        self.at("before shard")
        return written

    def _shards(self, job: _Job, beside: Path) -> list[dict[str, Any]]:
        """Every rank's tensors, through DCP, which tells every rank of a failure of any."""
        entries = write_shards(beside, job.state, job.copies, self.group)

        def written() -> dict[str, Any]:
            self.at("after shard")
            return entries

        return self._all(written)

    def _name(self, job: _Job, beside: Path, final: Path, files: Mapping[str, Any]) -> None:
        if self.rank == 0:
            self.at("before manifest")
            manifest.write_manifest(beside, job.step, self.world, files)
            self.at("after manifest")
            manifest.publish(beside, final)
            self.at("after rename")

    def _retain(self, fresh: Path) -> None:
        """Delete what is older than the `keep` newest verified ones, of which `fresh` is one."""
        paths, good = self._all(lambda: manifest.listing(self.folder))[0], 0
        for path in paths if len(paths) > self.keep else []:
            good += path == fresh or self._check(path) is None
            if good == self.keep:
                if self.rank == 0:
                    try:
                        self.at("before retention")
                        manifest.drop_outdated(self.folder, path)
                        self.at("after retention")
                    except OSError as error:
                        self._notes.append(f"outdated checkpoints in {self.folder} could not be deleted ({error}).")
                return

    # All ranks together.

    def _all(self, work: Callable[[], T]) -> list[T]:
        """Every rank's result of `work`, by rank; where it failed on any, the same OSError on all."""
        mine: tuple[T | None, OSError | None] = (None, None)
        try:
            mine = (work(), None)
        except (OSError, RuntimeError, ValueError, CheckpointException) as error:
            mine = (None, plain(error))
        everyone: list[Any] = [mine]
        if self.group is not None:
            everyone = [None] * self.world
            try:
                dist.all_gather_object(everyone, mine, group=self.group)
            except RuntimeError as error:  # it timed out, or another rank is gone
                raise OSError(errno.ECONNABORTED, f"the ranks lost each other ({line(error)})") from error
        failures = {rank: failure for rank, (_, failure) in enumerate(everyone) if failure is not None}
        if failures:
            raise joined(failures, self.world)
        return [result for result, _ in everyone]

    def _check(self, path: Path, cold: bool = False) -> str | None:
        """What any rank finds wrong with a checkpoint; the hashing is shared."""
        return next(filter(None, self._all(lambda: verify(path, self.rank, self.world, cold))), None)

    def _tidy(self) -> list[Path]:
        """The checkpoints there are, newest first, after rank 0 has cleared what killed saves left."""
        if self.rank == 0 and self.folder.is_dir():
            manifest.clear_leftovers(self.folder)
        return manifest.listing(self.folder)

    def _opened(self, path: Path) -> Checkpoint:
        world, facts = manifest.world_of(path), json.loads((path / FACTS).read_bytes())
        if world == self.world:
            own = json.loads((path / own_name(self.rank)).read_bytes(), object_hook=unpack)
        else:
            own = derived_state((path / own_name(0)).read_bytes(), self.world, self.rank)
            if self.rank == 0:
                self.say(
                    f"checkpoint {path.name} was saved by {world} ranks and goes on with {self.world}: "
                    "random numbers start anew on each."
                )
        return Checkpoint(int(path.name.removeprefix("step-")), facts, own, world, path)

    def _refuse(self, damaged: Mapping[Path, str]) -> None:
        """Stop where going on would mean to begin again in silence."""
        aside = self._all(lambda: manifest.aside(self.folder))[0]
        newest = next(iter(damaged))
        if len(damaged) + len(aside) > 1 or self._all(lambda: manifest.of_other_format(newest))[0]:
            raise CorruptError(
                f"{self.folder}: holds checkpoints, and none can be read back ({newest.name}: {damaged[newest]}); "
                "put back a copy of one, or delete this folder to begin the stage again."
            )

    def _pass_over(self, path: Path, problem: str) -> None:
        if manifest.of_other_format(path):
            self.say(f"checkpoint {path.name} was passed over for the one before it: {problem}.")
            return
        try:
            where = f"kept as {manifest.set_aside(path).name}"
        except OSError:
            where = "left where it is"
        self.say(f"checkpoint {path.name} is damaged ({problem}); it was passed over for what came before and {where}.")

    def _settle(self) -> OSError | None:
        """Await the save under way, say what it left to say, and give its failure, once."""
        job = self._job
        if job is not None and job.thread is not None:
            job.thread.join(self.patience)
            if job.thread.is_alive():
                raise OSError(errno.ETIMEDOUT, f"the checkpoint of step {job.step} has been written for too long")
        self._job = None
        for note in self._notes:
            self.say(note)
        self._notes.clear()
        if job is None or job.done:
            return None
        failure = job.failure or OSError(errno.EIO, "its thread ended with the error printed above")
        failure = OSError(failure.errno, f"the checkpoint of step {job.step} was not saved: {failure.strerror}")
        self.say(f"{failure.strerror}; older ones are untouched.")
        return failure


def _size(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.2f} MB"
