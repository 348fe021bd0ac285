"""The header of an artifact, held to types and bounds as strictly as a config before anything is made of it."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from ups.config import first_of, sentence_of
from ups.models.config import SimulatorConfig
from ups.models.layers import AXES
from ups.parsing import parse_json
from ups.physics import EQUATIONS
from ups.tensors import numeric_params
from ups.types import ConfigError, TaskSpec, check_known, counted

T = TypeVar("T")

FORMAT = "ups-simulator"
VERSION = 6
LARGEST = 2**22  # characters of a header
MOST_CELLS = 2**30  # of the grid of a task
FARTHEST = 1e30  # coordinate of a box: a single-precision number holds the cells of it
THINNEST = 1e-12  # box, beside its coordinates

Axis = Annotated[int, Field(ge=1, le=MOST_CELLS)]
Ends = tuple[float, float]


class Strict(BaseModel):
    """Values as a program has written them: of exactly their types, finite, and nothing else beside them."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid", frozen=True)


class Provenance(Strict, extra="allow"):
    """What an artifact was made by; anything may stand here beside what is read again."""

    config: str | None = None
    steps: int = -1
    definitions: list[dict[str, Any]] = []


class PartHeader(Strict):
    """What is said of one part: how it is made, by what, and which weights stood beside it when it was trained."""

    config: dict[str, Any]
    digest: str = ""
    beside: dict[str, str] = {}
    needs: list[str] = []
    provenance: Provenance = Provenance()


class Header(Strict):
    """All that is said of a simulator; what depends on the kinds of its parts is held against those in `plan_of`."""

    format: Literal["ups-simulator"]
    version: Literal[6]
    digest: str
    parts: dict[str, PartHeader]
    simulator: dict[str, Any]
    tasks: Annotated[list[TaskSpec], Field(min_length=1)]
    shapes: dict[str, Annotated[list[Axis], Field(max_length=AXES)]]
    corners: dict[str, Annotated[list[float], Field(max_length=AXES)]] = {}
    ranges: dict[str, dict[str, Ends]]
    trust: dict[str, Any] = {}
    program: str = ""
    provenance: Provenance


@dataclass(frozen=True)
class HeaderPlan:
    """What a header asks to be built."""

    tasks: list[TaskSpec]
    configs: dict[str, Any]  # of the parts, by name
    config: SimulatorConfig
    shapes: dict[str, tuple[int, ...]]
    corners: dict[str, tuple[float, ...]]
    spans: dict[str, dict[str, Any]]  # the ranges of parameters that training saw, by task


def parsed(text: str) -> Any:
    """What the text of a header says; a ValueError where it is no JSON or too long."""
    if len(text) > LARGEST:
        raise ValueError(f"it has more than {LARGEST / 1e6:.0f} million characters")
    return parse_json(text, nan=False)


def checked(kind: type[T], values: Any, at: str) -> T:
    """`values`, of which JSON was made, as what they were before; a ConfigError for the first that cannot be."""
    model = _holding(cast(Hashable, kind), at)
    try:
        held: T = getattr(model.model_validate_json(json.dumps({at: values})), at)
    except ValidationError as error:
        words = sentence_of(model, first_of(error), {(at,): "its header"}, "")
        raise ConfigError(" ".join(words.split()).rstrip(".")[:300]) from None
    except RecursionError:
        raise ConfigError(f"'{at}' is nested too deeply") from None
    return held


@functools.cache
def _holding(kind: Any, at: str) -> type[BaseModel]:
    fields: dict[str, Any] = {at: (kind, ...)}
    return create_model("Held", __base__=Strict, **fields)


def check_header(values: Mapping[str, Any]) -> Header:
    """A header whose parts of their own agree with each other; a ConfigError for one that is none."""
    known = {name: value for name, value in values.items() if name != "trust"}
    header: Header = checked(Header, known, "header")
    names = [task.name for task in header.tasks]
    if len(set(names)) < len(names):
        raise ConfigError("its header says of two tasks that they have one name")
    for group in (header.shapes, header.corners, header.ranges):
        check_known("task", group, names)
    for task in header.tasks:
        check_task(task)
        _check_grid(task, header)
        _check_ranges(task, header.ranges.get(task.name, {}))
    return header


