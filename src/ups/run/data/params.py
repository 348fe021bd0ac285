"""Parameters of generated data: a value, a list (a file for each), or a range (a value for each sample)."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import model_validator

from ups.config import Config
from ups.physics.random import Draw
from ups.physics.solver import Equation
from ups.types import Array, Param

Scalar = float | str


class ParamRange(Config):
    """Numbers between `low` and `high`, drawn for each sample."""

    low: float
    """The least value."""
    high: float
    """The greatest value."""
    scale: Literal["linear", "log"] = "linear"
    """linear: all values are equally likely; log: all powers of ten are."""

    @model_validator(mode="after")
    def _ordered(self) -> ParamRange:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"a range goes from low to a greater high, not from {self.low:g} to {self.high:g}.")
        if self.scale == "log" and self.low <= 0:
            raise ValueError(f"a log range must be above 0, but it begins at {self.low:g}.")
        return self

    def drawn(self, name: str, seed: int, samples: Sequence[int]) -> Array:
        """The values `(N,)` of these samples: a function of the seed, the name and the sample's number alone."""
        log = self.scale == "log"
        low, high = (math.log(self.low), math.log(self.high)) if log else (self.low, self.high)
        values = Draw(seed, samples).uniform(f"parameter {name}", (), low, high).tolist()
        values = [math.exp(value) for value in values] if log else values
        return np.clip(np.asarray(values, np.float64), self.low, self.high)


Value = Scalar | tuple[Scalar, ...] | ParamRange


def parsed(value: Any, param: Param | None) -> Any:
    """A parameter as it is written (0.01, [0.001, 0.01], {low: 0.001, high: 1}, "0.001,0.01", "log:0.001..1") as a
    value, a tuple or a range; words in the spelling of their choices, numbers also as YAML mistakes them (1e-8)."""
    if isinstance(value, str) and "," in value:
        value = [part.strip() for part in value.split(",")]
    if isinstance(value, str) and ".." in value:
        scale, _, between = value.rpartition(":")
        low, _, high = between.partition("..")
        if scale not in ("", "log", "linear") or not all(isinstance(_number(end), float) for end in (low, high)):
            raise ValueError(f"'{value}' is no range; write 0.001..1.0, or log:0.001..1.0.")
        value = {"low": low, "high": high, "scale": scale or "linear"}
    if isinstance(value, Mapping):
        if param is not None and param.choices:
            raise ValueError(f"{param.name} is a word and has no range; list some of {', '.join(param.choices)}.")
        ends = {key: end if key == "scale" else _number(end) for key, end in value.items()}
        numbers = all(isinstance(ends.get(key), float) for key in ("low", "high"))
        if not numbers or set(ends) - {"low", "high", "scale"} or ends.get("scale", "log") not in ("log", "linear"):
            raise ValueError(
                "a range has two numbers, low and high, and may have a scale, linear or log, no other key."
            )
        return ParamRange(**ends)
    if isinstance(value, list | tuple):
        values = tuple(parsed(one, param) for one in value)
        if (
            not values
            or len(set(map(str, values))) < len(values)
            or any(isinstance(v, tuple | ParamRange) for v in values)
        ):
            raise ValueError("a list of parameters holds one or more values, and each of them once.")
        return values if len(values) > 1 else values[0]
    if param is not None and param.choices:
        return {choice.lower(): choice for choice in param.choices}.get(str(value).lower(), value)
    return _number(value)


def _number(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


@dataclasses.dataclass(frozen=True)
class FileParams:
    """The parameters of one file: those that its samples share, and the ranges from which each draws its own."""

    shared: Mapping[str, Scalar]
    ranges: Mapping[str, ParamRange]
    #: Parameters of which the config lists several values: each has a file of its own.
    listed: frozenset[str] = frozenset()

    def equation(self, kind: type[Equation]) -> Equation:
        """An equation that stands for all samples: its ranged parameters are at their least."""
        return kind(**self.shared, **{name: r.low for name, r in self.ranges.items()})

    def check(self, kind: type[Equation]) -> Equation:
        """As `equation`, after both ends of every range have been tried: an error if an equation refuses one."""
        for ends in itertools.product(*((r.low, r.high) for r in self.ranges.values())):
            kind(**self.shared, **dict(zip(self.ranges, ends, strict=True)))
        return self.equation(kind)

    def drawn(self, seed: int, samples: Sequence[int]) -> dict[str, Array]:
        """By name, the values `(N,)` of these samples."""
        return {name: r.drawn(name, seed, samples) for name, r in self.ranges.items()}


def files_of(params: Mapping[str, Value]) -> list[FileParams]:
    """The parameters of each file: one for every combination of listed values, in their order."""
    ranges = {name: value for name, value in params.items() if isinstance(value, ParamRange)}
    lists = {name: value for name, value in params.items() if isinstance(value, tuple)}
    fixed = {name: value for name, value in params.items() if isinstance(value, float | int | str)}
    return [
        FileParams({**fixed, **dict(zip(lists, values, strict=True))}, ranges, frozenset(lists))
        for values in itertools.product(*lists.values())
    ]


def single(params: Mapping[str, Value]) -> dict[str, Scalar]:
    """Parameters of which each must be one value: those of files that are there, or of one exam."""
    (file, *others) = files_of(params)
    if others or file.ranges:
        name = next(name for name, value in params.items() if isinstance(value, tuple | ParamRange))
        raise ValueError(f"{name} must be one value here, not a list or a range.")
    return dict(file.shared)
