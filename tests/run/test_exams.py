"""What a run is judged on: its own test part says where it leaves what training saw."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from ups.models.questions import outside
from ups.physics import TASKS
from ups.run.exams import outside_of


def test_parameters_and_steps_of_the_test_part_that_training_never_saw_are_said() -> None:
    """Not steps that differ by what float32 rounds."""
    task, trained = TASKS["advection1d"], {"beta": (0.1, 1.0), "dt": (0.1, 0.1)}
    simulator: Any = SimpleNamespace(
        ranges=lambda: {"advection1d": trained},
        outside=lambda params, name, dt: outside(params, dt, trained, TASKS[name]),
    )

    def said(beta: float, dt: float) -> list[str]:
        part: Any = SimpleNamespace(
            task=task, params=torch.tensor([[0.5], [beta]]), clock=SimpleNamespace(range=(0.1, dt))
        )
        return outside_of(simulator, [part])

    assert said(0.7, 0.100001) == []
    assert said(1.05, 0.1) == [], "a few of as many draws lie beside the range of the others"
    far, late = said(1e6, 0.3)
    assert "beta = 1e+06 lies outside the trained range 0.1 to 1" in far
    assert "dt = 0.3 lies outside" in late
