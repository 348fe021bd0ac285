"""The section `gates` of a config, read without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ups.types import ConfigError

CHAMPION = "champion"


def gates_from(values: Any) -> dict[str, str | dict[str, float]]:
    """The section `gates` as a config keeps it; ConfigError for a value that is neither a bound nor a run."""
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"gates is {values!r}, but must be bounds by task, for example {{burgers1d: {{nrmse: 0.1}}}}."
        )
    gates: dict[str, str | dict[str, float]] = {}
    for name, value in values.items():
        if name == CHAMPION:
            if not isinstance(value, str) or not value.strip():
                raise ConfigError(f"gates.champion is {value!r}, but must be the folder of a run.")
            gates[name] = value
        elif not isinstance(value, Mapping) or not value:
            raise ConfigError(f"gates.{name} is {value!r}, but must be bounds by metric, for example {{nrmse: 0.1}}.")
        else:
            gates[str(name)] = {str(metric): _bound(f"gates.{name}.{metric}", bound) for metric, bound in value.items()}
    return gates


def _bound(key: str, value: Any) -> float:
    """A finite number; YAML takes 1e-5 for a text, and everybody means a number."""
    try:
        bound = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        bound = math.nan
    if not math.isfinite(bound):
        raise ConfigError(f"{key} is {value!r}, but must be a finite number: what the metric may be at most.")
    return bound
