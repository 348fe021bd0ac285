"""Walks through the values of a config beside its model: its keys, the paths that it reads, what is no number."""

from __future__ import annotations

import dataclasses
import glob
import os
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from pydantic import BaseModel

from ups.files import is_pattern

Key = tuple[str, ...]


def is_model(node: Any) -> TypeGuard[type[BaseModel]]:
    """Whether it is a class of configs or of parts of them."""
    return isinstance(node, type) and issubclass(node, BaseModel)


def keys_of(model: type[BaseModel], at: Key) -> Iterable[str]:
    """The valid keys of the part of `model` at a path."""
    node: Any = model
    for part in at:
        if is_model(node):
            node = node.model_fields[part].annotation
        elif dataclasses.is_dataclass(node):
            node = typing.get_type_hints(node)[part]
        else:
            node = [kind for kind in typing.get_args(node) if kind is not ...][-1]
        if isinstance(node, types.UnionType):
            kinds = [a for a in typing.get_args(node) if a is not types.NoneType]
            node = next((a for a in kinds if is_model(a) or dataclasses.is_dataclass(a)), kinds[0])
    return node.model_fields if is_model(node) else [f.name for f in dataclasses.fields(node)]


def counted_as_numbers(given: Any, parsed: Any, at: Key = ()) -> Iterator[tuple[Key, bool]]:
    """Each bool of `given` that validation has taken for a number (1 or 0), with its key."""
    if isinstance(given, bool):
        if type(parsed) in (int, float):
            yield at, given
    elif isinstance(given, Mapping):
        for name, value in given.items():
            held = parsed.get(name) if isinstance(parsed, Mapping) else getattr(parsed, name, None)
            yield from counted_as_numbers(value, held, (*at, name))
    elif isinstance(given, list) and isinstance(parsed, list | tuple):
        for value, held in zip(given, parsed, strict=False):
            yield from counted_as_numbers(value, held, at)


def unnamed_in(values: dict[str, Any], keys: dict[str, Any], at: Key = ()) -> Iterator[tuple[Key, Any]]:
    """The leaves of `values` that `keys` does not name."""
    for key, value in values.items():
        inner = keys.get(key, {})
        if isinstance(value, dict) and value and isinstance(inner, dict):
            yield from unnamed_in(value, inner, (*at, key))
        elif key not in keys:
            yield (*at, key), value


def picked(values: Any, keys: Any) -> Any:
    """What `values` has under the same keys as `keys`."""
    if not isinstance(values, dict) or not isinstance(keys, dict):
        return values
    return {key: picked(values[key], inner) for key, inner in keys.items() if key in values}


def with_paths(model: type[BaseModel], values: Any, change: Callable[[str], str]) -> Any:
    """`values` of a config of `model`, each path changed that its `located` tell of and that is no absolute one."""
    if not isinstance(values, Mapping):
        return values
    changed, located = dict(values), getattr(model, "located", {})
    for name, value in values.items():
        kind = model.model_fields[name].annotation if name in model.model_fields else None
        inner = typing.get_args(kind)[-1] if typing.get_origin(kind) is dict else None
        if is_model(kind):
            changed[name] = with_paths(kind, value, change)
        elif is_model(inner) and isinstance(value, dict):
            changed[name] = {label: with_paths(inner, one, change) for label, one in value.items()}
        elif name in located and inner is not None and isinstance(value, dict):
            changed[name] = {label: _changed(one, located[name], change) for label, one in value.items()}
        elif name in located:
            changed[name] = _changed(value, located[name], change)
    return changed


def _changed(value: Any, is_path: Callable[[str], bool], change: Callable[[str], str]) -> Any:
    if isinstance(value, list | tuple):
        return [_changed(one, is_path, change) for one in value]
    path = isinstance(value, str) and value and is_path(value) and not os.path.isabs(value)
    return change(value) if path else value


def home_of(path: Path, named: Any = None) -> str:
    """The folder from which the relative paths of a config file count: the one it names, or its own."""
    here = os.path.realpath(path.parent)
    return os.path.normpath(os.path.join(here, str(named))) if named else here


def seen_from_here(home: str) -> Callable[[str], str]:
    """Turns a path that counts from `home` into one that counts from the current folder."""
    way = os.path.relpath(home)

    def rebased(path: str) -> str:
        return os.path.normpath(os.path.join(glob.escape(way) if is_pattern(path, Path(home)) else way, path))

    return rebased


def seen_from(home: str) -> Callable[[str], str]:
    """Turns a path that counts from the current folder into one that counts from `home`."""

    def rebased(path: str) -> str:
        here, there = glob.escape(os.getcwd()), glob.escape(os.path.abspath(home))
        as_pattern = os.path.relpath(os.path.join(here, path), there)
        return min(os.path.relpath(path, home), as_pattern, key=len)  # of the other one, brackets of folders differ

    return rebased
