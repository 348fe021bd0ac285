"""Errors of predicted trajectories in physical units: per sample, in three labelled modes, with intervals."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from ups.types import Array, ConfigError

Mode = Literal["strict", "pdebench-0.1.0", "pdebench-paper"]
MODES: tuple[Mode, ...] = ("strict", "pdebench-0.1.0", "pdebench-paper")
BANDS = {"low": (0, 4), "mid": (4, 12), "high": (12, None)}
NAMES = ("rmse", "nrmse", "max", "crmse", "brmse", "frmse-low", "frmse-mid", "frmse-high")
FRAMEWISE = (*NAMES, "vrmse")
VARIANCE_FLOOR = 1e-7


@dataclass(frozen=True)
class Metric:
    """One number with what it means: `low` and `high` bound its 95 % bootstrap interval over `n` samples.

    A mode without samples of its own (the batch means of PDEBench) has no interval: `low = high = value`.
    """

    name: str
    mode: str
    protocol: str
    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Errors:
    """What rollouts leave behind, without the fields: N samples, T predicted frames, C channels.

    Each array is (N, T, C) unless it says otherwise. `rmse`: root mean square error over space; `norm`: root mean
    square of the truth; `shift`: |Σ pred − Σ true| over cells; `peak`: largest absolute error; `boundary`: RMSE on the
    cells of all faces, per channel also in 3D, where PDEBench's own code knows one channel only;
    `bands` (N, T, C, 3): spectral error per band; `vrmse`: rmse over the truth's spatial standard deviation;
    `correlation`: Pearson's, over space. `batches` are the sizes of the batches the samples came in, and `batch_bands`
    (batches, T, C, 3) is the spectral error of each, averaged over samples before the root, as PDEBench does.
    What is not finite in a prediction counts as an infinite error, and correlates with nothing.
    """

    rmse: Array
    norm: Array
    shift: Array
    peak: Array
    boundary: Array
    bands: Array
    vrmse: Array
    correlation: Array
    batch_bands: Array
    batches: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.rmse)

    @classmethod
    def join(cls, parts: Sequence[Errors]) -> Errors:
        """One table out of those of several batches, in order."""
        arrays = {f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)[:-1]}
        return cls(**arrays, batches=tuple(size for p in parts for size in p.batches))

    def frames(self, name: str) -> Array:
        """The named error per sample, frame and channel, (N, T, C)."""
        if name.startswith("frmse-"):
            return self.bands[..., list(BANDS).index(name.removeprefix("frmse-"))]
        if name == "nrmse":
            return _ratio(self.rmse, self.norm)
        tables = {"rmse": self.rmse, "max": self.peak, "crmse": self.shift, "brmse": self.boundary, "vrmse": self.vrmse}
        if name not in tables:
            raise ConfigError(f"there is no metric '{name}'; the metrics are {', '.join(FRAMEWISE)}.")
        return tables[name]

    def per_sample(self, name: str) -> Array:
        """The named error of each sample, averaged over predicted frames and channels, (N,)."""
        value: Array = self.frames(name).mean((1, 2))
        return value

    def batch_mean(self, name: str, context: int = 0) -> float:
        """The named error as PDEBench averages it: within each batch, over channels and frames, then over batches.

        cRMSE takes the root of the batch mean square, max the largest of the batch, fRMSE the root of the batch mean
        per wavenumber, so these three depend on the batch size; with batches of one all equal the mean of
        `per_sample`. `context` true frames, whose error is zero, are counted along.
        """
        edges = np.cumsum([0, *self.batches])
        groups = [slice(a, b) for a, b in itertools.pairwise(edges)]
        table = self.frames(name)
        if name.startswith("frmse-"):
            reduced = list(self.batch_bands[..., list(BANDS).index(name.removeprefix("frmse-"))])
        elif name == "crmse":
            reduced = [np.sqrt((table[g] ** 2).mean(0)) for g in groups]
        elif name == "max":
            reduced = [table[g].max(0) for g in groups]
        else:
            reduced = [table[g].mean(0) for g in groups]
        predicted = table.shape[1]
        counted: float = predicted / (predicted + context)
        return float(np.mean([r.mean() for r in reduced])) * counted


def measure(pred: Array, true: Array, box: Sequence[float] | None = None) -> Errors:
    """The errors of one batch of predicted frames, `pred` and `true` of shape (N, T, *S, C).

    `box` is the length of each axis and scales the spectral error only; 1 by default, as in PDEBench's published runs.
    """
    pred, true = np.asarray(pred, np.float64), np.asarray(true, np.float64)
    if pred.shape != true.shape or pred.ndim < 4:
        raise ConfigError(
            f"errors compare two arrays (samples, frames, *space, channels), not {pred.shape} with {true.shape}."
        )
    space = tuple(range(2, pred.ndim - 1))
    broken = np.asarray(~np.isfinite(pred).all(space))
    wide = broken.reshape(*broken.shape[:2], *(1 for _ in space), broken.shape[-1])
    with np.errstate(over="ignore", invalid="ignore"):
        error = np.where(wide, 0.0, pred) - np.where(wide, 0.0, true)
        tables = {
            "rmse": np.sqrt((error**2).mean(space)),
            "shift": np.abs(error.mean(space)),
            "peak": np.abs(error).max(space),
            "boundary": _boundary(error),
        }
        power, spread = _power(error, box), true.var(space, ddof=1)
        tables["vrmse"] = tables["rmse"] / np.sqrt(spread + VARIANCE_FLOOR)
        bands, whole = _bands(power), _bands(power.mean(0, keepdims=True))
    for table in tables.values():
        table[broken | ~np.isfinite(table)] = np.inf
    lost = np.isinf(tables["rmse"])
    bands[lost] = np.inf
    whole[np.asarray(lost.any(0))[None]] = np.inf
    return Errors(
        **tables,
        norm=np.sqrt((true**2).mean(space)),
        bands=bands,
        correlation=_correlation(pred, true, broken, tables["rmse"]),
        batch_bands=whole,
        batches=(len(pred),),
    )


def trajectory_l2(errors: Errors) -> Array:
    """Relative L2 norm over space and time together, per channel, then the mean over channels (protocol C), (N,)."""
    return np.asarray(_ratio(np.sqrt((errors.rmse**2).sum(1)), np.sqrt((errors.norm**2).sum(1))).mean(-1))


def correlation_time(errors: Errors, dt: Array | float, threshold: float = 0.8) -> Array:
    """Time from the last known frame to the first whose correlation (mean over channels) is under `threshold`, (N,).

    A rollout that never falls under it has the whole predicted time: a lower bound of its true correlation time.
    """
    under = errors.correlation.mean(-1) < threshold
    frame = np.where(under.any(1), under.argmax(1) + 1, under.shape[1])
    return np.asarray(frame * np.asarray(dt, np.float64))


def interval(values: Array, seed: int = 0, resamples: int = 2000, level: float = 0.95) -> tuple[float, float]:
    """Bootstrap percentile interval of the mean over samples. Same seed, same interval; infinite values are kept."""
    values = np.asarray(values, np.float64)
    rng, means = np.random.default_rng(seed), []
    for part in np.array_split(np.arange(resamples), max(1, resamples * len(values) // 2_000_000)):
        means.append(values[rng.integers(0, len(values), (len(part), len(values)))].mean(1))
    tails = (0.5 - level / 2, 0.5 + level / 2)
    # An order statistic, never an interpolation, which would make nan out of inf - inf.
    low, high = np.quantile(np.concatenate(means), tails, method="inverted_cdf")
    return float(low), float(high)


def paired(ours: Array, theirs: Array, protocol: str, name: str = "nrmse", seed: int = 0) -> Metric:
    """Mean of ours − theirs over the same samples, with its interval: below zero throughout means ours is better.

    A sample that diverges in both counts as a draw; if each side diverges where the other does not, the mean of the
    difference does not exist, and the interval is the whole line.
    """
    if len(ours) != len(theirs):
        raise ConfigError(f"a paired comparison needs the same samples, not {len(ours)} and {len(theirs)}.")
    with np.errstate(invalid="ignore"):
        difference = np.nan_to_num(np.asarray(ours, np.float64) - theirs, nan=0.0, posinf=np.inf, neginf=-np.inf)
    if np.isposinf(difference).any() and np.isneginf(difference).any():
        return Metric(f"{name}-difference", "strict", protocol, float("nan"), -np.inf, np.inf, len(ours))
    low, high = interval(difference, seed)
    return Metric(f"{name}-difference", "strict", protocol, float(difference.mean()), low, high, len(ours))


def over(ours: Array, theirs: Array, protocol: str, name: str, seed: int = 0, resamples: int = 2000) -> Metric:
    """Mean of ours over mean of theirs, with the interval of resampling both together: below one is better."""
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    if len(ours) != len(theirs):
        raise ConfigError(f"a paired comparison needs the same samples, not {len(ours)} and {len(theirs)}.")
    draws = np.random.default_rng(seed).integers(0, len(ours), (min(resamples, 2_000_000 // len(ours) + 1), len(ours)))
    above, below = ours[draws].mean(1), theirs[draws].mean(1)
    low, high = np.quantile(_ratio(above, below), (0.025, 0.975), method="inverted_cdf")
    value = _ratio(ours.mean(), theirs.mean())
    return Metric(name, "strict", protocol, float(value), float(low), float(high), len(ours))


def strict(name: str, values: Array, protocol: str, seed: int = 0) -> Metric:
    """The mean of per-sample values with its interval, as a record."""
    low, high = interval(values, seed)
    return Metric(name, "strict", protocol, float(np.mean(values)), low, high, len(values))


def summary(errors: Errors, protocol: str, context: int, dt: Array | float = 1.0, seed: int = 0) -> list[Metric]:
    """Every metric in every mode. `context` is the number of given frames, which only `pdebench-paper` counts.

    Left out are the Fourier bands that the grid does not resolve.
    """
    found = [strict(name, errors.per_sample(name), protocol, seed) for name in FRAMEWISE]
    found.append(strict("trajectory-l2", trajectory_l2(errors), protocol, seed))
    found.append(strict("correlation-time", correlation_time(errors, dt), protocol, seed))
    for mode, counted in (("pdebench-0.1.0", 0), ("pdebench-paper", context)):
        for name in NAMES:
            value = errors.batch_mean(name, counted)
            found.append(Metric(name, mode, protocol, value, value, value, len(errors)))
    return [metric for metric in found if not np.isnan(metric.value)]


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
    return np.asarray(_ringed(mean, rings, min(shape) // 2 + 1)[0])


def _ratio(error: Array, norm: Array) -> Array:
    """error / norm; nothing over nothing is no error, something over nothing and infinity over any is infinite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(error == 0, 0.0, np.where(np.isinf(error), np.inf, error / norm)))


