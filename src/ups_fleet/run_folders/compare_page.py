"""The page of a comparison: one file with the result, the errors, the settings that differ and the curves overlaid."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ups.eval.learning import SCORE
from ups.pages import Page, Section
from ups.pages.charts import Curve, chart
from ups.types import DataError
from ups_fleet.run_folders.candidate import Candidate
from ups_fleet.run_folders.compare import RunComparison

MOST = 12  # runs whose curves are drawn over each other


def page_of(comparison: RunComparison) -> Page:
    """Everything there is to say of the runs."""
    names = ", ".join(run.name for run in comparison.runs)
    page = Page(f"Runs compared: {names}" if len(names) < 100 else f"{len(comparison.runs)} runs compared", "")
    page.lead = "Errors on the same test trajectories, in pairs; intervals of 95 % hold for all comparisons together."
    sentences = comparison.sentences()
    page.sections = [Section("Result", verdict="\n".join(sentences), good=not comparison.unpaired)]
    if pairs := comparison.pairs_table():
        text = "First less second: below zero, the first is better."
        page.sections.append(Section("Differences", text, pairs))
    page.sections.append(Section("Errors", table=comparison.errors_table()))
    settings = comparison.settings_table()
    page.sections.append(Section("Settings that differ", "" if settings else "None.", settings))
    page.sections += curve_sections(comparison.runs)
    rows = [("run", "state", "folder"), *((r.name, r.state.sentence, str(r.folder.folder)) for r in comparison.runs)]
    page.sections.append(Section("The runs", table=tuple(rows)))
    page.foot = "This page needs no network."
    return page


def curve_sections(runs: Sequence[Candidate]) -> list[Section]:
    """The learning curves of all runs, one chart for each stage and number."""
    kinds = dict.fromkeys((curve.stage, curve.name, curve.title) for run in runs for curve in run.curves)
    pictures = []
    for stage, name, title in kinds:
        lines = []
        for run in runs[:MOST]:
            for curve in (c for c in run.curves if (c.stage, c.name) == (stage, name)):
                lines.append(Curve(run.name, np.array(curve.steps), np.array(curve.values)))
        label = "validation score" if name == SCORE else name
        pictures.append((f"{title} against steps", chart(lines, "step", label)))
    text = f"Of the first {MOST} runs." if len(runs) > MOST else ""
    return [Section("Learning curves", text, pictures=pictures)] if pictures else []


def write_page(page: Page, path: Path) -> Path:
    """The file; a DataError where it cannot be written."""
    try:
        return page.write(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error}); choose another --out.") from error
