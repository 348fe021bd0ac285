"""A simulator that goes on from another: what both have is taken over, what only the new tasks need starts fresh."""

from __future__ import annotations

import dataclasses

import torch

from ups.models.simulator import Simulator
from ups.types import ConfigError


@torch.no_grad()
def inherit(new: Simulator, old: Simulator) -> list[str]:
    """Copy everything `old` knows into `new`, statistics and ranges included, so that on the tasks of `old` both give
    the same bits; the names of the tensors that stay fresh. ConfigError where their networks differ."""
    same_networks(new, old)
    by_row = {*new.rows, *(f"{name}.{row}" for name, part in new.parts.items() for row in part.rows)}
    here, there = new.state_dict(), old.state_dict()
    tasks = list(new.codec.tasks)
    rows = [tasks.index(name) for name in old.codec.tasks if name in tasks]
    known = [i for i, name in enumerate(old.codec.tasks) if name in tasks]
    fresh = []
    for name, tensor in here.items():
        if name in by_row and name in there:
            tensor[rows] = there[name][known].to(tensor.device)
        elif name in there:
            tensor.copy_(there[name])
        else:
            fresh.append(name)
    return fresh


def same_networks(new: Simulator, old: Simulator) -> None:
    """ConfigError, with the key to change, where `new` cannot take over what `old` knows."""
    for part in (name for name in new.parts if name in old.parts):
        ours, theirs = new.parts[part].config, old.parts[part].config
        for field in dataclasses.fields(ours):
            a, b = getattr(ours, field.name), getattr(theirs, field.name)
            if a != b:
                raise ConfigError(
                    f"model.{part}.{field.name} is {a}, but the simulator to start from has {b}; set it to {b}."
                )
    for name, task in new.codec.tasks.items():
        if name in old.codec.tasks:
            before = old.codec.tasks[name]
            if (task.fields, task.inputs) != (before.fields, before.inputs):
                raise ConfigError(f"{name} has other fields than in the simulator to start from; rename the task.")
            if new.codec.grids[name] != old.codec.grids[name]:
                raise ConfigError(
                    f"{name} has the grid {new.codec.grids[name]}, but the simulator to start from was trained on "
                    f"{old.codec.grids[name]}; reduce the data to it."
                )
