"""Whole runs as a user begins them: the installed command, in another folder, with every core and no variable set."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.whole

PAGE = Path(__file__).parents[1] / "docs" / "howto-use-your-data.md"
UPS = Path(sys.executable).with_name("ups")
# What a test runner, `make test` or another launcher sets, and a user does not.
VARIABLES = re.compile(
    r"(OMP|MKL|OPENBLAS|GOMP|KMP|UPS|PYTEST|PYTHON|TORCH)_?|(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE)$"
)
FEW = ("--codec.train.steps", "3", "--operator.train.steps", "3")
SMALL = ("--model.operator.size", "tiny", "--codec.batch", "2", "--operator.batch", "2", *FEW)
LIMIT = 280  # seconds


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that the user is in; it may hold much, and goes at once."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


def ups(*words: str, code: int = 0) -> str:
    """What the command says, on both streams; it must end with `code`."""
    env = {name: value for name, value in os.environ.items() if not VARIABLES.match(name)}
    done = subprocess.run([UPS, *words], check=False, env=env, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == code, f"ups {' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def require_whole(folder: Path) -> None:
    """The run has succeeded, at the first attempt, and has left a simulator and a report."""
    verdict = json.loads((folder / "verdict.json").read_text())
    assert (verdict["verdict"], len(verdict["attempts"])) == ("SUCCESS", 1)
    assert (folder / "report.html").stat().st_size > 1000
    assert (folder / "artifacts" / "simulator.safetensors").exists()


def definition(name: str, dims: str, periodic: str) -> str:
    return f"name: {name}\ndims: [{dims}]\nfields: {{c: [c]}}\nperiodic: [{periodic}]\n"


def config(name: str, entry: str) -> Path:
    path = Path(f"{name}-run.yaml")
    path.write_text(f"name: {name}\ndata:\n  {name}: {{{entry}}}\n")
    return path


def grid(cells: int, axes: int) -> list[np.ndarray]:
    x = (np.arange(cells) + 0.5) / cells
    return np.meshgrid(*[x] * axes, indexing="ij")


def wave(place: list[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    """Five frames of a wave that moves along the first axis and varies along the others."""
    first, *others = place
    start, speed = rng.uniform(0, 1), rng.uniform(0.5, 1.5)
    across = np.prod([np.cos(2 * np.pi * (x + start)) for x in others], axis=0)
    return [np.sin(2 * np.pi * (first - start - 0.1 * speed * step)) * across for step in range(5)]


def test_the_page_on_own_data_works_as_written(place: Path) -> None:
    script = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)[0]
    task, run, *_ = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    exec(compile(script, str(PAGE), "exec"), {})
    Path("tracer.yaml").write_text(task)
    Path("tracer-run.yaml").write_text(run)
    assert "nothing wrong found" in ups("data", "validate", "results", "--task", "tracer.yaml")
    ups("data", "import", "results", "--task", "tracer.yaml", "--out", "data")
    ups("run", "tracer-run.yaml", *FEW)
    require_whole(place / "runs" / "tracer")


def test_a_flow_around_a_block_in_three_dimensions_is_learnt_from(place: Path) -> None:
    rng, cells = np.random.default_rng(0), grid(34, 3)
    block = (abs(cells[0] - 0.5) < 0.15) & (abs(cells[1] - 0.5) < 0.15)
    Path("flow").mkdir()
    for sample in range(6):
        frames = [np.where(block, np.nan, frame) for frame in wave(cells, rng)]
        np.savez(f"flow/{sample}.npz", c=np.float32(frames), t=np.arange(5) * 0.1)
    Path("flow.yaml").write_text(definition("flow", "time, x, y, z", "x, y, z"))
    ups("run", str(config("flow", "file: flow, task: flow.yaml")), *SMALL)
    require_whole(place / "runs" / "flow")


@pytest.mark.usefixtures("place")
def test_nan_that_moves_is_refused_in_a_sentence() -> None:
    rng, cells = np.random.default_rng(0), grid(200, 2)
    Path("drift").mkdir()
    for sample in range(6):
        frames = [
            np.where((cells[0] - 0.3 - 0.05 * step) ** 2 + (cells[1] - 0.5) ** 2 < 0.01, np.nan, frame)
            for step, frame in enumerate(wave(cells, rng))
        ]
        np.savez(f"drift/{sample}.npz", c=np.float32(frames), t=np.arange(5) * 0.1)
    Path("drift.yaml").write_text(definition("drift", "time, x, y", "x, y"))
    said = ups("run", str(config("drift", "file: drift, task: drift.yaml")), *SMALL, code=2)
    assert "NaN moves in time in sample 0; only NaN in fixed places is a mask" in said
    assert "Traceback" not in said


def test_more_than_a_gigabyte_with_holes_is_learnt_from(place: Path) -> None:
    samples, frames, cells = 40, 28, 512
    rng, x = np.random.default_rng(0), (np.arange(cells) + 0.5) / cells * 2 * np.pi
    values = np.lib.format.open_memmap("large.npy", "w+", np.float32, (samples, frames, cells, cells))
    for sample in range(samples):
        start, speed = rng.uniform(0, 2 * np.pi, 2)
        for step in range(frames):
            along, across = np.float32(np.sin(x - start - 0.1 * speed * step)), np.float32(np.cos(x + start))
            np.multiply(along[:, None], across, out=values[sample, step])
        values[sample, :, 200:260, 200:260] = np.nan
    values.flush()
    del values
    assert Path("large.npy").stat().st_size > 2**30
    Path("large.yaml").write_text(definition("large", "sample, time, x, y", "x, y") + "dt: 0.1\n")
    entry = "file: large.npy, task: large.yaml, reduce: {time: 4, space: 8}"
    ups("run", str(config("large", entry)), *SMALL)
    require_whole(place / "runs" / "large")
