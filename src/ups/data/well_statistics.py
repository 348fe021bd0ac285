"""The statistics that come with a data set of The Well: mean, spread and size of each field and of its changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import yaml

from ups.types import Array


class Moments:
    """Sums over all values of a field, per component, and over its changes from frame to frame; NaN is left out."""

    def __init__(self, components: int, shape: tuple[int, ...], changing: bool) -> None:
        """`shape` is that of the components: () for a scalar, (2,) for a vector in two dimensions."""
        self.shape, self.changing = shape, changing
        self.values, self.deltas = np.zeros((3, components)), np.zeros((3, components))
        self._last: Array | None = None

    def add(self, values: Array, start: int) -> None:
        """Frames `(T', *S, components)` of a sample, which follow those that were added before unless `start` is 0."""
        self.values += _sums(values)
        if self.changing:
            joined = values if start == 0 or self._last is None else np.concatenate([self._last, values])
            self.deltas += _sums(np.diff(joined, axis=0))
            self._last = values[-1:]

    def numbers(self, of: Array) -> dict[str, Any]:
        count = np.maximum(of[0], 1)
        mean, square = of[1] / count, of[2] / count
        spread = np.sqrt(np.maximum(square - mean**2, 0))
        sizes = {"mean": mean, "std": spread, "rms": np.sqrt(square)}
        return {key: value.reshape(self.shape).tolist() for key, value in sizes.items()}


def stats_text(moments: Mapping[str, Moments]) -> str:
    """`stats.yaml`: by statistic, then by field."""
    content: dict[str, dict[str, Any]] = {}
    for name, sums in moments.items():
        for key, value in sums.numbers(sums.values).items():
            content.setdefault(key, {})[name] = value
        for key, value in (sums.numbers(sums.deltas) if sums.changing else {}).items():
            content.setdefault(f"{key}_delta", {})[name] = value
    for key in ("mean_delta", "std_delta", "rms_delta"):
        content.setdefault(key, {})
    return yaml.safe_dump(content, sort_keys=True)


def _sums(values: Array) -> Array:
    """Count, sum and sum of squares per component."""
    flat = values.reshape(-1, values.shape[-1]).astype(np.float64)
    counts = np.isfinite(flat)
    flat = np.where(counts, flat, 0.0)
    return np.stack([counts.sum(0), flat.sum(0), np.square(flat).sum(0)])
