"""Small simulators in files, and a service of them that really listens."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ups.models import CodecConfig, OperatorConfig, Simulator, assemble
from ups.models.config import ResidualConfig
from ups.models.residual import ResidualFlow
from ups.models.simulator import CORE
from ups.models.trust import ErrorModel, Trust
from ups.physics import TASKS
from ups.tensors import TaskStatistics, numeric_params

GRIDS = {"burgers1d": (32,), "reacdiff2d": (16, 16), "darcy2d": (16, 16)}
KINDS = {**CORE, "residual": ResidualFlow}


def simulator(*names: str, draws: bool = False, seed: int = 0) -> Simulator:
    """An untrained simulator that moves what it is given; with `draws` one that draws."""
    configs: dict[str, Any] = {
        "codec": CodecConfig(dim=8, width=8),
        "operator": OperatorConfig(width=16, depth=1, heads=2, modes=4),
    }
    if draws:
        configs["residual"] = ResidualConfig(width=16, depth=1, heads=2, modes=4)
    tasks = [TASKS[name] for name in names]
    made = assemble(tasks, configs, shapes={name: GRIDS[name] for name in names}, kinds=KINDS, seed=seed)
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in made.parameters():
            weight += 0.02 * torch.randn(weight.shape, generator=noise)
    for task in tasks:
        made.learn_statistics(
            task, _statistics(len(task.channels), len(task.given), len(numeric_params(task)), task.dt)
        )
        if not task.steady:
            made.trust[task.name] = Trust(None, ErrorModel(("time",), (1.0,), 1.0, 0.0))
    if draws:
        made.origins["residual"] = {"provenance": {"steps": 1}}
    return made.eval()


def _statistics(channels: int, given: int, params: int, dt: float) -> TaskStatistics:
    one, inputs = torch.ones(channels), torch.ones(given)
    low, high = torch.full((params,), 0.005), torch.full((params,), 0.05)
    return TaskStatistics(0 * one, one, -2 * one, 2 * one, 0.5 * inputs, inputs, low, high, (dt or 1.0, dt or 1.0))


@contextmanager
def listening(app: Any, service: Any, token: str | None = None, host: str = "127.0.0.1") -> Iterator[str]:
    """The address of a service while it listens in a thread."""
    from ups_apps.serve.listening import address_of, bound, server_of

    listener = bound("127.0.0.1", 0)
    server = server_of(app, host, token, service.limits, service.meters)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
    try:
        yield address_of(listener)
    finally:
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive(), "a service that is stopped ends"


def saved(made: Simulator, folder: Path, name: str) -> Path:
    """The file of a simulator."""
    return made.save(folder / f"{name}.safetensors")
