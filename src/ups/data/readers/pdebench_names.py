"""Which task a PDEBench file holds and with which parameters, from its name, cross-checked with its attributes."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from ups.data.readers.array_dims import EXAMPLE, listed
from ups.data.readers.arrays import Variable
from ups.data.readers.hdf5_arrays import data_sets
from ups.data.source import Remarks
from ups.parsing import parse_yaml
from ups.types import DataError, Param, Params, TaskSpec, check_known, same_value

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"


@dataclass(frozen=True)
class NamedTask:
    """A task, and what the file name states of its parameters; nothing if the name fits no pattern of the task."""

    task: TaskSpec
    stated: Mapping[str, str]


def identify(file: Any, name: str, tasks: Mapping[str, TaskSpec], task: str | None, remarks: Remarks) -> NamedTask:
    """The task of a file: as the user says, else by the attribute `ups_task`, else by the file name."""
    named = match_name(name, tasks)
    stated = file.attrs.get("ups_task")
    stated = stated if stated is None else " ".join(str(stated).split())
    if task is not None and task not in tasks and (named or stated is not None):
        task = None  # a new name for what the file says it is
    check_known("task", () if task is None else (task,), tasks)
    if task is None and stated is not None and str(stated) not in tasks:
        raise DataError(f"{file.filename}: says it holds task '{stated}', which is unknown here; name it with --task.")
    chosen = task or (str(stated) if stated is not None else None)
    if chosen is None:
        if not named:
            held = listed([Variable(key, key, node.shape, node.dtype) for key, node in data_sets(file)])
            raise DataError(
                f"{file.filename}: holds {held}, and neither its name nor an attribute says which task that is; name "
                f"one of `ups data tasks` with --task, or say it in a file my.yaml with {EXAMPLE} (and "
                "`datasets: {u: /path/in/the/file}` where an array has another name), and name that file with --task."
            )
        if len(named) > 1:
            raise DataError(f"{file.filename}: its name fits the tasks {', '.join(named)}; choose one with --task.")
        return next(iter(named.values()))
    if stated is not None and str(stated) != chosen:
        remarks.problems.append(f"attribute ups_task says {stated} but the file is read as {chosen}")
    if named and chosen not in named:
        remarks.problems.append(f"the file name is one of {next(iter(named))} but the file is read as {chosen}")
    return named.get(chosen, NamedTask(tasks[chosen], {}))


def match_name(name: str, tasks: Mapping[str, TaskSpec]) -> dict[str, NamedTask]:
    """The tasks whose pattern fits a file name; those with a fitting alias where no pattern does."""
    stem = re.sub(r"\.(h5|hdf5)$", "", name)
    for patterns in (lambda task: (task.storage.pattern,), lambda task: task.storage.aliases):
        fits: dict[str, NamedTask] = {}
        for key, task in tasks.items():
            for pattern in filter(None, patterns(task)):
                match = _regex(pattern, task).fullmatch(stem)
                if match:
                    fits.setdefault(key, NamedTask(task, match.groupdict()))
        if fits:
            return fits
    return {}


def resolve(named: NamedTask, attributes: Mapping[str, Any], varying: Container[str], remarks: Remarks) -> Params:
    """Parameters from the file name; an attribute is used where the name says nothing, and compared with it otherwise.

    Those that are `varying` are no parameters of the file: each sample has its own.

    A parameter that the family's names never mention has one value for the whole family: the task's default.
    A parameter that is stated nowhere is left out, with a note.
    """
    task = named.task
    params: dict[str, float | str] = {}
    for p in (p for p in task.parameters if p.name not in varying):
        attribute = task.storage.attrs.get(p.name, "")
        in_name = parse(named.stated[p.name], p) if p.name in named.stated else None
        in_file = parse(attributes[attribute], p) if attribute in attributes else None
        if in_name is not None and in_file is not None and not same_value(in_name, in_file):
            remarks.problems.append(f"attribute {attribute} says {in_file} but the file name says {in_name}")
        value = in_name if in_name is not None else in_file
        if value is None and f"{{{p.name}}}" not in task.storage.pattern:
            value = p.default
            remarks.notes.append(f"{p.name} = {value} is the usual value of the family; nothing in the file says it")
        if value is None:
            remarks.notes.append(f"neither the file name nor an attribute says {p.name}")
            continue
        if in_name is None and in_file is not None and named.stated:
            remarks.notes.append(
                f"{p.name} = {in_file} was taken from attribute {attribute}; the file name does not say it"
            )
        _check(p, value, remarks)
        params[p.name] = value
    return params


def parse(value: Any, param: Param) -> float | str | None:
    """A parameter out of a name or an attribute, in the spelling of its `choices`; None if it is neither kind.

    `1.e-8` and `1e-08` are the same number; `01` and `05` are PDEBench's spelling of 0.1 and 0.5.
    """
    text = (value.decode() if isinstance(value, bytes) else str(value)).strip().strip("[]")
    if not isinstance(param.default, str):
        if re.fullmatch(r"0\d+", text):
            text = f"0.{text[1:]}"
        return float(text) if re.fullmatch(NUMBER + "|nan|-?inf", text) else None
    return next((choice for choice in param.choices if choice.lower() == text.lower()), text)


def config_leaves(text: Any) -> dict[str, Any]:
    """The scalars of a YAML config, by their own key, wherever they are nested; raises yaml.YAMLError."""
    leaves: dict[str, Any] = {}
    stack = [parse_yaml(text)]
    while stack:
        node = stack.pop()
        for key, value in node.items() if isinstance(node, dict) else ():
            if isinstance(value, dict):
                stack.append(value)
            else:
                leaves[str(key)] = value
    return leaves


def _regex(pattern: str, task: TaskSpec) -> re.Pattern[str]:
    words = {p.name for p in task.parameters if isinstance(p.default, str)}
    numbers = {p.name for p in task.parameters} - words
    seen: set[str] = set()
    parts = []
    for piece in re.split(r"(\{\w+\}|\*)", re.sub(r"\.(h5|hdf5)$", "", pattern)):
        name = piece[1:-1] if piece.startswith("{") else ""
        if piece == "*":
            parts.append(".*")
        elif not name:
            parts.append(re.escape(piece))
        elif name in seen:
            parts.append(f"(?P={name})")
        else:
            between = f"(?:-{NUMBER})?" if name in numbers else ""  # 0.001-1.0: each sample has its own
            parts.append(f"(?P<{name}>{'[A-Za-z]+' if name in words else NUMBER + between})")
            seen.add(name)
    return re.compile("".join(parts))


def _check(p: Param, value: float | str, remarks: Remarks) -> None:
    if isinstance(value, str):
        if p.choices and value not in p.choices:
            remarks.problems.append(f"{p.name} is '{value}', which is none of {', '.join(p.choices)}")
    elif p.above is not None and not value > p.above:
        remarks.problems.append(f"{p.name} is {value}, which is not above {p.above:g}")
    elif p.at_least is not None and not value >= p.at_least:
        remarks.problems.append(f"{p.name} is {value}, which is below {p.at_least:g}")
