"""`ups bench rollout`: the cost of laws and draws in a rollout, and its speed against an FNO and the solver."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ups.engine.ranks.dist import device_of
from ups.eval.fourier import NeuralOpBaseline, available
from ups.eval.nrmse import RolloutErrors
from ups.models import Simulator
from ups.models.ensembles import Draws
from ups.models.grids import resample
from ups.physics import EQUATIONS
from ups.physics.random import Draw
from ups.physics.solver import Equation
from ups.run.load import load
from ups.tensors import Window, numeric_params
from ups.types import ConfigError, Grid, TaskSpec, counted
from ups_bench.numbers import measured_on, write_numbers
from ups_bench.turns import in_turn

Say = Callable[[str], None]
SEED = 20_011  # of the trajectories, which no run has drawn
FINER = 2  # times as many cells along each axis as the simulator's grid has the solver whose answer is called the truth
COARSEST = 8  # cells along an axis
# What each ratio should stay below, or above.
BARS = {"laws": ("≤", 1.05), "a draw": ("≤", 2.5), "over an FNO": ("≥", 1.5), "over the own solver": ("≥", 100.0)}


@dataclass(frozen=True)
class Race:
    """Fresh trajectories of a task on the simulator's grid, and the equation that made them."""

    equation: Equation
    window: Window  # its targets are the truth
    steps: int
    times: tuple[float, ...]
    draw: Draw


def race_of(simulator: Simulator, task: TaskSpec, samples: int, device: torch.device) -> Race:
    """Trajectories by the accurate scheme on a finer grid, at the middle of the trained parameters and at their dt."""
    if task.steady or not task.equation or task.inputs:
        raise ConfigError(
            f"{task.name}: is not raced; it is steady, driven by inputs, or of no equation that is solved here."
        )
    ranges = simulator.ranges()[task.name]
    kind = EQUATIONS[task.equation]
    known = {p.name for p in kind.parameters()}
    middle = {name: (low * high) ** 0.5 if low > 0 else (low + high) / 2 for name, (low, high) in ranges.items()}
    equation = kind(**{name: value for name, value in middle.items() if name in known})
    shape, dt = simulator.codec.shapes.get(task.name, (task.resolution,) * task.ndim), ranges["dt"][0]
    count = int(equation.task.end / dt + 1e-6) + 1
    steps = count - simulator.context
    if steps < 1 or "accurate" not in equation.schemes:
        raise ConfigError(
            f"{task.name}: has no accurate scheme, or fewer frames than the {simulator.context} it is given."
        )
    times = tuple(i * dt for i in range(count))
    draw = Draw(SEED, range(samples), device, torch.float64)
    truth = solved(equation, draw, times, FINER * shape[0], shape)
    numbers = [[middle[name] for name in numeric_params(task)]] * samples
    grid = equation.grid(shape[0])
    window = Window(
        task,
        truth[:, : simulator.context],
        truth[:, simulator.context :],
        torch.zeros(samples, *shape, 0, device=device),
        torch.tensor(numbers, device=device, dtype=torch.float32).reshape(samples, -1),
        torch.full((samples,), dt, device=device),
        Grid(shape, grid.periodic, grid.bounds),
    )
    return Race(equation, window, steps, times, draw)


def solved(equation: Equation, draw: Draw, times: tuple[float, ...], cells: int, shape: tuple[int, ...]) -> Tensor:
    """The accurate solution with so many cells along the first axis, `(B, T, *S, C)` on the simulator's grid."""
    grid = equation.grid(cells)
    frames = equation.simulate(draw, grid, times, "accurate")
    onto = resample(frames.flatten(0, 1), shape, grid.periodic)
    return torch.unflatten(onto, 0, frames.shape[:2]).float()


def error_of(frames: Tensor, race: Race) -> float:
    """The nRMSE of predicted frames."""
    errors = RolloutErrors()
    errors.add(frames, race.window.targets)
    return float(errors.per_sample().mean())


