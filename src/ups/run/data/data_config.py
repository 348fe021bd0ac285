"""What can be configured of data: how a task is made, which files there are, and how they are cut into parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from ups.config import Config
from ups.data.reduction import Reduction
from ups.data.splits import FRACTIONS
from ups.definition import Definition, definition_from, is_file_name
from ups.run.data.params import Value, files_of, parsed, single
from ups.types import UpsError, check_known, counted
from ups.wings import elsewhere

# Keys that say how data are made, and nothing of those that are there, nor of what is made to judge beside them.
MAKING = ("samples", "resolution", "batch")


def is_path(word: str) -> bool:
    """Whether a word for data is a path of this machine."""
    return not elsewhere().names(word)


def known(kind: str, names: Iterable[str], there: Iterable[str]) -> None:
    """ValueError, as pydantic wants it, for the first of `names` that is not there."""
    try:
        check_known(kind, names, there)
    except UpsError as error:
        raise ValueError(str(error)) from None


class GenerateConfig(Config):
    """The data of one task: which equation, how much of it, and how it is solved."""

    task: str
    """Name of the task; `ups data tasks` lists them."""
    samples: int = Field(default=100, ge=1)
    """Number of trajectories to make."""
    resolution: int | None = Field(default=None, ge=4)
    """Cells along the first axis; the task's own (PDEBench's) by default."""
    frames: int | None = Field(default=None, ge=2)
    """Keep only this many of the task's saved frames, from the first on; all by default."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Same seed, same data."""
    scheme: Literal["pdebench", "accurate"] | None = None
    """How the equation is solved: in PDEBench's way or more accurately. By default in PDEBench's way, where the task
    has one."""
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """auto, cpu, cuda or cuda:N."""
    dtype: Literal["float32", "float64"] | None = None
    """Precision of the solver. By default float32 for PDEBench's schemes, as PDEBench has it, and float64 for accurate
    ones."""
    batch: int | None = Field(default=None, ge=1)
    """Trajectories solved at once; as many as fit by default."""
    params: dict[str, Value] = Field(default_factory=dict)
    """Parameters of the equation, by name; by default those of the equation. A list `[0.001, 0.01]` makes a file of
    `samples` trajectories for each value; a range `{low: 0.001, high: 1.0, scale: log}` makes one file in which each
    sample has a value of its own."""
    store: Reduction = Field(default_factory=Reduction)
    """Write only every n-th frame and cell of the solution, so that the file is smaller. The equation is solved on all
    of them. docs/howto-simulate.md compares `store` with `reduce`."""

    @property
    def equation(self) -> str | None:
        """The equation that is solved; None where nothing is."""
        return self.task

    @field_validator("task")
    @classmethod
    def _known(cls, task: str) -> str:
        from ups.physics import EQUATIONS

        known("task", (task,), EQUATIONS)
        return task

    @field_validator("params", mode="before")
    @classmethod
    def _parsed(cls, params: Any, info: ValidationInfo) -> Any:
        """Words in the spelling of the equation (`--init shock` is Shock); lists and ranges, also as text."""
        from ups.physics import TASKS

        task = info.data.get("task")
        name = (task.equation or task.name) if isinstance(task, Definition) else task
        there = {p.name: p for p in TASKS[name].parameters} if name is not None and name in TASKS else {}
        given = params.items() if isinstance(params, dict) else ()
        return {name: parsed(value, there.get(name)) for name, value in given} if given else params

    @model_validator(mode="after")
    def _solvable(self) -> GenerateConfig:
        from ups.physics import EQUATIONS

        if self.equation is None:
            return self
        if not self.equation:
            raise ValueError("there is neither a `file` nor a `task` to make data of; add one.")
        known("task", (self.equation,), EQUATIONS)
        kind = EQUATIONS[self.equation]
        names = [p.name for p in kind.parameters()]
        for name in self.params:
            if name not in names:
                has = f"it has {', '.join(names)}" if names else "it has none"
                raise ValueError(f"{self.equation} has no parameter '{name}'; {has}.")
        try:
            equations = [file.check(kind) for file in files_of(self.params)]
            most = min(len(equation.times()) for equation in equations)
            if self.frames and (self.frames > most or kind.task.steady):
                raise ValueError(f"{self.equation} has {counted(most, 'saved frame')}, not {self.frames}.")
            if self.scheme:
                equations[0].check_scheme(self.scheme)
            if self.store != Reduction():
                grid = equations[0].grid(self.resolution or kind.task.resolution)
                self.store.cells(grid, "store")
                if self.store.start >= (count := min(most, self.frames or most)):
                    raise ValueError(
                        f"store.start is {self.store.start}, but {self.equation} has {counted(count, 'frame')}."
                    )
        except UpsError as error:
            raise ValueError(str(error)) from None
        return self


class Between(Config):
    """Numbers from `low` to `high`."""

    low: float
    """The least value."""
    high: float
    """The greatest value."""


