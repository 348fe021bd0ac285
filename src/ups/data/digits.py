"""Finds fields and parameters that vary too little for float32, the type in which all data are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ups.types import Array

FEWEST = 128  # steps of float32 that a field should vary by
LEAST, FLOAT32_MAX = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


@dataclass
class Digits:
    """The least and the largest number of each channel and of each parameter, in the digits that the file has."""

    channels: Sequence[str]
    low: Array = field(init=False)
    high: Array = field(init=False)
    params: dict[str, set[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.low, self.high = np.full(len(self.channels), np.inf), np.full(len(self.channels), -np.inf)

    def frames(self, values: Array) -> None:
        """Look at some frames, `(…, C)`; those that are not finite are wrong for another reason."""
        if values.dtype.itemsize > 4:  # others have lost nothing
            cells = values.reshape(-1, len(self.channels))
            self.low = np.fmin(self.low, np.fmin.reduce(cells, 0).astype(float))
            self.high = np.fmax(self.high, np.fmax.reduce(cells, 0).astype(float))

    def sample(self, params: Mapping[str, float | str]) -> None:
        for name, value in params.items():
            if isinstance(value, float) and np.isfinite(value):
                self.params.setdefault(name, set()).add(value)

    def problems(self) -> list[str]:
        problems = []
        for name, low, high in zip(self.channels, self.low, self.high, strict=True):
            size, width = max(abs(low), abs(high)), high - low
            if 0 < size < LEAST:
                problems.append(
                    f"{name} is {size:.2g} at most, which float32, in which all is read, cannot hold; give it in a "
                    "smaller unit"
                )
            elif size <= FLOAT32_MAX and 0 < width < FEWEST * np.spacing(np.float32(size)):
                problems.append(
                    f"{name} varies by {width:.2g} about {low:.4g}, which float32, in which all is read, can hardly "
                    f"tell apart; take {low:.4g} away from it"
                )
        for name, values in self.params.items():
            if max(map(abs, values)) > FLOAT32_MAX:
                problems.append(f"the parameter {name} is {max(values, key=abs):.2g}, which float32 cannot hold")
            elif len(np.unique(np.array(list(values), np.float32))) < len(values):
                problems.append(
                    f"values of the parameter {name} are the same in float32, in which all is read, though they differ "
                    f"(about {min(values):.10g}); take what they have in common away"
                )
        return problems