def solver_at(race: Race, error: float) -> tuple[int, float, Callable[[], Any]]:
    """The fewest cells at which the own solver is no worse than `error`: that number, its error, and the work. Where
    none is as good, as many as the simulator has."""
    context, shape = race.window.context.shape[1], tuple(race.window.context.shape[2:-1])
    cells, chosen, own_error = max(COARSEST, shape[0] // 16), shape[0], float("nan")
    while cells <= shape[0]:
        frames = solved(race.equation, race.draw, race.times, cells, shape)[:, context:]
        chosen, own_error = cells, error_of(frames, race)
        if own_error <= error:
            break
        cells *= 2
    grid = race.equation.grid(chosen)
    return chosen, own_error, lambda: race.equation.simulate(race.draw, grid, race.times, "accurate")


def fno_like(simulator: Simulator, task: TaskSpec, device: torch.device) -> NeuralOpBaseline | None:
    """An FNO with as many parameters as the operator; None where its package is not installed."""
    if not available():
        return None
    parameters = sum(p.numel() for p in simulator.operator.parameters())
    return NeuralOpBaseline.matched(task, simulator.context, "fno", parameters).to(device).eval()


def bench_rollout(
    run: Path, task_name: str | None, samples: int, device_name: str, rounds: int, json_path: Path | None, say: Say
) -> None:
    """Time a trained simulator in several ways, in turn, on trajectories made for it; print ratios, write numbers."""
    device = device_of(device_name)
    simulator = load(run, str(device))
    if task_name is None and len(simulator.tasks) > 1:
        raise ConfigError(f"{run}: knows {', '.join(simulator.codec.tasks)}; say which with --task.")
    task = simulator.codec.task(task_name or simulator.tasks[0].name)
    race = race_of(simulator, task, samples, device)
    with torch.no_grad():
        error = error_of(simulator.simulate(race.window, race.steps), race)
    cells, solver_error, solver = solver_at(race, error)
    works: dict[str, Callable[[], Any]] = {**_ours(simulator, race), "solver": solver}
    if (fno := fno_like(simulator, task, device)) is not None:
        works["fno"] = lambda: fno.predict(race.window, race.steps)
    times = in_turn(list(works.items()), rounds, device)
    seconds = {name: statistics.median(each) for name, each in times.items()}
    rows = ratios(seconds)
    what = {
        "over the own solver": f"{cells} cells, nRMSE {solver_error:.2e}; the simulator {error:.2e} on "
        f"{'×'.join(map(str, race.window.context.shape[2:-1]))}",
        "over an FNO": "" if fno is None else f"{fno.parameter_count / 1e6:.2f} million parameters",
    }
    say(
        f"{task.name}: {counted(samples, 'trajectory')} of {counted(race.steps, 'step')}, "
        f"{samples / seconds['plain']:.4g} a second"
    )
    for name, ratio in rows.items():
        sign, bar = BARS[name]
        say(f"{name:<20} {ratio:9.3f}   to reach {sign} {bar:<6g} {what.get(name, '')}".rstrip())
    if fno is None:
        say("over an FNO: its package is not installed; pip install 'universal-physics-stack[baselines]' brings it.")
    if json_path:
        numbers = {"task": task.name, "error": error, "seconds": seconds, "ratios": rows, "bars": BARS, "what": what}
        write_numbers(json_path, numbers, {**measured_on(device), "samples": samples, "rounds": rounds})


def _ours(simulator: Simulator, race: Race) -> dict[str, Callable[[], Any]]:
    """The simulator in its ways: the operator alone without laws, with them, and with a draw where a part draws."""
    window, steps, own = race.window, race.steps, simulator.config
    others = frozenset(simulator.parts) - {"codec", "operator"}

    def way(guard: Any, idle: frozenset[str], draw: Draws | None = None) -> Callable[[], Any]:
        def work() -> None:
            simulator.config, simulator.idle = dataclasses.replace(own, guard=guard), idle
            try:
                with torch.no_grad():
                    simulator.simulate(window, steps, draw=draw)
            finally:
                simulator.config, simulator.idle = own, frozenset()

        return work

    ways = {"plain": way(False, others), "laws": way(True, others)}
    if any(part.draws for part in simulator.awake(window.task)):
        ways["a draw"] = way(False, frozenset(), Draws(0, [0]))
    return ways


def ratios(seconds: Mapping[str, float]) -> dict[str, float]:
    """Costs over the operator alone, and speeds over peers."""
    plain = seconds["plain"]
    costs = {name: seconds[name] / plain for name in ("laws", "a draw") if name in seconds}
    peers = {"over an FNO": "fno", "over the own solver": "solver"}
    return costs | {name: seconds[peer] / plain for name, peer in peers.items() if peer in seconds}
