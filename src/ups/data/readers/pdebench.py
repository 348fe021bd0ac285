"""PDEBench's five file layouts, read lazily: array, fields, groups, steady, incompressible."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ups.data.hdf5 import DAMAGE, Hdf5Source, dataset, flavour, naming_damage, open_file, read_samples, values_at
from ups.data.layouts import VARYING
from ups.data.readers.hdf5_arrays import open_hdf5_arrays
from ups.data.readers.pdebench_names import config_leaves, identify, match_name, resolve
from ups.data.readers.points import TABLES
from ups.data.sample_blocks import side_by_side
from ups.data.source import Reader, Remarks, Source, SourceFacts, is_uniform, numbered
from ups.definition import Definition
from ups.lazy_imports import h5py
from ups.parsing import parse_json
from ups.types import Array, DataError, Grid, Params, TaskSpec, counted

AXES = ("x", "y", "z")


@dataclass(frozen=True)
class Survey:
    """What a layout finds before any value is read. No `axes`: the file stores none and the task's box holds."""

    ids: tuple[str, ...]
    frames: int
    shape: tuple[int, ...]
    axes: tuple[Array, ...]
    t: Array


class PDEBenchSource(Hdf5Source):
    """A file of one PDEBench layout; the subclasses say where a sample lies in it."""

    def __init__(self, path: Path, facts: SourceFacts, varying: Mapping[str, Array] | None = None) -> None:
        """`varying`: parameters that differ from sample to sample, `(N,)` each."""
        super().__init__(path, facts)
        self._varying = {name: values.tolist() for name, values in (varying or {}).items()}

    def params_of(self, index: int) -> Params:
        if not self._varying:
            return self.params
        at, params = self._position(index), dict(self.params)
        for name, values in self._varying.items():
            params[name] = values[at]
        return params

    @staticmethod
    def varying(file: Any, task: TaskSpec, ids: tuple[str, ...]) -> dict[str, Array]:
        """By name, the parameters that differ from sample to sample: those in the group `ups_params`."""
        names = [p.name for p in task.parameters if f"{VARYING}/{p.name}" in file]
        nodes = {name: dataset(file, f"{VARYING}/{name}", [len(ids)], "one number per sample") for name in names}
        return {name: np.asarray(node[:], np.float64) for name, node in nodes.items()}

    def beside(self, index: int) -> range:  # noqa: ARG002
        """All samples: each data set holds those of every sample, one after the other."""
        return range(len(self))

    def _values_of(self, samples: range, frames: slice) -> Array:
        with naming_damage(self.path, f"samples {self.ids[samples[0]]} to {self.ids[samples[-1]]}"):
            return self._stored_of(self._handle.file(), slice(samples.start, samples.stop), frames)

    def _inputs_of(self, samples: range) -> Array:
        with naming_damage(self.path, f"samples {self.ids[samples[0]]} to {self.ids[samples[-1]]}"):
            return self._given_of(self._handle.file(), slice(samples.start, samples.stop))

    @abstractmethod
    def _stored_of(self, file: Any, samples: slice, frames: slice) -> Array:
        """`_stored` of several samples, `(N, T', *S, C)`."""

    def _given(self, file: Any, index: int) -> Array:
        given: Array = self._given_of(file, slice(index, index + 1))[0]
        return given

    def _given_of(self, file: Any, samples: slice) -> Array:  # noqa: ARG002
        """What is given with several samples, `(N, *S, C_in)`."""
        return np.zeros((samples.stop - samples.start, *self.grid.shape, 0), np.float32)

    @staticmethod
    @abstractmethod
    def survey(file: Any, task: TaskSpec, remarks: Remarks) -> Survey:
        """Check names, shapes and number formats; read coordinates only."""

    @staticmethod
    def config_holder(file: Any) -> Any:
        """The node whose attribute `config`, if there is one, holds the generator's settings as YAML."""
        return file


