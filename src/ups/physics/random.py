"""Randomness as a pure function of (seed, sample, name, element): no order, no batch, no state."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ups.lazy_imports import Tensor, torch

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW, _HALF = 0xFFFFFFFF, 32


def philox(counter: Sequence[Any], key: tuple[int, int]) -> tuple[Any, Any, Any, Any]:
    """Philox4x32-10 (Salmon et al. 2011): a counter's four 32-bit words to four random ones.

    Words are arrays of `uint64`, or tensors of `int64` on any device: their shapes broadcast.
    """
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        p0, p1 = c0 * _M0, c2 * _M1  # in int64 they wrap around, which leaves both of their halves as they are
        c0, c1, c2, c3 = ((p1 >> _HALF) & _LOW) ^ c1 ^ k0, p1 & _LOW, ((p0 >> _HALF) & _LOW) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return c0, c1, c2, c3


@dataclass(frozen=True)
class Draw:
    """Named random numbers for a set of samples.

    `draw.uniform("phase", (4,))` is the same for sample 17 whoever else is in `samples`, whatever was drawn before,
    and on every device. The name keeps two quantities apart; asking twice for one name gives the same numbers.
    """

    seed: int
    samples: Sequence[int]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = field(default_factory=lambda: torch.float64)

    def __len__(self) -> int:
        return len(self.samples)

    def _unit(self, name: str, count: int) -> NDArray[np.float64]:
        """`(B, count)` doubles in (0, 1), the open interval, 53 random bits each."""
        blocks = (count + 1) // 2
        sample = np.asarray(self.samples, dtype=np.uint64)[:, None]
        name_word = np.full(1, zlib.crc32(name.encode()), dtype=np.uint64)
        counter = (np.arange(blocks, dtype=np.uint64), name_word, sample & np.uint64(_LOW), sample >> np.uint64(_HALF))
        words = np.stack(philox(counter, (self.seed & _LOW, (self.seed >> 32) & _LOW)), axis=-1)
        pairs = words.reshape(len(self.samples), blocks, 2, 2)
        bits = (pairs[..., 0] << np.uint64(20)) ^ (pairs[..., 1] >> np.uint64(12))
        unit: NDArray[np.float64] = (bits.astype(np.float64) + 0.5) * 2.0**-52
        return unit.reshape(len(self.samples), -1)[:, :count]

    def tensor(self, values: NDArray[np.float64]) -> Tensor:
        """An array as a tensor of this draw's device and dtype."""
        return torch.as_tensor(values).to(device=self.device, dtype=self.dtype)

    def uniform(self, name: str, shape: tuple[int, ...] = (), low: float = 0.0, high: float = 1.0) -> Tensor:
        """`(B, *shape)` uniform in (low, high)."""
        unit = self._unit(name, math.prod(shape)).reshape(len(self.samples), *shape)
        return self.tensor(low + (high - low) * unit)

    def integers(self, name: str, shape: tuple[int, ...], high: int) -> Tensor:
        """`(B, *shape)` integers in {0, …, high − 1}, as int64."""
        unit = self._unit(name, math.prod(shape)).reshape(len(self.samples), *shape)
        return torch.as_tensor(np.floor(unit * high).astype(np.int64)).to(self.device)

    def normal(self, name: str, shape: tuple[int, ...] = ()) -> Tensor:
        """`(B, *shape)` standard normal, by Box–Muller."""
        unit = self._unit(name, 2 * math.prod(shape)).reshape(len(self.samples), *shape, 2)
        return self.tensor(np.sqrt(-2.0 * np.log(unit[..., 0])) * np.cos(2.0 * np.pi * unit[..., 1]))

    def log_uniform(self, name: str, shape: tuple[int, ...], low: float, high: float) -> Tensor:
        """`(B, *shape)` with a uniform logarithm in (log low, log high)."""
        return self.uniform(name, shape, math.log(low), math.log(high)).exp()

    def chance(self, name: str, probability: float) -> Tensor:
        """`(B,)` booleans, true with the given probability."""
        return self.uniform(name) < probability
