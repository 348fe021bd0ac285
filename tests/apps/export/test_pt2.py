"""Exported programs of torch give the bits of the simulator over a whole rollout."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from moving import moving

from ups_apps.export.job import Export
from ups_apps.export.programs import example
from ups_apps.export.pt2 import write

PAGE = Path(__file__).parents[3] / "docs" / "howto-export.md"
# What a stranger writes, who has torch alone: the program of the page, with other arguments and 6 steps.
GIVEN = re.compile(r"x = .*?^}\n", re.DOTALL | re.MULTILINE)
AFTER = """
import sys
torch.save(torch.stack(frames, 1), "frames")
assert "ups" not in sys.modules
print(load_pt2("demo-burgers1d.pt2").extra_files["card.json"])
"""


def program_of_the_page() -> str:
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    code, count = GIVEN.subn('given = torch.load("given")\n', code)
    assert count == 1
    assert "range(40)" in code
    return code.replace("range(40)", "range(6)") + AFTER


@pytest.mark.slow
def test_a_rollout_of_the_programs_is_that_of_the_simulator_to_the_bit_without_ups(tmp_path: Path) -> None:
    simulator = moving("burgers1d", 16)
    task = simulator.tasks[0]
    job = Export(simulator, tmp_path, (task,), tmp_path / "demo-burgers1d.pt2", print)
    write(job)
    window = example(simulator, task, job.grid(task), samples=2)
    torch.save({"state": window.context, "params": window.params, "dt": window.dt}, tmp_path / "given")
    words = [sys.executable, "-c", program_of_the_page()]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=250)
    with torch.no_grad():
        truth = simulator.simulate(window, 6)
    assert torch.equal(torch.load(tmp_path / "frames"), truth)
    assert (truth[:, 0] - window.state).abs().max() > 1e-2, "something happens"
    assert json.loads(done.stdout)["tasks"][0]["name"] == "burgers1d"
