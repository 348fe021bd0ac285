"""Champion: a run with which another is compared, on the test trajectories that both were judged on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ups.eval.gates import Gate, against
from ups.eval.pairs import decidable
from ups.eval.trajectories import PerTrajectory, main_rows
from ups.eval.trajectories import read as read_trajectories
from ups.files import sha256
from ups.rundir import RunDir
from ups.types import CHAMPION, OURS, DataError


@dataclass(frozen=True)
class Champion:
    """A run that another one is compared with.

    Args:
        folder: Its folder, as the config names it.
        simulator: The SHA-256 of its simulator's file; empty where that is gone.
        errors: By task, the errors of this simulator on the test trajectories of its own run.
    """

    folder: str
    simulator: str
    errors: Mapping[str, PerTrajectory]

    @classmethod
    def at(cls, folder: str) -> Champion:
        """The champion in a run's folder; without errors where none can be read."""
        simulator = digest_of(RunDir(Path(folder)))
        try:
            rows = read_trajectories(Path(folder))
        except DataError:  # nothing there, or nothing that can be read: its simulator is judged anew
            rows = []
        return cls(folder, simulator, main_rows(_of(simulator, rows), OURS))

    def was_judged_on(self, task: str, marks: tuple[str, ...]) -> bool:
        """Whether its own errors can be compared: they are of all trajectories with these marks (see `PerTrajectory`),
        or of so many of them that a difference can be significant."""
        common = set(marks) & set(self.errors[task].marks) if task in self.errors else set()
        return bool(common) and (len(common) == len(set(marks)) or decidable(len(common)))

    def gates(self, rows: Iterable[PerTrajectory]) -> tuple[Gate, ...]:
        """A gate for each task of another run on which the champion's errors are known.

        Args:
            rows: The errors of that run: of its own simulator, and of the champion's where that was judged beside it.
        """
        rows = list(rows)
        ours, judged, pairs = main_rows(rows, OURS), main_rows(_of(self.simulator, rows), CHAMPION), []
        for task, mine in ours.items():
            own = self.errors.get(task)
            shared = len(set(mine.marks) & set(own.marks)) if own is not None else 0
            if own is not None and self.was_judged_on(task, mine.marks):
                all_of_them = shared == len(set(mine.marks))
                note = "" if all_of_them else f"on the {shared} of {len(mine.marks)} test trajectories that both have"
                pairs.append((mine, own, note))
            elif task in judged:
                note = f"its own test trajectories are others ({shared} in common), so its simulator was judged on "
                pairs.append((mine, judged[task], note + "these, some of which it may have been trained on"))
        return tuple(against(self.folder, *pair, comparisons=len(pairs)) for pair in pairs)


def digest_of(run: RunDir) -> str:
    """The SHA-256 of the file of a run's simulator; empty where it is gone."""
    artifact = run.artifact("simulator")
    return sha256(artifact) if artifact.is_file() else ""


def _of(simulator: str, rows: Iterable[PerTrajectory]) -> list[PerTrajectory]:
    """The rows of the simulator with this SHA-256; none where it is empty."""
    return [row for row in rows if simulator and row.simulator == simulator]
