"""What a user says of a task (Definition); who is believed of the user, the equation and the file (TaskFacts)."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from ups.types import UNKNOWN, ConfigError, Dynamics, Field, Param, TaskSpec, check_known, counted

SAMPLE, TIME, CHANNEL = "sample", "time", "channel"
POINT = "point"  # what the axis of points is called where nobody names it
# Other words for the axes of an array that are not space.
SPELLINGS = {
    **dict.fromkeys(("sample", "samples", "batch", "trajectory", "trajectories", "n", "b"), SAMPLE),
    **dict.fromkeys(("time", "times", "t"), TIME),
    **dict.fromkeys(("channel", "channels", "c", "component", "variable"), CHANNEL),
}

LAWS = ("conserved", "positive", "divergence_free")


@dataclass(frozen=True)
class Definition:
    """What a user says of a task. Files that describe themselves need none; arrays need `dims` and `fields`."""

    name: str = ""
    """The name of the task; any word."""
    title: str = ""
    """A short title for tables and reports."""
    dims: tuple[str, ...] = ()
    """The axes of the arrays, in order: `sample`, `time`, the names of the axes of space, `channel`."""
    fields: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What is predicted: channels by field, `{velocity: [u, v], pressure: [p]}`, in the order of the channels."""
    inputs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What is given and does not change in time: channels by field, `{force: [fx, fy]}`."""
    datasets: dict[str, str] = field(default_factory=dict)
    """For a field, input, coordinate or parameter that the file calls otherwise: its name in the file."""
    ignore: tuple[str, ...] = ()
    """Arrays and attributes of a file that are not read, by their names there: for example numbers that are not
    parameters."""
    bounds: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Ends of the box along an axis; by default half a cell beyond the outermost coordinates."""
    periodic: tuple[str, ...] | None = None
    """The axes that wrap around; by default those that the file names, or none."""
    parameters: dict[str, float | str] = field(default_factory=dict)
    """Parameters that hold for every sample; they replace those of the file."""
    dt: float | None = None
    """Time between frames, if the file has no times."""
    steady: bool | None = None
    """Whether each sample is one solution, without time."""
    conserved: tuple[str, ...] | None = None
    """Channels whose mean never changes."""
    positive: tuple[str, ...] | None = None
    """Channels that never fall below 0."""
    divergence_free: tuple[str, ...] | None = None
    """Vector fields without divergence (in a periodic box)."""
    equation: str = ""
    """The built-in equation that the data obey, if there is one. Its laws then hold for them, and it can make more
    data."""
    mask: str = ""
    """The input that is true (1) where a cell counts and false (0) where there is nothing, such as an obstacle."""
    memoryless: bool | None = None
    """Whether one frame says all of the next: networks that look back on several frames then see the last one of this
    task alone. Good where it is true: errors in earlier frames do no harm, and training uses the first frames of each
    trajectory too."""
    changes_when_uniform: bool | None = None
    """Whether a state that has become uniform still changes, as where a reaction goes on or something flows in from a
    wall. By default what its equation says, or no."""
    advected_by: tuple[str, ...] | None = None
    """Parameters that are velocities: they move states in proportion to their size, as a wind does, and do nothing
    else. By default those of its equation, or none. docs/howto-many-tasks.md says what is done with them."""

    def __post_init__(self) -> None:
        """Lists, as Python users and YAML write them, become tuples; what cannot be is refused."""
        if self.dt is not None and not (math.isfinite(self.dt) and self.dt > 0):
            raise ConfigError(f"dt of a task is {self.dt}, but must be a finite number above 0.")
        for axis, (low, high) in self.bounds.items():
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise ConfigError(f"bounds of {axis} are {low} and {high}, but the first must be below the second.")
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if isinstance(value, list):
                object.__setattr__(self, f.name, tuple(value))
            elif isinstance(value, dict) and f.name in ("fields", "inputs", "bounds"):
                pairs = {key: (item,) if isinstance(item, str) else tuple(item) for key, item in value.items()}
                object.__setattr__(self, f.name, pairs)

    @classmethod
    def of(cls, task: str | Definition | None) -> Definition:
        """The definition that is given, or one that says only a task's name, or nothing."""
        return task if isinstance(task, Definition) else cls(name=task or "")

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> Definition:
        """A definition from what `plain` made of one; keys that this version does not know are left out."""
        known = {f.name for f in dataclasses.fields(cls)}
        return cls(**{key: value for key, value in content.items() if key in known})

    def plain(self) -> dict[str, Any]:
        """The definition as lists, numbers and words, without what is empty. An empty `advected_by` is not left out: it
        says that nothing carries states along, though an equation may say otherwise."""
        pairs = dataclasses.asdict(self).items()
        stated = {k: v for k, v in pairs if v not in ("", (), {}, None) or (v == () and k in vars(UNKNOWN))}
        content: dict[str, Any] = json.loads(json.dumps(stated))
        return content

    def text(self) -> str:
        """The definition as YAML, to be edited and named with --task."""
        return yaml.safe_dump(self.plain(), sort_keys=False, default_flow_style=None, width=110, allow_unicode=True)

    @property
    def layout(self) -> tuple[str, ...]:
        """`dims` in one spelling: `sample`, `time` and `channel` whatever they are called."""
        return tuple(SPELLINGS.get(name.lower(), name) for name in self.dims)

    @property
    def space(self) -> tuple[str, ...]:
        """The axes of space among `dims`."""
        return tuple(name for name in self.layout if name not in (SAMPLE, TIME, CHANNEL))

    def names(self, parameter: str) -> bool:
        """Whether the user speaks of a parameter: says where it lies, or which value it has."""
        return parameter in self.datasets or parameter in self.parameters

    def check_names(self, spec: TaskSpec, where: str) -> None:
        """ConfigError for a channel, field, axis or input that the definition names and the task does not have."""
        named = {
            "channel": ((*(self.conserved or ()), *(self.positive or ())), spec.channels),
            "field": (self.divergence_free or (), tuple(f.name for f in spec.fields if f.rank == 1)),
            "axis": ((*(self.periodic or ()), *self.bounds), spec.axes[: spec.ndim]),
            "input": ((self.mask,) if self.mask else (), spec.given),
        }
        for kind, (names, there) in named.items():
            for name in names:
                if name not in there:
                    has = f"it has {', '.join(there)}" if there else "it has none"
                    vector = " of one channel per axis" if kind == "field" else ""
                    raise ConfigError(f"{where}: has no {kind}{vector} '{name}', which the task speaks of; {has}.")


