"""Files that are damaged, swapped or replaced: checkpoints, data, caches, any file of a run; and disks that fill."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ups.engine.checkpoint.manifest import listing
from ups.lazy_imports import h5py
from ups.rundir import RunDir
from ups_fleet.fault_tests.case import LAST_STAGE, STEPS, CaseDir, Disturbance, Press, first_start, run_here
from ups_fleet.fault_tests.disturbances import bomb
from ups_fleet.fault_tests.privileges import NEW_MOUNTS, make_read_only, mount_memory, remount, unmount, unshare
from ups_fleet.supervise.job import RankStart

NAME = "trajectories.hdf5"
GONE = ("newest gone", "stage gone", "all gone")
LARGE = "64m"
BALLAST = ".ballast"  # a hidden name: no file of a run


def newest(run: RunDir) -> Path | None:
    """The newest checkpoint of a run."""
    checkpoints = [listing(run.checkpoints(stage)) for stage in reversed(STEPS)]
    return next((paths[0] for paths in checkpoints if paths), None)


def largest(folder: Path) -> Path:
    """The largest file of a checkpoint."""
    return max(folder.iterdir(), key=lambda path: path.stat().st_size)


def damage(how: str, run: RunDir) -> None:
    """Damage the newest checkpoint, where there is one, as disks and people do."""
    checkpoint = newest(run)
    if checkpoint is None:
        return
    if how in GONE:
        shutil.rmtree((checkpoint, checkpoint.parent, run.checkpoints())[GONE.index(how)])
    elif how == "foreign":
        (checkpoint / "another").write_bytes(b"of another run")
    elif how == "manifest":
        (checkpoint / "manifest.json").write_text("{}")
    else:
        spoil(largest(checkpoint), how)


def spoil(path: Path, how: str) -> None:
    """Remove a file, cut it, turn one bit of it in place and in silence, or replace it by a copy or by something else.

    `replaced`: data by other trajectories, anything else by a copy with one bit turned.
    """
    status = path.stat()
    if how == "missing":
        path.unlink()
    elif how in ("truncate", "cut"):
        os.truncate(path, status.st_size // 2)
    elif how in ("replaced", "copied"):
        other = path.with_suffix(".other")
        shutil.copy(path, other)
        if how == "replaced" and path.suffix == ".hdf5":
            with h5py.File(other, "r+") as file:
                values = max((v for v in file.values() if isinstance(v, h5py.Dataset)), key=lambda v: v.size)
                values[...] = values[...] * 1.01
        elif how == "replaced":
            spoil(other, "flip")
        other.replace(path)
    else:
        with path.open("r+b") as file:
            file.seek(status.st_size // 2)
            byte = file.read(1)
            file.seek(status.st_size // 2)
            file.write(bytes([byte[0] ^ 1]))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@dataclass(frozen=True)
class Damaged(Disturbance):
    """Something happens to the newest checkpoint before the second start; or, `stopped`, while the run is stopped.

    Checkpoints that are `copied` are kept in two places, and it happens to the first.
    """

    how: str
    stopped: bool = False
    copied: bool = False

    def settings(self, place: CaseDir) -> dict[str, Any]:
        return {"second_copy": str(place.folder / "copies")} if self.copied else {}

    def start(self, start: RankStart, place: CaseDir) -> None:
        if start.attempt == 2 and not self.stopped:
            damage(self.how, place.run)

    def meddle(self, place: CaseDir) -> None:
        if self.stopped:
            damage(self.how, place.run)


@dataclass(frozen=True)
class NoSecondPlace(Disturbance):
    """The second place cannot be written."""

    def settings(self, place: CaseDir) -> dict[str, Any]:
        return {"second_copy": str(place.folder / "a file" / "copies")}

    def prepare(self, place: CaseDir) -> None:
        (place.folder / "a file").write_text("no folder")


@dataclass(frozen=True)
class Swapped(Disturbance):
    """The data file of the run holds something else from a moment on: `stop`, `starts` or `stages`."""

    how: str
    when: str

    def data(self, place: CaseDir) -> Path:
        return place.folder / NAME

    def prepare(self, place: CaseDir) -> None:
        shutil.copy(place.data, self.data(place))

    def start(self, start: RankStart, place: CaseDir) -> None:
        if self.when == "starts" and start.attempt == 2:
            spoil(self.data(place), self.how)

    def at(self, point: str, rank: int) -> None:
        if self.when == "stages" and point == "between stages" and rank == 0 and first_start():
            spoil(run_here().folder.parent / NAME, self.how)

    def meddle(self, place: CaseDir) -> None:
        if self.when == "stop":
            spoil(self.data(place), self.how)

    def mend(self, place: CaseDir) -> None:
        self.prepare(place)


@dataclass(frozen=True)
class ChangedCache(Disturbance):
    """While the last stage trains, a rank changes the latent cache of the run, from one of its steps on.

    `edited`: in place; `replaced`: by other files; `copied`: by other files with the same content.
    """

    how: str
    step: int
    whose: int

    def rank(self, rank: int) -> Press:
        run = run_here()
        note = run.folder.parent / "changed"

        def press(step: int, samples: int) -> None:  # noqa: ARG001
            if rank != self.whose or step < self.step or note.exists() or not first_start():
                return
            for shard in run.cache("latents").rglob("shard-*.safetensors"):  # there are none before the last stage
                spoil(shard, self.how)
                note.write_text(str(step))

        return press

    def meddle(self, place: CaseDir) -> None:
        last = int((place.folder / "changed").read_text())
        steps = [int(path.name.removeprefix("step-")) for path in place.run.checkpoints(LAST_STAGE).glob("step-*")]
        (place.folder / "learnt from it").write_text(" ".join(str(step) for step in steps if step > last))

    def mend(self, place: CaseDir) -> None:
        shutil.rmtree(place.run.cache("latents"))

    def problems(self, place: CaseDir) -> list[str]:
        note = place.folder / "learnt from it"
        steps = note.read_text() if note.exists() else ""
        problems = [f"checkpoints of what was learnt from another cache were saved: steps {steps}"] if steps else []
        if not (place.folder / "changed").exists():
            problems.append("the lab found no cache to change, so that nothing was tried")
        return problems


@dataclass(frozen=True)
class Replaced(Disturbance):
    """A file of the run (or `checkpoint/NAME` of its newest checkpoint) becomes something else while it is stopped."""

    file: str
    content: str

    def settings(self, place: CaseDir) -> dict[str, Any]:  # noqa: ARG002
        return {"tracking": ["csv"]} if self.file.startswith("csv/") else {}

    def path(self, place: CaseDir) -> Path:
        kind, _, name = self.file.rpartition("/")
        if kind != "checkpoint":
            return place.run.folder / self.file
        checkpoint = newest(place.run)
        assert checkpoint is not None, "a run that was stopped has a checkpoint"
        return largest(checkpoint) if name == "largest" else checkpoint / name

    def meddle(self, place: CaseDir) -> None:
        path, outside, original = self.path(place), place.folder / "outside", place.folder / "original"
        (place.folder / "which").write_text(str(path))
        path.parent.mkdir(exist_ok=True)
        if path.exists():
            shutil.move(path, original)
        if self.content == "folder":
            path.mkdir()
            (path / "inside").write_text("of somebody else")
        elif self.content == "pipe":
            os.mkfifo(path)
        elif self.content in ("dangling", "link"):
            path.symlink_to(outside)
            if self.content == "link":
                outside.write_bytes(original.read_bytes() if original.exists() else b"{}")
                shutil.copy(outside, place.folder / "before")
        else:
            texts = {"list": b"[1, 2, 3]\n", "number": b'{"format": ' + b"9" * 5000 + b"}\n", "nest": b"[" * 100_000}
            path.write_bytes(texts[self.content] if self.content in texts else bomb(place.canary))

    def mend(self, place: CaseDir) -> None:
        path, original = Path((place.folder / "which").read_text()), place.folder / "original"
        if not path.parent.exists():  # a damaged checkpoint was set aside
            return
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        if original.exists():
            shutil.copy(original, path)

    def problems(self, place: CaseDir) -> list[str]:
        problems = ["code from a file of the run was executed"] if place.canary.exists() else []
        before, outside = place.folder / "before", place.folder / "outside"
        if before.exists() and (not outside.exists() or outside.read_bytes() != before.read_bytes()):
            problems.append(f"a file outside of the run was changed through {self.file}")
        if outside.exists() and not before.exists():
            problems.append(f"a file outside of the run was made through {self.file}")
        return problems


class _OwnDisk(Disturbance):
    """Something of the run is on a disk of its own, in mounts that nobody else sees."""

    needs: ClassVar[tuple[str, ...]] = ("mount namespaces",)

    def prepare(self, place: CaseDir) -> None:  # noqa: ARG002
        unshare(NEW_MOUNTS)


@dataclass(frozen=True)
class CheckpointDisk(_OwnDisk):
    """The checkpoints have a disk of their own, of a size, or one that cannot be written."""

    size: str = LARGE
    writable: bool = True

    def start(self, start: RankStart, place: CaseDir) -> None:  # noqa: ARG002
        folder = place.run.checkpoints()
        if not os.path.ismount(folder):
            mount_memory(folder, self.size)
            if not self.writable:
                remount(folder, self.size, writable=False)

    def mend(self, place: CaseDir) -> None:
        remount(place.run.checkpoints(), LARGE)


@dataclass(frozen=True)
class SmallDisk(_OwnDisk):
    """The whole run folder is on a disk of a size; somebody else fills it when a rank comes to a point."""

    size: str = "8m"
    point: str = ""
    whose: int = 0

    def prepare(self, place: CaseDir) -> None:
        super().prepare(place)
        mount_memory(place.run.folder, self.size)

    def at(self, point: str, rank: int) -> None:
        if (point, rank) != (self.point, self.whose) or not first_start():
            return
        with (run_here().folder / BALLAST).open("ab", buffering=0) as file:
            for size in (1 << 18, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while file.write(bytes(size)):
                        pass

    def mend(self, place: CaseDir) -> None:
        (place.run.folder / BALLAST).unlink(missing_ok=True)
        remount(place.run.folder, LARGE)


@dataclass(frozen=True)
class TurnsReadOnly(_OwnDisk):
    """The disk of the whole run folder turns read-only when a rank comes to a point."""

    point: str
    whose: int

    def at(self, point: str, rank: int) -> None:
        folder = run_here().folder
        if (point, rank) == (self.point, self.whose) and first_start() and not os.path.ismount(folder):
            make_read_only(folder)

    def mend(self, place: CaseDir) -> None:
        unmount(place.run.folder)
