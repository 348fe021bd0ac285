"""`csv`: one table per stage, `csv/<stage>.csv`, for a spreadsheet; a row per line of the log, a column per value."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ups.files import write_atomic
from ups_fleet.tracking.log_reader import WHOLE_RUN, LogRow
from ups_fleet.tracking.mirror import Mirror, RunEnding


@dataclass
class Csv(Mirror):
    """Appends rows; a value that comes for the first time gets a column at the end, empty in the rows before it."""

    tables: dict[str, _Table] = field(default_factory=dict)
    name = "csv"

    def open(self) -> None:
        (self.facts.folder / "csv").mkdir(parents=True, exist_ok=True)

    def send(self, rows: Sequence[LogRow]) -> None:
        for row in rows:
            for stage, named in row.by_stage().items():
                self._append(stage, {"step": row.step, "time": _clock(row.time), **named})

    def close(self, conclusion: RunEnding) -> None:
        ended = {"step": "", "time": _clock(time.time()), "ending": conclusion.ending, "cause": conclusion.cause}
        self._append(WHOLE_RUN, ended)

    def _append(self, stage: str, row: Mapping[str, float | str]) -> None:
        if stage not in self.tables:
            self.tables[stage] = _Table(self.facts.folder / "csv" / f"{stage}.csv")
        self.tables[stage].append(row)


class _Table:
    """A CSV file, begun anew, whose header grows."""

    def __init__(self, path: Path) -> None:
        self.path, self.columns = path, list[str]()

    def append(self, row: Mapping[str, float | str]) -> None:
        row = {_one_line(name): value for name, value in row.items()}
        new = [name for name in row if name not in self.columns]
        if new:
            self._widen(new)
        with self.path.open("a", newline="") as file:
            file.write(_line(row.get(name, "") for name in self.columns))

    def _widen(self, new: Iterable[str]) -> None:
        """Replace the header by one with more columns; rows may be shorter than it."""
        rows = self.path.read_bytes().partition(b"\n")[2] if self.columns else b""
        columns = [*self.columns, *new]
        write_atomic(self.path, _line(columns).encode() + rows)
        self.columns = columns


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _line(cells: Iterable[float | str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow([_one_line(cell) for cell in cells])
    return buffer.getvalue()


def _one_line(cell: float | str) -> str:
    return " ".join(str(cell).splitlines())
