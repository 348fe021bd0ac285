"""`ups bench generate`: trajectories per second, and the ratio to exponax measured in the same run."""

from __future__ import annotations

import importlib.util
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ups.engine.ranks.dist import device_of
from ups.physics import EQUATIONS
from ups.physics.random import Draw
from ups.physics.solver import Equation, initial_states
from ups.run.data.data_config import GenerateConfig
from ups.run.data.generate import DTYPES, batch_of
from ups.types import Grid, check_known
from ups_bench.numbers import measured_on, write_numbers
from ups_bench.turns import timed

Say = Callable[[str], None]
STEP = 5e-4  # of exponax: 20 per frame; our scheme takes 10 to 40, as each sample needs
BATCH, ROUNDS, FRAMES = 128, 5, 41  # of the comparison with it


@dataclass(frozen=True)
class Rate:
    """How fast one scheme of one task is at its default resolution: measured over `frames` frames, scaled to all."""

    task: str
    scheme: str
    cells: str
    frames: int
    batch: int
    per_second: float


def bench_generate(
    tasks: Sequence[str] | None, device_name: str, seconds: float, json_path: Path | None, say: Say
) -> None:
    """Measure each task (all by default), then Burgers beside exponax; print a table, and write the numbers."""
    device = device_of(device_name)
    check_known("task", tasks or (), EQUATIONS)
    rates = []
    say(f"{'task':<12} {'scheme':<9} {'cells':<10} {'batch':>5} {'trajectories/s':>15}")
    for name in tasks or EQUATIONS:
        for scheme in EQUATIONS[name].schemes:
            rates.append(rate := measure(EQUATIONS[name](), scheme, device, seconds))
            say(f"{rate.task:<12} {rate.scheme:<9} {rate.cells:<10} {rate.batch:>5} {rate.per_second:>15.4g}")
    peer = None
    if device.type == "cpu" and "burgers1d" in (tasks or EQUATIONS):
        peer = against_exponax(say)
    if json_path:
        write_numbers(json_path, {"rates": [asdict(rate) for rate in rates], "exponax": peer}, measured_on(device))


def measure(equation: Equation, scheme: str, device: torch.device, seconds: float) -> Rate:
    """Solve the first frames of a batch, more and more of them, until the time is up; scale to the whole trajectory."""
    task, times = equation.task, equation.times()
    grid = equation.grid(task.resolution)
    config = GenerateConfig(task=task.name, samples=10_000)
    batch = batch_of(config, len(times), grid, len(task.channels), device)
    batch = min(batch, 32 if device.type == "cpu" and task.ndim == 1 else 4) if device.type == "cpu" else batch
    frames = 2
    while True:
        elapsed = timed(lambda n=frames: _run(equation, scheme, device, batch, grid, times[:n]))  # type: ignore[misc]
        if task.steady or frames >= len(times) or elapsed > seconds / 4:
            break
        frames = min(len(times), max(frames + 1, int(frames * min(8.0, seconds / 2 / max(elapsed, 1e-3)))))
    share = 1.0 if task.steady else (frames - 1) / (len(times) - 1)
    cells = "×".join(map(str, grid.shape))
    return Rate(task.name, scheme, cells, frames, batch, batch * share / elapsed)


def _run(equation: Equation, scheme: str, device: torch.device, batch: int, grid: Grid, times: Sequence[float]) -> None:
    equation.simulate(Draw(0, range(batch), device, getattr(torch, DTYPES[scheme])), grid, times, scheme)
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def against_exponax(say: Say) -> dict[str, float] | None:
    """Burgers 1024 cells, ν = 0.01, the accurate scheme and exponax in turns on the same states and processor.

    exponax (ETDRK4 as well, JAX, both precisions) takes about as many steps; errors are against our scheme at a quarter
    of the step. Its compilation is not counted.
    """
    if importlib.util.find_spec("exponax") is None:
        say("exponax is not installed, so there is no ratio; `pip install -c constraints.txt -e '.[bench]'` brings it.")
        return None
    equation = EQUATIONS["burgers1d"]()
    grid, times = equation.grid(1024), equation.times()[:FRAMES]
    draw = Draw(0, range(BATCH))
    u0 = initial_states(equation, draw, grid)
    reference = _reference(equation, grid, u0, times)
    ours = _error(equation.simulate(draw, grid, times, "accurate"), reference)
    peers = {}
    for precision in ("float32", "float64"):
        run = exponax_burgers(u0, STEP, FRAMES - 1, precision, equation.params()["nu"])
        peers[precision] = (run, _error(torch.as_tensor(run()), reference))
    numbers: dict[str, float] = {"our error": ours}
    seconds: dict[str, list[float]] = {name: [] for name in ("ours", *peers)}
    for _ in range(ROUNDS):
        seconds["ours"].append(timed(lambda: equation.simulate(draw, grid, times, "accurate")))
        for name, (run, _) in peers.items():
            seconds[name].append(timed(run))
    scale = BATCH * (FRAMES - 1) / 200
    rate = scale / statistics.median(seconds["ours"])
    numbers["our trajectories/s"] = rate
    say(f"\nBurgers 1024×201, ν = 0.01, {BATCH} at once: {rate:.3g} trajectories/s, error {ours:.1e}")
    for name, (_, error) in peers.items():
        theirs = scale / statistics.median(seconds[name])
        numbers |= {
            f"exponax {name} trajectories/s": theirs,
            f"exponax {name} error": error,
            f"ratio {name}": rate / theirs,
        }
        say(f"exponax {name}, step {STEP:g}: {theirs:.3g} trajectories/s, error {error:.1e}; ratio {rate / theirs:.2f}")
    return numbers


def _reference(equation: Equation, grid: Grid, u0: Tensor, times: Sequence[float]) -> Tensor:
    from ups.physics.shocks import ResolvedBurgers
    from ups.physics.solver import solve

    stepper = equation.stepper("accurate", grid, u0)
    assert isinstance(stepper, ResolvedBurgers)
    stepper.step, stepper.pace = stepper.step / 4, stepper.pace / 4
    return solve(stepper, u0, times)


def _error(solution: Tensor, reference: Tensor) -> float:
    """Mean over samples of the relative L2 error at the final frame."""
    gap = (solution[:, -1].double() - reference[:, -1]).flatten(1).norm(dim=1) / reference[:, -1].flatten(1).norm(dim=1)
    return float(gap.mean())


def exponax_burgers(u0: Tensor, step: float, frames: int, precision: str, nu: float | str) -> Callable[[], Any]:
    """A compiled exponax rollout of the same states, giving `(B, T, N, 1)`."""
    import exponax
    import jax

    jax.config.update("jax_enable_x64", precision == "float64")
    stepper = exponax.stepper.Burgers(
        1, 1.0, u0.shape[1], step, diffusivity=float(nu) / math.pi, convection_scale=1.0, conservative=True, order=4
    )
    many = exponax.RepeatedStepper(stepper, round(0.01 / step))
    rollout = jax.jit(jax.vmap(exponax.rollout(many, frames, include_init=True)))
    start = jax.numpy.asarray(u0[..., 0].unsqueeze(1).numpy(), dtype=precision)

    def run() -> Any:
        jax.config.update("jax_enable_x64", precision == "float64")
        return np.array(rollout(start).block_until_ready())[:, :, 0, :, None]

    run()
    return run
