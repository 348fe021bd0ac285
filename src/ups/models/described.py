"""Says in a few lines what a simulator is: tasks, grids, parameters, parts, size, errors, and how to ask it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import nn

from ups.models.codec import Codec
from ups.types import TaskSpec, counted, data_size, few, short_number

TASKS = 3  # that are described; of more the rest are counted


def described(
    codec: Codec,
    parts: Mapping[str, nn.Module],
    origins: Mapping[str, Mapping[str, object]],
    ranges: Mapping[str, Mapping[str, tuple[float, float]]],
    idle: frozenset[str],
) -> str:
    """A line for each task, of more than a few only their names, one for the networks, and one that asks it."""
    known = list(codec.tasks.values())
    lines = [_task_line(task, codec.shapes[task.name], ranges[task.name]) for task in known[:TASKS]]
    if rest := [task.name for task in known[TASKS:]]:
        lines.append(f"and {few(rest)}")
    body = lines[0] if len(known) == 1 else "\n  ".join([f"{counted(len(known), 'task')}:", *lines])
    question = _question(known[0], ranges[known[0].name], one_of_many=len(known) > 1)
    return f"Simulator of {body}\n  {_networks_line(parts, origins, idle)}\n  Ask: {question}"


def _question(task: TaskSpec, ranges: Mapping[str, tuple[float, float]], one_of_many: bool) -> str:
    """A call that it answers, with parameters from the middle of what it was trained on."""
    choices = {p.name: f'"{p.choices[0]}"' for p in task.parameters if p.choices}
    middle = {name: choices.get(name, f"{sum(ends) / 2:.3g}") for name, ends in ranges.items() if name != "dt"}
    words = [f'"{name}": {value}' for name, value in middle.items()]
    params = f", params={{{', '.join(words)}}}" if words else ""
    which = f', task="{task.name}"' if one_of_many else ""
    first = "sim.solve(inputs" if task.steady else "sim.rollout(u0, steps=100"
    return f"{first}{params}{which})"


def _task_line(task: TaskSpec, grid: tuple[int, ...], ranges: Mapping[str, tuple[float, float]]) -> str:
    """`burgers1d: u on 128 cells of x; nu 0.001 to 0.1; steps of 0.05`."""
    axes = ", ".join(task.axes[: task.ndim])
    driven = f", driven by {few(task.given)}" if task.given else ""
    equation = f" (equation {task.equation})" if task.equation not in ("", task.name) else ""
    words = [f"{task.name}{equation}: {few(task.channels)} on {' x '.join(map(str, grid))} cells of {axes}{driven}"]
    choices = {p.name: p.choices for p in task.parameters}
    for name in (name for name in ranges if name != "dt"):
        words.append(f"{name} {' or '.join(choices.get(name, ())) or _span(*ranges[name])}")
    return "; ".join([*words, "steady" if task.steady else f"steps of {_span(*ranges['dt'])}"])


def _span(low: float, high: float) -> str:
    """Both ends of a range, or the one number that they are."""
    ends = list(dict.fromkeys((f"{low:.4g}", f"{high:.4g}")))
    return " to ".join(ends)


def _networks_line(
    parts: Mapping[str, nn.Module], origins: Mapping[str, Mapping[str, object]], idle: frozenset[str]
) -> str:
    """The parts, with the best validation score of each where it is known, and how large all are, and where."""
    words, trained = [], False
    for name in parts:
        about = origins.get(name, {}).get("provenance")
        facts = about if isinstance(about, Mapping) else {}
        score = facts.get("score")
        trained = trained or bool(facts)
        known = isinstance(score, int | float) and math.isfinite(score)
        words.append(name + (f" (validation error {score:.3g})" if known else " (idle)" if name in idle else ""))
    numbers = list(nn.ModuleDict(dict(parts)).parameters())
    count, size = sum(p.numel() for p in numbers), sum(p.numel() * p.element_size() for p in numbers)
    state = "" if trained else "; nothing says that it was trained"
    where = numbers[0].device if numbers else "no device"
    return f"Parts: {', '.join(words)}; {short_number(count)} weights ({data_size(size)}) on {where}{state}."
