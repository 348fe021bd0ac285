"""docs/howto-use-your-data.md, taken from the page as it stands: its arrays, its task and its config."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ups.config import load
from ups.data import open_source
from ups.data.write_well import write_data_set
from ups.definition import definition_from
from ups.models import CodecConfig, OperatorConfig, build
from ups.physics import TASKS
from ups.run.config import run_config

PAGE = Path(__file__).parents[2] / "docs" / "howto-use-your-data.md"
BLOCKS = {kind: re.findall(rf"^```{kind}\n(.*?)^```", PAGE.read_text(), re.M | re.S) for kind in ("python", "yaml")}


def test_the_arrays_of_the_page_are_what_its_task_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (script, _, in_memory), (task, run, *_) = BLOCKS["python"], BLOCKS["yaml"]
    exec(compile(script.replace("range(40)", "range(4)"), str(PAGE), "exec"), {})
    Path("tracer.yaml").write_text(task)
    source = open_source("results", TASKS, definition_from("tracer.yaml"))
    assert (source.ids, source.problems) == (("000", "001", "002", "003"), ())
    assert (source.task.channels, source.task.mask, source.task.periodic) == (("c",), "mask", (True, True))
    np.testing.assert_array_equal(source.read(2)[..., 0], np.load("results/002.npz")["c"])
    again = open_source(write_data_set(source, Path("data"), "tracer", {"train": source.ids}), TASKS)
    assert [again.params_of(i) for i in range(4)] == [source.params_of(i) for i in range(4)]
    Path("run.yaml").write_text(run)
    assert load(run_config(), Path("run.yaml")).data["tracer"].file == "data/tracer"
    # The arrays of the files, given in memory, are the same trajectories.
    given: dict[str, Any] = {}
    exec(compile(in_memory.replace("range(40)", "range(4)").split("sim = ")[0], str(PAGE), "exec"), given)
    memory = given["data"].source()
    assert (memory.task.channels, memory.task.mask, memory.task.periodic) == (("c",), "mask", (True, True))
    for i in range(4):
        np.testing.assert_array_equal(memory.read(i), source.read(i))
        assert (memory.params_of(i), memory.times_of(i).tolist()) == (source.params_of(i), source.times_of(i).tolist())


def test_known_forces_are_in_the_state_of_every_step() -> None:
    _, script, _ = BLOCKS["python"]
    task, small = TASKS["reacdiff2d"], OperatorConfig(width=32, depth=1, heads=4)
    sim, states = build([task], CodecConfig(dim=64, width=16), small, shapes={task.name: (16, 24)}), []

    class Watched:
        def rollout(self, state: Any, steps: int) -> Any:
            states.append(state.copy())
            return sim.rollout(state, steps=steps)

    rng = np.random.default_rng(0)
    start, forces = (rng.standard_normal(shape).astype("f4") for shape in ((16, 24, 2), (3, 16, 24)))
    names: dict[str, Any] = {"sim": Watched(), "start": start, "forces": forces}
    exec(compile(script, str(PAGE), "exec"), names)
    assert [frame.shape for frame in names["frames"]] == [(16, 24)] * 3
    np.testing.assert_array_equal(states[0], start)
    np.testing.assert_array_equal([state[..., 1] for state in states[1:]], forces[:2])