class FieldsSource(PDEBenchSource):
    """One data set N×T×S per channel (`tensor` where there is but one), in the order of the task's channels."""

    channels_apart = True

    @staticmethod
    def survey(file: Any, task: TaskSpec, remarks: Remarks) -> Survey:  # noqa: ARG004
        first, *others = task.storage.datasets
        node = dataset(file, first, [None, None] + [None] * task.ndim, "samples, times, cells")
        for name in others:
            dataset(file, name, node.shape, f"as in '{first}'")
        samples, frames, *shape = node.shape
        t = _t(file, "t-coordinate", (), frames)
        return Survey(numbered(Path(file.filename), samples), frames, tuple(shape), _root_axes(file, tuple(shape)), t)

    def _stored(self, file: Any, index: int, frames: slice) -> Array:
        return np.stack([values_at(file[name], index, frames) for name in self.task.storage.datasets], axis=-1)

    def _stored_of(self, file: Any, samples: slice, frames: slice) -> Array:
        names = self.task.storage.datasets
        return side_by_side([values_at(file[name], samples)[:, frames, ..., None] for name in names])

    def read_into(self, samples: Sequence[int], frames: slice, into: Array) -> bool:
        file, names = self._handle.file(), self.task.storage.datasets
        try:
            return all(read_samples(file[name], samples, frames, into[..., c]) for c, name in enumerate(names))
        except DAMAGE:  # reading it again tells which sample
            return False


class GroupsSource(PDEBenchSource):
    """One group per sample, in string order of their names: `data` T×S×C, `grid/x`, `grid/t`, attribute `config`."""

    @staticmethod
    def survey(file: Any, task: TaskSpec, remarks: Remarks) -> Survey:  # noqa: ARG004
        ids = tuple(sorted(file))
        if not ids:
            raise DataError(f"{file.filename}: holds no sample; fetch or generate it again.")
        group = file[ids[0]]
        if not isinstance(group, h5py.Group):
            raise DataError(f"{file.filename}: '{ids[0]}' is not a group, where one group per sample was expected.")
        letters = AXES[: task.ndim]
        data = dataset(group, "data", [None] * (task.ndim + 1) + [len(task.channels)], "time, cells, channels")
        frames, *shape, _ = data.shape
        axes = tuple(_axis(group, f"grid/{x}", n) for x, n in zip(letters, shape, strict=True))
        return Survey(ids, frames, tuple(shape), axes, _t(group, "grid/t", (), frames))

    @staticmethod
    def config_holder(file: Any) -> Any:
        # Thousands of groups repeat one config, but for the seed: the first speaks for all, so that opening is cheap.
        return file[min(file)]

    @staticmethod
    def varying(file: Any, task: TaskSpec, ids: tuple[str, ...]) -> dict[str, Array]:
        """Parameters that vary within the file, as `ups_identity` says of it: a value per sample, from its `config`."""
        made = parse_json(file.attrs.get("ups_identity", "{}")).get("params", {})
        names = [p.name for p in task.parameters if isinstance(made.get(p.name), dict)]
        configs = [config_leaves(file[name].attrs.get("config", "")) for name in ids] if names else []
        try:
            return {name: np.asarray([float(config[name]) for config in configs]) for name in names}
        except (KeyError, ValueError, TypeError):
            raise DataError(f"{file.filename}: a sample's config does not say its {names[0]}; make it again.") from None

    def _stored(self, file: Any, index: int, frames: slice) -> Array:
        group = file[self.ids[index]]
        if not isinstance(group, h5py.Group):
            raise DataError(f"{self.path}: '{self.ids[index]}' is not a group, where a sample was expected.")
        shape = (len(self.times), *self.grid.shape, len(self.task.channels))
        return values_at(dataset(group, "data", shape, "as in the first sample"), frames)

    def beside(self, index: int) -> range:
        """It alone: every sample is a data set of its own."""
        at = self._position(index)
        return range(at, at + 1)

    def _stored_of(self, file: Any, samples: slice, frames: slice) -> Array:
        return np.stack([self._stored(file, index, frames) for index in range(samples.start, samples.stop)])


