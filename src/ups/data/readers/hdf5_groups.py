"""Finds the groups of an HDF5 file that hold a trajectory each, and the arrays in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from ups.data.readers.arrays import Variable, is_small
from ups.definition import Definition
from ups.types import DataError, few

Held = dict[str, Variable]


def grouped(path: Path, variables: Sequence[Variable], definition: Definition) -> dict[str, Held]:
    """The arrays of each group that is a trajectory, by their names in it; empty for a file without such groups.

    A group is a trajectory if it holds the fields of the task, by their names or as `datasets` says; in a task without
    fields, if all groups hold the same.

    Raises:
        DataError: A group lacks some of the fields, or all groups hold the same and none of the fields.
    """
    keys, alike = {v.key for v in variables}, _alike(variables)
    if not definition.fields:
        return {} if any(key.strip("/") in keys for key in definition.datasets.values()) else alike
    wanted = {field: _names(definition, field) for field in definition.fields}
    words = {name for ways in wanted.values() for way in ways for name in way}
    if words & keys:
        return {}
    places = [key.removesuffix(f"/{word}") for v in variables for word in words if (key := v.key).endswith(f"/{word}")]
    groups = _held(variables, _outermost(places))
    missing = {place: [f for f, ways in wanted.items() if not _has(held, ways)] for place, held in groups.items()}
    whole = [place for place, fields in missing.items() if not fields]
    if not whole and alike:
        names = list(next(iter(alike.values())))
        raise DataError(
            f"{path}: holds {len(alike)} groups ({few(alike)}) with {', '.join(names)} in each, and nothing of "
            f"the field {next(iter(wanted))} in them; a group is a trajectory where `fields` of the task are names "
            "inside of it, or `datasets: {FIELD: NAME}` says these."
        )
    if whole and len(whole) < len(groups):
        place = next(place for place, fields in missing.items() if fields)
        raise DataError(
            f"{path}: its group {place} lacks {', '.join(missing[place])}, which {whole[0]} has, and each group "
            "with fields is a trajectory; write it again, or take it out."
        )
    return groups if whole else {}


def _names(definition: Definition, field: str) -> tuple[tuple[str, ...], ...]:
    """The arrays that may hold a field, in groups: one for each channel, or one for all."""
    channels = definition.fields[field]
    return tuple(tuple(definition.datasets.get(c, c).strip("/") for c in names) for names in (channels, (field,)))


def _has(held: Held, ways: tuple[tuple[str, ...], ...]) -> bool:
    return any(set(names) <= set(held) for names in ways)


def _outermost(places: Sequence[str]) -> list[str]:
    """The groups that lie in no other of them."""
    there = set(places)
    return [place for place in places if not any(place[:at] in there for at in slashes(place))]


def slashes(key: str) -> list[int]:
    """Where the names of groups end in the path of what lies in them."""
    return [i for i, letter in enumerate(key) if letter == "/"]


def _held(variables: Sequence[Variable], places: Iterable[str]) -> dict[str, Held]:
    """The arrays in each of some groups by their names in it, which are their keys too."""
    groups: dict[str, Held] = {place: {} for place in places}
    for v in variables:
        for at in slashes(v.key):
            if (place := v.key[:at]) in groups:
                name = v.key[at + 1 :]
                groups[place][name] = dataclasses.replace(v, name=name, key=name)
    return groups


def _alike(variables: Sequence[Variable]) -> dict[str, Held]:
    """The outermost groups, where there are several, each with arrays of the same names, and no field beside them."""
    if any("/" not in v.key and not is_small(v.shape) for v in variables):
        return {}
    groups = _held(variables, [v.key.partition("/")[0] for v in variables if "/" in v.key])
    same = len({frozenset(held) for held in groups.values()}) == 1
    large = all(any(not is_small(v.shape) for v in held.values()) for held in groups.values())
    return groups if len(groups) > 1 and same and large else {}


def each_a_trajectory(groups: Sequence[str]) -> str:
    """A note on how a file is read."""
    return f"each of its {len(groups)} groups ({few(groups)}) is read by itself, as a trajectory"
