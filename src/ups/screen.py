"""What a person sees while a job runs: bars on a terminal, plain lines elsewhere, and tables."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import TaskID

    from ups.engine.train import Progress as TrainingProgress
    from ups.run.datasets import Watch
    from ups.run.generate import Progress, Report

# Seconds between two lines of progress where there is no terminal.
EVERY = 10.0
SLOW_INPUT = 0.05  # share of the time above which waiting for data is worth a word


@contextmanager
def following() -> Iterator[Report]:
    """Shows progress: a bar with an ETA on a terminal, a plain line now and then elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield plain_lines()
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total}"),
        TimeElapsedColumn(),
    )
    with Bar(*columns, TextColumn("left"), TimeRemainingColumn(), console=console) as bar:
        rows: dict[str, TaskID] = {}

        def report(progress: Progress) -> None:
            if progress.name not in rows:
                rows[progress.name] = bar.add_task(progress.name, total=progress.total)
            if progress.note:
                bar.console.print(f"{progress.name}: {progress.note}", highlight=False)
            bar.update(rows[progress.name], completed=progress.done)

        yield report


def training() -> Watch:
    """A line now and then while a stage is trained, and whatever it has to say."""
    said: dict[str, tuple[float, str]] = {}

    def watch(p: TrainingProgress) -> None:
        now, (then, before) = time.monotonic(), said.get(p.stage, (-EVERY, ""))
        if p.note:
            print(f"{p.stage}: {p.note}", file=sys.stderr, flush=True)
        elif now - then >= EVERY or p.fraction >= 1:
            line = (
                f"{p.stage}: {p.fraction:4.0%}  step {p.step}  loss {p.loss:.3g}  validation {p.score:.3g}  "
                f"{p.samples_per_second:.0f} samples/s  {p.memory / 1e9:.1f} GB  {p.eta:.0f} s left"
            )
            if p.input_wait > SLOW_INPUT:
                line += f"  ({p.input_wait:.0%} of the time waiting for data)"
            if line != before:
                print(line, file=sys.stderr, flush=True)
            said[p.stage] = (now, line)

    return watch


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text in columns, the header first."""
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def show(rows: Sequence[Sequence[str]], said: Sequence[str], page: Path) -> None:
    """The table of a report, what there is to say about it, and where its page is."""
    print(table(rows), *said, page, sep="\n", flush=True)


def plain_lines() -> Report:
    began: dict[str, tuple[float, float]] = {}
    said: dict[str, float] = {}

    def report(progress: Progress) -> None:
        now = time.monotonic()
        if progress.note:
            print(f"{progress.name}: {progress.note}", file=sys.stderr, flush=True)
        start, first = began.setdefault(progress.name, (now, progress.done))
        whole = progress.done == progress.total
        if (not whole and now - said.get(progress.name, -EVERY) < EVERY) or said.get(progress.name) == math.inf:
            return
        said[progress.name] = math.inf if whole else now
        made = progress.done - first
        left = f", about {(now - start) / made * (progress.total - progress.done):.0f} s left" if made else ""
        kept = "" if whole else f" solved, {progress.kept} kept"
        print(f"{progress.name}: {progress.done:.0f} of {progress.total}{kept}{left}", file=sys.stderr, flush=True)

    return report
