"""A batch of samples with different parameters: each as if it were solved alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ups.physics import EQUATIONS
from ups.physics.random import Draw
from ups.physics.solver import simulate_each
from ups.progress import reporting
from ups.types import PhysicsError

ROWS: dict[str, list[dict[str, Any]]] = {
    "burgers1d": [{"nu": 0.01}, {"nu": 4.0}, {"nu": 0.3}],
    "advection1d": [{"beta": 7.0}, {"beta": -0.5}, {"beta": 0.1}],
    "reacdiff1d": [{"nu": 0.5, "rho": 10.0}, {"nu": 10.0, "rho": 0.0}, {"nu": 2.0, "rho": 3.0}],
    "cfd1d": [{"eta": 0.1}, {"eta": 0.0}, {"eta": 0.02, "boundary": "trans"}],
}


@pytest.mark.parametrize("scheme", ["pdebench", "accurate"])
@pytest.mark.parametrize("task", ROWS)
def test_each_sample_is_solved_with_its_own_parameters_as_if_alone(task: str, scheme: str) -> None:
    kind, rows = EQUATIONS[task], ROWS[task]
    grid, times, samples = kind().grid(32), kind().times()[:4], (7, 2, 5)
    shares: list[float] = []
    with reporting(shares.append):
        together = simulate_each(kind, rows, Draw(3, samples), grid, times, scheme)
    assert shares == sorted(shares)
    assert shares[-1] == 1
    for row, sample, frames in zip(rows, samples, together, strict=True):
        alone = kind(**row).simulate(Draw(3, [sample]), grid, times, scheme)[0]
        assert torch.equal(frames[0], alone[0])
        torch.testing.assert_close(frames, alone, rtol=1e-8, atol=1e-8)


def test_a_second_batch_forgets_the_numbers_of_the_first() -> None:
    kind, grid, draw = EQUATIONS["reacdiff1d"], EQUATIONS["reacdiff1d"]().grid(32), Draw(0, [0, 1])
    times = kind().times()[:3]
    first = simulate_each(kind, [{"nu": 0.5}, {"nu": 1.0}], draw, grid, times, "pdebench")
    simulate_each(kind, [{"nu": 5.0}, {"nu": 9.0}], draw, grid, times, "pdebench")
    assert torch.equal(simulate_each(kind, [{"nu": 0.5}, {"nu": 1.0}], draw, grid, times, "pdebench"), first)


def test_every_row_is_checked() -> None:
    kind = EQUATIONS["burgers1d"]
    with pytest.raises(PhysicsError, match="nu is -1, but must be above 0"):
        simulate_each(kind, [{"nu": 1.0}, {"nu": -1.0}], Draw(0, [0, 1]), kind().grid(16), [0.0, 0.1], "pdebench")