@dataclass(frozen=True)
class TaskFacts:
    """What is known of a task, and by whom. Of a fact that several speak of, the first of these is believed.

    Args:
        user: What the user says, now or when the file was written.
        start: What the simulator says, with which a training starts, of how states go on.
        equation: What the built-in equation says that the task obeys; it is silent where the file names it itself, and
            so has said the same.
        file: What the file says, as its reader made a task of it.
        seen: How states were seen to go on.
    """

    user: Definition
    file: TaskSpec
    equation: TaskSpec | None = None
    start: Dynamics | None = None
    seen: Dynamics = UNKNOWN

    @classmethod
    def of(cls, user: Definition, file: TaskSpec, tasks: Mapping[str, TaskSpec], where: str) -> TaskFacts:
        """What is known of a file.

        Args:
            user: What the user says of it.
            file: What it says itself.
            tasks: The built-in tasks by name, one of which may be its equation.
            where: The beginning of errors: the file.

        Raises:
            ConfigError: The two contradict each other, or a name is not there.
        """
        channels = tuple(c for names in user.fields.values() for c in names)
        if channels and channels != file.channels:
            raise ConfigError(f"{where}: holds {', '.join(file.channels)}, not the fields {', '.join(channels)}.")
        # Where fields or axes are defined too, and are not those of the built-in task, only the name is the same.
        alone, on_grid = not (user.fields or user.dims or user.datasets), file.domain == "grid"
        named = on_grid and user.name in tasks and (alone or file.channels == tasks[user.name].channels)
        equation = user.equation or (user.name if named else "") or file.equation
        if not on_grid and (equation or user.divergence_free):
            what = f"the equation {equation}" if equation else "`divergence_free`"
            raise ConfigError(f"{where}: lies on points, where {what} cannot be checked; take it out of the task.")
        if equation:
            check_known("equation", (equation,), tasks)
            known = tasks[equation]
            if (len(known.channels), known.ndim) != (len(file.channels), file.ndim):
                raise ConfigError(
                    f"{where}: holds {', '.join(file.channels)} on {counted(file.ndim, 'axis')}, but {equation} has "
                    f"{', '.join(known.channels)} on {known.ndim}; give the task another name."
                )
        facts = cls(user, file, tasks.get(equation))
        if user.fields or equation:
            _check_order(facts._fields, file.axes[: file.ndim], facts.equation, where)
        user.check_names(file, where)
        return facts

    @property
    def task(self) -> TaskSpec:
        """The task, with every fact as it is believed."""
        user, file = self.user, self.file
        axes = file.axes[: file.ndim]
        return dataclasses.replace(
            file,
            name=user.name or file.name,
            title=user.title or (user.name.replace("_", " ") if user.name else file.title),
            fields=file.fields if {f.name: f.channels for f in file.fields} == user.fields else self._fields,
            periodic=file.periodic if user.periodic is None else tuple(a in user.periodic for a in axes),
            bounds=tuple(user.bounds.get(a, b) for a, b in zip(axes, file.bounds, strict=False)),
            equation=self.equation.name if self.equation else "",
            mask=user.mask or file.mask,
            parameters=self._parameters(),
            steady=file.steady if user.steady is None else user.steady,
            dynamics=self.dynamics,
            **self.laws,
        )

    @property
    def laws(self) -> dict[str, Any]:
        """What holds along every trajectory."""
        own = {law: getattr(self.user, law) for law in LAWS}
        return {law: getattr(self._declared, law) if value is None else value for law, value in own.items()}

    @property
    def dynamics(self) -> Dynamics:
        """How states go on."""
        known = self.start or self._declared.dynamics
        if self.start is None:  # what is seen adds to what is known, and takes nothing from it
            known = Dynamics(**{key: getattr(known, key) or seen for key, seen in vars(self.seen).items()})
        own = {key: value for key in vars(known) if (value := getattr(self.user, key)) is not None}
        return dataclasses.replace(known, **own)

    @property
    def definition(self) -> Definition:
        """The user's definition, and what else must be said for states to go on as they do."""
        declared = vars(self._declared.dynamics)
        news = {key: value for key, value in vars(self.dynamics).items() if value != declared[key]}
        return dataclasses.replace(self.user, **{k: v for k, v in news.items() if getattr(self.user, k) is None})

    @property
    def _declared(self) -> TaskSpec:
        """Who speaks where the user does not: the equation, or a file that has named it itself."""
        return self.file if self.equation is None or self.equation.name == self.file.equation else self.equation

    @property
    def _fields(self) -> tuple[Field, ...]:
        return fields_of(self.user.fields, self.file.ndim) if self.user.fields else self.file.fields

    def _parameters(self) -> tuple[Param, ...]:
        """The file's parameters, those of the equation, and those the user gives."""
        params = {p.name: p for p in (self.equation.parameters if self.equation is not None else ())}
        params |= {p.name: p for p in self.file.parameters if p.name not in params}
        for name, value in self.user.parameters.items():
            words = {"choices": (value,), "encoded": True} if isinstance(value, str) else {}
            params.setdefault(name, Param(name, value, "stated by the user", **words))  # type: ignore[arg-type]
        return tuple(params.values())


