"""The demo: three small data sets made from nothing, checked, and shown on a page."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import resources
from pathlib import Path

from ups.config import fingerprint, load
from ups.data import open_source
from ups.jobs.generate import Report, equation_of, generate
from ups.jobs.inspect import problems
from ups.jobs.settings import GenerateConfig, RunConfig
from ups.pages import Page, Section, film_lines, film_maps, space_time
from ups.physics import TASKS

Say = Callable[[str], None]
Follow = Callable[[], AbstractContextManager[Report]]


def demo(out: Path, config: Path | None, say: Say, follow: Follow) -> Path:
    """Make the data of the config (the demo's own by default) under `out`, check them, and write the page."""
    settings = load(RunConfig, config or Path(str(resources.files("ups.configs").joinpath("demo.yaml"))))
    page = Page(
        title="Data made by the Universal Physics Stack",
        lead="Each data set below was solved from random initial states, stored in PDEBench's layout, read back, and "
        "checked. Press play, or drag the slider through time.",
        foot=f"Config {fingerprint(settings)}. This page needs no network.",
    )
    began = time.monotonic()
    for data in settings.data.values():
        with follow() as report:
            path = generate(data, out / "data", report)
        page.sections.append(_section(data, path))
        verdict = page.sections[-1].verdict
        say(f"{data.task}: {path} ({verdict})")
    say(f"made and checked {len(page.sections)} data sets in {time.monotonic() - began:.0f} s; open the page:")
    return page.write(out / "report.html")


def _section(config: GenerateConfig, path: Path) -> Section:
    """One data set: what it is, whether it is sound, and how it looks."""
    found = [sentence for _, sentence in problems([path])]
    kind = type(equation_of(config))
    with open_source(path, TASKS) as source:
        shown = [source[i] for i in range(min(3, len(source)))]
        cells = " × ".join(map(str, source.domain.shape))
        facts = (
            ("file", "trajectories", "frames", "cells", "channels", "parameters", "scheme"),
            (
                path.name,
                str(len(source)),
                str(len(source.times)),
                cells,
                ", ".join(source.task.channels),
                ", ".join(f"{k} = {v}" for k, v in source.params.items()) or "none",
                str(source.attributes()["ups_scheme"]),
            ),
        )
    section = Section(
        title=shown[0].task.title,
        text=(kind.__doc__ or "").split("\n\n")[0],
        table=facts,
        verdict="; ".join(found) or "validated: nothing wrong found",
        good=not found,
    )
    if shown[0].task.ndim == 1:
        section.pictures.append(("Space and time: each row of a picture is one moment.", space_time(shown)))
        section.films.append(film_lines(shown))
    else:
        section.films += [film_maps(s) for s in shown[:2]]
    return section
