"""How PDEBench lays out each kind of file: names, data sets, coordinates, attributes, and where a sample lies."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import yaml

from ups.lazy_imports import h5py
from ups.types import Array, Grid, Params, TaskSpec

AXES = ("x", "y", "z")
# The root group, of a single-array file, of parameters that differ from sample to sample: a data set `(N,)` each.
VARYING = "ups_params"


def spell(value: float | str, spelling: str) -> str:
    """A number as PDEBench's file names have it: 0.01, 1.0, and 1e-08 (`python`) or 1.e-8 (`short`)."""
    if isinstance(value, str):
        return value
    text = repr(float(value))
    if spelling == "short" and "e" in text:
        mantissa, exponent = text.split("e")
        text = f"{mantissa if '.' in mantissa else mantissa + '.'}e{int(exponent)}"
    return text


def file_name(task: TaskSpec, params: Params, resolution: int, number: int, extra: Iterable[str] = ()) -> str:
    """The file name PDEBench gives to a task with these parameters; a word takes the place of a number as it is.

    `extra` are parameters that must be told apart: those that the pattern leaves out are put at the end.
    """
    known: dict[str, float | str] = {**params, "resolution": str(resolution), "number": str(number)}
    spelling, pattern = task.storage.spelling, task.storage.pattern
    name = re.sub(r"\{(\w+)\}", lambda m: spell(known[m.group(1)], spelling), pattern)
    unsaid = [f"_{key}{spell(known[key], spelling)}" for key in sorted(extra) if f"{{{key}}}" not in pattern]
    stem, dot, suffix = name.rpartition(".")
    return "".join([stem, *unsaid, dot, suffix])


@dataclass(frozen=True)
class FileSpec:
    """Everything that decides the bytes of a file. Two specs with one `identity` make the same file.

    `params` are what all samples share; `varying` holds, by name, what each has for itself, `(N,)`.
    """

    task: TaskSpec
    params: Params
    grid: Grid
    times: Array
    samples: int
    identity: Mapping[str, Any]
    varying: Mapping[str, Array] = field(default_factory=dict)


# Where each sample of a data set begins in the file, by its number: contiguous, little-endian float32.
Starts = Callable[[int], int]


def _dataset(group: Any, name: str, shape: tuple[int, ...]) -> None:
    """A contiguous float32 data set whose place is taken at once and whose bytes are left alone."""
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_layout(h5py.h5d.CONTIGUOUS)
    creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    creation.set_obj_track_times(False)  # the hour would be in the file, and make two of one spec differ
    h5py.h5d.create(group.id, name.encode(), h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple(shape), creation)


@dataclass
class FileLayout(ABC):
    """How one kind of file is laid out. `arrays` lists its data sets with the shape of one sample."""

    spec: FileSpec
    arrays: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def nbytes(self) -> int:
        return 4 * self.spec.samples * sum(int(np.prod(shape)) for shape in self.arrays.values()) + 2**16

    def lay_out(self, file: Any) -> None:
        for name, shape in self.arrays.items():
            _dataset(file, name, (self.spec.samples, *shape))
        self.coordinates(file)
        for parameter, attribute in self.spec.task.storage.attrs.items():
            if parameter in self.spec.params:
                file.attrs[attribute] = self.spec.params[parameter]
        for parameter, values in self.spec.varying.items():
            file[f"{VARYING}/{parameter}"] = values.astype("<f8")

    def coordinates(self, file: Any) -> None:
        for letter, axis in zip(AXES, self.spec.grid.coordinates, strict=False):
            file[f"{letter}-coordinate"] = axis.astype("<f4")

    def places(self, file: Any) -> list[Starts]:
        places: list[Starts] = []
        for name, shape in self.arrays.items():
            base, size = file[name].id.get_offset(), 4 * int(np.prod(shape))
            places.append(lambda i, base=base, size=size: base + i * size)  # type: ignore[misc]
        return places

    @abstractmethod
    def pieces(self, frames: Array, inputs: Array) -> list[Array]:
        """The batch cut up as `arrays` lists it."""


