"""Headers of simulators of several kinds, and ways in which a stranger could change them."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from ups.models import CodecConfig, OperatorConfig, Simulator, SimulatorConfig
from ups.models.calibration import Calibration
from ups.models.config import CriticConfig, ResidualConfig, SteadyConfig
from ups.models.simulator import assemble
from ups.models.trust import ErrorModel, Trust
from ups.physics import TASKS
from ups.run.load import part_kinds
from ups.types import Dynamics, Field, Param, TaskSpec

Header = dict[str, Any]
Place = tuple[str | int, ...]
LAKE = TaskSpec(
    name="lake",
    title="A lake",
    fields=(Field.scalar("h"), Field.vector("v", "vx", "vy")),
    bounds=((0.0, 1.0), (0.0, 2.0)),
    periodic=(False, True),
    resolution=16,
    end=1.0,
    frames=11,
    parameters=(Param("depth", 1.0, "how deep"), Param("shore", "sand", "what around", choices=("sand", "rock"))),
    inputs=(Field.scalar("wind"), Field.scalar("water")),
    mask="water",
    conserved=("h",),
    divergence_free=("v",),
    dynamics=Dynamics(memoryless=True, advected_by=("depth",)),
)
SMALL: dict[str, Any] = {"width": 16, "depth": 1, "heads": 2, "levels": 1, "windows": (4, 2, 2), "modes": 4}
TRUST = Trust(
    Calibration("residual", ((2.0,), (0.5,)), 0.5),
    ErrorModel(("time", "spread"), (0.5, 1.0), constant=0.1, scatter=0.2),
)


def simulators() -> dict[str, Simulator]:
    """One of each kind: on a line with all that is fitted, with walls, a mask and inputs, in space, and steady ones."""
    codec, flow = CodecConfig(dim=16, width=8), ResidualConfig(**SMALL)
    line = assemble(
        [TASKS["advection1d"], TASKS["burgers1d"]],
        {
            "codec": codec,
            "operator": OperatorConfig(**SMALL, context=2),
            "residual": flow,
            "critic": CriticConfig(**SMALL),
        },
        SimulatorConfig(shift_average=2, symmetry={"burgers1d": "both", "advection1d": "off"}),
        {"advection1d": (18,), "burgers1d": (32,)},
        kinds=part_kinds(),
    )
    line.trust = {"advection1d": TRUST}
    line.learn_corners({"burgers1d": (0.01,)})
    windows = OperatorConfig(**SMALL, core="unet", mixing="attention", per_task_layers=True, context=2)
    lake = assemble([LAKE], {"codec": codec, "operator": windows}, SimulatorConfig(guard=("h",)), {"lake": (16, 18)})
    space = assemble(
        [TASKS["cfd3d"]],
        {"codec": codec, "operator": OperatorConfig(**SMALL, mixing="attention")},
        SimulatorConfig(guard=False),
        {"cfd3d": (6, 6, 6)},
    )
    steady = assemble(
        [TASKS["darcy2d"]],
        {"codec": codec, "operator": OperatorConfig(**SMALL), "steady": SteadyConfig(**SMALL)},
        shapes={"darcy2d": (12, 12)},
        kinds=part_kinds(),
    )
    return {"line": line, "lake": lake, "space": space, "steady": steady}


def parts_of(path: Path) -> tuple[Header, dict[str, torch.Tensor]]:
    """Header and weights of a simulator's file."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
        return json.loads(file.metadata()["ups"]), tensors


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """Every place in a header, but for those far within what is deep."""
    if at:
        yield at
    if len(at) > 9:
        return
    for key, below in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(below, (*at, key))


def deep(levels: int, inside: Any = 1) -> Any:
    """A list in a list in a list …"""
    for _ in range(levels):
        inside = [inside]
    return inside


STRANGE: list[Any] = [
    *(None, True, False, "", "x", "auto", "a.b", "train", "ü\n\x1b[2J", "9" * 4000, [], {}, [[]], [1], ["x"], {"a": 1}),
    *(0, -1, 1, 2, 3, 7, 64, 1000, 10**6, 2**31, 2**63, 10**9, 10**30, 10**400, 1.5, -0.5, 1e-30, 1e-300, 1e30, 1e308),
    *(float("nan"), float("inf"), -float("inf"), [0.0, 0.0], [1e308, -1e308], [[0, 0]], ["burgers1d"], {"lake": ["h"]}),
    *(deep(150), deep(20_000), [1] * 5000, [[]] * 5000, {str(i): i for i in range(999)}, "mass", ["h"], "both", "off"),
]  # fmt: skip


def mutated(header: Header, draw: random.Random) -> tuple[Header, str]:
    """A header with one to three changes, and what they are."""
    result, words = copy.deepcopy(header), []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        *above, last = place = draw.choice([p for p in places(result) if p != ("digest",)])
        node: Any = result
        for key in above:
            node = node[key]
        old, way = node[last], draw.randrange(10)
        if way == 0:
            del node[last]
            words.append(f"without {place}")
            continue
        if way == 1 and isinstance(node, dict):
            name = draw.choice((f"{last}x", str(last).upper(), "", "x" * 10_000, draw.choice(list(node))))
            node[name] = node.pop(last)
            words.append(f"{place} is called {name[:20]!r}")
            continue
        if way == 2 and isinstance(node, dict):
            node[draw.choice(("more", "equation", "shift_average", "dim"))] = draw.choice(STRANGE)
            words.append(f"more beside {place}")
            continue
        node[last] = _other(old, way, header, draw)
        words.append(
            f"{place} is {node[last]!r:.60}" if isinstance(node[last], int | float | str) else f"{place} is other"
        )
    return result, "; ".join(words)


def _other(old: Any, way: int, header: Header, draw: random.Random) -> Any:
    """Another value in the place of one: longer, shorter, scaled, from elsewhere in the header, or any strange one."""
    if way in (3, 4) and isinstance(old, list):
        return draw.choice((old[:-1], [*old, *old], [*old, draw.choice(STRANGE)], old[::-1], old * 300))
    if way in (3, 4) and isinstance(old, bool):
        return not old
    if way in (3, 4) and isinstance(old, int | float):
        return draw.choice((-old, old + 1, old * 2, old * 10**6, old / 2, float(old), str(old), [old]))
    if way in (3, 4) and isinstance(old, dict):
        return draw.choice(([*old], {}, {**old, "x": old}, dict.fromkeys(old, old)))
    if way == 5:
        node: Any = header
        for key in draw.choice(list(places(header))):
            node = node[key]
        return copy.deepcopy(node)
    return draw.choice(STRANGE)


def ask(simulator: Simulator) -> list[torch.Tensor]:
    """What a simulator answers, of each of its tasks."""
    answers, noise = [], torch.Generator().manual_seed(0)
    for task in simulator.tasks:
        grid = ({1: 32, 2: 12, 3: 6}[task.ndim],) * task.ndim
        ranges = simulator.ranges()[task.name]
        told = {p.name: ranges[p.name][0] for p in task.parameters if not p.choices}
        inputs = torch.ones(*grid, len(task.given)) if task.given else None
        if task.steady:
            answers.append(simulator.solve(inputs, told, task=task.name))
            continue
        u0, dt = 1 + 0.1 * torch.rand(*grid, len(task.channels), generator=noise), ranges["dt"][0]
        answers.append(simulator.rollout(u0, 2, told, dt=dt, task=task.name, inputs=inputs))
        if simulator.trust.get(task.name):
            answers += simulator.rollout(u0, 2, told, dt=dt, task=task.name, inputs=inputs, ensemble=2, error=True)
    return answers
