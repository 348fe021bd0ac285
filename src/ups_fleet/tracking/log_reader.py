"""Reading metrics.jsonl from any position, and what of it a resumed run has overruled."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ups.parsing import parse_json

PIECE = 1 << 20  # bytes that are read at once
WHOLE_RUN = "run"  # stands for the stage of values without one


@dataclass(frozen=True)
class LogRow:
    """A line of the log. `number` is that of the line, from 0; null in the log is nan here."""

    number: int
    step: int
    time: float
    values: Mapping[str, float | str]

    @property
    def stage(self) -> str:
        """What its values belong to; fit to be the name of a file."""
        return next(iter(self.by_stage()), WHOLE_RUN)

    def by_stage(self) -> dict[str, dict[str, float | str]]:
        """Values named `<stage>/<name>`, by stage and name; those without a stage belong to the whole run."""
        stages: dict[str, dict[str, float | str]] = {}
        for full, value in self.values.items():
            stage, slash, name = full.partition("/")
            stage, name = (re.sub(r"[^\w-]", "_", stage), name) if slash else (WHOLE_RUN, full)
            stages.setdefault(stage, {})[name] = value
        return stages


class LogReader:
    """Reads whole lines from `position` on, which is that of line `number`; half a line waits for its end.

    A line that a kill has torn holds no row, and is passed over.
    """

    def __init__(self, path: Path, position: int = 0, number: int = 0) -> None:
        self.path, self.position, self.number = path, position, number

    def read(self) -> list[LogRow]:
        """The next rows, at most about a megabyte of them; none where there are no further lines yet."""
        rows: list[LogRow] = []
        while not rows and (lines := self._lines()):
            for line in lines:
                row = _row(self.number, line)
                rows += [] if row is None else [row]
                self.number += 1
                self.position += len(line)
        return rows

    def all(self) -> Iterator[LogRow]:
        """Every row that is there by now."""
        while rows := self.read():
            yield from rows

    def _lines(self) -> list[bytes]:
        try:
            with self.path.open("rb") as file:
                file.seek(self.position)
                piece = file.read(PIECE)
                while not (end := piece.rfind(b"\n") + 1) and (more := file.read(PIECE)):
                    piece += more
        except FileNotFoundError:
            return []
        return piece[:end].splitlines(keepends=True)


def whole_lines(path: Path) -> int:
    """The size of the log, without half a line at its end."""
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - PIECE)
            file.seek(start)
            end = file.read().rfind(b"\n") + 1
    except FileNotFoundError:
        return 0
    return start + end if end else 0


def _row(number: int, line: bytes) -> LogRow | None:
    try:
        values = parse_json(line)
        step, time = values.pop("step"), values.pop("time")
        numbers = {name: math.nan if value is None else value for name, value in values.items()}
        return LogRow(number, int(step), float(time), numbers)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


@dataclass
class Overruled:
    """What of a log no longer holds: a stage whose step goes back, or that says the same again, has begun another life
    and takes again the steps after a checkpoint. What was said of later steps in earlier lives no longer holds.

    Of a step that is there in two lives, the later value of each name is true. Told every row in its order.
    """

    lives: dict[str, tuple[int, int]] = field(default_factory=dict)  # by stage: life, last step
    _rows: dict[str, dict[int, list[tuple[int, int, set[str]]]]] = field(default_factory=dict)

    def goes_back(self, row: LogRow) -> bool:
        """Whether a row begins another life of its stage. Notes may come again in one."""
        life, last = self.lives.get(row.stage, (0, -1))
        here = self._rows.get(row.stage, {}).get(row.step, ())
        names = set(row.values) - {f"{row.stage}/note"}
        return row.step < last or any(names & held for _, of, held in here if of == life)

    def add(self, row: LogRow) -> None:
        stage, names = row.stage, set(row.values)
        life, _ = self.lives.get(stage, (0, -1))
        if self.goes_back(row):
            life += 1
        steps = self._rows.setdefault(stage, {})
        if row.step < self.lives.get(stage, (0, -1))[1]:
            for step in [step for step in steps if step > row.step]:
                del steps[step]
        for _, earlier, held in steps.setdefault(row.step, []):
            if earlier < life:
                held -= names
        steps[row.step].append((row.number, life, names))
        self.lives[stage] = (life, row.step)

    def holding(self) -> dict[int, set[str]]:
        """The names that still hold, by number of the row."""
        rows = (row for steps in self._rows.values() for group in steps.values() for row in group)
        return {number: names for number, _, names in rows if names}


def holding_rows(rows: list[LogRow], names: Mapping[int, set[str]]) -> list[LogRow]:
    """The rows, with only what `Overruled.holding` says still holds."""
    pairs = ((row, names.get(row.number)) for row in rows)
    return [replace(row, values={n: v for n, v in row.values.items() if n in held}) for row, held in pairs if held]
