"""Power of fields and of errors per wavenumber."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ups.types import Array


def spectrum(frames: Array) -> Array:
    """Power per integer wavenumber |k| = 0 … n/2 of frames (N, *S, C), all modes counted, averaged, (wavenumbers, C).

    Its sum is the mean square of the field, up to modes beyond the largest whole circle in the corners.
    """
    frames = np.asarray(frames, np.float64)
    axes = tuple(range(1, frames.ndim - 1))
    shape = frames.shape[1:-1]
    power = np.abs(np.fft.fftn(frames, axes=axes) / np.prod(shape)) ** 2
    waves = np.meshgrid(*(np.abs(np.fft.fftfreq(n, 1 / n)) for n in shape), indexing="ij")
    rings = np.floor(np.sqrt(sum(k**2 for k in waves)) + 0.5).astype(int)
    mean = power.reshape(len(frames), -1, frames.shape[-1]).mean(0, keepdims=True)
    return np.asarray(_summed(mean, rings, min(shape) // 2 + 1)[0])


def pdebench_power(error: Array, box: Sequence[float] | None = None) -> Array:
    """|FFT of the error × box / cells|² per integer wavenumber as PDEBench counts it, (N, T, wavenumbers, C).

    1D: the real FFT. 2D and 3D: modes with non-negative wavenumbers under n/2 on every axis, summed over floor|k|.
    """
    n, t, *space, c = error.shape
    scale = float(np.prod(box or [1.0] * len(space))) / float(np.prod(space))
    if len(space) == 1:
        return np.asarray(np.abs(np.fft.rfft(np.ascontiguousarray(error), axis=2) * scale) ** 2)
    half, corner = tuple(m // 2 for m in space), error
    for axis in range(1 + len(space), 1, -1):  # what is left out along one axis is not transformed along the next
        corner = np.fft.fft(corner, axis=axis)[(*(slice(None),) * axis, slice(half[axis - 2]))]
    waves = np.meshgrid(*(np.arange(m) for m in half), indexing="ij")
    rings = np.floor(np.sqrt(sum(k**2 for k in waves))).astype(int)
    power = _summed(np.abs(corner.reshape(n * t, -1, c) * scale) ** 2, rings, min(half))
    return power.reshape(n, t, -1, c)


def _summed(power: Array, rings: Array, count: int) -> Array:
    """Sums of `power` (M, cells, C) over cells of equal ring number, (M, count, C); larger rings are left out.

    Every ring under `count` holds a cell (k, 0, …), so none of the sums is empty.
    """
    flat = rings.ravel()
    order = np.argsort(flat, kind="stable")
    order = order[flat[order] < count]
    starts = np.searchsorted(flat[order], np.arange(count))
    return np.asarray(np.add.reduceat(power[:, order], starts, axis=1))
