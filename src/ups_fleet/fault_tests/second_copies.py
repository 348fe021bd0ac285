"""The second copy of the newest checkpoint: used when the first place is damaged or gone, and never in the way."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import Any

from ups_fleet.fault_tests.case import LAST, CaseDir, Disturbance, Draw, FaultCase, Recipe, Recipes, Strategy, case_of
from ups_fleet.fault_tests.damage import damage, newest
from ups_fleet.supervise.fault_plan import Fault

GONE = ("newest gone", "stage gone", "all gone")


@dataclass(frozen=True)
class FirstPlace(Disturbance):
    """Checkpoints are kept in two places; while the run is stopped, something happens to the first."""

    how: str

    def settings(self, place: CaseDir) -> dict[str, Any]:
        return {"second_copy": str(place.folder / "copies")}

    def meddle(self, place: CaseDir) -> None:
        checkpoint = newest(place.run)
        assert checkpoint is not None, "a run that was stopped has a checkpoint"
        if self.how in GONE:
            which = (checkpoint, checkpoint.parent, place.run.checkpoints())[GONE.index(self.how)]
            shutil.rmtree(which)
        else:
            damage(self.how, place.run)


@dataclass(frozen=True)
class NoSecondPlace(Disturbance):
    """The second place cannot be written."""

    def settings(self, place: CaseDir) -> dict[str, Any]:
        return {"second_copy": str(place.folder / "a file" / "copies")}

    def prepare(self, place: CaseDir) -> None:
        (place.folder / "a file").write_text("no folder")


def _first_place(how: str) -> Recipe:
    """The copy is taken, which is said, and no step is made again."""

    def recipe(d: Draw, world: int, strategy: Strategy) -> FaultCase:
        fault = Fault("term", d.randrange(world), "forward", d.randrange(1, LAST - 1))
        promise: dict[str, Any] = {"endings": ("PREEMPTED",), "output": "its second copy", "around": FirstPlace(how)}
        return case_of("F27", f"first place: {how}", world, strategy, fault, **promise)

    return recipe


def _no_second_place(_: Draw, world: int, strategy: Strategy) -> FaultCase:
    """Said, and nothing more."""
    words = "second copy of checkpoint"
    return case_of("F27", "no second place", world, strategy, around=NoSecondPlace(), output=words, starts=1)


RECIPES: Recipes = {
    **{("F27", how): _first_place(how) for how in (*GONE, "flip", "truncate", "missing", "manifest")},
    ("F27", "unwritable"): _no_second_place,
}
