"""Keys of a config that are written once for several sections, each of which says only what differs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from ups.config_values import Key, is_model, keys_of


def sections_of(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """The sections of a model that are models themselves."""
    return {name: kind for name, field in model.model_fields.items() if is_model(kind := field.annotation)}


def shared_of(model: type[BaseModel]) -> Mapping[str, type]:
    """The shared keys of a model and the kind of section that each is for."""
    return getattr(model, "shared", {})


def places(model: type[BaseModel], name: str) -> list[Key]:
    """Where a shared key counts: in each section of its kind that has a key of this name, or as the section itself."""
    kind = shared_of(model)[name]
    parts = [
        part
        for part, field in model.model_fields.items()
        if part != name and isinstance(field.annotation, type) and issubclass(field.annotation, kind)
    ]
    return [(part, name) if name in keys_of(kind, ()) else (part,) for part in parts]


def shared_keys(model: type[BaseModel], at: Key = ()) -> dict[str, list[str]]:
    """Every shared key of a model and of its sections, and those that it counts for, all dotted."""
    keys = {
        ".".join((*at, name)): [".".join((*at, *place)) for place in places(model, name)] for name in shared_of(model)
    }
    for name, section in sections_of(model).items():
        keys |= shared_keys(section, (*at, name))
    return keys


def laid_over(kind: Any, lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a section: those of `lower`, replaced by those of `upper`. One of its `alternatives` replaces all."""
    gone = _with_alternatives(kind, upper)
    return {**{key: value for key, value in lower.items() if key not in gone}, **upper}


def over_default(model: type[BaseModel], name: str, values: Any) -> Any:
    """`values` of a model, in which section `name` has its defaults for keys that are not given, if any is given."""
    given = values.get(name) if isinstance(values, Mapping) else None
    field = model.model_fields[name]
    if not isinstance(given, Mapping) or not dataclasses.is_dataclass(field.annotation) or field.is_required():
        return values
    section: Any = field.get_default(call_default_factory=True)
    return {**values, name: laid_over(type(section), dataclasses.asdict(section), given)}


def whole(model: type[BaseModel], values: Mapping[str, Any]) -> Any:
    """`values` as a model takes them: shared keys copied into every section they are for, and completed by defaults."""
    laid = laid_beneath(model, values)
    for name in shared_of(model):
        laid = over_default(model, name, laid)
    return laid


def laid_beneath(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """`values`, each shared key that is given copied into every section it is for, beneath what that says itself."""
    result = dict(values)
    for name in shared_of(model).keys() & values.keys():
        for place in places(model, name):
            _lay(result, place, model.model_fields[name].annotation, values[name])
    return result


def spread(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """`laid_beneath` for a model and its sections, without the shared keys, which have no effect of their own."""
    laid = without_shared(model, laid_beneath(model, values), deep=False)
    sections = sections_of(model)
    return {
        name: spread(sections[name], value) if name in sections and isinstance(value, Mapping) else value
        for name, value in laid.items()
    }


def without_shared(model: type[BaseModel], values: Mapping[str, Any], deep: bool = True) -> dict[str, Any]:
    """`values` of a model without its shared keys, and with `deep` also without those of its sections."""
    sections = sections_of(model) if deep else {}
    return {
        name: without_shared(sections[name], value) if name in sections and isinstance(value, Mapping) else value
        for name, value in values.items()
        if name not in shared_of(model)
    }


def shortened(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` of a config, of each section only what differs from a shared key: they mean the same."""
    sections = sections_of(model)
    result = {name: shortened(sections[name], value) if name in sections else value for name, value in values.items()}
    for name in shared_of(model):
        for place in places(model, name):
            _shorten(result, place, model.model_fields[name].annotation, result[name])
    return result


def overridden(
    model: type[BaseModel], before: Mapping[Any, Any], new: Mapping[Any, Any], at: Key = ()
) -> Iterator[Key]:
    """The keys of single sections in the values `before`, of earlier files, that a shared key in `new` replaces.

    A section that was told to do nothing (`idle`) goes on doing nothing: its alternatives are not replaced.
    """
    for name in shared_of(model).keys() & new.keys():
        kind, value = model.model_fields[name].annotation, new[name]
        for place in places(model, name):
            if dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
                gone = {*value} - _alternatives(kind) if _idle(kind, before, place) else _with_alternatives(kind, value)
                yield from ((*at, *place, str(key)) for key in gone)
            else:
                yield (*at, *place)
    for name, section in sections_of(model).items():
        if isinstance(new.get(name), Mapping):
            inner = before.get(name)
            yield from overridden(section, inner if isinstance(inner, Mapping) else {}, new[name], (*at, name))


def _idle(kind: Any, values: Any, place: Key) -> bool:
    """Whether a section has been told to do nothing."""
    for part in place:
        values = values.get(part) if isinstance(values, Mapping) else None
    idle: Mapping[str, Any] = getattr(kind, "idle", {})
    return isinstance(values, Mapping) and any(values.get(key) == value for key, value in idle.items())


def _alternatives(kind: Any) -> frozenset[str]:
    return getattr(kind, "alternatives", frozenset())


def _with_alternatives(kind: Any, keys: Mapping[Any, Any]) -> set[Any]:
    either = _alternatives(kind)
    return {*keys, *(either if either & keys.keys() else ())}


def _lay(values: dict[str, Any], place: Key, kind: Any, shared: Any) -> None:
    """Copy a shared value into one section, beneath what it says itself. What is no group of keys is refused later."""
    part, *inner = place
    own = values.get(part, {})
    if not isinstance(own, Mapping):
        return
    if not dataclasses.is_dataclass(kind):
        values[part] = {inner[0]: shared, **own}
        return
    shared = vars(shared) if dataclasses.is_dataclass(shared) else shared
    section = own.get(inner[0], {}) if inner else own
    if isinstance(shared, Mapping) and isinstance(section, Mapping):
        laid = laid_over(kind, shared, section)
        values[part] = {**own, inner[0]: laid} if inner else laid


def _shorten(values: dict[str, Any], place: Key, kind: Any, shared: Any) -> None:
    part, *inner = place
    own = values[part]
    if not inner:
        values[part] = _differing(kind, shared, own)
        return
    name = inner[0]
    left = _differing(kind, shared, own[name]) if dataclasses.is_dataclass(kind) else own[name]
    same = not left if dataclasses.is_dataclass(kind) else left == shared
    values[part] = {key: left if key == name else value for key, value in own.items() if key != name or not same}


def _differing(kind: Any, shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a section whose values are not the shared ones. Where one of its alternatives differs, those that are
    given are all kept, or all of them if none is given."""
    left = {key: value for key, value in own.items() if key not in shared or shared[key] != value}
    either = _alternatives(kind)
    if not either & left.keys():
        return left
    given = {key for key in either if own[key] is not None} or either
    return {key: value for key, value in own.items() if key in given or (key in left and key not in either)}