class SteadySource(PDEBenchSource):
    """A solution (`tensor`) N×1×S and its coefficient (`nu`) N×S; no time: one frame at t = 0."""

    @staticmethod
    def survey(file: Any, task: TaskSpec, remarks: Remarks) -> Survey:  # noqa: ARG004
        solution, coefficient = task.storage.datasets
        node = dataset(file, solution, [None, 1] + [None] * task.ndim, "samples, one frame, cells")
        samples, _, *shape = node.shape
        dataset(file, coefficient, [samples, *shape], f"samples, cells, as in '{solution}'")
        axes = _root_axes(file, tuple(shape))
        return Survey(numbered(Path(file.filename), samples), 1, tuple(shape), axes, np.zeros(1))

    def _stored(self, file: Any, index: int, frames: slice) -> Array:
        return values_at(file[self.task.storage.datasets[0]], index, frames)[..., None]

    def _stored_of(self, file: Any, samples: slice, frames: slice) -> Array:
        return values_at(file[self.task.storage.datasets[0]], samples)[:, frames, ..., None]

    def _given_of(self, file: Any, samples: slice) -> Array:
        return values_at(file[self.task.storage.datasets[1]], samples)[..., None]


class IncompressibleSource(PDEBenchSource):
    """`velocity` N×T×S×2, `particles` N×T×S×1, `force` N×S×2, `t` N×T; no coordinates are stored."""

    @staticmethod
    def survey(file: Any, task: TaskSpec, remarks: Remarks) -> Survey:
        d = task.ndim
        velocity = dataset(file, "velocity", [None, None] + [None] * d + [d], "samples, times, cells, components")
        samples, frames, *shape, _ = velocity.shape
        dataset(file, "particles", [samples, frames, *shape, 1], "as in 'velocity', one channel")
        dataset(file, "force", [samples, *shape, d], "as in 'velocity', no time")
        ids = numbered(Path(file.filename), samples)
        t = _t(file, "t", (samples,), frames)
        if (t != t[0]).any():
            remarks.problems.append("the samples have different times; those of the first are given for all")
        latest = file.attrs.get("latestIndex")
        if latest is not None and int(np.max(latest)) + 1 < frames:
            remarks.notes.append(
                f"attribute latestIndex is {int(np.max(latest))}, but there are {counted(frames, 'frame')}"
            )
        return Survey(ids, frames, tuple(shape), (), t[0])

    def _stored(self, file: Any, index: int, frames: slice) -> Array:
        return np.concatenate([values_at(file[name], index, frames) for name in ("velocity", "particles")], axis=-1)

    def _stored_of(self, file: Any, samples: slice, frames: slice) -> Array:
        return side_by_side([values_at(file[name], samples)[:, frames] for name in ("velocity", "particles")])

    def _given_of(self, file: Any, samples: slice) -> Array:
        return values_at(file["force"], samples)


SOURCES: Mapping[str, type[PDEBenchSource]] = {
    "array": FieldsSource,
    "fields": FieldsSource,
    "groups": GroupsSource,
    "steady": SteadySource,
    "incompressible": IncompressibleSource,
}


def is_pdebench(path: Path) -> bool:
    """Whether a path is an HDF5 file, whole or not, that does not describe itself as The Well's and netCDF's do."""
    return flavour(path) == "plain"


def open_pdebench(path: Path, tasks: Mapping[str, TaskSpec], definition: Definition) -> Source:
    """A source over one PDEBench file; its definition says which built-in task it is where neither its name nor an
    attribute does: by `equation`, or by its own name."""
    if describes_arrays(path, tasks, definition):
        return open_hdf5_arrays(path, tasks, definition)
    remarks, task = Remarks(), definition.equation or definition.name or None
    with naming_damage(path, "its header"), open_file(path) as file:
        named = identify(file, path.name, tasks, task, remarks)
        spec = named.task
        if spec.storage.kind not in SOURCES:
            raise DataError(f"{path}: task {spec.name} is not stored in a PDEBench layout; open it as its own format.")
        layout = SOURCES[spec.storage.kind]
        survey = layout.survey(file, spec, remarks)
        attributes = _attributes(file, layout.config_holder(file), remarks)
        varying = layout.varying(file, spec, survey.ids)
        params = resolve(named, attributes, varying, remarks)
    times = _times(path, spec, survey, remarks)
    # A file that does not state its boundary is not taken for a periodic one.
    unstated = {p.name: "unstated" for p in spec.parameters if p.name == "boundary"}
    periodic = spec.periodicity({**unstated, **params})
    if survey.axes:
        grid = Grid.along(survey.axes, periodic, _bounds(spec, survey.axes, remarks))
    else:
        grid = Grid(survey.shape, periodic, spec.bounds)
    resolution = named.stated.get("resolution")
    if resolution is not None and float(resolution) != survey.shape[0]:
        remarks.notes.append(f"the file name says {resolution} cells per axis, there are {survey.shape[0]}")
    facts = SourceFacts(spec, params, grid, times, survey.ids, tuple(remarks.notes), tuple(remarks.problems))
    return layout(path, facts, varying)


