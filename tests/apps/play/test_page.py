"""The page in a real browser: every control is used; nothing complains, and nothing is asked of anyone else."""

from __future__ import annotations

import io
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("uvicorn", reason="needs the extra `serve`")

from PIL import Image
from small_service import listening, simulator

from ups.models import Simulator
from ups_apps.play.playground import Playground
from ups_apps.serve.limits import ServiceLimits
from ups_apps.serve.service import Service
from ups_apps.serve.shelf import Shelf, Shelved

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


class Page(NamedTuple):
    """A tab on the page of a service."""

    tab: Any
    address: str

    def state(self, expression: str) -> Any:
        """What the page says of itself."""
        return self.tab.evaluate(f"(play => {expression})(window.upsPage)")

    def until(self, expression: str) -> None:
        """Wait until something is true of the page."""
        for _ in range(600):
            if self.state(expression):
                return
            self.tab.wait_for_timeout(50)
        raise AssertionError(f"never: {expression}; {self.tab.inner_text('body')[:600]}")

    def opened(self, link: str = "") -> None:
        """Go there, and wait until it has answered."""
        self.tab.goto("about:blank")
        self.tab.goto(f"{self.address}/{link}")
        self.until("play && play.task && !play.running && play.frames.length > 0")

    def again(self, act: Callable[[], Any]) -> None:
        """Do something that leads to another rollout, and wait for its end."""
        runs = self.state("Math.floor(play.runs)")
        act()
        self.until(f"Math.floor(play.runs) > {runs} && !play.running")
        assert not self.tab.locator("#trouble").is_visible(), self.tab.inner_text("#trouble")

    def slide(self, name: str, value: str) -> None:
        """Move a slider."""
        self.tab.locator(f"#{name}").evaluate(f"s => {{ s.value = '{value}'; s.dispatchEvent(new Event('input')); }}")

    def downloaded(self, button: str) -> bytes:
        """What a button saves."""
        with self.tab.expect_download() as waiting:
            self.tab.click(button)
        return Path(waiting.value.path()).read_bytes()


@pytest.fixture(scope="module")
def made() -> tuple[Simulator, Simulator]:
    return simulator("burgers1d", "reacdiff2d", "darcy2d"), simulator("burgers1d", draws=True, seed=1)


