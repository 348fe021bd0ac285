"""METRICS: errors of predicted trajectories in physical units, per sample and as PDEBench averages them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ups.eval.comparison import Comparison
from ups.eval.intervals import Number, all_strict, ratio
from ups.eval.nrmse import counting, loud, nrmse
from ups.plugins import Table
from ups.types import Array, ConfigError

VARIANCE_FLOOR = 1e-7  # The Well's, for fields of size 1 and more; a part of the mean square of smaller ones


@dataclass(frozen=True)
class Metric:
    """A way to measure an error; its name is its key in `METRICS`.

    Args:
        meaning: What it measures, in a sentence.
        table: Of a comparison, the error of each frame and channel `(N, T, C)`, whose mean is the sample's; or one
            number per sample `(N,)`. A lost frame counts as infinite, whatever is computed for it. Nan means that there
            is no such error; a metric whose mean is nan is left out of the results.
        batch: Of a comparison and its table, what PDEBench calls the error of a batch, `(T, C)`; None where the metric
            is not one of PDEBench's.
        larger_is_better: It measures success and not error, so that an upper bound on it, a gate, is refused.
    """

    meaning: str
    table: Callable[[Comparison], Array]
    batch: Callable[[Comparison, Array], Array] | None = None
    larger_is_better: bool = False


def mean(_: Comparison, table: Array) -> Array:
    """The mean over the samples of a batch."""
    return np.asarray(table.mean(0))


def root_mean_square(_: Comparison, table: Array) -> Array:
    """The root of the mean square over the samples of a batch."""
    return np.asarray(np.sqrt((table**2).mean(0)))


def largest(_: Comparison, table: Array) -> Array:
    """The largest of a batch."""
    return np.asarray(table.max(0))


def boundary(c: Comparison) -> Array:
    """RMSE on the cells of all faces; a cell in a corner lies on two faces and counts in each, as in PDEBench.

    It is per channel also in 3D, where PDEBench's own code knows one channel only.
    """
    if c.scattered:  # no point lies on a face
        return np.full(c.table_shape, np.nan)
    total, cells = np.zeros(c.table_shape), np.zeros((1, 1, 1))
    for axis in c.space:
        outside = (slice(None),) * axis
        faces = np.ascontiguousarray(np.stack([c.error[(*outside, end)] for end in (0, -1)], axis)) ** 2
        total += faces.sum(c.space)
        if c.mask is None:
            cells += 2 * int(np.prod([c.error.shape[other] for other in c.space])) // c.error.shape[axis]
        else:
            cells = cells + np.take(c.mask, (0, -1), axis - 1).reshape(len(total), 1, -1).sum(2, keepdims=True)
    return np.asarray(np.sqrt(total / np.maximum(cells, 1)))


def spectral(low: int, high: int | None) -> Metric:
    """Mean amplitude of the error's wavenumbers `low` ≤ k < `high`; nan where the grid resolves none of them.

    PDEBench averages the power over a batch before the root.
    """

    def amplitude(power: Array) -> Array:
        band = power[:, :, low:high]
        return np.sqrt(band).mean(2) if band.shape[2] else np.full((*band.shape[:2], band.shape[3]), np.nan)

    words = f"of {low} to {high - 1}" if high else f"from {low} on"
    return Metric(
        f"mean Fourier amplitude of the error at wavenumbers {words}, in each channel's unit",
        lambda c: amplitude(c.power),
        lambda c, _: amplitude(c.power.mean(0, keepdims=True))[0],
    )


def variance_floor(squares: Array) -> Array:
    """What is added to a variance before it divides, from mean squares of the truth `(N, T, C)`: `(N, 1, C)`. Units are
    anyone's: a field of 1e-12 is judged as one of 1. Nans are left out, and nothing but zeros has no unit."""
    known = np.isfinite(squares)
    mean = np.where(known, squares, 0.0).sum(1, keepdims=True) / np.maximum(known.sum(1, keepdims=True), 1)
    return np.asarray(VARIANCE_FLOOR * np.where(mean > 0, np.minimum(mean, 1.0), 1.0))


