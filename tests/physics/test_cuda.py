"""On a GPU: the same answers as on the processor, from every equation and scheme, and the same bits twice."""

from __future__ import annotations

import math
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from ups.physics import EQUATIONS
from ups.physics.finite_volume import CompiledSteps
from ups.physics.random import Draw
from ups.physics.solver import initial_states
from ups.physics.transport import Burgers1D
from ups.run.data.data_config import GenerateConfig
from ups.run.data.generate import generate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none here"),
]
CUDA = torch.device("cuda")
CELLS = {1: 64, 2: 16, 3: 8}
SCHEMES = [(name, scheme) for name, kind in EQUATIONS.items() for scheme in kind.schemes]


@pytest.mark.parametrize(("name", "scheme"), SCHEMES)
def test_a_gpu_solves_as_a_processor_does(name: str, scheme: str) -> None:
    equation = EQUATIONS[name]()
    grid, times = equation.grid(CELLS[equation.task.ndim]), equation.times()[:3]
    here = equation.simulate(Draw(0, range(3)), grid, times, scheme)
    there = equation.simulate(Draw(0, range(3), CUDA), grid, times, scheme)
    assert there.is_cuda
    assert torch.allclose(here[:, 0], there[:, 0].cpu(), rtol=1e-12, atol=1e-12)
    assert torch.allclose(here, there.cpu(), rtol=1e-6, atol=1e-7)


def test_fused_steps_equal_eager_ones() -> None:
    equation = Burgers1D(nu=0.1)
    grid = equation.grid(128)
    u0 = initial_states(equation, Draw(0, range(4), CUDA), grid)
    stepper = equation.stepper("pdebench", grid, u0)
    state = stepper.start(u0)
    left = torch.full((4,), 0.01, dtype=torch.float64, device=CUDA)
    fused = CompiledSteps(stepper.step, state).run(state, left)
    eager = CompiledSteps(stepper.step, state, fused=False).run(state, left)
    assert torch.allclose(fused, eager, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("name", "cells", "viscosity", "boundary", "dtype"),
    [
        ("cfd1d", 130, 0.0, "periodic", torch.float64),
        ("cfd1d", 130, 0.01, "trans", torch.float64),  # one stage
        ("cfd1d", 131, 0.3, "periodic", torch.float32),  # three
        ("cfd1d", 64, 4.0, "periodic", torch.float64),  # nine
        ("cfd2d", 20, 0.0, "trans", torch.float32),
        ("cfd2d", 21, 0.3, "periodic", torch.float32),
        ("cfd2d", 20, 0.3, "trans", torch.float64),
        ("cfd3d", 9, 0.3, "trans", torch.float32),
    ],
)
def test_kernels_take_the_steps_of_a_gas_that_plain_torch_takes(
    name: str, cells: int, viscosity: float, boundary: str, dtype: torch.dtype
) -> None:
    equation = EQUATIONS[name](eta=viscosity, zeta=viscosity / 2, boundary=boundary)
    grid = equation.grid(cells)
    u0 = initial_states(equation, Draw(3, range(4), CUDA, dtype), grid)
    stepper = equation.stepper("pdebench", grid, u0)
    state = stepper.start(u0)
    left = 9.5 * stepper.cfl * stepper.limit(stepper.variables(state))
    left[1] = 0  # has arrived already
    state[2] *= math.nan  # and one that is spoilt spoils no other, and ends
    plain = CompiledSteps(stepper.step, state, fused=False).run(state, left)
    ours = stepper.kernels(state).run(state, left)
    assert torch.equal(ours[1], state[1])
    assert ours[2].isnan().all()
    whole = [0, 1, 3]
    size = plain[whole].abs().amax(dim=(0, *range(2, plain.ndim)), keepdim=True)
    assert ((plain - state)[whole].abs() / size).max() > 1e-3
    assert ((ours - plain)[whole].abs() / size).max() < 100 * torch.finfo(dtype).eps


def test_the_same_seed_gives_the_same_bits_on_one_device(tmp_path: Path) -> None:
    found = []
    for folder in ("a", "b"):
        config = GenerateConfig(task="cfd2d", samples=5, batch=2, resolution=32, device="cuda", frames=4)
        with h5py.File(generate(config, tmp_path / folder, lambda progress: None)[0]) as file:  # noqa: ARG005
            found.append({key: file[key][:] for key in ("density", "pressure", "Vx", "Vy")})
    assert all(np.array_equal(found[0][key], found[1][key]) for key in found[0])
