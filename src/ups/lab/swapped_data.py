"""Data that are swapped, edited or cut while a run is stopped, between two starts of its ranks, or between stages."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ups.engine.faults import Fault
from ups.lab.case import LAST, Case, CaseDir, Disturbance, Draw, Recipe, Recipes, Strategy, case_of, first_start
from ups.later import h5py
from ups.supervise.job import Start

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

    def start(self, start: Start, place: CaseDir) -> None:
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
        status = path.stat()
        with path.open("r+b") as file:
            file.seek(status.st_size // 2)
            byte = file.read(1)
            file.seek(status.st_size // 2)
            file.write(bytes([byte[0] ^ 1]))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    else:
        os.truncate(path, path.stat().st_size // 2)


def _swapped(how: str, when: str) -> Recipe:
    """Refused with a sentence that names the file; once it is back, the same bits."""

    def recipe(d: Draw, world: int, strategy: Strategy) -> Case:
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


RECIPES: Recipes = {
    ("F24", f"{how} {when}"): _swapped(how, when)
    for how in ("replaced", "edited", "cut")
    for when in ("stop", "starts", "stages")
}