def plan_of(values: Mapping[str, Any], kinds: Mapping[str, type]) -> HeaderPlan:
    """What a header asks for, whose parts are of these kinds of configs; a ConfigError for a header that is none."""
    header = check_header(values)
    if unknown := header.parts.keys() - kinds.keys():
        raise ConfigError(f"this program knows no part '{min(unknown)}'")
    configs: dict[str, Any] = {name: checked(kinds[name], part.config, name) for name, part in header.parts.items()}
    config: SimulatorConfig = checked(SimulatorConfig, header.simulator, "simulator")
    shapes = {name: tuple(grid) for name, grid in header.shapes.items()}
    corners = {name: tuple(corner) for name, corner in header.corners.items()}
    return HeaderPlan(
        header.tasks, configs, config, shapes, corners, {name: dict(own) for name, own in header.ranges.items()}
    )


def task_from(values: Any) -> TaskSpec:
    """A TaskSpec from what `dataclasses.asdict` and JSON made of it."""
    task: TaskSpec = checked(TaskSpec, values, "task")
    check_task(task)
    return task


def check_task(task: TaskSpec) -> None:
    """A ConfigError where what a task says of itself cannot be, or one thing does not fit another."""

    def refuse(what: str) -> None:
        raise ConfigError(f"the task '{task.name}' {what}")

    if not 1 <= task.ndim <= AXES or len(task.periodic) != task.ndim:
        refuse(f"has {counted(task.ndim, 'axis')}, and says of {len(task.periodic)} whether it wraps")
    for low, high in task.bounds:
        if max(abs(low), abs(high)) > FARTHEST or high - low <= THINNEST * max(abs(low), abs(high), 1 / FARTHEST):
            refuse(f"has a box from {low:g} to {high:g}, which has no cells")
    names = task.axes[: task.ndim]
    if len({*names}) != task.ndim or not all(names):
        refuse("does not give each axis a name of its own")
    if not all(task.name and f.channels and 0 <= f.rank <= 2 for f in (*task.fields, *task.inputs)) or not task.fields:
        refuse("has no field, or one without channels or of a rank that is not 0, 1 or 2")
    if min(task.frames, task.resolution) < 1 or max(task.frames, task.resolution) > MOST_CELLS:
        refuse(f"has {task.frames} frames and {task.resolution} cells along an axis")
    if not task.steady and not (task.frames > 1 and 1 / FARTHEST < task.end <= FARTHEST):
        refuse(f"has {counted(task.frames, 'frame')} up to time {task.end:g}, so that no time passes between them")
    if task.mask and task.mask not in task.given:
        refuse(f"has the mask '{task.mask}', which is none of its inputs")
    numbers = numeric_params(task)
    if len({*numbers}) < len(numbers) or any(p.choices and p.default not in p.choices for p in task.parameters):
        refuse("has a parameter twice, or one whose default is none of its choices")
    _check_laws(task)


def _check_laws(task: TaskSpec) -> None:
    if task.equation:
        check_known("equation", (task.equation,), EQUATIONS)
        own = EQUATIONS[task.equation].task
        if (len(own.channels), own.ndim, own.steady) != (len(task.channels), task.ndim, task.steady):
            raise ConfigError(f"the task '{task.name}' is none of the equation {task.equation}, which it names")
        return
    vectors = [f.name for f in task.fields if f.rank == 1 and len(f.channels) == task.ndim]
    for name in task.divergence_free:
        if name not in vectors:
            raise ConfigError(f"the task '{task.name}' has no vector field '{name}' to be without divergence")


def _check_grid(task: TaskSpec, header: Header) -> None:
    grid = header.shapes.get(task.name, [task.resolution] * task.ndim)
    if len(grid) != task.ndim or math.prod(grid) > MOST_CELLS:
        cells = " × ".join(map(str, grid))
        raise ConfigError(f"the grid of '{task.name}' is {cells or 'nothing'} on {counted(task.ndim, 'axis')}")
    corner = header.corners.get(task.name, [0.0] * task.ndim)
    if len(corner) not in (0, task.ndim) or not all(abs(part) < 1 for part in corner):
        raise ConfigError(f"the grid of '{task.name}' begins nowhere in its box")


def _check_ranges(task: TaskSpec, ranges: Mapping[str, Ends]) -> None:
    check_known(f"parameter of {task.name}", ranges, (*numeric_params(task), "dt"))
    for name, (low, high) in ranges.items():
        if low > high or (name == "dt" and low <= 0):
            raise ConfigError(f"the range of {name} of '{task.name}' is from {low:g} to {high:g}")
