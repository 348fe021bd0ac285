"""Times a run from its command to its first step for growing data sets: its first run on them, and the next."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ups.config import load
from ups.parsing import LARGEST_RECORD, end_of, rows_in
from ups.run.data.data_config import GenerateConfig
from ups.run.data.generate import generate
from ups.types import UpsError

SIZES = (2000, 8000, 32000)
# The first run on a file reads all of it; the next one in the same folder knows what the first has found.
FIRST, AGAIN = "first start", "next start"
BARS = {FIRST: 1.1, AGAIN: 0.1}


def start_seconds(rounds: int, say: Callable[[str], None]) -> dict[str, tuple[float, ...]]:
    """Seconds at each size, of the first run on a file and of the next; the quickest of some rounds."""
    times: dict[str, list[list[float]]] = {kind: [[] for _ in SIZES] for kind in BARS}
    with tempfile.TemporaryDirectory() as place:
        files = [_made(Path(place) / str(samples), samples) for samples in SIZES]
        for turn in range(rounds):
            for i, file in enumerate(files):
                out = Path(place) / f"runs-{turn}-{i}"
                for kind, name in ((FIRST, "first"), (AGAIN, "next")):
                    times[kind][i].append(to_first_step(file, out, name))
    best = {kind: tuple(min(row) for row in rows) for kind, rows in times.items()}
    first = best[FIRST]
    per_sample = (first[-1] - first[0]) / (SIZES[-1] - SIZES[0])
    say(f"{'start':<8} a sample more costs a first run {1e6 * max(0.0, per_sample):.0f} µs")
    return best


def _made(folder: Path, samples: int) -> Path:
    """A file of many small trajectories, each with a parameter of its own."""
    settings: dict[str, Any] = {"task": "advection1d", "samples": samples, "resolution": 32}
    settings |= {"frames": 5, "device": "cpu", "params": {"beta": "0.2..1.0"}}
    (file,) = generate(load(GenerateConfig, overrides=settings), folder, lambda progress: None)  # noqa: ARG005
    return file


def to_first_step(file: Path, out: Path, name: str) -> float:
    """Seconds from the command of a run on a file until its log has the first step."""
    config: dict[str, Any] = {
        "name": name,
        "out": str(out),
        "device": "cpu",
        "data": {"a": {"file": str(file), "split": {"fractions": [0.98, 0.01, 0.01]}}},
        "model": {"codec": {"dim": 8}, "operator": {"width": 16, "depth": 1, "heads": 2}},
        **{stage: {"batch": 8, "train": {"steps": 1, "log_every": 1}} for stage in ("codec", "operator")},
    }
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.yaml"
    path.write_text(json.dumps(config))
    began = time.time()
    command = [sys.executable, "-m", "ups", "run", str(path), "--until", "train"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = [*rows_in(end_of(out / name / "metrics.jsonl", LARGEST_RECORD).splitlines())]
    steps = [float(row["time"]) for row in rows if "codec/loss" in row]
    if ended.returncode or not steps:
        raise UpsError(f"a run on {file} ended with code {ended.returncode}, not as it should: {ended.stderr[-500:]}")
    return steps[0] - began
