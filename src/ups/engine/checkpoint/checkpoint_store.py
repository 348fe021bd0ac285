"""Checkpoints of any number of ranks, copied at once, written in the background, verified, resharded."""

from __future__ import annotations

import errno
import json
import shutil
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from ups.engine.checkpoint import index, manifest
from ups.engine.checkpoint.index import Kind, Region
from ups.engine.checkpoint.manifest import FACTS, INDEX, Stamp, own_name, step_name, verify
from ups.engine.checkpoint.second_copy import NoCopy, SecondCopy
from ups.engine.checkpoint.shard_files import dtype_name, read_shards, region, write_shards
from ups.engine.checkpoint.staging import Staging, pack, share, unpack
from ups.engine.checkpoint.store import Checkpoint, CorruptError, Snapshot
from ups.engine.checkpoint.together import SavingRanks, plain
from ups.engine.randomness import derived_state
from ups.types import ConfigError, counted, data_size
from ups.verdict import StorageError


def _nothing(what: str) -> None:
    """Nobody listens."""


@dataclass
class _Job:
    """A save under way: this rank's copies, and how it ended."""

    step: int
    kinds: dict[str, Kind]  # of every tensor: its type and its whole shape
    regions: dict[str, Region]  # what of them this rank writes
    copies: dict[str, Tensor]  # in CPU memory
    facts: bytes
    own: bytes
    thread: threading.Thread | None = None
    done: bool = False
    failure: OSError | None = None


