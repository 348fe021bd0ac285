"""Exported programs of torch give the bits of the simulator over a whole rollout."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from moving import moving

from ups_apps.export.job import Export
from ups_apps.export.programs import example
from ups_apps.export.pt2 import write

# What a stranger writes, who has torch alone.
ALONE = """
import json, sys, torch
from torch.export.pt2_archive._package import load_pt2
archive = load_pt2(sys.argv[1])
programs = {name: program.module() for name, program in archive.exported_programs.items()}
given = torch.load(sys.argv[2])
start = tokens = programs["begin"](**given)
frames = []
for _ in range(6):
    tokens, frame = programs["step"](start=start, tokens=tokens, **given)
    frames.append(frame)
torch.save(torch.stack(frames, 1), sys.argv[3])
assert "ups" not in sys.modules
print(archive.extra_files["card.json"])
"""


@pytest.mark.slow
def test_a_rollout_of_the_programs_is_that_of_the_simulator_to_the_bit_without_ups(tmp_path: Path) -> None:
    simulator = moving("burgers1d", 16)
    task = simulator.tasks[0]
    job = Export(simulator, tmp_path, (task,), tmp_path / "b.pt2", print)
    write(job)
    window = example(simulator, task, job.grid(task), samples=2)
    torch.save({"state": window.context, "params": window.params, "dt": window.dt}, tmp_path / "given")
    words = [sys.executable, "-c", ALONE, *(str(tmp_path / name) for name in ("b.pt2", "given", "frames"))]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    with torch.no_grad():
        truth = simulator.simulate(window, 6)
    assert torch.equal(torch.load(tmp_path / "frames"), truth)
    assert (truth[:, 0] - window.state).abs().max() > 1e-2, "something happens"
    assert json.loads(done.stdout)["tasks"][0]["name"] == "burgers1d"
