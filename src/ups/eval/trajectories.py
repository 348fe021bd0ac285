"""trajectories.json: the error on every single test trajectory, by which two runs are compared in pairs; no torch."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ups.files import write_atomic
from ups.parsing import encoded, read_record
from ups.run_files import TRAJECTORIES
from ups.types import OURS, DataError

if TYPE_CHECKING:
    from ups.tensors import Window

ABOUT = (
    "nRMSE of each trajectory, with its mean and 95 % interval. Trajectories of one mark are the same to the bit: the "
    "same frames given, the same to predict."
)


@dataclass(frozen=True)
class PerTrajectory:
    """The errors of one predictor on one part of a task, trajectory by trajectory.

    Args:
        task: The task's name.
        split: The part.
        predictor: Who predicted.
        protocol: How it was asked to.
        value: The mean error.
        low: The lower end of its 95 % interval.
        high: The upper end.
        ids: The trajectories' names.
        marks: Hashes of what is in them: two runs may be compared on trajectories of equal marks.
        nrmse: The error on each.
        simulator: The SHA-256 of the file of the simulator that predicted, where it was one of a run.
        verdict: What the report says of it on the test part.
        vrmse: The mean VRMSE; NaN where it is not known.
    """

    task: str
    split: str
    predictor: str
    protocol: str
    value: float
    low: float
    high: float
    ids: tuple[str, ...]
    marks: tuple[str, ...]
    nrmse: tuple[float, ...]
    simulator: str = ""
    verdict: str = ""
    vrmse: float = math.nan

    @property
    def median(self) -> float:
        """The error that half of the trajectories do not exceed."""
        return statistics.median(self.nrmse)

    @property
    def by_mark(self) -> dict[str, float]:
        return dict(zip(self.marks, self.nrmse, strict=True))


def mark_of(window: Window, row: int, robust: bool = False) -> str:
    """A hash of what is asked of a sample: the last frame given, the last to predict, and how many there are; another
    one where its error is `robust`, so that no two kinds of errors are compared."""
    digest = hashlib.blake2b(repr((window.task.name, window.context.shape[1:], window.targets.shape[1:])).encode())
    for values in (window.context[row, -1], window.targets[row, -1], window.params[row]):
        digest.update(values.detach().cpu().float().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16] + "r" * robust


def write(folder: Path, rows: Iterable[PerTrajectory]) -> Path:
    """The file in a folder, replaced in one step."""
    lines = (json.dumps(asdict(row) | _words(row), ensure_ascii=False, allow_nan=False) for row in rows)
    write_atomic(folder / TRAJECTORIES, f'{{"about": {json.dumps(ABOUT)}, "rows": [\n' + ",\n".join(lines) + "\n]}\n")
    return folder / TRAJECTORIES


def read(folder: Path) -> list[PerTrajectory]:
    """What stands in the file of a folder; a DataError where it is not there, damaged, or contradicts itself."""
    path = folder / TRAJECTORIES
    try:
        rows = [_row(values) for values in read_record(path)["rows"]]
        if not main_rows(rows, OURS):
            raise ValueError(f"it holds no errors of {OURS}")
    except FileNotFoundError:
        raise DataError(f"{path}: is not there; `ups evaluate {folder}` writes it.") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise DataError(f"{path}: is damaged ({reason}); `ups evaluate {folder}` writes it again.") from None
    return rows


def main_rows(rows: Iterable[PerTrajectory], predictor: str) -> dict[str, PerTrajectory]:
    """The first row of a predictor for each task: that of the test part, which comes before what lies beyond it."""
    tasks: dict[str, PerTrajectory] = {}
    for row in rows:
        if row.predictor == predictor:
            tasks.setdefault(row.task, row)
    return tasks


def _row(values: Any) -> PerTrajectory:
    row = PerTrajectory(
        task=str(values["task"]),
        split=str(values["split"]),
        predictor=str(values["predictor"]),
        protocol=str(values["protocol"]),
        value=float(values["value"]),
        low=float(values["low"]),
        high=float(values["high"]),
        ids=tuple(map(str, values["ids"])),
        marks=tuple(map(str, values["marks"])),
        nrmse=tuple(map(float, values["nrmse"])),
        simulator=str(values["simulator"]),
        verdict=str(values["verdict"]),
        vrmse=float(values.get("vrmse", math.nan)),
    )
    if not len(row.ids) == len(row.marks) == len(row.nrmse):
        raise ValueError("its lists are of different lengths")
    if not row.ids:
        raise ValueError(f"it names no trajectory of {row.task}")
    return row


def _words(row: PerTrajectory) -> dict[str, Any]:
    """Its numbers as JSON can say them, which has no infinity."""
    return {
        **{name: _rounded(getattr(row, name)) for name in ("value", "low", "high", "vrmse")},
        "nrmse": [_rounded(value) for value in row.nrmse],
    }


def _rounded(value: float) -> object:
    return encoded(float(f"{value:.8g}"))