def trajectory_l2(c: Comparison) -> Array:
    """Relative L2 norm over space and time together, per channel, then the mean over channels (protocol C), (N,); of
    channels that are zero, true and predicted, none counts beside others."""
    rmse = np.where(c.lost, np.inf, c.rmse)
    errors = ratio(np.sqrt((rmse**2).sum(1)), np.sqrt((c.norm**2).sum(1)))
    left_out = c.empty.sum(1)
    return np.asarray(errors.mean(-1) * (errors.shape[1] / np.maximum(errors.shape[1] - left_out, 1)))


def correlation_time(c: Comparison, threshold: float = 0.8) -> Array:
    """Time from the last known frame to the first whose correlation (mean over channels) is under `threshold`, (N,).

    A rollout that never falls under it has the whole predicted time: a lower bound of its true correlation time.
    """
    under = c.correlation.mean(-1) < threshold
    frame = np.where(under.any(1), under.argmax(1) + 1, under.shape[1])
    if c.dt.ndim < 2:
        return np.asarray(frame * c.dt)
    return np.asarray(np.take_along_axis(c.dt.cumsum(1), frame[:, None] - 1, 1)[:, 0])


def _nrmse(c: Comparison, usual: Array | None) -> Array:
    return np.nan_to_num(nrmse(c.predicted, c.true, mask=c.mask, usual=usual), nan=0.0, posinf=np.inf)


def _vrmse(c: Comparison) -> Array:
    deviation = np.sqrt(c.true_variance + variance_floor(c.norm**2))
    return np.asarray(c.rmse / (deviation if c.usual is None else loud(deviation, c.usual)))


BUILT_IN: dict[str, Metric] = {
    "rmse": Metric("root mean square error over space, in each channel's unit", lambda c: c.rmse, mean),
    "nrmse": Metric(
        "root mean square error over the truth's root mean square (of a user's own data, over that of training where a "
        "true frame has less than a hundredth of it)",
        lambda c: _nrmse(c, c.usual),
        lambda c, table: mean(c, table if c.usual is None else _nrmse(c, None)),
    ),
    "max": Metric(
        "largest absolute error of a frame, in each channel's unit", lambda c: np.abs(c.error).max(c.space), largest
    ),
    "crmse": Metric(
        "error of the mean over space (of what may be conserved), in each channel's unit",
        lambda c: np.abs(c.mean(c.error)),
        root_mean_square,
    ),
    "brmse": Metric("root mean square error on the box's faces, in each channel's unit", boundary, mean),
    "frmse-low": spectral(0, 4),
    "frmse-mid": spectral(4, 12),
    "frmse-high": spectral(12, None),
    "vrmse": Metric(
        "root mean square error over the truth's standard deviation in space (of a user's own data, over that of "
        "training where a true frame has less than a hundredth of it)",
        _vrmse,
    ),
    "trajectory-l2": Metric("norm of the error over that of the truth, both over space and time", trajectory_l2),
    "correlation-time": Metric(
        "time until prediction and truth correlate less than 0.8 over space", correlation_time, larger_is_better=True
    ),
}
METRICS: Table[Metric] = Table("metrics", BUILT_IN)


