"""Reads the keys of configs and artifacts that earlier programs have written: missing, dropped and moved ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ups.types import OutdatedError


@dataclass(frozen=True)
class NeverRead:
    """What a key that is no more had by default, and that nothing depended on whatever it was."""

    default: Any


def as_written(config: Any, values: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """The values of a config (or of its class) that an earlier program has written, as this one takes them. A key that
    was not there yet has what it meant then (`formerly`); one that is no more (`dropped`) is left out where it meant
    what is always so today, and is an OutdatedError otherwise; one that was `moved` is in its group. `at`: the group
    that they stand in, with its dot."""
    values = _in_groups(config, values)
    for key, meaningless in getattr(config, "dropped", {}).items():
        if not isinstance(meaningless, NeverRead) and values.get(key, meaningless) != meaningless:
            raise OutdatedError(
                f"{at}{key} is {values[key]!r:.60}, and this program has that setting no more; train without it, "
                "or use the program that wrote it."
            )
    left = {key: value for key, value in values.items() if key not in getattr(config, "dropped", {})}
    return {**getattr(config, "formerly", {}), **left}


def as_given(config: Any, values: Mapping[str, Any], at: str = "") -> dict[str, Any]:  # noqa: ARG001
    """The values of a config (or of its class) that is given anew, maybe one that an earlier program has written: a key
    that is no more is left out where it says what it said by default, and is unknown otherwise; one that was moved is
    in its group."""
    values = _in_groups(config, values)

    def says_nothing(key: str, value: Any) -> bool:
        known = getattr(config, "dropped", {})
        default = known[key].default if isinstance(known.get(key), NeverRead) else known.get(key)
        return key in known and value == default

    return {key: value for key, value in values.items() if not says_nothing(key, value)}


def _in_groups(config: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values with those of keys that were `moved` in their groups, but for zeros, by which nothing was asked for."""
    moved = getattr(config, "moved", {})
    plain = {key: value for key, value in values.items() if key not in moved}
    for key in (key for key in values if key in moved and values[key]):
        plain[moved[key]] = {key: values[key], **(plain.get(moved[key]) or {})}
    return plain
