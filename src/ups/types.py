"""Basic types (Grid, Points, Field, Param, TaskSpec, Storage, Trajectory …), errors, and helpers to word messages."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]
else:
    Array = Any  # a rank's parent or a command that reads a config has no use for numpy, which takes longer than itself
Params = Mapping[str, float | str]
# Where mirror images of states, and those with x and y exchanged, are used beside the states themselves.
Symmetry = Literal["off", "train", "rollout", "both"]
# What the values of a task lie on.
Domain = Literal["grid", "points", "mesh"]
Table = tuple[tuple[str, ...], ...]  # cells in words, the header first
# Predictors: the simulator of a run, one that it is held against, and the forecast that nothing changes.
OURS, CHAMPION, PERSISTENCE = "ups", "champion", "persistence"


class UpsError(Exception):
    """Something the user can mend. The text is one sentence: what is wrong, where, and what to do.

    The tree (every error a user's mistake can raise is a leaf of it)::

        UpsError
        ├── ConfigError   a key, a type, a value or a combination in a config or on the command line
        ├── DataError     a file that is not what it should be
        └── PhysicsError  a request that no solver here can answer truthfully
    """


class ConfigError(UpsError):
    """A key, a type, a value or a combination in a config file or on the command line."""


class DataError(UpsError):
    """A file that is missing, damaged, or not what its name or its reader says."""


class PhysicsError(UpsError):
    """A parameter, scheme or resolution that no solver here can answer truthfully."""


# Other endings than an s, by how a noun ends.
PLURALS = {"ry": "ries", "is": "es", "s": "ses"}


def counted(count: int, noun: str) -> str:
    """A number and its noun: 1 frame, 2 frames, 2 trajectories, 2 axes."""
    if count == 1:
        return f"1 {noun}"
    end, plural = next(((end, plural) for end, plural in PLURALS.items() if noun.endswith(end)), ("", "s"))
    return f"{count} {noun.removesuffix(end)}{plural}"


def counted_from(numbers: Iterable[int], noun: str) -> str:
    """Numbers and their noun, from the least to the greatest: 3 frames, 3 to 12 frames."""
    least, most = min(known := list(numbers)), max(known)
    return counted(most, noun) if least == most else f"{least} to {counted(most, noun)}"


def few(words: Iterable[str], most: int = 4) -> str:
    """At most so many words, the last of them a count of those left out: a, b, c and 5 more."""
    listed = list(words)
    if len(listed) <= most:
        return ", ".join(listed)
    return f"{', '.join(listed[: most - 1])} and {len(listed) - most + 1} more"


def duration(seconds: float, digits: int = 3) -> str:
    """A time for people: 4 ms, 12 s, 3 min, 2.5 h, 34.7 days; with 2 digits 35 days. Whole numbers are never cut."""
    spans = ((1e-3, 1e-6, "µs"), (1, 1e-3, "ms"), (120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h"))
    if seconds == 0:
        return "0 s"
    scale, unit = next(((scale, unit) for limit, scale, unit in spans if seconds < limit), (86400, "days"))
    value = seconds / scale
    return f"{value:.0f} {unit}" if value >= 10 ** (digits - 1) else f"{value:.{digits}g} {unit}"


def data_size(count: float) -> str:
    """Bytes for people: 12 B, 12.3 MB."""
    words = short_number(count)
    return f"{words}B" if " " in words else f"{words} B"


def short_number(count: float) -> str:
    """A count for people: 12, 12.3 M."""
    for unit in ("", " k", " M", " G", " T"):
        if count < 999.5:
            return f"{count:.3g}{unit}"
        count /= 1000
    return f"{count:.3g} P"


def same_value(a: float | str | None, b: float | str | None) -> bool:
    """Whether two values of a parameter are equal words, or numbers that agree to about five digits."""
    if a is None or b is None or isinstance(a, str) or isinstance(b, str):
        return a == b
    return abs(a - b) <= 1e-5 * max(abs(a), abs(b))


def nearest(name: str, known: Iterable[str], otherwise: str) -> str:
    """The known name that a mistyped one may have meant, as a question; where none is near, `otherwise`."""
    near = difflib.get_close_matches(name, [*known], n=1)
    return f"did you mean '{near[0]}'?" if near else otherwise


def check_known(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    """ConfigError, with the nearest known name or all of them, for the first of `names` that is not known."""
    valid = list(known)
    for name in names:
        if name not in valid:
            hint = nearest(name, valid, f"the {kind}s are {', '.join(valid)}.")
            raise ConfigError(f"there is no {kind} '{name}'; {hint}")


@dataclass(frozen=True, eq=False)
class Axes:
    """The centres of cells along each axis, `(n,)` each. Equal to others with the same bits."""

    centres: tuple[Array, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Axes) and self._bits == other._bits

    def __hash__(self) -> int:
        return hash(self._bits)

    @functools.cached_property
    def _bits(self) -> tuple[tuple[str, bytes], ...]:
        return tuple((str(axis.dtype), axis.tobytes()) for axis in self.centres)


@dataclass(frozen=True, eq=False)
class Cloud(Axes):
    """Where points lie: `centres` are their coordinates along each axis, `(N,)` each.

    Args:
        volumes: What part of space each point stands for, `(N,)`.
        cells: The points that are the corners of each cell of a mesh, `(M, corners)`, an array for each kind of cell.
    """

    volumes: Array
    cells: tuple[Array, ...] = ()

    @functools.cached_property
    def _bits(self) -> tuple[tuple[str, bytes], ...]:
        held = (*self.centres, self.volumes, *self.cells)
        return tuple((str(array.dtype), array.tobytes()) for array in held)


class Grid(NamedTuple):
    """A box of cells.

    Args:
        shape: How many cells each axis has.
        periodic: Which axes wrap around.
        bounds: Where the box begins and ends along each axis; nothing, `()`, where only cells matter.
        corner: Where the box begins, in boxes from where that of its task begins: not at 0 where every n-th cell was
            picked. Nothing, `()`, where nobody says it.
        axes: The centres of cells, where they are not just the middles of equal parts of the box.
    """

    shape: tuple[int, ...]
    periodic: tuple[bool, ...]
    bounds: tuple[tuple[float, float], ...] = ()
    corner: tuple[float, ...] = ()
    axes: Axes | None = None

    @classmethod
    def along(
        cls, centres: tuple[Array, ...], periodic: tuple[bool, ...], bounds: tuple[tuple[float, float], ...]
    ) -> Grid:
        """A grid with these centres of cells."""
        return cls(tuple(map(len, centres)), periodic, bounds, axes=Axes(centres))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def coordinates(self) -> tuple[Array, ...]:
        """The centres of cells along each axis: x_i = lo + (i + 1/2) dx, with dx = (hi - lo) / n, or its own axes."""
        import numpy as np

        if self.axes is not None:
            return self.axes.centres
        ends = zip(self.bounds, self.shape, strict=True)
        return tuple(lo + (np.arange(n) + 0.5) * ((hi - lo) / n) for (lo, hi), n in ends)

    @property
    def lengths(self) -> tuple[float, ...]:
        """How long each axis is; nothing where nobody says it."""
        return tuple(hi - lo for lo, hi in self.bounds)

    @property
    def spacing(self) -> tuple[float, ...]:
        """Cell width per axis (of equal cells only)."""
        return tuple(length / n for length, n in zip(self.lengths, self.shape, strict=True))

    def corner_in(self, bounds: tuple[tuple[float, float], ...]) -> tuple[float, ...]:
        """Where its box begins, in boxes from the lower ends of `bounds`.

        Nothing, `()`, where it is another box: of another length, or more than a cell away.
        """
        begins = []
        for (low, high), (start, end), n in zip(self.bounds, bounds, self.shape, strict=False):
            length = end - start
            off = (low - start) / length
            if abs(high - low - length) > 1e-6 * length or abs(off) * n >= 1:
                return ()
            begins.append(round(off, 9) if abs(off) * n > 1e-3 else 0.0)
        return tuple(begins)

    @property
    def one_sided(self) -> tuple[int, ...]:
        """The axes between whose walls every n-th cell was picked: the mirror image of those is other cells. Where an
        axis wraps, it is the same ones, moved."""
        ends = zip(self.corner, self.periodic, strict=False)
        return tuple(axis for axis, (at, wraps) in enumerate(ends) if at and not wraps)

    @property
    def words(self) -> str:
        """How many cells there are, for a sentence."""
        return f"{' × '.join(map(str, self.shape))} cells"

    def refined(self, factor: int) -> Grid:
        """`factor` times as many cells per axis in the same box (centres of the small cells)."""
        if factor == 1:
            return self
        return Grid(tuple(n * factor for n in self.shape), self.periodic, self.bounds)

    @property
    def domain(self) -> Domain:
        """What values on it lie on."""
        return "grid"

    @property
    def resolved(self) -> tuple[int, ...]:
        """The cells of a grid that holds what this one does: as many."""
        return self.shape

    @property
    def kind(self) -> tuple[object, ...]:
        """What grids share whose values may stand side by side in an array."""
        return (self.shape, self.bounds, self.periodic)

    def within(self, periodic: tuple[bool, ...], bounds: tuple[tuple[float, float], ...]) -> Grid:
        """The same cells in a box that wraps otherwise, or whose ends are stated otherwise."""
        return Grid.along(self.coordinates, periodic, bounds)

    def cells(self, shape: Sequence[int]) -> Grid:
        """A grid of `shape` cells that wraps as this one and has no box: all that tables of a model depend on."""
        return Grid(tuple(shape), self.periodic)

    def over(self, *factors: int) -> Grid:
        """A grid without a box that has the cells along each axis divided by its factor, and wraps as this one."""
        return self.cells([n // f for n, f in zip(self.shape, factors, strict=True)])


class Points(Grid):
    """A box in which values lie at `shape = (N,)` points, in any order; `periodic` and `bounds` are of axes of space.

    It stands wherever a `Grid` does. Readers make it, the codec brings its values to the cells of a grid and back, and
    pictures show it; all others see an array of N values, each of which counts as much as its volume.
    """

    __slots__ = ()

    @classmethod
    def at(
        cls,
        table: Array,
        periodic: tuple[bool, ...],
        bounds: tuple[tuple[float, float], ...],
        volumes: Array,
        cells: tuple[Array, ...] = (),
    ) -> Points:
        """Points of coordinates `table (N, n)`; a `Mesh` where they are the corners of `cells`."""
        kind = Mesh if cells else Points
        return kind((len(table),), periodic, bounds, axes=Cloud(tuple(table.T), volumes, cells))

    @property
    def domain(self) -> Domain:
        return "points"

    @property
    def cloud(self) -> Cloud:
        """Where they lie."""
        assert isinstance(self.axes, Cloud)
        return self.axes

    @property
    def table(self) -> Array:
        """Their coordinates `(N, n)`."""
        import numpy as np

        return np.stack(self.cloud.centres, 1)

    @property
    def ndim(self) -> int:
        return len(self.bounds)

    @property
    def spacing(self) -> tuple[float, ...]:
        """How far apart they are: the side of a cube of their mean volume."""
        return (float(self.cloud.volumes.mean()) ** (1 / self.ndim),) * self.ndim

    @property
    def resolved(self) -> tuple[int, ...]:
        """The cells of a grid in the box that are as large as the volume of a point is in the mean."""
        return tuple(max(2, round(length / width)) for length, width in zip(self.lengths, self.spacing, strict=True))

    @property
    def kind(self) -> tuple[object, ...]:
        """Only the same points may stand side by side."""
        return (*super().kind, self.axes)

    @property
    def words(self) -> str:
        return counted(self.shape[0], "point")

    def corner_in(self, bounds: tuple[tuple[float, float], ...]) -> tuple[float, ...]:  # noqa: ARG002
        """Nothing: no cells were picked."""
        return ()

    def within(self, periodic: tuple[bool, ...], bounds: tuple[tuple[float, float], ...]) -> Grid:
        return self._replace(periodic=periodic, bounds=bounds)

    def refined(self, factor: int) -> Grid:  # noqa: ARG002
        """The same points: nothing lies between them."""
        return self


class Mesh(Points):
    """Points that are the corners of cells."""

    __slots__ = ()

    @property
    def domain(self) -> Domain:
        return "mesh"

    @property
    def corners(self) -> tuple[Array, ...]:
        """The points of each cell, `(M, corners)`, an array for each kind of cell."""
        return self.cloud.cells

    @property
    def words(self) -> str:
        return f"{super().words} of {counted(sum(map(len, self.corners)), 'cell')}"


@dataclass(frozen=True)
class Field:
    """A physical field.

    Args:
        name: What it is called.
        channels: The names of its components, in the order in which they lie in the last axis of the values.
        rank: 0 for a scalar, 1 for a vector, whose components turn with space.
    """

    name: str
    channels: tuple[str, ...]
    rank: int = 0

    @classmethod
    def scalar(cls, name: str) -> Field:
        return cls(name, (name,), 0)

    @classmethod
    def vector(cls, name: str, *channels: str) -> Field:
        return cls(name, channels, 1)


@dataclass(frozen=True)
class Param:
    """A parameter of a task: a number with limits, or a word.

    Args:
        name: What it is called.
        default: Its value where nobody says another.
        help: What it is, in a few words.
        above: It is larger than this.
        at_least: It is no smaller than this.
        choices: The words that it may be; none for a number.
        encoded: The network is told the word, as its place among the choices.
    """

    name: str
    default: float | str
    help: str
    above: float | None = None
    at_least: float | None = None
    choices: tuple[str, ...] = ()
    encoded: bool = False


ARRAYS: Literal["arrays"] = "arrays"  # the kind of storage of a file that does not say what it holds


@dataclass(frozen=True)
class Storage:
    """How files of a task are laid out and named.

    Args:
        kind: Of PDEBench's layouts `array` (one data set, N×T×S), `fields` (one per channel), `groups` (one group per
            sample), `steady` (a coefficient and a solution, no time) or `incompressible` (velocity, particles, force,
            t); `well` for The Well's, `arrays` for plain arrays with named axes.
        pattern: The file name, with parameters in braces.
        aliases: Further names under which such files are published; `*` stands for anything.
        datasets: The names of its data sets.
        attrs: The attribute of each parameter that has one.
        spelling: How numbers stand in the name: `python` (`1e-08`) or `short` (`1.e-8`).
    """

    kind: Literal["array", "fields", "groups", "steady", "incompressible", "well", "arrays"]
    pattern: str
    aliases: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ("tensor",)
    attrs: Mapping[str, str] = field(default_factory=dict)
    spelling: Literal["python", "short"] = "python"


@dataclass(frozen=True)
class Dynamics:
    """How states of a task go on from one to the next, as far as it is known.

    Args:
        memoryless: One frame says all of the next: the frames before it tell nothing more.
        changes_when_uniform: A state that has become uniform still changes, as where a reaction goes on or something
            flows in from a wall.
        advected_by: Parameters that are velocities: they move states in proportion to their size, as a wind does, and
            do nothing else.
    """

    memoryless: bool = False
    changes_when_uniform: bool = False
    advected_by: tuple[str, ...] = ()


UNKNOWN = Dynamics()


@dataclass(frozen=True)
class TaskSpec:
    """What is known of a task: declared by an equation, said by its files or by the user, never inferred from a shape.

    Args:
        name: What it is called in configs and files.
        title: The same for people.
        fields: What is predicted; their channels make the last axis of the values.
        bounds: Where its box begins and ends along each axis.
        periodic: Which axes wrap around.
        resolution: Cells along the first axis, where nobody asks for others.
        end: The time of the last frame; the first is at 0.
        frames: How many there are, at equal times.
        storage: How its files are laid out and named.
        parameters: What varies from sample to sample besides states.
        inputs: Fields that are given and do not change in time (a force, a medium).
        steady: It has no time: a solution follows from inputs and parameters.
        conserved: Channels whose sum over the box stays.
        positive: Channels that are never negative.
        divergence_free: Channels of a vector without sources.
        equation: The built-in equation that it obeys and that says its laws; empty for foreign data, unless said.
        mask: The input channel that is 1 where a cell counts and 0 where nothing is (an obstacle, land); empty where
            every cell counts.
        axes: The names of the axes of space.
        dynamics: How its states go on.
        domain: What its values lie on: the cells of a grid, points anywhere in the box, or the corners of a mesh.
    """

    name: str
    title: str
    fields: tuple[Field, ...]
    bounds: tuple[tuple[float, float], ...]
    periodic: tuple[bool, ...]
    resolution: int
    end: float
    frames: int
    storage: Storage = Storage(kind="well", pattern="")
    parameters: tuple[Param, ...] = ()
    inputs: tuple[Field, ...] = ()
    steady: bool = False
    conserved: tuple[str, ...] = ()
    positive: tuple[str, ...] = ()
    divergence_free: tuple[str, ...] = ()
    equation: str = ""
    mask: str = ""
    axes: tuple[str, ...] = ("x", "y", "z")
    dynamics: Dynamics = UNKNOWN
    domain: Domain = "grid"

    @property
    def ndim(self) -> int:
        return len(self.bounds)

    @property
    def given(self) -> tuple[str, ...]:
        """Names of the channels of the inputs."""
        return tuple(channel for f in self.inputs for channel in f.channels)

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the last axis of the values."""
        return tuple(channel for f in self.fields for channel in f.channels)

    @property
    def dt(self) -> float:
        """Time between two stored frames; 0 for a steady task."""
        return 0.0 if self.steady else self.end / (self.frames - 1)

    def periodicity(self, params: Params) -> tuple[bool, ...]:
        """A parameter named `boundary`, where a task has one, decides; otherwise the task's own."""
        if "boundary" in params:
            return (params["boundary"] == "periodic",) * self.ndim
        return self.periodic


@dataclass(frozen=True)
class Trajectory:
    """One sample.

    Args:
        id: Its name, the same in every split and report.
        task: What it is a sample of.
        values: Frames `(T, *S, C)`, time first, channels last; T = 1 for a steady task.
        grid: The grid of its cells.
        times: `(T,)`.
        params: Its parameters by name.
        inputs: What is given rather than predicted, `(*S, C_in)`; C_in is 0 for most tasks.
    """

    id: str
    task: TaskSpec
    values: Array
    grid: Grid
    times: Array
    params: Params
    inputs: Array