class CheckpointStore:
    """The checkpoints in `folder`, one folder `step-N` each; at least the `keep` newest verified ones stay.

    `save` copies this rank's part to (pinned) CPU memory and returns; a thread writes it: shards, then an index of
    where each piece of each tensor is and a manifest with the SHA-256 of every file, then the rename to `step-N`, then
    all of it is read back, and only then are older ones deleted. Nothing is ever overwritten, so a kill at any moment
    leaves the older ones untouched. The timeout of `group` has to exceed the time one rank may need to write its part.

    Nothing in a checkpoint is code: it is JSON, and bytes of numbers in the layout of safetensors.
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
        second: Path | None = None,  # a folder for a second copy of the newest checkpoint
    ) -> None:
        self.folder, self.rank, self.world, self.keep = Path(folder), rank, world, keep
        self.ranks = SavingRanks(rank, world, group)
        self.say, self.at, self.patience = say, at, patience
        self._staging = Staging()  # reused by every save
        self._verified: dict[Path, Stamp] = {}  # the stamps of checkpoints when all of them was hashed
        self._notes: list[str] = []  # said by the next call: the writing thread says nothing itself
        self._warned = False
        self._job: _Job | None = None
        self.second = NoCopy() if second is None or rank else SecondCopy(second, self._notes.append)

    def save(self, snapshot: Snapshot) -> OSError | None:
        """Copy now, write in the background. An earlier save is awaited first; its failure is said and comes back."""
        earlier = self._settle()
        own = json.dumps(snapshot.own, default=pack).encode()
        tensors = share(snapshot.tensors, self.rank, self.world)
        kinds = {name: (dtype_name(t), tuple(t.shape)) for name, t in snapshot.tensors.items()}
        regions = {name: region(t) for name, t in tensors.items()}
        job = _Job(snapshot.step, kinds, regions, self._staging.take(tensors), json.dumps(snapshot.facts).encode(), own)
        # A daemon, so that a rank that has to leave does so; whoever wants the checkpoint calls `wait`.
        job.thread = threading.Thread(target=self._write, args=(job,), daemon=True, name=f"save {snapshot.step}")
        self._job = job
        job.thread.start()
        return earlier

    def wait(self) -> None:
        """Wait until the last save and its second copy are published and verified; OSError if the save could not be."""
        failure = self._settle()
        if failure is not None:
            raise failure
        self.ranks.own(self.second.wait)
        self._say_notes()

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole in the eyes of every rank. Damaged ones are set aside with a sentence.

        None where there is none, or where the only one there has ever been is damaged: what came before it is the
        beginning. Where several are and none is whole there is work to lose, so CorruptError, and all are left alone.
        """
        self._settle()
        damaged: dict[Path, str] = {}
        whole: Path | None = None
        names = self.ranks.all(self._tidy)[0]
        for path in (self.folder / name for name in names):
            problem = self._check(path)
            if problem is None:
                whole = path
                break
            damaged[path] = problem
        whole = self._put_back(whole, damaged) or whole
        if whole is None and damaged:
            self._refuse(damaged)
        for path, problem in damaged.items():
            if self.rank == 0:
                self._pass_over(path, problem)
        if whole is None:
            return None
        try:
            return self.ranks.own(lambda: self._opened(whole))
        except OSError as error:
            if error.errno != errno.EBADMSG:
                raise
            raise CorruptError(
                f"{whole}: {error.strerror}; delete this folder to go on from the checkpoint before it."
            ) from None

    def load(self, checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> None:
        """Read a checkpoint into `tensors`, in place, each rank its part; ConfigError if it is another model's."""
        self._settle()
        wrong = next(filter(None, self.ranks.all(lambda: read_shards(checkpoint.path, tensors))), None)
        if wrong is not None:
            raise ConfigError(wrong)

    # The writing thread.

    def _write(self, job: _Job) -> None:
        try:
            self._publish(job)
        except (OSError, RuntimeError, ValueError) as error:
            job.failure = plain(error)

    def _publish(self, job: _Job) -> None:
        opening = self.ranks.all(lambda: self._open(job))
        steps, sizes, names = zip(*opening, strict=True)
        if len(set(steps)) > 1:
            raise OSError(errno.EINVAL, f"the ranks save different steps: {', '.join(map(str, steps))}")
        if not names[0]:
            job.done = True  # the same step of the same run is there already
            return
        beside, final = self.folder / names[0], self.folder / step_name(job.step)
        try:
            own = self.ranks.all(lambda: self._own(job, beside, sum(sizes)))
            shards = self.ranks.all(lambda: self._shards(job, beside))
            self.ranks.all(lambda: self._name(job, beside, final, own, shards))
        finally:
            if self.rank == 0:
                shutil.rmtree(beside, ignore_errors=True)
        problem = self._check(final, cold=True)
        if problem is not None:
            if self.rank == 0:
                manifest.set_aside(final)
            raise OSError(errno.EIO, f"it did not read back as written: {problem}")
        job.done = True
        self.second.take(final)
        self._retain(final)

    def _open(self, job: _Job) -> tuple[int, int, str]:
        """Step, bytes to write here, and from rank 0 the folder to write to ("" if nothing has to be written)."""
        size, name, final = sum(c.nbytes for c in job.copies.values()), "", self.folder / step_name(job.step)
        if self.rank == 0:
            manifest.make_folder(self.folder)
            manifest.clear_leftovers(self.folder)
            if not final.exists() or verify(final) is not None:
                name = f"{final.name}.tmp-{uuid.uuid4().hex}"
                (self.folder / name).mkdir()
        return job.step, size, name

    def _own(self, job: _Job, beside: Path, need: int) -> dict[str, Any]:
        """Check the disk, write what is this rank's alone, and from rank 0 the facts.

        It fails on a rank that does not see rank 0's folder.
        """
        free = shutil.disk_usage(beside).free
        if free < need:
            raise manifest.no_room(need, free)
        if free < 2 * need and not self._warned and self.rank == 0:
            self._warned = True
            self._notes.append(
                f"the disk of {self.folder} has {data_size(free)} free and two checkpoints need "
                f"{data_size(2 * need)}; free some space, or soon none can be saved."
            )
        written = {own_name(self.rank): manifest.write(beside / own_name(self.rank), job.own)}
        if self.rank == 0:
            written[FACTS] = manifest.write(beside / FACTS, job.facts)
        self.at("before shard")
        return written

    def _shards(self, job: _Job, beside: Path) -> dict[str, Any]:
        """Write this rank's pieces; by file, its entry in the manifest and the regions of the tensors it has."""
        files = write_shards(beside, self.rank, job.copies)
        self.at("after shard")
        return {
            file: {"entry": entry, "regions": {name: job.regions[name] for name in names}}
            for file, (entry, names) in files.items()
        }

    def _name(
        self, job: _Job, beside: Path, final: Path, own: list[dict[str, Any]], shards: list[dict[str, Any]]
    ) -> None:
        """Rank 0: say where everything is, and give the checkpoint its name."""
        if self.rank != 0:
            return
        files = {name: entry for part in own for name, entry in part.items()}
        files |= {name: facts["entry"] for part in shards for name, facts in part.items()}
        regions = {name: facts["regions"] for part in shards for name, facts in part.items()}
        self.at("before manifest")
        files[INDEX] = manifest.write(beside / INDEX, index.to_json(index.layouts_of(job.kinds, regions)))
        manifest.write_manifest(beside, job.step, self.world, files)
        self.at("after manifest")
        manifest.publish(beside, final)
        self.at("after rename")

    def _retain(self, fresh: Path) -> None:
        """Delete what is older than the `keep` newest verified ones, of which `fresh` is one."""
        names, good = self.ranks.all(lambda: [path.name for path in manifest.listing(self.folder)])[0], 0
        for path in [self.folder / name for name in names] if len(names) > self.keep else []:
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

    def _check(self, path: Path, cold: bool = False) -> str | None:
        """What any rank finds wrong with a checkpoint; the hashing is shared, and done once for files that stay."""
        stamp = manifest.known_by(path)
        known = self._verified.pop(path, {})
        problem = None
        if not all(self.ranks.all(lambda: bool(stamp) and stamp == known)):
            problem = next(filter(None, self.ranks.all(lambda: verify(path, self.rank, self.world, cold))), None)
        if problem is None:
            self._verified[path] = stamp
        return problem

    def _tidy(self) -> list[str]:
        """The checkpoints there are, newest first, after rank 0 has cleared what killed saves left."""
        if self.rank == 0 and self.folder.is_dir():
            manifest.clear_leftovers(self.folder)
        return [path.name for path in manifest.listing(self.folder)]

    def _opened(self, path: Path) -> Checkpoint:
        world, facts = manifest.world_of(path), manifest.read_json(path / FACTS)
        if world == self.world:
            own = manifest.read_json(path / own_name(self.rank), unpack)
        else:
            own = derived_state(manifest.read_small(path / own_name(0)), self.world, self.rank)
            if self.rank == 0:
                self.say(
                    f"checkpoint {path.name} was saved by {counted(world, 'rank')} and goes on with {self.world}: "
                    "random numbers start anew on each."
                )
        return Checkpoint(int(path.name.removeprefix("step-")), facts, own, world, path)

    def _refuse(self, damaged: Mapping[Path, str]) -> None:
        """Stop where going on would mean to begin again in silence."""
        aside = self.ranks.all(lambda: len(manifest.aside(self.folder)))[0]
        newest = next(iter(damaged))
        if len(damaged) + aside > 1 or self.ranks.all(lambda: manifest.of_other_format(newest))[0]:
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

    def _put_back(self, whole: Path | None, damaged: dict[Path, str]) -> Path | None:
        """A second copy that is newer than the newest that is whole here, copied to where all ranks look for it."""

        def put_back() -> str:
            spare = self.second.newest()
            if spare is None or (whole is not None and spare.name <= whole.name):
                return ""
            return manifest.copy(spare, self.folder).name

        try:
            name = self.ranks.all(put_back)[0]
        except OSError as error:
            raise StorageError(
                f"{self.second.folder} has the only good copy of the newest checkpoint, and it could not be copied "
                f"back to {self.folder} ({error.strerror}); free the disk and --resume."
            ) from error
        path = self.folder / name
        if not name or self._check(path) is not None:
            return None
        problem = damaged.pop(path, None)
        if self.rank == 0:
            fate = f"is damaged ({problem})" if problem else "is gone"
            self.say(f"checkpoint {name} {fate}; its second copy in {self.second.folder} was taken instead.")
        return path

    def _say_notes(self) -> None:
        while self._notes:
            self.say(self._notes.pop(0))

    def _settle(self) -> OSError | None:
        """Await the save under way, say what it left to say, and give its failure, once."""
        job = self._job
        if job is not None and job.thread is not None:
            job.thread.join(self.patience)
            if job.thread.is_alive():
                slow = f"the checkpoint of step {job.step} has been written for too long"
                self.say(f"{slow}: the disk of {self.folder} may hang.")
                raise OSError(errno.ETIMEDOUT, slow)
        self._job = None
        self._say_notes()
        if job is None or job.done:
            return None
        failure = job.failure or OSError(errno.EIO, "its thread ended with the error printed above")
        failure = OSError(failure.errno, f"the checkpoint of step {job.step} was not saved: {failure.strerror}")
        self.say(f"{failure.strerror}; older ones are untouched.")
        return failure
