"""The results of a lab as a table: on the screen, as JSON, and in a page between two marks."""

from __future__ import annotations

import json
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ups.files import write_atomic, write_named
from ups.types import DataError
from ups_fleet.fault_tests.case import CaseResult

COLUMNS = (
    *("fault", "run", "skipped", "hung", "lost steps", "dup. or missing", "false success", "broken", "equal bits"),
    *("repeated", "detected", "recovered", "per case"),
)
PUBLISHED = ("fault", "run", "broken", "equal bits", "detected", "recovered")
BEGIN, END = "<!-- results of `ups faults` -->", "<!-- end of results -->"


def summary(results: Sequence[CaseResult]) -> list[tuple[str, ...]]:
    """One row per family and one for all; times are medians, lost steps the most of any case."""
    families = sorted({r.case["family"] for r in results}, key=lambda name: int(name[1:]))
    table: list[tuple[str, ...]] = [COLUMNS]
    for name in [*families, "all"]:
        drawn = [r for r in results if name in (r.case["family"], "all")]
        some = [r for r in drawn if not r.skipped]
        wanted = [r for r in some if r.case["bits"]]
        table.append(
            (
                name,
                str(len(some)),
                str(len(drawn) - len(some)),
                str(sum(r.hung for r in some)),
                str(max((r.lost for r in some), default=0)),
                str(sum(r.missing + r.duplicated for r in some)),
                str(sum(r.false_success for r in some)),
                str(sum(bool(r.broken) for r in some)),
                f"{sum(r.equal for r in wanted)} of {len(wanted)}",
                str(sum(r.repeated for r in some)),
                _median(r.detection for r in some),
                _median(r.recovery for r in some),
                _median(r.seconds for r in some),
            )
        )
    return table


def _median(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.2f} s" if known else "-"


def skipped_words(results: Sequence[CaseResult]) -> str:
    """How many cases this machine could not run, and for want of what; empty where it could run all."""
    reasons = Counter(r.skipped for r in results if r.skipped)
    return ", ".join(f"{count} skipped: needs {reason}" for reason, count in sorted(reasons.items()))


def markdown(head: Mapping[str, Any], results: Sequence[CaseResult]) -> str:
    """The table of a page, with what it depends on: `head` is the first line of the journal."""
    request, machine = head["request"], head["environment"]
    versions = machine["versions"]
    flags = {"seed": request["seed"], "ranks": ",".join(map(str, request["ranks"]))}
    flags |= {"strategies": ",".join(request["strategies"]), "only": ",".join(request["only"])}
    command = f"ups faults --faults {request['faults']} " + " ".join(f"--{k} {v}" for k, v in flags.items() if v != "")
    complete = len(results) == request["faults"]
    names, *table = summary(results)
    whole = dict(zip(names, table[-1], strict=True))
    places = [names.index(name) for name in PUBLISHED]
    rows = [f"| {' | '.join(row[n].replace(' of ', '/').removesuffix(' s') for n in places)} |" for row in table]
    facts = [
        f"`{command}`",
        f"{len(results)} cases{'' if complete else ' of ' + str(request['faults'])}",
        *filter(None, [skipped_words(results)]),
        machine["started"][:10],
        f"ups {versions['ups']} (source {request['code']}), torch {versions['torch']}, Python {versions['python']}",
        f"{machine['platform']}, {machine['cores']} cores",
        f"{whole['hung']} hung, {whole['false success']} false successes, {whole['dup. or missing']} samples missing "
        f"or twice, at most {whole['lost steps']} steps made again, {whole['repeated']} repeated",
        f"{whole['per case']} a case",
    ]
    titles = " | ".join((*PUBLISHED[:-2], *(f"{name} (s)" for name in PUBLISHED[-2:])))
    return "\n".join(["; ".join(facts) + ".", "", f"| {titles} |", "|" + "---|" * len(PUBLISHED), *rows])


def write_page(page: Path, text: str) -> None:
    """Put the table of a page in place of the one between its marks."""
    try:
        before, begin, rest = page.read_text().partition(BEGIN)
        _, end, after = rest.partition(END)
    except OSError as error:
        raise DataError(f"{page}: cannot be read ({error.strerror}); name a page that is there.") from None
    if not (begin and end):
        raise DataError(f"{page}: has no lines '{BEGIN}' and '{END}' for the table to go between; add them.")
    write_atomic(page, f"{before}{BEGIN}\n{text}\n{END}{after}")


def write_json(path: Path, head: Mapping[str, Any], results: Sequence[CaseResult], seconds: float) -> None:
    """All results as JSON, with what was asked for and the environment."""
    names, *rows = summary(results)
    values = {
        **head,
        "load": os.getloadavg(),
        "seconds": round(seconds, 1),
        "summary": [dict(zip(names, row, strict=True)) for row in rows],
        "cases": [asdict(r) for r in results],
    }
    text = json.dumps(values, indent=1, ensure_ascii=False, default=str) + "\n"
    write_named(path, text, "choose another --json")
