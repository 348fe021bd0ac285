"""Copies into a new simulator what an old one knows; what only the new tasks need starts neutral."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from ups.models.layers import TaskLinears
from ups.models.part import Blueprint, NamedAxis, Part
from ups.models.simulator import Simulator
from ups.types import ConfigError, TaskSpec, counted


@torch.no_grad()
def inherit(new: Simulator, old: Simulator) -> list[str]:
    """Copy everything `old` knows into `new`, statistics and ranges included; the names of the tensors of which a
    part stays fresh. ConfigError where their networks differ.

    On the tasks of `old` both give the same bits. A task of the same name may have other fields, inputs or parameters:
    what belongs to a name that both know is copied, and a new name is not heard at first, so that the old fields are
    predicted as before; a field that never varied is measured by the data of `new`. Its grid
    and its time step may be others too: then it has been trained on steps of both. Layers that each task has for itself
    begin, for a new task, as the mean of those of the others.
    """
    same_networks(new, old)
    by_row = {*new.rows, *(f"{name}.{row}" for name, part in new.parts.items() for row in part.rows)}
    here, there = new.state_dict(), old.state_dict()
    tasks = list(new.codec.tasks)
    rows = [tasks.index(name) for name in old.codec.tasks if name in tasks]
    known = [i for i, name in enumerate(old.codec.tasks) if name in tasks]
    shared = _shared(new)
    ours, theirs = (_by_name(simulator, {tasks[row] for row in rows}) for simulator in (new, old))
    steps = new.dt[rows].clone()
    fitted = {name: copy.deepcopy(new.codec.statistics_of(name)) for name in tasks}
    unknown, fresh = new.parts.keys() - old.parts.keys(), []
    for name, tensor in here.items():
        if name not in there and name.partition(".")[0] in unknown:
            fresh.append(name)
        elif name in by_row and name in there:
            tensor[rows] = there[name][known].to(tensor.device)
        elif name in ours:
            if not _take(tensor, ours[name], there.get(name), theirs.get(name)):
                fresh.append(name)
        elif name in there and tensor.shape == there[name].shape:
            tensor.copy_(there[name])
        elif name in shared and shared[name] in there:
            tensor.copy_(there[shared[name]])
        else:
            if name in shared:
                tensor.copy_(torch.stack([there[other] for other in _others(shared[name], old)]).mean(0))
            fresh.append(name)
    for name, statistics in fitted.items():
        new.codec.statistics_of(name).complete(statistics)
    both = torch.stack((new.dt[rows], steps))
    new.dt[rows] = torch.stack((both[..., 0].amin(0), both[..., 1].amax(0)), -1)
    return fresh


def _by_name(simulator: Simulator, tasks: Collection[str]) -> dict[str, NamedAxis]:
    """The tensors of all parts in which a channel, an input or a parameter of some tasks has a place of its own."""
    return {
        f"{part_name}.{name}": axis
        for part_name, part in simulator.parts.items()
        for task in simulator.tasks
        if task.name in tasks
        for name, axis in part.by_name(task).items()
    }


def _shared(simulator: Simulator) -> dict[str, str]:
    """The tensors that are a task's own, each with the name it has where all tasks share it."""
    return {
        f"{part}.{place}.{task}.{leaf}": f"{part}.{place}.{leaf}"
        for part, network in simulator.parts.items()
        for place, layers in network.named_modules()
        if isinstance(layers, TaskLinears)
        for task in layers
        for leaf in ("weight", "bias")
    }


def _others(shared: str, old: Simulator) -> list[str]:
    """The names of what the tasks of `old` have in the place of a tensor that is shared elsewhere."""
    place, _, leaf = shared.rpartition(".")
    return [f"{place}.{task}.{leaf}" for task in old.codec.tasks]


def _take(tensor: Tensor, ours: NamedAxis, old: Tensor | None, theirs: NamedAxis | None) -> bool:
    """Copy what belongs to names that both know; what belongs to others starts neutral. Whether all could be copied."""
    if old is not None and theirs is not None and ours.names == theirs.names:
        tensor.copy_(old)
        return True
    held = {} if theirs is None or old is None else _places(old, theirs)
    for name, place in _places(tensor, ours).items():
        if name in held:
            place.copy_(held[name])
        elif ours.silent:
            place.zero_()
    return not set(ours.names) - set(held)


def _places(tensor: Tensor, axis: NamedAxis) -> Mapping[str, Tensor]:
    """The part of a tensor that belongs to each name: equal pieces along an axis, in their order."""
    if not axis.names:
        return {}
    return dict(zip(axis.names, tensor.chunk(len(axis.names), axis.axis), strict=True))


def same_networks(new: Simulator, old: Simulator) -> None:
    """ConfigError, with the key to change, where `new` cannot take over what `old` knows."""
    for part in (name for name in new.parts if name in old.parts):
        ours, theirs = new.parts[part].config, old.parts[part].config
        for field in dataclasses.fields(ours):
            a, b = getattr(ours, field.name), getattr(theirs, field.name)
            # What all tasks share, each may go on with for itself.
            if a != b and (field.name, a, b) != ("per_task_layers", True, False):
                raise ConfigError(
                    f"model.{part}.{field.name} is {a}, but the simulator to start from has {b}; set it to {b}."
                )
    for name, task in new.codec.tasks.items():
        if name in old.codec.tasks:
            _same_course(task, old.codec.tasks[name])


def _same_course(task: TaskSpec, before: TaskSpec) -> None:
    """ConfigError where a task of both has another number of axes, or goes on otherwise from one state to the next; of
    the parameters that move its states those are held against each other that it still has."""
    if task.ndim != before.ndim:
        raise ConfigError(
            f"{task.name} has {counted(task.ndim, 'axis')}, but {before.ndim} in the simulator to start from; rename "
            "the task."
        )
    held = {p.name for p in task.parameters}
    ours, theirs = (
        {**vars(each), "advected_by": sorted(held.intersection(each.advected_by))}
        for each in (task.dynamics, before.dynamics)
    )
    for key in (key for key in ours if ours[key] != theirs[key]):
        raise ConfigError(
            f"{task.name}: `{key}` is {ours[key]}, but {theirs[key]} in the simulator to start from; say `{key}: "
            f"{theirs[key]}` of the task."
        )


def rebuilt(simulator: Simulator, name: str, weights: Mapping[str, Tensor]) -> Part:
    """A part of a simulator built anew around its weights, whole and in host memory."""
    old = simulator.parts[name]
    with torch.random.fork_rng(devices=[]):
        part = type(old).build(old.config, Blueprint(simulator.tasks, simulator.codec.shapes, simulator.parts))
    part.load_state_dict(dict(weights), strict=True)
    return part