class SplitConfig(Config):
    """How trajectories are divided into train, valid and test. Every part has all parameter values, if there are enough
    samples of each."""

    located = dict.fromkeys(("files", "record"), is_path)

    convention: Literal["seeded", "pdebench-first", "pdebench-last"] = "seeded"
    """seeded: at random, by the seed of the data. pdebench-first and pdebench-last, as in PDEBench: the first or the
    last trajectories are for testing."""
    fractions: tuple[float, float, float] = FRACTIONS
    """Shares of train, valid and test."""
    time: tuple[float, float, float] | None = None
    """Shares of the time of each trajectory, instead of `fractions`: the past is for training, the future for
    validation and testing, and no frame is in two parts."""
    pieces: int = Field(default=1, ge=1)
    """With `time`: cut the times for validation and for testing into this many pieces of equal length, each predicted
    from its own first frame. For chaotic systems, of which one long rollout takes long and says little."""
    hold_out: dict[str, tuple[float | str, ...] | Between] = Field(default_factory=dict)
    """Parameter values that are used for testing only, by name: `{nu: [0.02]}`, or all values in a range, `{nu: {low:
    0.01, high: 0.1}}`. With several parameters, a trajectory must match all of them."""
    files: dict[Literal["train", "valid", "test"], str | tuple[str, ...]] = Field(default_factory=dict)
    """Files, folders or patterns for each part, instead of `file`. Without `valid` it is cut from train."""
    record: str | None = None
    """The file of a split that `ups data split` has made of exactly these samples."""

    @model_validator(mode="after")
    def _one_way(self) -> SplitConfig:
        ways = [name for name in ("time", "hold_out", "files", "record") if getattr(self, name)]
        if len(ways) > 1:
            raise ValueError(f"a split is made in one way, not by {' and '.join(ways)}; keep one.")
        if self.time is not None and not (min(self.time) >= 0 and abs(sum(self.time) - 1) <= 1e-9):
            raise ValueError(f"split.time is {self.time}, but its shares are not negative and sum to 1.")
        if self.pieces > 1 and self.time is None:
            raise ValueError(f"split.pieces is {self.pieces}, but without `time` no trajectory is cut; add it.")
        if self.files and not {"train", "test"} <= set(self.files):
            raise ValueError("split.files names files for train and test, and for valid if there are any; add them.")
        return self


class DataConfig(GenerateConfig):
    """One data set of a run: existing files, or one to be made; and which part of it is used."""

    located: ClassVar = {"file": is_path, "task": is_file_name}

    task: str | Definition | None = None  # type: ignore[assignment]
    """What the data are: a built-in name (`ups data tasks`), a new name, a whole definition as `ups data info` prints
    it, or the path of a YAML file with one. Not needed where the files say it themselves."""
    file: str | tuple[str, ...] | None = None
    """A file, a folder, a pattern (`data/*Nu*.hdf5`), or a remote file that is fetched on first use (`pdebench:NAME`,
    `well:NAME`, https://…, s3://… or hf://…); or a list of these, all of one task. A relative path counts from the
    folder of the config. Without it, the data are made as the other keys say."""
    reduce: Reduction = Field(default_factory=Reduction)
    """Use only every n-th frame and cell of the file, in all parts of the split; the file keeps the rest.
    docs/howto-simulate.md compares it with `store`."""
    split: SplitConfig = Field(default_factory=SplitConfig)
    """How trajectories are divided into train, valid and test."""

    @property
    def there(self) -> bool:
        """Whether its files are there already, and not made by the run."""
        return bool(self.file or self.split.files)

    @property
    def unused(self) -> list[str]:
        """Keys that say how data are made, though files are there."""
        names = [name for name in MAKING if getattr(self, name) != DataConfig.model_fields[name].get_default()]
        return names if self.there else []

    @property
    def words(self) -> list[str]:
        """All files, folders, patterns, names and addresses that it names."""
        groups = [group for group in (self.file, *self.split.files.values()) if group]
        return [word for group in groups for word in ([group] if isinstance(group, str) else group)]

    @property
    def paths(self) -> list[str]:
        """Those of `words` that are paths of this machine."""
        return [word for word in self.words if is_path(word)]

    @property
    def equation(self) -> str | None:
        if self.there:
            return None
        definition = Definition.of(self.task)
        return definition.equation or definition.name

    @property
    def definition(self) -> Definition:
        """The definition of the task of the files; `params` hold for every sample of them."""
        definition = Definition.of(self.task)
        params = {**definition.parameters, **single(self.params)} if self.there else definition.parameters
        return dataclasses.replace(definition, parameters=params)

    def generation(self) -> GenerateConfig:
        """How the file is made."""
        keys = set(GenerateConfig.model_fields)
        return GenerateConfig.model_validate({**self.model_dump(include=keys), "task": self.equation})

    @field_validator("task")
    @classmethod
    def _known(cls, task: Any) -> Any:
        """Any name and any definition, also one in a file of its own (`task: wake.yaml`); `_made_or_there` checks the
        rest."""
        return definition_from(task) if isinstance(task, str) and is_file_name(task) else task

    @model_validator(mode="after")
    def _made_or_there(self) -> DataConfig:
        if self.file and self.split.files:
            raise ValueError("`file` and `split.files` both name the data; keep one of them.")
        try:
            for word in self.words:
                elsewhere().require_nameable(word)
        except UpsError as error:
            raise ValueError(str(error)) from None
        if self.there:
            single(self.params)
        return self