@dataclass(frozen=True)
class Errors:
    """What rollouts leave behind, without the fields: N samples, T predicted frames, C channels.

    `tables` holds of every metric `(N, T, C)` or `(N,)`; `batch_tables`, of those of PDEBench, `(batches, T, C)`.
    `diverged (N,)` marks samples that left the truth for good; `empty (N, C)` channels that are zero in all frames of a
    sample, true and predicted; `sizes (N, T, C)` is the root mean square of the truth, `variances (N, T, C)` that
    in space, and `zero (N, T, C)` the nRMSE of a forecast of zeros.
    """

    tables: Mapping[str, Array]
    batch_tables: Mapping[str, Array]
    diverged: Array
    empty: Array
    sizes: Array
    variances: Array
    zero: Array

    def __len__(self) -> int:
        return len(self.diverged)

    @classmethod
    def join(cls, parts: Sequence[Errors]) -> Errors:
        """One table out of those of several batches, in order."""

        def joined(tables: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
            return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}

        return cls(
            joined([p.tables for p in parts]),
            joined([p.batch_tables for p in parts]),
            np.concatenate([p.diverged for p in parts]),
            np.concatenate([p.empty for p in parts]),
            np.concatenate([p.sizes for p in parts]),
            np.concatenate([p.variances for p in parts]),
            np.concatenate([p.zero for p in parts]),
        )

    @cached_property
    def counting(self) -> Array:
        """The places of the channels that means are over: those that are not empty in every sample, or all."""
        return counting(self.empty)

    def over_channels(self, name: str) -> Array:
        """The named error per sample and frame, the mean over the channels that count, (N, T)."""
        table = self.frames(name)
        return np.asarray((table if len(self.counting) == table.shape[2] else table[..., self.counting]).mean(-1))

    def frames(self, name: str) -> Array:
        """The named error per sample, frame and channel, (N, T, C)."""
        by_frame = {key: table for key, table in self.tables.items() if table.ndim == 3}
        if name not in by_frame:
            raise ConfigError(f"there is no metric '{name}' of single frames; these are {', '.join(by_frame)}.")
        return by_frame[name]

    def per_sample(self, name: str) -> Array:
        """The named error of each sample, averaged over predicted frames and the channels that count, (N,)."""
        if name not in self.tables:
            raise ConfigError(f"there is no metric '{name}'; the metrics are {', '.join(self.tables)}.")
        table = self.tables[name]
        if table.ndim == 3 and len(self.counting) < table.shape[2]:
            table = table[..., self.counting]
        return np.asarray(table.mean((1, 2))) if table.ndim == 3 else table

    def batch_mean(self, name: str, context: int = 0) -> float:
        """The named error as PDEBench averages it: within each batch, over channels and frames, then over batches.

        cRMSE takes the root of the batch mean square, max the largest of the batch, fRMSE the root of the batch mean
        per wavenumber, so these three depend on the batch size; with batches of one all equal the mean of
        `per_sample`. `context` true frames, whose error is zero, are counted along.
        """
        if name not in self.batch_tables:
            raise ConfigError(f"'{name}' is not a metric of PDEBench; those are {', '.join(self.batch_tables)}.")
        table = self.batch_tables[name]
        predicted = table.shape[1]
        counted: float = predicted / (predicted + context)
        return float(np.mean([batch.mean() for batch in table])) * counted


def measure(
    predicted: Array,
    true: Array,
    dt: Array | float = 1.0,
    box: Sequence[float] | None = None,
    mask: Array | None = None,
    usual: Array | None = None,
) -> Errors:
    """Every metric of `METRICS` of one batch of predicted frames, `predicted` and `true` of shape (N, T, *S, C); the
    rest as in `Comparison`."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        c = Comparison(predicted, true, dt, box, mask, usual)
        pieces = c.pieces() or [c]
        rows = [{name: _table(name, piece) for name in METRICS} for piece in pieces]
        c.join(pieces)
        tables = {name: np.concatenate([row[name] for row in rows]) for name in METRICS}
        batch_tables = {
            name: np.where(c.lost.any(0), np.inf, metric.batch(c, tables[name]))[None]
            for name, metric in METRICS.items()
            if metric.batch is not None
        }
        zero = np.ones_like(c.norm) if usual is None else ratio(c.norm, loud(c.norm, usual))
        return Errors(
            tables,
            batch_tables,
            c.diverged,
            np.concatenate([piece.empty for piece in pieces]),
            c.norm,
            c.true_variance,
            zero,
        )


def _table(name: str, c: Comparison) -> Array:
    """The table of one metric, of single frames or of samples."""
    table = np.array(METRICS[name].table(c), np.float64)
    if table.shape == c.table_shape:
        table[c.lost] = np.inf
    elif table.shape != c.table_shape[:1]:
        raise ConfigError(
            f"metric '{name}' gave an array {table.shape} where (samples, frames, channels), "
            f"{c.table_shape}, or (samples,) is needed."
        )
    return table


def summary(errors: Errors, protocol: str, context: int, seed: int = 0) -> list[Number]:
    """Every metric in every mode. `context` is the number of given frames, which only `pdebench-paper` counts.

    Left out are metrics that are nan: Fourier bands that the grid does not resolve.
    """
    samples = {name: errors.per_sample(name) for name in errors.tables}
    numbers = all_strict({name: row for name, row in samples.items() if not np.isnan(np.mean(row))}, protocol, seed)
    for mode, counted in (("pdebench-0.1.0", 0), ("pdebench-paper", context)):
        for name in errors.batch_tables:
            value = errors.batch_mean(name, counted)
            if not np.isnan(value):
                numbers.append(Number(name, mode, protocol, value, value, value, len(errors)))
    return numbers
