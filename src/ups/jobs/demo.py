"""The demo: makes and checks three small data sets, trains one simulator on all, then one that draws ensembles."""

from __future__ import annotations

import time
from importlib import resources
from pathlib import Path
from typing import Protocol

from ups.config import fingerprint, load
from ups.data import open_source
from ups.eval.fourier import available
from ups.jobs.inspect import problems
from ups.pages import Page, Section, film_lines, film_maps, space_time
from ups.physics import TASKS
from ups.progress import Screen
from ups.run.config import RunConfig, run_config
from ups.run.data.data_config import DataConfig
from ups.run.data.generate import equation_of, generate
from ups.run.judging.conclusion import Finish
from ups.run.run import Run, finish_alone
from ups.run.start import Start
from ups.rundir import RunDir
from ups.verdict import FINISHED

Carried = tuple[RunDir, Finish]


class CarryOut(Protocol):
    """Carries a run out; its folder, and how it ended."""

    def __call__(self, config: RunConfig, screen: Screen, start: Start) -> Carried: ...


def demo(
    out: Path, config: Path | None, screen: Screen, ensemble: Path | None = None, carry_out: CarryOut = finish_alone
) -> list[Carried]:
    """Make the data of the config (the demo's own by default) beside `out`, check them, train, and write both pages;
    then the same for the run of `ensemble`, which goes on from the first.

    Where the extra `baselines` is installed, an FNO of each task is trained beside it, for the same time in all.
    `carry_out` carries out the first of the runs; one that did not come to its end is not followed by the second.
    """
    name = {"out": str(out.parent), "name": out.name}
    if config is None:
        config, ensemble = _own("demo.yaml"), ensemble or _own("demo-ensemble.yaml")
    settings = load(run_config(), config, name)
    Run.open(
        settings, start=Start(overwrite=True)
    ).folder.close()  # what cannot be trained there is refused before data are made
    began = time.monotonic()
    page, files = make_data(settings, out.with_name(f"{out.name}-data"), screen)
    made = time.monotonic() - began
    screen.say(f"data: {page}")
    filled = {label: {**data.model_dump(), "file": str(files[label])} for label, data in settings.data.items()}
    judged = settings.evaluation.model_dump()
    if available():  # an FNO beside ours, trained for the same time on top
        judged["baselines"] = (*judged["baselines"], *({"fno"} - {*judged["baselines"]}))
    settings = run_config().model_validate({**settings.model_dump(), "data": filled, "evaluation": judged})
    runs = [carry_out(settings, screen, Start(overwrite=True, before=("data", made)))]
    if ensemble is not None and runs[0][1].ending in FINISHED:
        name = {"out": str(out.parent), "name": f"{out.name}-ensemble", "start_from": str(out)}
        onward = load(run_config(), ensemble, name)
        onward_data = {label: {**data.model_dump(), "file": str(files[label])} for label, data in onward.data.items()}
        onward = run_config().model_validate({**onward.model_dump(), "data": onward_data})
        screen.say("")
        earlier = ("the run before it", time.monotonic() - began)
        runs.append(finish_alone(onward, screen, Start(overwrite=True, before=earlier)))
    return runs


def _own(name: str) -> Path:
    """A config that comes with the program."""
    return Path(str(resources.files("ups.configs").joinpath(name)))


def make_data(settings: RunConfig, folder: Path, screen: Screen) -> tuple[Path, dict[str, Path]]:
    """Make and check the data sets of a config, and show them on a page in `folder`."""
    page = Page(
        title="Data made by the Universal Physics Stack",
        lead="Each data set below was solved from random initial states, stored in PDEBench's layout, read back, and "
        "checked. Press play, or drag the slider through time.",
        foot=f"Config {fingerprint(settings)}. This page needs no network.",
    )
    began, files = time.monotonic(), {}
    for label, data in settings.data.items():
        (files[label],) = generate(data.generation(), folder, screen.following)
        page.sections.append(_section(data, files[label]))
        screen.say(f"{data.task}: {files[label]} ({page.sections[-1].verdict})")
    screen.say(f"made and checked {len(page.sections)} data sets in {time.monotonic() - began:.0f} s")
    return page.write(folder / "data.html"), files


def _section(config: DataConfig, path: Path) -> Section:
    """One data set: what it is, whether it is sound, and how it looks."""
    faults = [sentence for _, sentence in problems([path])]
    kind = type(equation_of(config))
    with open_source(path, TASKS) as source:
        shown = [source[i] for i in range(min(3, len(source)))]
        cells = " × ".join(map(str, source.grid.shape))
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
        verdict="; ".join(faults) or "validated: nothing wrong found",
        good=not faults,
    )
    if shown[0].task.ndim == 1:
        section.pictures.append(("Space and time: each row of a picture is one moment.", space_time(shown)))
        section.films.append(film_lines(shown))
    else:
        section.films += [film_maps(s) for s in shown[:2]]
    return section