def describes_arrays(path: Path, tasks: Mapping[str, TaskSpec], definition: Definition) -> bool:
    """Whether the user describes the arrays of a file that is none of PDEBench's."""
    builtin = definition.equation or definition.name in tasks or match_name(path.name, tasks)
    if definition.datasets or (definition.dims and not builtin):
        return True
    with naming_damage(path, "its header"), open_file(path) as file:  # points speak for themselves
        return not builtin and any(name.lower() in TABLES for name in file)


READER = Reader(is_pdebench, open_pdebench, suffixes=(".hdf5", ".h5"))


def _attributes(file: Any, config_holder: Any, remarks: Remarks) -> dict[str, Any]:
    """Root attributes, and what the YAML in `config` adds to them."""
    try:
        config = config_leaves(config_holder.attrs.get("config", ""))
    except yaml.YAMLError:
        remarks.problems.append(f"attribute config of {config_holder.name} is not YAML")
        config = {}
    return {**config, **dict(file.attrs)}


def _root_axes(file: Any, shape: tuple[int, ...]) -> tuple[Array, ...]:
    return tuple(_axis(file, f"{x}-coordinate", n) for x, n in zip(AXES, shape, strict=False))


def _axis(parent: Any, name: str, cells: int) -> Array:
    """Uniform, increasing cell centres, one per cell."""
    axis: Array = dataset(parent, name, [cells], "one per cell")[:]
    if cells < 2 or not np.isfinite(axis).all() or not (np.diff(axis) > 0).all() or not is_uniform(axis):
        raise DataError(
            f"{parent.file.filename}: data set '{name}' is not two or more uniform, increasing cell centres; "
            f"check the file."
        )
    return axis.astype(np.float64)


def _t(parent: Any, name: str, outer: tuple[int, ...], frames: int) -> Array:
    """The stored t axis. PDEBench's generators write one entry more than there are frames."""
    node = dataset(parent, name, [*outer, None], "times")
    entries = node.shape[-1]
    if frames == 0 or entries not in (frames, frames + 1):
        raise DataError(
            f"{parent.file.filename}: the t axis has {counted(entries, 'entry')} for {counted(frames, 'frame')}, where "
            "as many or one more was expected; check the file."
        )
    return np.asarray(node[:])


def _times(path: Path, task: TaskSpec, survey: Survey, remarks: Remarks) -> Array:
    """The time of each frame; it must increase."""
    frames = survey.frames
    if len(survey.t) == frames + 1:
        remarks.notes.append("the t axis has one entry more than there are frames; the last was dropped")
    t = survey.t[:frames]
    if not np.isfinite(t).all() or not (np.diff(t) > 0).all():
        raise DataError(f"{path}: the t axis does not increase from frame to frame; check the file.")
    if frames > 2 and not is_uniform(t):
        remarks.problems.append("the t axis is not uniform")
    if not task.steady and abs(t[-1] - task.end) > 1.5 * task.dt:
        remarks.notes.append(f"t ends at {t[-1]:g}, not at the usual {task.end:g}")
    return t.astype(np.float64)


def _bounds(task: TaskSpec, axes: tuple[Array, ...], remarks: Remarks) -> tuple[tuple[float, float], ...]:
    """The box around the cells: half a cell beyond the first and the last centre, freed of float32 rounding."""
    result = []
    for letter, axis, usual in zip(AXES, axes, task.bounds, strict=False):
        dx = float(axis[-1] - axis[0]) / (len(axis) - 1)
        digits = 6 - math.floor(math.log10(dx * len(axis)))
        lo, hi = round(float(axis[0]) - dx / 2, digits), round(float(axis[-1]) + dx / 2, digits)
        if max(abs(lo - usual[0]), abs(hi - usual[1])) > 0.01 * dx:
            remarks.notes.append(f"{letter} spans ({lo:g}, {hi:g}), not the usual ({usual[0]:g}, {usual[1]:g})")
            result.append((lo, hi))
        else:
            result.append(usual)
    return tuple(result)
