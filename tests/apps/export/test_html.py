"""An exported page in a real browser: it opens from a disk, asks nobody, and gives the numbers of torch."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from moving import moving

from ups_apps.export.export import export_run

pytestmark = [pytest.mark.browser, pytest.mark.slow]
CHROMIUM = os.environ.get("UPS_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
MORE = ("--disable-component-update", "--disable-sync")
DONE = """upsPage.task && !upsPage.running &&
  upsPage.frames.filter(Boolean).length > (upsPage.task.steady ? 0 : upsPage.steps)"""
LOOK = """({frames: upsPage.frames.map((f) => [...f]), params: upsPage.params, dt: upsPage.dt,
  inputs: upsPage.start.inputs && [...upsPage.start.inputs],
  trouble: document.getElementById("trouble").textContent})"""


@pytest.mark.parametrize(("name", "cells"), [("burgers1d", 32), ("darcy2d", 16)])
def test_a_page_from_a_disk_gives_the_frames_of_torch_and_asks_nobody(name: str, cells: int, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no chromium")
    simulator = moving(name, cells)
    file = simulator.save(tmp_path / f"{name}.safetensors")
    page = export_run(file, "html", None, tmp_path / "page.html", False, print)
    assert page.stat().st_size < 20e6
    complaints, requests = list[str](), list[str]()
    with api.sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, *MORE])
        context = browser.new_context()
        context.set_offline(True)
        tab = context.new_page()
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("request", lambda request: requests.append(request.url))
        tab.goto(page.as_uri())
        tab.wait_for_function(DONE, timeout=120_000)
        seen = tab.evaluate(LOOK)
        browser.close()
    assert complaints == []
    assert seen["trouble"] == ""
    assert all(url.startswith("blob:") or url == page.as_uri() for url in requests)
    shape = (-1, *(cells,) * simulator.tasks[0].ndim, 1)
    frames = torch.tensor(seen["frames"]).reshape(shape)
    if simulator.tasks[0].steady:
        truth = simulator.solve(torch.tensor(seen["inputs"]).reshape(shape)[0], params=seen["params"]).unsqueeze(0)
    else:
        steps = 10  # numbers of an untrained simulator soon differ by more than rounding
        truth = simulator.rollout(frames[0], steps, params=seen["params"], dt=seen["dt"])
        frames = frames[1 : steps + 1]
    assert (frames - truth).abs().max() <= 1e-5 * truth.abs().max()
