"""`ups doctor`: whether ranks can be trusted here, and where a config's own model fails on them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from ups.cli.numbers import Whole
from ups.screen import waiting
from ups.types import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from ups_fleet.doctor.findings import DoctorLine

MARKS = {"good": ("✓", "green"), "doubtful": ("!", "yellow"), "bad": ("✗", "red")}


def doctor(
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)],
    ranks: Whole | None = None,
    device: Literal["auto", "cpu", "cuda"] | None = None,
    folder: Path | None = None,
    rendezvous: str = "",
    limit: float = 60.0,
    json_out: Annotated[Path | None, Parameter(name="--json")] = None,
) -> int:
    """Check this machine and real ranks on it: packages, devices, memory, disk, network, training, checkpoints, faults.

    Starts real processes that exchange numbers, and short runs: replicated and sharded against one process, going on
    from a checkpoint, out of memory, with a rank lost. Takes about a minute; trains nothing of yours.

    With CONFIG (a YAML file; any key is a flag, with dots for the levels) it goes on to the config's own model: builds
    it, runs it in one process, then replicated and sharded, whole and block by block, and names the smallest part that
    raises, crashes, hangs, is not finite or differs. No data are needed.

    Every line is green, yellow or red; red ones come with advice, and make the exit code 1.

    Parameters
    ----------
    ranks
        Processes to start; 2 by default, or the config's own number.
    device
        auto, cpu or cuda; the config's own by default.
    folder
        Where runs will be kept; `runs`, or the config's `out`, by default.
    rendezvous
        HOST:PORT that a run on several machines would use: its port must be free here.
    limit
        Seconds any check may take before it counts as hung.
    json_out
        Also write all findings to this file.
    """
    from ups.config import file_and_flags, load

    file, overrides = file_and_flags(arguments)
    if overrides and file is None:
        raise ConfigError(f"--{next(iter(overrides))} is a key of a config; write `ups doctor CONFIG` before it.")
    if (ranks is not None and ranks < 1) or limit <= 0:
        raise ConfigError("--ranks and --limit must be above 0.")
    kind: str = device or "auto"
    place, processes, config = folder or Path("runs"), ranks or 2, None
    with waiting("getting ready"):
        from ups_fleet.doctor.all_checks import all_checks
        from ups_fleet.doctor.findings import passed, write

        if file is not None:
            from ups.run.config import run_config

            config = load(run_config(), file, overrides)
            if not config.data:
                raise ConfigError("the config names no data; add a data set under `data:`.")
            place, processes = folder or Path(config.out), ranks or max(2, config.dist.ranks)
            kind = device or config.device
    lines = _show(all_checks(processes, kind, place, rendezvous, limit, config))
    if json_out is not None:
        write(json_out, lines, ranks=processes, device=kind, folder=str(place), config=str(file) if file else None)
    return 0 if passed(lines) else 1


def _show(checks: Iterable[DoctorLine]) -> list[DoctorLine]:
    """Print every line as it comes, under the heading of its group; at the end, how many are what."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    console.width = min(console.width, 120) if console.is_terminal else 120
    lines: list[DoctorLine] = []
    group = ""
    for line in checks:
        if line.group != group:
            group = line.group
            console.print(Text(f"\n{group}", style="bold"))
        console.print(_row(line))
        lines.append(line)
    counts = {state: sum(line.state == state for line in lines) for state in MARKS}
    words = Text("\n")
    for state, (mark, style) in MARKS.items():
        words.append(f"{mark} {counts[state]} {state}   ", style=style if counts[state] else "dim")
    words.append(f"{sum(line.seconds for line in lines):.0f} s", style="dim")
    console.print(words)
    return lines


def _row(line: DoctorLine) -> Table:
    from rich.table import Table
    from rich.text import Text

    mark, style = MARKS[line.state]
    row = Table.grid(padding=(0, 1), expand=True)
    row.add_column(width=3, justify="right")
    row.add_column(width=22)
    row.add_column(ratio=1, overflow="fold")
    row.add_column(width=6, justify="right")
    words = Text(line.found)
    if line.advice:
        words.append(f"\n→ {line.advice}", style=style)
    row.add_row(Text(mark, style=f"bold {style}"), line.name, words, Text(f"{line.seconds:.1f} s", style="dim"))
    return row
