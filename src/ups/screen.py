"""What a person sees while a job runs: bars on a terminal, plain lines elsewhere, and tables."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from ups.progress import OnProgress, OnTraining, Progress, TrainingProgress

# Where there is no terminal: seconds between two lines of progress, and before the first line on a wait.
EVERY, AT_FIRST = 10.0, 0.5
SLOW_INPUT = 0.05  # share of the time above which waiting for data is worth a word


@contextmanager
def waiting(sentence: str) -> Iterator[Callable[[str], None]]:
    """Says on stderr what is waited for while the block runs, and for how long.

    On a terminal a line that moves, gone at the end; elsewhere a line after half a second and every ten seconds.

    Args:
        sentence: What is waited for.

    Yields:
        A function that replaces the sentence.
    """
    from rich.console import Console

    console = Console(stderr=True)
    with _spinner(console, sentence) if console.is_terminal else _patience(sentence) as change:
        yield change


@contextmanager
def _spinner(console: Console, sentence: str) -> Iterator[Callable[[str], None]]:
    from rich.progress import Progress as Bar
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        row = bar.add_task(sentence, total=None)
        yield lambda words: bar.update(row, description=words)


@contextmanager
def _patience(sentence: str) -> Iterator[Callable[[str], None]]:
    """`waiting` where there is no terminal: a thread prints the lines."""
    words, over, began = [sentence], threading.Event(), time.monotonic()

    def speak() -> None:
        before = ""
        while not over.wait(EVERY if before else AT_FIRST):
            seconds = time.monotonic() - began
            print(words[0] + (f" ({seconds:.0f} s so far)" if before else ""), file=sys.stderr, flush=True)
            before = words[0]

    thread = threading.Thread(target=speak, name="patience", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no memory for a thread: one word is all there is
        print(sentence, file=sys.stderr, flush=True)
    try:
        yield lambda changed: words.__setitem__(0, changed)
    finally:
        over.set()
        if thread.is_alive():
            thread.join()


@contextmanager
def following(opening: str = "") -> Iterator[OnProgress]:
    """Shows the progress of jobs on stderr while the block runs: bars on a terminal, plain lines elsewhere.

    Args:
        opening: What is waited for before the first progress is reported; nothing is said where it is empty.

    Yields:
        A function that is called with each `Progress`.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        with ExitStack() as start:
            if opening:
                start.enter_context(_patience(opening))
            yield plain_lines(start.close)
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeElapsedColumn(),
    )
    with Bar(*columns, TextColumn("left"), TimeRemainingColumn(), console=console) as bar:
        rows: dict[str, TaskID] = {}
        first = [bar.add_task(opening, total=None, amount="")] if opening else []

        def report(progress: Progress) -> None:
            if first:
                bar.remove_task(first.pop())
            if progress.name not in rows:
                rows[progress.name] = bar.add_task(progress.name, total=progress.total, amount="")
            if progress.note:
                bar.console.print(f"{progress.name}: {progress.note}", highlight=False)
            bar.update(rows[progress.name], completed=progress.done, amount=progress.amount)

        yield report
        for row in first:  # nothing of it was worth a bar
            bar.remove_task(row)


def training() -> OnTraining:
    """A callback of a training: prints a line for a stage every ten seconds and at its end, and its notes at once."""
    lines: dict[str, tuple[float, str]] = {}

    def watch(p: TrainingProgress) -> None:
        now, (then, before) = time.monotonic(), lines.get(p.stage, (-EVERY, ""))
        if p.note:
            print(f"{p.stage}: {p.note}", file=sys.stderr, flush=True)
        elif now - then >= EVERY or p.fraction >= 1:
            line = training_line(p)
            if line != before:
                print(line, file=sys.stderr, flush=True)
            lines[p.stage] = (now, line)

    return watch


def training_line(p: TrainingProgress) -> str:
    """How far the training of a stage is, in one line; what is not known yet is left out."""
    words = [f"{p.stage}: {p.fraction:4.0%}", f"step {p.step}"]
    words += [f"loss {p.loss:.3g}"] if p.step else []
    words += [] if math.isnan(p.score) else [f"validation {p.score:.3g}"]
    words += [f"{p.samples_per_second:.0f} samples/s"] if p.samples_per_second > 0 else []
    words += [f"{p.memory / 1e9:.1f} GB"]
    words += [f"{p.eta:.0f} s left"] if math.isfinite(p.eta) else []
    words += [f"({p.input_wait:.0%} of the time waiting for data)"] if p.input_wait > SLOW_INPUT else []
    return "  ".join(words)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text in columns, the header first."""
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def say(sentence: str) -> None:
    """Print at once, also where the output is a file."""
    print(sentence, flush=True)


class Saying:
    """Prints sentences at once and remembers them, so that a table's remarks need not repeat them."""

    def __init__(self) -> None:
        self._before: set[str] = set()

    def __call__(self, sentence: str) -> None:
        self._before.add(sentence)
        say(sentence)

    def new(self, remarks: Sequence[str]) -> list[str]:
        """Those remarks that have not been printed."""
        return [sentence for sentence in remarks if sentence not in self._before]


def show(rows: Sequence[Sequence[str]], remarks: Sequence[str], page: Path) -> None:
    """Print the table of a report, remarks on it, and as the last line the path of its page."""
    print(table(rows), *remarks, page, sep="\n", flush=True)


def plain_lines(before: Callable[[], None]) -> OnProgress:
    """A callback that prints a line on stderr for each job every ten seconds and at its end; `before` is called first,
    at every report."""
    began: dict[str, tuple[float, float]] = {}
    shown: dict[str, float] = {}

    def report(progress: Progress) -> None:
        before()
        now = time.monotonic()
        if progress.note:
            print(f"{progress.name}: {progress.note}", file=sys.stderr, flush=True)
        start, first = began.setdefault(progress.name, (now, progress.done))
        whole = progress.done == progress.total
        if (not whole and now - shown.get(progress.name, -EVERY) < EVERY) or shown.get(progress.name) == math.inf:
            return
        shown[progress.name] = math.inf if whole else now
        made = progress.done - first
        left = f", about {(now - start) / made * (progress.total - progress.done):.0f} s left" if made else ""
        written = "" if whole or progress.written is None else f" solved, {progress.written} kept"
        tail = f" in {now - start:.0f} s" if whole and made else f"{written}{left}"
        print(f"{progress.name}: {progress.amount}{tail}", file=sys.stderr, flush=True)

    return report
