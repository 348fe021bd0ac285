"""What a sweep varies: keys of the config with values or a range, and the points that a grid or chance makes."""

from __future__ import annotations

import hashlib
import itertools
import math
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ups.types import ConfigError

RANGE = re.compile(r"(?:(log|int):)?([^,:]+?)\.\.([^,:]+)")
RESERVED = {"name": "each run has a name of its own", "out": "--out says it", "device": "--devices says it"}
LONGEST = 100  # letters of a name
TRIES = 1000


@dataclass(frozen=True)
class SweepRange:
    """Numbers from `low` to `high`: evenly, evenly in their logarithm, or whole ones."""

    low: float
    high: float
    kind: Literal["even", "log", "int"] = "even"

    def draw(self, rng: random.Random) -> str:
        if self.kind == "int":
            return str(rng.randint(int(self.low), int(self.high)))
        if self.kind == "log":
            return number(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))
        return number(rng.uniform(self.low, self.high))


@dataclass(frozen=True)
class SweepAxis:
    """A dotted key of the config, and the values it takes, in the words of the command line."""

    key: str
    values: tuple[str, ...] = ()
    range: SweepRange | None = None

    def draw(self, rng: random.Random) -> str:
        return rng.choice(self.values) if self.range is None else self.range.draw(rng)


@dataclass(frozen=True)
class SweepPoint:
    """One run of a sweep: its name, and what differs from the config. `seed`: None where it is the config's."""

    name: str
    overrides: tuple[tuple[str, str], ...]
    seed: int | None = None

    @property
    def flags(self) -> dict[str, str]:
        return {**dict(self.overrides), **({} if self.seed is None else {"seed": str(self.seed)})}


def axes_of(words: Iterable[str]) -> list[SweepAxis]:
    """The axes of `KEY=VALUE,VALUE…` or `KEY=log:LOW..HIGH`; a ConfigError for what is neither."""
    axes: list[SweepAxis] = []
    for word in words:
        key, equals, text = (part.strip() for part in word.partition("="))
        if not key or not equals or not text:
            raise ConfigError(f"--over '{word}' is no axis; write KEY=VALUE,VALUE or KEY=log:LOW..HIGH.")
        if key in RESERVED:
            raise ConfigError(f"--over {key}: {RESERVED[key]}; sweep over another key.")
        if key in (axis.key for axis in axes):
            raise ConfigError(f"--over {key} stands there twice; give all its values at once.")
        if (match := RANGE.fullmatch(text)) is not None:
            axes.append(SweepAxis(key, range=_range(word, *match.groups())))
            continue
        values = split(text)
        if "" in values or len(set(values)) < len(values):
            what = "has an empty value" if "" in values else "has a value twice"
            raise ConfigError(f"--over '{word}' {what}; give each value once.")
        axes.append(SweepAxis(key, tuple(values)))
    return axes


def split(text: str) -> list[str]:
    """The values between commas; brackets and quotes keep theirs."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        quote = ("" if letter == quote else quote) if quote else (letter if letter in "'\"" else "")
        depth += 0 if quote else (letter in "[{(") - (letter in ")}]")
        if letter == "," and depth <= 0 and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def grid(axes: Sequence[SweepAxis]) -> list[dict[str, str]]:
    """Every combination of all values; a ConfigError for a range, of which there is no end."""
    for axis in axes:
        if axis.range is not None:
            raise ConfigError(f"--over {axis.key} is a range, which a grid cannot go through; add --random N.")
    combinations = itertools.product(*(axis.values for axis in axes))
    return [dict(zip((axis.key for axis in axes), values, strict=True)) for values in combinations]


def drawn(axes: Sequence[SweepAxis], count: int, seed: int) -> list[dict[str, str]]:
    """`count` different points, drawn at random; fewer where there are not so many."""
    rng = random.Random(seed)
    points: dict[tuple[str, ...], dict[str, str]] = {}
    for _ in range(TRIES * count):
        values = tuple(axis.draw(rng) for axis in axes)
        points.setdefault(values, dict(zip((axis.key for axis in axes), values, strict=True)))
        if len(points) == count:
            break
    return list(points.values())


def points_of(settings: Sequence[Mapping[str, str]], seeds: Sequence[int] = ()) -> list[SweepPoint]:
    """A point for each of the settings and each seed, named by what sets it apart: the same for the same settings."""
    keys = short_names([key for one in settings for key in one])
    points = []
    for one in settings:
        words = [f"{keys[key]}-{value}" for key, value in one.items()]
        for seed in seeds or (None,):
            name = "_".join((*words, *([] if seed is None else [f"seed-{seed}"]))) or "run"
            points.append(SweepPoint(safe(name), tuple(one.items()), seed))
    names = [point.name for point in points]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"two points of the sweep would have the name '{twice}'; choose values that differ in words.")
    return points


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """A short name for each dotted key: as much of its end as tells it from the others."""
    unique = list(dict.fromkeys(keys))
    names = {}
    for key in unique:
        parts = key.split(".")
        for count in range(1, len(parts) + 1):
            name = ".".join(parts[-count:])
            if [other for other in unique if f".{other}".endswith(f".{name}")] == [key]:
                break
        names[key] = name
    return names


def safe(name: str) -> str:
    """A name that a run may have: other letters become dashes, and what is too long is cut and told apart by a hash."""
    plain = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "run"
    plain = plain if re.match(r"\w", plain) else f"run-{plain}"
    if len(plain) <= LONGEST:
        return plain
    return f"{plain[: LONGEST - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def number(value: float) -> str:
    """Four digits: what is drawn is what is written."""
    text = f"{value:.4g}"
    return text if any(c in text for c in ".n") or "e" not in text else text.replace("e", ".0e", 1)


def _range(word: str, kind: str | None, first: str, last: str) -> SweepRange:
    try:
        low, high = float(first), float(last)
    except ValueError:
        raise ConfigError(f"--over '{word}': a range goes from a number to a number, as log:1e-4..1e-2.") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(f"--over '{word}': a range goes upwards, from a smaller to a larger number.")
    if kind == "log" and low <= 0:
        raise ConfigError(f"--over '{word}': a logarithmic range begins above 0.")
    if kind == "int" and not (low.is_integer() and high.is_integer()):
        raise ConfigError(f"--over '{word}': a range of whole numbers has whole ends.")
    return SweepRange(low, high, "log" if kind == "log" else "int" if kind == "int" else "even")
