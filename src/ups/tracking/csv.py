"""`csv`: one table per stage, `csv/<stage>.csv`, for a spreadsheet; a row per line of the log, a column per value."""

from __future__ import annotations

import csv
import io
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ups.files import write_atomic
from ups.tracking.tracker import Tracker, Values, by_stage, to_stderr


class Csv(Tracker):
    """Appends rows; a value that comes for the first time gets a column at the end, empty in the rows before it."""

    place = "csv"

    def __init__(self, folder: Path, say: Callable[[str], None] = to_stderr) -> None:
        super().__init__(folder, say)
        self.tables: dict[str, _Table] = {}

    def write(self, step: int, values: Values) -> None:
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        for stage, named in by_stage(values).items():
            if stage not in self.tables:
                self.tables[stage] = _Table(self.path / f"{stage}.csv")
            self.tables[stage].append({"step": step, "time": now, **named})


class _Table:
    """A CSV file whose header grows. A line that a kill or a full disk tore is cut off, for half a number is wrong."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.columns: list[str] = []
        self.torn = True  # the file has not been looked at since something may have torn it

    def append(self, row: Mapping[str, float | str]) -> None:
        row = {_one_line(name): value for name, value in row.items()}
        if self.torn:
            self._mend()
        self.torn = True
        new = [name for name in row if name not in self.columns]
        if new:
            self._widen(new)
        with self.path.open("a", newline="") as file:
            file.write(_line(row.get(name, "") for name in self.columns))
        self.torn = False

    def _mend(self) -> None:
        """Cut what follows the last whole line, and read the header."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        data = self.path.read_bytes() if self.path.exists() else b""
        lines = data[: data.rfind(b"\n") + 1]
        if len(lines) < len(data):
            os.truncate(self.path, len(lines))
        self.columns = next(csv.reader(lines.decode(errors="replace").splitlines()), [])

    def _widen(self, new: Iterable[str]) -> None:
        """Replace the header by one with more columns; rows may be shorter than it."""
        rows = self.path.read_bytes().partition(b"\n")[2] if self.columns else b""
        columns = [*self.columns, *new]
        write_atomic(self.path, _line(columns).encode() + rows)
        self.columns = columns


def _line(cells: Iterable[float | str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow([_one_line(cell) for cell in cells])
    return buffer.getvalue()


def _one_line(cell: float | str) -> str:
    return " ".join(str(cell).splitlines())
