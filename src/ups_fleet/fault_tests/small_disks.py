"""Small disks: one for the checkpoints, or for the whole run folder, that is read-only or fills at any moment."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ups_fleet.fault_tests.case import (
    CaseDir,
    Disturbance,
    Draw,
    FaultCase,
    Recipe,
    Recipes,
    Strategy,
    case_of,
    first_start,
)
from ups_fleet.fault_tests.outside_training import changes_for
from ups_fleet.fault_tests.privileges import NEW_MOUNTS, make_read_only, mount_memory, remount, unmount, unshare
from ups_fleet.fault_tests.rank_hooks import OF_FIRST, POINTS
from ups_fleet.supervise.job import RankStart

LARGE = "64m"
BALLAST = ".ballast"  # a hidden name: no file of a run


@dataclass(frozen=True)
class CheckpointDisk(Disturbance):
    """The checkpoints have a disk of their own, of a size, or one that cannot be written."""

    needs: ClassVar[tuple[str, ...]] = ("mount namespaces",)
    size: str = LARGE
    writable: bool = True

    def prepare(self, place: CaseDir) -> None:  # noqa: ARG002
        unshare(NEW_MOUNTS)

    def start(self, start: RankStart, place: CaseDir) -> None:  # noqa: ARG002
        folder = place.run.checkpoints()
        if not os.path.ismount(folder):
            mount_memory(folder, self.size)
            if not self.writable:
                remount(folder, self.size, writable=False)

    def mend(self, place: CaseDir) -> None:
        remount(place.run.checkpoints(), LARGE)


@dataclass(frozen=True)
class SmallDisk(Disturbance):
    """The whole run folder is on a disk of a size; somebody else fills it when a rank comes to a point."""

    needs: ClassVar[tuple[str, ...]] = ("mount namespaces",)
    size: str = "8m"
    point: str = ""
    whose: int = 0

    def prepare(self, place: CaseDir) -> None:
        unshare(NEW_MOUNTS)
        mount_memory(place.run.folder, self.size)

    def at(self, point: str, rank: int) -> None:
        if (point, rank) == (self.point, self.whose) and first_start():
            fill(Path(os.environ["UPS_HOME"]) / BALLAST)

    def mend(self, place: CaseDir) -> None:
        (place.run.folder / BALLAST).unlink(missing_ok=True)
        remount(place.run.folder, LARGE)


@dataclass(frozen=True)
class TurnsReadOnly(Disturbance):
    """The disk of the whole run folder turns read-only when a rank comes to a point."""

    needs: ClassVar[tuple[str, ...]] = ("mount namespaces",)
    point: str = ""
    whose: int = 0

    def prepare(self, place: CaseDir) -> None:  # noqa: ARG002
        unshare(NEW_MOUNTS)

    def at(self, point: str, rank: int) -> None:
        folder = Path(os.environ["UPS_HOME"])
        if (point, rank) == (self.point, self.whose) and first_start() and not os.path.ismount(folder):
            make_read_only(folder)

    def mend(self, place: CaseDir) -> None:
        unmount(place.run.folder)


def fill(path: Path) -> None:
    """Leave no byte of a disk."""
    with path.open("ab", buffering=0) as file:
        for size in (1 << 18, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)):
                    pass


def _checkpoints(name: str, **disk: Any) -> Recipe:
    def recipe(d: Draw, world: int, strategy: Strategy) -> FaultCase:
        around = CheckpointDisk(**disk) if disk else CheckpointDisk(f"{d.randrange(40, 700)}k")
        endings = ("STORAGE",) if disk else ("STORAGE", "SUCCESS")
        return case_of("F10", name, world, strategy, around=around, endings=endings, starts=1)

    return recipe


def _filled(point: str) -> Recipe:
    """Full from a point on: the verdict says so in a sentence, and once there is room it goes on to the same bits."""

    def recipe(d: Draw, world: int, strategy: Strategy) -> FaultCase:
        around = SmallDisk(point=point, whose=_whose(d, point, world))
        promise: dict[str, Any] = {"endings": ("STORAGE",), "changes": changes_for(point)}
        return case_of("F22", f"full in {point}", world, strategy, around=around, **promise)

    return recipe


def _read_only(d: Draw, world: int, strategy: Strategy) -> FaultCase:
    """Said in a sentence, also by the next command; mounted again, it goes on to the same bits."""
    point = d.choice((*POINTS, *SAVING))
    around = TurnsReadOnly(point=point, whose=_whose(d, point, world))
    promise: dict[str, Any] = {"endings": ("STORAGE",), "refused": ("STORAGE",), "changes": changes_for(point)}
    promise["output"] = "the verdict could not be written"
    return case_of("F22", f"read-only in {point}", world, strategy, around=around, **promise)


def _whose(d: Draw, point: str, world: int) -> int:
    """A rank that comes to a point."""
    return 0 if point in (*OF_FIRST, "before manifest", "after rename") else d.randrange(world)


def _too_small(d: Draw, world: int, strategy: Strategy) -> FaultCase:
    """Never large enough for everything: wherever it ends, it says why."""
    around = SmallDisk(f"{d.randrange(250, 2500)}k")
    return case_of("F22", "too small", world, strategy, around=around, endings=("STORAGE", "SUCCESS"))


SAVING = ("before shard", "after shard", "before manifest", "after rename")
RECIPES: Recipes = {
    ("F10", "small"): _checkpoints("small disk"),
    ("F10", "read-only"): _checkpoints("read-only disk", writable=False),
    **{("F22", point): _filled(point) for point in (*POINTS, *SAVING)},
    ("F22", "read-only"): _read_only,
    ("F22", "small"): _too_small,
}