def is_file_name(text: str) -> bool:
    """Whether what a user writes for a task is the path of a file, and not a name."""
    return "/" in text or Path(text).suffix.lower().startswith((".y", ".json", ".toml"))  # also one that is misspelt


def definition_from(text: str) -> Definition:
    """A definition from what a user writes for a task: a name, or the path of a YAML file that describes it."""
    if not is_file_name(text):
        return Definition(name=text)
    import pydantic

    from ups.config import Config, load

    hints = get_type_hints(Definition)
    keys: dict[str, Any] = {
        f.name: (hints[f.name], f.default if f.default_factory is dataclasses.MISSING else f.default_factory())
        for f in dataclasses.fields(Definition)
    }
    content = load(pydantic.create_model("Task", __base__=Config, **keys), Path(text))
    definition = Definition(**{name: getattr(content, name) for name in keys})
    return dataclasses.replace(definition, name=definition.name or Path(text).stem)


def definition_of(spec: TaskSpec) -> Definition:
    """The whole definition of a task, for a user to read, edit and use.

    Laws of an equation are left out, for `equation` says them; dynamics are not, for the user may have changed them.
    """
    axes = spec.axes[: spec.ndim]
    time = () if spec.steady else (TIME,)
    return Definition(
        name=spec.name,
        title=spec.title,
        dims=(SAMPLE, *time, *(axes if spec.domain == "grid" else (POINT,)), CHANNEL),
        fields={f.name: f.channels for f in spec.fields},
        inputs={f.name: f.channels for f in spec.inputs},
        bounds=dict(zip(axes, spec.bounds, strict=True)),
        periodic=tuple(a for a, wraps in zip(axes, spec.periodic, strict=True) if wraps),
        steady=spec.steady,
        conserved=None if spec.equation else spec.conserved,
        positive=None if spec.equation else spec.positive,
        divergence_free=None if spec.equation else spec.divergence_free,
        equation=spec.equation,
        mask=spec.mask,
        **{k: v for k, v in vars(spec.dynamics).items() if spec.equation or v != getattr(UNKNOWN, k)},
    )


