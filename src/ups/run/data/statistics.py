"""What the training data of a run are like, measured once and kept in its folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

import torch
from torch import Tensor

from ups.config import dump
from ups.parsing import read_json
from ups.run.data.data_identity import Identity
from ups.run.data.datasets import DataSet
from ups.run.data.known_data import KnownData
from ups.rundir import RunDir
from ups.tensors import TaskStatistics

NAMES = {field.name for field in fields(TaskStatistics)}


def statistics_of(folder: RunDir, sets: Sequence[DataSet], identity: Identity) -> dict[str, TaskStatistics]:
    """The statistics of each task; those in the folder where they are whole and of just these data, or that another run
    has measured of the same data."""
    rows, known, statistics = read_json(folder.statistics), KnownData(folder.known_data, identity), {}
    for data in sets:
        row = rows.get(data.task.name)
        values = row.get("values", {}) if isinstance(row, dict) else {}
        sound = row == _row(data, values, identity) and values.keys() == NAMES
        known_values = values if sound else known.get(data)
        statistics[data.task.name] = measured(data) if known_values is None else _unpacked(known_values)
    return statistics


def keep_statistics(folder: RunDir, sets: Sequence[DataSet], identity: Identity) -> dict[str, TaskStatistics]:
    """The statistics of each task, measured where the folder does not hold them yet, and written there."""
    statistics = statistics_of(folder, sets, identity)
    packed = {name: _packed(values) for name, values in statistics.items()}
    rows = {data.task.name: _row(data, packed[data.task.name], identity) for data in sets}
    before = read_json(folder.statistics)
    # Rows that the folder held before may have been measured by other code, so only new ones are shared.
    fresh = {data.task.name: data for data in sets if before.get(data.task.name) != rows[data.task.name]}
    KnownData(folder.known_data, identity).keep(packed, fresh)
    if rows != before:
        folder.write(folder.statistics, rows)
    return statistics


def read_before(folder: RunDir, sets: Sequence[DataSet], identity: Identity) -> bool:
    """Whether another run has read all of just these data, and found them finite."""
    known = KnownData(folder.known_data, identity)
    return all(known.get(data) is not None for data in sets)


def measured(data: DataSet) -> TaskStatistics:
    """The statistics of a data set's training part; all of it is read. Every trajectory counts alike, whatever its
    grid."""
    parts = data.parts("train")
    counts = [len(part) for part in parts]
    own = [part.sound().statistics() for part in parts]
    mean, std = pooled([(each.mean, each.std) for each in own], counts)
    inputs = [part.inputs.flatten(0, -2) for part in parts]
    none = (torch.zeros(0), torch.zeros(0))
    input_mean, input_std = pooled([(x.mean(0), x.std(0)) for x in inputs], counts) if data.task.inputs else none
    params = torch.cat([part.params for part in parts])
    steps = [dt for part in parts for dt in part.clock.range]
    return TaskStatistics(
        mean=mean,
        std=std,
        least=torch.stack([each.least for each in own]).amin(0),
        most=torch.stack([each.most for each in own]).amax(0),
        input_mean=input_mean,
        input_std=input_std,
        low=params.amin(0),
        high=params.amax(0),
        dt=(min(steps), max(steps)),
    )


def pooled(moments: Sequence[tuple[Tensor, Tensor]], counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of groups of so many trajectories together, from those of each group."""
    if len(moments) == 1:
        return moments[0]
    weights = torch.tensor(counts, dtype=torch.float64).unsqueeze(1) / sum(counts)
    means, stds = (torch.stack(column).double() for column in zip(*moments, strict=True))
    mean = (weights * means).sum(0)
    square = (weights * (stds**2 + means**2)).sum(0)
    return mean.float(), (square - mean**2).clamp_min(0).sqrt().float()


def _row(data: DataSet, values: dict[str, Any], identity: Identity) -> dict[str, Any]:
    """The numbers with their sum, and what they depend on: what the data hold, how they are reduced and split."""
    digests = identity.of(entry.source for entry in data.entries)
    of = {"data": digests, "config": [dump(entry.config) for entry in data.entries]}
    return {"of": of, "values": values, "sum": hashlib.sha256(json.dumps(values).encode()).hexdigest()}


def _packed(statistics: TaskStatistics) -> dict[str, Any]:
    """Statistics as plain numbers for JSON; a float32 survives the way there and back to the bit."""
    return {
        name: value.tolist() if isinstance(value, torch.Tensor) else list(value)
        for name, value in asdict(statistics).items()
    }


def _unpacked(values: dict[str, Any]) -> TaskStatistics:
    low, high = values["dt"]
    return TaskStatistics(
        **{name: torch.tensor(value, dtype=torch.float32) for name, value in values.items() if name != "dt"},
        dt=(low, high),
    )
