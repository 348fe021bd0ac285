"""Data that are swapped, edited or cut between stages or starts, or while a run is stopped; caches while it trains."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ups.later import h5py
from ups.rundir import RunDir
from ups_fleet.fault_tests.case import (
    LAST,
    LAST_STAGE,
    CaseDir,
    Disturbance,
    Draw,
    FaultCase,
    Press,
    Recipe,
    Recipes,
    Strategy,
    case_of,
    first_start,
)
from ups_fleet.supervise.fault_plan import Fault
from ups_fleet.supervise.job import RankStart

NAME = "trajectories.hdf5"


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
            change(self.data(place), self.how)

    def at(self, point: str, rank: int) -> None:
        if self.when == "stages" and point == "between stages" and rank == 0 and first_start():
            change(Path(os.environ["UPS_HOME"]).parent / NAME, self.how)

    def meddle(self, place: CaseDir) -> None:
        if self.when == "stop":
            change(self.data(place), self.how)

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
        run = RunDir(Path(os.environ["UPS_HOME"]))
        note = run.folder.parent / "changed"

        def press(step: int, samples: int) -> None:  # noqa: ARG001
            if rank != self.whose or step < self.step or note.exists() or not first_start():
                return
            for shard in run.cache("latents").rglob("shard-*.safetensors"):  # there are none before the last stage
                change_shard(shard, self.how)
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


def change_shard(shard: Path, how: str) -> None:
    """Edit a file of a cache in place, or replace it by one that is edited, or by a copy."""
    if how == "edited":
        edit(shard)
        return
    other = shard.with_suffix(".other")
    shutil.copy(shard, other)
    if how == "replaced":
        edit(other)
    other.replace(shard)


def edit(path: Path) -> None:
    """Change a byte of a file in place, and keep its time."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(status.st_size // 2)
        byte = file.read(1)
        file.seek(status.st_size // 2)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def change(path: Path, how: str) -> None:
    """Replace a data file by one of other trajectories, edit a byte of it in place and in silence, or cut it."""
    if how == "replaced":
        other = path.with_suffix(".other")
        shutil.copy(path, other)
        with h5py.File(other, "r+") as file:
            largest = max(
                (item for item in file.values() if isinstance(item, h5py.Dataset)), key=lambda item: item.size
            )
            largest[...] = largest[...] * 1.01
        other.replace(path)
    elif how == "edited":
        edit(path)
    else:
        os.truncate(path, path.stat().st_size // 2)


def _swapped(how: str, when: str) -> Recipe:
    """Refused with a sentence that names the file; once it is back, the same bits."""

    def recipe(d: Draw, world: int, strategy: Strategy) -> FaultCase:
        rank, step = d.randrange(world), d.randrange(LAST - 1)
        promise: dict[str, Any] = {"around": Swapped(how, when), "output": f"{NAME}:", "endings": ("USER",)}
        faults = []
        if when == "stop":
            faults = [Fault("term", rank, "forward", step)]
            promise |= {"endings": ("PREEMPTED",), "refused": ("USER",)}
        elif when == "starts":
            faults = [Fault("kill", rank, "forward", step)]
            promise |= {"first": ("RANK_DIED",), "starts": 2}
        return case_of("F24", f"{how}, {when}", world, strategy, *faults, **promise)

    return recipe


def _changed_cache(how: str) -> Recipe:
    """Refused, and nothing that was learnt from it is saved; built again, the same bits. A copy is no change."""

    def recipe(d: Draw, world: int, strategy: Strategy) -> FaultCase:
        around = ChangedCache(how, d.randrange(LAST), d.randrange(world))
        promise: dict[str, Any] = {"around": around, "changes": {"cache.use": True}, "starts": 1}
        if how != "copied":
            promise |= {"endings": ("USER",), "refused": ("USER",), "output": "while it was in use"}
        return case_of("F24", f"cache {how}", world, strategy, **promise)

    return recipe


RECIPES: Recipes = {
    **{
        ("F24", f"{how} {when}"): _swapped(how, when)
        for how in ("replaced", "edited", "cut")
        for when in ("stop", "starts", "stages")
    },
    **{("F24", f"cache {how}"): _changed_cache(how) for how in ("edited", "replaced", "copied")},
}
