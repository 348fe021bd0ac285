"""What a run is judged on: its own test part says where it leaves what training saw."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from small_flows import window
from ups.models.questions import beyond, outside
from ups.physics import TASKS
from ups.run.judging.eval_sets import outside_of, strange_of
from ups.tensors import Window


def said(
    beta: float, dt: float = 0.1, trained: tuple[float, float] = (0.1, 1.0), beside: tuple[float, ...] = ()
) -> list[str]:
    """What is said of a test part with one sample at the highest trained speed, and one at `beta`."""
    ranges = {"beta": trained, "dt": (0.1, 0.1)}
    simulator: Any = SimpleNamespace(
        ranges=lambda: {"advection1d": ranges},
        outside=lambda params, name, dt: outside(params, dt, ranges, TASKS[name]),
    )
    params, clock = torch.tensor([[trained[1]], [beta]]), SimpleNamespace(range=(0.1, dt))
    part: Any = SimpleNamespace(task=TASKS["advection1d"], params=params, clock=clock)
    return outside_of(simulator, [part], *beside)


def test_parameters_and_steps_of_the_test_part_that_training_never_saw_are_said() -> None:
    """Not steps that differ by what float32 rounds."""
    assert said(0.7, 0.100001) == []
    assert said(1.05, 0.1) == [], "a few of as many draws lie beside the range of the others"
    assert len(said(1.05, 0.1, beside=(0.0,))) == 1, "a file of one's own is not drawn as they are"
    far, late = said(1e6, 0.3)
    assert "beta = 1e+06 lies outside the trained range 0.1 to 1" in far
    assert "dt = 0.3 lies outside" in late


@pytest.mark.parametrize(
    ("trained", "near", "far"),
    [
        ((0.001, 1.0), (0.0006, 1.9), (1e-5, 0.0, -0.05, 3.0)),
        ((0.0, 1.0), (-0.09, 1.09), (-0.2, 1.2)),
        ((-1.0, 1.0), (-1.1, 1.1), (-1.3, 1.3)),
    ],
)
def test_a_tenth_of_a_positive_range_is_one_of_its_logarithm_and_of_any_other_of_itself(
    trained: tuple[float, float], near: tuple[float, ...], far: tuple[float, ...]
) -> None:
    assert [beta for beta in near if said(beta, trained=trained)] == []
    assert [beta for beta in far if not said(beta, trained=trained)] == []


def test_a_value_leaves_a_range_by_more_than_the_rounding_of_the_end_it_leaves() -> None:
    def is_said(value: float, low: float, high: float) -> bool:
        return bool(beyond("nu", value, value, low, high, "t"))

    assert is_said(1e-9, 1e-6, 1.0)
    assert is_said(-5e-6, 1e-6, 1.0)
    assert is_said(-5e-6, -1e-6, 1.0)
    assert not is_said(1e-6 * (1 - 1e-6), 1e-6, 1.0)
    assert not is_said(-1e-7, 0.0, 1.0), "an end at 0 is rounded as the range is"
    assert not is_said(0.0, 0.0, 0.0)


class Part:
    """So many trajectories on so many cells."""

    def __init__(self, samples: int, cells: int) -> None:
        self.samples, self.shape = samples, (cells,)

    def __len__(self) -> int:
        return self.samples

    def window(self, rows: list[int], *_: object) -> Window:
        return window(len(rows), cells=self.shape[0])


def test_what_lies_outside_training_is_said_once_of_all_trajectories_on_a_grid() -> None:
    asked: list[Window] = []
    simulator: Any = SimpleNamespace(strange=lambda window: asked.append(window) or ["u is far away"])
    parts: Any = [Part(2, 16), Part(3, 16), Part(4, 32)]
    assert strange_of(simulator, parts) == ["u is far away"]
    assert [len(each) for each in asked] == [5, 4], "each grid by itself, however far apart frames are"