def _check_order(fields: tuple[Field, ...], axes: tuple[str, ...], equation: TaskSpec | None, where: str) -> None:
    """ConfigError where names show that fields are not in the order of their equation, or components of a vector not in
    the order of the axes. Both are known by their places alone, so another order would be read wrongly."""
    if equation is not None:
        for names, own in (
            ([f.name for f in fields], [f.name for f in equation.fields]),
            ([c for f in fields for c in f.channels], list(equation.channels)),
        ):
            here, there = ([name.lower() for name in each] for each in (names, own))
            if sorted(here) == sorted(there) and here != there:
                _refuse_order(names, own, equation, where)
        vectors = _vectors(equation.fields)
        if len(axes) > 1 and vectors and not _vectors(fields) <= vectors:
            _refuse_order([f.name for f in fields], [f.name for f in equation.fields], equation, where)
    for f in fields if len(axes) > 1 else ():
        ends = [channel[-1].lower() for channel in f.channels if channel]
        if f.rank == 1 and ends != list(axes) and sorted(ends) == sorted(axes):
            order = [f.channels[ends.index(axis)] for axis in axes]
            raise ConfigError(
                f"{where}: the components of {f.name} are {', '.join(f.channels)}, and the axes {', '.join(axes)}; say "
                f"them in the order of the axes, `{f.name}: [{', '.join(order)}]`, where each is an array of its own; "
                "in one array for all, put the components themselves in that order first."
            )


def _refuse_order(names: Sequence[str], own: Sequence[str], equation: TaskSpec, where: str) -> None:
    raise ConfigError(
        f"{where}: its fields are {', '.join(names)}, and those of {equation.name} {', '.join(own)}, which are told by "
        "their order; say them in this order (`fields`)."
    )


def _vectors(fields: tuple[Field, ...]) -> set[tuple[int, ...]]:
    """The places of the channels of each vector."""
    places = iter(range(sum(len(f.channels) for f in fields)))
    spans = [(f.rank, tuple(next(places) for _ in f.channels)) for f in fields]
    return {span for rank, span in spans if rank == 1}


def fields_of(groups: Mapping[str, tuple[str, ...]], ndim: int) -> tuple[Field, ...]:
    """Fields with their tensor rank: one channel is a scalar, one per axis a vector, one per pair of axes a tensor."""
    ranks = {1: 0, ndim**2: 2, ndim: 1} if ndim > 1 else {1: 0}
    return tuple(Field(name, tuple(channels), ranks.get(len(channels), 0)) for name, channels in groups.items())
