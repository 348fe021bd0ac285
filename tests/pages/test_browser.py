"""The report in a real browser: no error, no request, films that play and obey their slider, sections that unfold."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grids import grid_of
from ups.eval.report import Report
from ups.eval.results import Cost, DataFact, Scored, TaskResult
from ups.eval.rollout import EvalProtocol, evaluate, persistence, reconstruct
from ups.physics import TASKS
from ups.tensors import Window

pytestmark = pytest.mark.browser
CHROMIUM = os.environ.get("UPS_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
GIVEN = EvalProtocol("A", 2)


class Oracle:
    """The truth, disturbed."""

    name = "ups"

    def __init__(self, truth: Window) -> None:
        self.truth = truth

    def predict(self, _: Window, steps: int) -> Tensor:
        return self.truth.targets[:, :steps] * 1.1


def waves(name: str, samples: int = 4, cells: int = 24, ahead: int = 6) -> Window:
    """Sines that move along the first axis."""
    task = TASKS[name]
    x = (torch.arange(cells) + 0.5) / cells
    phase = torch.arange(2 + ahead)[:, None] * 0.07 + torch.rand(samples, 1, 1, generator=torch.Generator())
    field = 1 + torch.sin(6.2832 * (x + phase)).reshape(samples, 2 + ahead, cells, *(1,) * task.ndim)
    values = field.expand(-1, -1, *(cells,) * task.ndim, len(task.channels))
    inputs, params = torch.zeros(samples, *values.shape[2:-1], 0), torch.zeros(samples, 1)
    ids, dt = tuple(map(str, range(samples))), torch.full((samples,), 0.1)
    return Window(
        task, values[:, :2], values[:, 2:], inputs, params, dt, grid_of(inputs, task.periodic, (1.0,) * task.ndim), ids
    )


def result(name: str) -> TaskResult:
    w, cost = waves(name), Cost(170_000, 2000, 80.5, "cpu")
    far = "new trajectories, 48 cells (zero-shot)"
    return TaskResult(
        ours=Scored(evaluate(Oracle(w), [w], GIVEN), cost),
        persistence=Scored(evaluate(persistence, [w], GIVEN)),
        reconstruction=Scored(reconstruct(lambda window, _: window.targets * 1.001, "cpu", [w], GIVEN)),
        beyond=tuple(Scored(evaluate(who, [w], GIVEN, far, examples=0)) for who in (Oracle(w), persistence)),
    )


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = (DataFact("burgers1d", "1D_Burgers_Sols_Nu0.01.hdf5", "ab12", "80/10/10", "24", 8, "nu = 0.01"),)
    made = Report("A run", (result("burgers1d"), result("reacdiff2d")), "a: 1\n", "f00d", 7, data)
    return made.write(tmp_path_factory.mktemp("run"))[0]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    if CHROMIUM is None:
        pytest.skip("needs chromium (or UPS_CHROMIUM, the path of a browser of its family)")
    with api.sync_playwright() as play:
        opened = play.chromium.launch(executable_path=CHROMIUM, headless=True, args=list(FLAGS))
        yield opened
        opened.close()


@pytest.fixture
def tab(browser: Any, page: Path) -> Iterator[Any]:
    """The report, opened from the disk; it must have complained of nothing and fetched nothing when a test is done."""
    complaints: list[str] = []
    asked: list[str] = []
    tab = browser.new_page(viewport={"width": 1100, "height": 900})
    tab.on("console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(page.as_uri())
    yield tab
    tab.close()
    assert not complaints
    assert [url for url in asked if not url.startswith("data:")] == [page.as_uri()], "a report needs no network"


def test_films_play_pause_and_obey_the_slider(tab: Any) -> None:
    films = tab.locator("figure.film")
    assert films.count() == 2
    for i in range(2):
        film = films.nth(i)
        image, button, slider, said = (film.locator(tag) for tag in ("img", "button", "input", "output"))
        first = image.get_attribute("src")
        slider.fill("4")
        assert image.get_attribute("src") != first
        assert said.inner_text() == "t = 0.5"
        button.click()
        assert button.inner_text() == "pause"
        tab.wait_for_function("([image, was]) => image.src !== was", arg=[image.element_handle(), first], timeout=5000)
        button.click()
        assert button.inner_text() == "play"
        still = image.get_attribute("src")
        tab.wait_for_timeout(300)
        assert image.get_attribute("src") == still, "a paused film stands still"


def test_folded_sections_unfold_and_hold_their_numbers(tab: Any) -> None:
    folds = tab.locator("details")
    assert folds.count() == 3
    for i in range(3):
        content = folds.nth(i).locator("table, pre").first
        assert not content.is_visible()
        folds.nth(i).locator("summary").click()
        assert content.is_visible()


def test_every_picture_is_drawn_and_nothing_overflows_the_page(tab: Any) -> None:
    assert tab.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 100)")
    assert tab.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    tab.set_viewport_size({"width": 420, "height": 800})
    assert tab.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), "on a phone"