class Fields(FileLayout):
    """One data set N×T×S per channel, and PDEBench's t axis with one entry more than there are frames."""

    def __init__(self, spec: FileSpec) -> None:
        shape = (len(spec.times), *spec.grid.shape)
        super().__init__(spec, dict.fromkeys(spec.task.storage.datasets, shape))

    def coordinates(self, file: Any) -> None:
        super().coordinates(file)
        t = self.spec.times
        file["t-coordinate"] = np.append(t, 2 * t[-1] - t[-2]).astype("<f4")

    def pieces(self, frames: Array, inputs: Array) -> list[Array]:  # noqa: ARG002
        return [frames[..., c] for c in range(frames.shape[-1])]


class Steady(FileLayout):
    """`tensor` N×1×S holds the solution, `nu` N×S the coefficient; no time."""

    def __init__(self, spec: FileSpec) -> None:
        solution, coefficient = spec.task.storage.datasets
        super().__init__(spec, {solution: (1, *spec.grid.shape), coefficient: spec.grid.shape})

    def pieces(self, frames: Array, inputs: Array) -> list[Array]:
        return [frames[..., 0], inputs[..., 0]]


class Incompressible(FileLayout):
    """`velocity` N×T×S×2, `particles` N×T×S×1, `force` N×S×2, `t` N×T."""

    def __init__(self, spec: FileSpec) -> None:
        frames, cells = len(spec.times), spec.grid.shape
        super().__init__(
            spec, {"velocity": (frames, *cells, 2), "particles": (frames, *cells, 1), "force": (*cells, 2)}
        )

    def coordinates(self, file: Any) -> None:
        file["t"] = np.tile(self.spec.times, (self.spec.samples, 1)).astype("<f4")
        file.attrs["config"] = yaml.safe_dump(_settings(self.spec))
        file.attrs["latestIndex"] = len(self.spec.times) - 1

    def pieces(self, frames: Array, inputs: Array) -> list[Array]:
        return [frames[..., :2], frames[..., 2:], inputs]


class Groups(FileLayout):
    """One group per sample, named by its number: `data` T×S×C, `grid/x` …, `grid/t`, attribute `config` (YAML)."""

    def __init__(self, spec: FileSpec) -> None:
        shape = (len(spec.times), *spec.grid.shape, len(spec.task.channels))
        super().__init__(spec, {spec.task.storage.datasets[0]: shape})

    def nbytes(self) -> int:
        return super().nbytes() + self.spec.samples * (8192 + 4 * (len(self.spec.times) + sum(self.spec.grid.shape)))

    def lay_out(self, file: Any) -> None:
        ((name, shape),) = self.arrays.items()
        settings = _settings(self.spec)
        for i in range(self.spec.samples):
            own = {parameter: float(values[i]) for parameter, values in self.spec.varying.items()}
            group = file.create_group(self._key(i))
            _dataset(group, name, shape)
            for letter, axis in zip(AXES, self.spec.grid.coordinates, strict=False):
                group[f"grid/{letter}"] = axis.astype("<f4")
            group["grid/t"] = self.spec.times.astype("<f4")
            group.attrs["config"] = yaml.safe_dump({**settings, **own})

    def places(self, file: Any) -> list[Starts]:
        (name,) = self.arrays
        starts = [file[self._key(i)][name].id.get_offset() for i in range(self.spec.samples)]
        return [starts.__getitem__]

    def pieces(self, frames: Array, inputs: Array) -> list[Array]:  # noqa: ARG002
        return [frames]

    def _key(self, i: int) -> str:
        return f"{i:0{max(4, len(str(self.spec.samples - 1)))}d}"


def _settings(spec: FileSpec) -> dict[str, Any]:
    """What a `config` attribute holds: the parameters and the identity of the file, as plain YAML."""
    return {**dict(spec.params), **{key: value for key, value in spec.identity.items() if key != "params"}}


LAYOUTS: dict[str, Callable[[FileSpec], FileLayout]] = {
    "array": Fields,
    "fields": Fields,
    "groups": Groups,
    "steady": Steady,
    "incompressible": Incompressible,
}