@pytest.fixture(scope="module")
def address(made: tuple[Simulator, Simulator], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    shelf = Shelf([])
    for name, one in zip(("plain", "drawing"), made, strict=True):
        shelf.simulators[name] = Shelved(name, tmp_path_factory.mktemp(name), one)
    service = Service(shelf, ServiceLimits())
    with ExitStack() as stack, listening(Playground(service, stack, print).app(), service) as place:
        yield place


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
def page(browser: Any, address: str) -> Iterator[Page]:
    """A tab; when a test is done it must have complained of nothing and have asked nobody but its own service."""
    complaints: list[str] = []
    asked: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    tab = context.new_page()
    tab.on("console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.on("websocket", lambda socket: asked.append(socket.url.replace("ws:", "http:")))
    yield Page(tab, address)
    context.close()
    assert not complaints
    assert not [url for url in asked if not url.startswith((address, "data:", "blob:", "about:"))]


def test_what_is_shown_is_what_the_simulator_predicts(page: Page, made: tuple[Simulator, Simulator]) -> None:
    page.opened("#task=burgers1d&simulator=plain&start=random&draw=2&steps=5&p.nu=0.02")
    frames = np.array(page.state("play.frames.map(f => [...f])"), np.float32)[..., None]
    expected = made[0].rollout(frames[0], 5, {"nu": 0.02}, 0.01, "burgers1d")
    assert np.allclose(frames[1:], expected, atol=1e-6)
    content = page.downloaded("#save-npz")
    with np.load(io.BytesIO(content)) as file:
        assert np.array_equal(file["frames"], frames)
        assert np.allclose(file["times"], 0.01 * np.arange(6))
        assert float(file["param_nu"]) == pytest.approx(0.02)
    assert zipfile.ZipFile(io.BytesIO(content)).testzip() is None


def test_time_is_played_paused_scrubbed_stepped_and_looped_by_hand_and_by_key(page: Page) -> None:
    page.opened("#task=burgers1d&simulator=plain&start=random&steps=12&frame=3")
    tab, at = page.tab, "play.cursor"
    assert page.state(at) == 3
    tab.click("#forth")
    tab.click("#back")
    tab.keyboard.press("Home")
    assert page.state(at) == 0
    tab.keyboard.press("ArrowRight")
    assert page.state(at) == 1
    tab.keyboard.press("End")
    assert page.state(at) == 12
    page.slide("scrub", "4")
    assert page.state(at) == 4
    assert "t = 0.04" in tab.inner_text("#now")
    tab.select_option("#speed", "60")
    tab.click("#play")
    page.until("play.cursor === 12")
    page.until("play.cursor < 12")  # it loops
    tab.keyboard.press("l")
    assert tab.get_attribute("#loop", "aria-pressed") == "false"
    page.until("!play.playing && play.cursor === 12")
    tab.locator("#stage").click(position={"x": 5, "y": 5})
    tab.keyboard.press(" ")
    page.until("play.playing")
    page.again(lambda: tab.keyboard.press("r"))


def test_sliders_mark_the_trained_range_and_say_what_lies_outside(page: Page) -> None:
    page.opened("#task=burgers1d&simulator=plain&start=random&steps=4")
    tab = page.tab
    assert not tab.locator("#outside").is_visible()
    assert "trained from 0.005 to 0.05" in tab.inner_text("#params")
    page.again(lambda: (tab.fill("#slider-nu-number", "0.3"), tab.keyboard.press("Enter")))
    assert "nu" in tab.inner_text("#outside")
    assert "outside the trained range" in tab.inner_text("#remarks")
    page.again(lambda: page.slide("slider-nu", str(np.log(0.01))))
    assert not tab.locator("#outside").is_visible()
    page.again(lambda: page.slide("slider-steps", "7"))
    assert page.state("play.frames.length") == 8
    page.again(lambda: page.slide("slider-dt", "0.02"))
    assert "dt" in tab.inner_text("#outside")
    for name in ("error", "laws"):
        assert tab.locator(f"#figure-{name} canvas").is_visible()


def test_a_state_is_drawn_with_the_mouse_and_by_key_and_a_link_holds_it(page: Page) -> None:
    page.opened("#task=reacdiff2d&start=random&steps=3")
    tab = page.tab
    assert tab.locator("#views canvas").count() == 1
    tab.check("[name=kind][value=drawn]", force=True)
    page.again(lambda: tab.click("#clear"))
    assert page.state("play.start.state.every(x => x === 0)")
    for tool, size in (("brush", "0.1"), ("bump", "0.2"), ("wave", "0.1")):
        tab.check(f"[name=tool][value={tool}]", force=True)
        page.slide("size", size)
        page.slide("strength", "0.8")
        page.again(lambda: tab.locator("#pad").click(position={"x": 60, "y": 50}))
    page.again(lambda: (tab.focus("#pad"), tab.keyboard.press("ArrowLeft"), tab.keyboard.press("Enter")))
    drawn = page.state("[...play.start.state]")
    assert max(drawn) > 0.3
    tab.keyboard.press("Escape")
    page.again(lambda: (tab.select_option("#field", "1"), tab.click("#run")))
    tab.click("#save-link")
    link = page.state("location.hash")
    frames = page.state("[...play.frames[3]]")
    page.opened(link)
    assert page.state("[...play.start.state]") == drawn
    assert page.state("[...play.frames[3]]") == frames
    assert page.state("play.field") == 1
    page.again(lambda: tab.click("#take"))
    page.again(lambda: (tab.check("[name=kind][value=random]", force=True), tab.click("#next")))
    assert page.state("play.drawSeed") == 1


@pytest.mark.slow
def test_a_file_is_taken_from_the_disk_or_refused_in_a_sentence(page: Page, tmp_path: Path) -> None:
    page.opened("#task=burgers1d&simulator=plain&start=random&steps=2")
    u = np.sin(2 * np.pi * (np.arange(24) + 0.5) / 24)
    np.save(tmp_path / "one.npy", u)
    np.savez_compressed(tmp_path / "many.npz", u0=u[:, None].astype(np.float32))
    np.savetxt(tmp_path / "table.csv", u[:, None], header="u")
    page.tab.check("[name=kind][value=file]", force=True)
    for name in ("one.npy", "many.npz", "table.csv"):
        page.again(lambda name=name: page.tab.set_input_files("#file", tmp_path / name))  # type: ignore[misc]
        assert page.state("play.frames[2].length") == 24
        assert np.allclose(page.state("[...play.start.state]"), u, atol=1e-6)
    np.save(tmp_path / "flat.npy", np.zeros((3, 4, 5)))
    page.tab.set_input_files("#file", tmp_path / "flat.npy")
    page.tab.wait_for_selector("#trouble:not([hidden])")
    assert "has no array" in page.tab.inner_text("#trouble")


@pytest.mark.slow
def test_the_truth_stands_beside_the_prediction_with_both_clocks(page: Page) -> None:
    page.opened("#task=reacdiff2d&start=random&steps=2")
    page.tab.click("#truth")
    page.until("play.truth.length === 3 && !document.getElementById('truth').disabled")
    assert "simulator" in page.tab.inner_text("#clocks")
    page.tab.keyboard.press("End")
    for name in ("prediction", "truth", "difference"):
        assert page.tab.locator(f"#figure-{name} canvas").is_visible()
    assert "true" in page.tab.inner_text("#figure-error")


@pytest.mark.slow
def test_a_steady_task_shows_what_is_given_and_its_solution(page: Page, made: tuple[Simulator, Simulator]) -> None:
    page.opened("#task=darcy2d&start=random&draw=1")
    given, solution = (
        np.array(page.state(f"[...{name}]")).reshape(16, 16) for name in ("play.start.inputs", "play.frames[0]")
    )
    beta = page.state("play.params.beta")
    assert np.allclose(solution, made[0].solve(given, {"beta": beta}, "darcy2d"), atol=1e-5)
    assert page.tab.locator("#figure-given canvas").is_visible()
    assert not page.tab.locator("#transport").is_visible()
    page.tab.click("#truth")
    page.until("play.truth.length === 1")


@pytest.mark.slow
def test_an_ensemble_is_a_band_with_its_spread(page: Page) -> None:
    page.opened("#task=burgers1d&simulator=drawing&start=random&steps=3")
    page.again(lambda: page.slide("slider-members", "4"))
    page.until("play.facts[3].low")
    assert page.state("play.facts[3].high.every((high, i) => high >= play.facts[3].low[i])")
    low = page.state("play.facts[3].low[0]")
    page.again(lambda: page.tab.click("#reseed"))
    page.until("play.facts[3].low")
    assert page.state("play.facts[3].low[0]") != low
    assert page.tab.locator("#figure-wideness canvas").is_visible()


@pytest.mark.slow
def test_pictures_are_saved_and_move(page: Page) -> None:
    page.opened("#task=reacdiff2d&start=random&steps=4")
    still = Image.open(io.BytesIO(page.downloaded("#save-png")))
    assert still.size[0] == 1200
    moving = Image.open(io.BytesIO(page.downloaded("#save-gif")))
    assert moving.n_frames == 5
    pictures = []
    for i in range(5):
        moving.seek(i)
        pictures.append(np.asarray(moving.convert("RGB"), float))
    assert all(np.abs(a - b).max() > 20 for a, b in pairwise(pictures))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_overflows_and_every_control_has_a_name(browser: Any, address: str, width: int, scheme: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = Page(context.new_page(), address)
    page.opened("#task=reacdiff2d&start=random&steps=2")
    page.tab.click("#help-button")
    assert "burgers1d" in page.tab.inner_text("#card")
    page.tab.check("[name=kind][value=drawn]", force=True)
    assert page.tab.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    nameless = """[...document.querySelectorAll('button, input, select, canvas')].filter(e =>
        !(e.labels && e.labels.length) && !e.getAttribute('aria-label') && !e.innerText.trim()).map(e => e.outerHTML)"""
    assert page.tab.evaluate(nameless) == []
    ground = page.tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (int(ground.split("(")[1].split(",")[0]) < 100) == (scheme == "dark")
    page.tab.select_option("#task", "0")
    page.until("play.task.name === 'burgers1d' && play.frames.length > 5")
    context.close()