def _boundary(error: Array) -> Array:
    """RMSE on the cells of all faces; a cell in a corner lies on two faces and counts in each, as in PDEBench."""
    n, t, *space, c = error.shape
    total, cells = np.zeros((n, t, c)), 0
    for axis in range(2, 2 + len(space)):
        faces = np.take(error, (0, -1), axis) ** 2
        total += faces.sum(tuple(range(2, 2 + len(space))))
        cells += 2 * int(np.prod(space)) // error.shape[axis]
    return np.sqrt(total / cells)


def _power(error: Array, box: Sequence[float] | None) -> Array:
    """|FFT of the error × box / cells|² per integer wavenumber, (N, T, wavenumbers, C).

    1D: the real FFT. 2D and 3D: modes with non-negative wavenumbers under n/2 on every axis, summed over floor|k|.
    """
    n, t, *space, c = error.shape
    scale = float(np.prod(box or [1.0] * len(space))) / float(np.prod(space))
    if len(space) == 1:
        return np.asarray(np.abs(np.fft.rfft(error, axis=2) * scale) ** 2)
    half = tuple(m // 2 for m in space)
    corner = np.fft.fftn(error, axes=tuple(range(2, 2 + len(space))))[(slice(None), slice(None), *map(slice, half))]
    waves = np.meshgrid(*(np.arange(m) for m in half), indexing="ij")
    rings = np.floor(np.sqrt(sum(k**2 for k in waves))).astype(int)
    summed = _ringed(np.abs(corner.reshape(n * t, -1, c) * scale) ** 2, rings, min(half))
    return summed.reshape(n, t, -1, c)


def _ringed(power: Array, rings: Array, count: int) -> Array:
    """Sums of `power` (M, cells, C) over cells of equal ring number, (M, count, C); larger rings are left out.

    Every ring under `count` holds a cell (k, 0, …), so none of the sums is empty.
    """
    flat = rings.ravel()
    order = np.argsort(flat, kind="stable")
    order = order[flat[order] < count]
    starts = np.searchsorted(flat[order], np.arange(count))
    return np.asarray(np.add.reduceat(power[:, order], starts, axis=1))


def _bands(power: Array) -> Array:
    """Mean amplitude within each band, (N, T, C, 3); a band that the grid does not resolve is nan."""
    amplitude = np.sqrt(power)
    parts = [amplitude[:, :, low:high] for low, high in BANDS.values()]
    empty = np.full((*power.shape[:2], power.shape[-1]), np.nan)
    return np.stack([part.mean(2) if part.shape[2] else empty for part in parts], axis=-1)


def _correlation(pred: Array, true: Array, broken: Array, rmse: Array) -> Array:
    """Pearson's correlation over space, (N, T, C); where a field is constant: 1 if it is met exactly, otherwise 0."""
    space = tuple(range(2, pred.ndim - 1))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        p, q = pred - pred.mean(space, keepdims=True), true - true.mean(space, keepdims=True)
        value = (p * q).sum(space) / np.sqrt((p**2).sum(space) * (q**2).sum(space))
    value = np.where(np.isfinite(value), value, np.where(rmse == 0, 1.0, 0.0))
    return np.where(broken, 0.0, value)
