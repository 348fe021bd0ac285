"""What can be configured: the data of a task, and a whole run. Loading one checks it against the equations."""

from __future__ import annotations

import difflib
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from ups.config import Config
from ups.data.sampler import Mix
from ups.data.shards import Kind
from ups.data.windows import Reduction
from ups.engine.dist import DistConfig
from ups.engine.train import TrainConfig
from ups.models import CodecConfig, OperatorConfig, SimulatorConfig
from ups.stages.codec import CodecLoss
from ups.stages.operator import OperatorLoss
from ups.supervise.limits import Limits
from ups.types import UpsError

BUDGET = {"steps", "seconds"}


class GenerateConfig(Config):
    """The data of one task: which equation, how much of it, and how it is solved."""

    task: str
    """Name of the task; `ups data tasks` lists them."""
    samples: int = Field(default=100, ge=1)
    """Number of trajectories."""
    resolution: int | None = Field(default=None, ge=4)
    """Cells along the first axis; the task's own (PDEBench's) by default."""
    frames: int | None = Field(default=None, ge=2)
    """Only the first so many of the task's saved frames; all by default."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Same seed, same data."""
    scheme: Literal["pdebench", "accurate"] | None = None
    """How it is solved; PDEBench's way where the task has it, by default."""
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """auto, cpu, cuda or cuda:N."""
    dtype: Literal["float32", "float64"] | None = None
    """Precision of the solver: by default float32 for PDEBench's schemes, as there, and float64 for accurate ones."""
    batch: int | None = Field(default=None, ge=1)
    """Trajectories solved at once; as many as fit by default."""
    params: dict[str, float | str] = Field(default_factory=dict)
    """Parameters of the equation, by name; its defaults otherwise."""

    @field_validator("task")
    @classmethod
    def _known(cls, task: str) -> str:
        from ups.physics import EQUATIONS

        if task not in EQUATIONS:
            near = difflib.get_close_matches(task, EQUATIONS, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"the tasks are {', '.join(EQUATIONS)}."
            raise ValueError(f"there is no task '{task}'; {hint}")
        return task

    @field_validator("params")
    @classmethod
    def _spelled(cls, params: dict[str, float | str], info: ValidationInfo) -> dict[str, float | str]:
        """Words in the spelling of the equation (`--init shock` is Shock); numbers also as YAML mistakes them, 1e-8."""
        from ups.physics import TASKS

        known = TASKS[info.data["task"]].parameters if "task" in info.data else ()
        words = {p.name: {choice.lower(): choice for choice in p.choices} for p in known}
        spelled = {name: words.get(name, {}).get(str(value).lower(), value) for name, value in params.items()}
        return {name: _number(value) if not words.get(name) else value for name, value in spelled.items()}

    @model_validator(mode="after")
    def _solvable(self) -> GenerateConfig:
        from ups.physics import EQUATIONS

        kind = EQUATIONS[self.task]
        known = [p.name for p in kind.parameters()]
        for name in self.params:
            if name not in known:
                has = f"it has {', '.join(known)}" if known else "it has none"
                raise ValueError(f"{self.task} has no parameter '{name}'; {has}.")
        try:
            equation = kind(**self.params)
            most = len(equation.times())
            if self.frames and (self.frames > most or equation.task.steady):
                raise ValueError(f"{self.task} has {most} saved frame{'s'[: most - 1]}, not {self.frames}.")
            if self.scheme:
                equation.check_scheme(self.scheme)
        except UpsError as error:
            raise ValueError(str(error)) from None
        return self


def _number(value: float | str) -> float | str:
    try:
        return float(value)
    except ValueError:
        return value


class SplitConfig(Config):
    """Which trajectories are for what."""

    convention: Literal["seeded", "pdebench-first", "pdebench-last"] = "seeded"
    """seeded, or PDEBench's own: the first or the last part is for testing."""
    fractions: tuple[float, float, float] = (0.8, 0.1, 0.1)
    """Shares of train, valid and test."""


class DataConfig(GenerateConfig):
    """One data set of a run: a file that is there, or one to be made; and how it is cut down for training."""

    file: str | None = None
    """A PDEBench file or a folder of The Well to read; made from the other keys if there is none."""
    reduce: Reduction = Field(default_factory=Reduction)
    """Every n-th frame from `start` on, and every n-th cell of each axis."""
    split: SplitConfig = Field(default_factory=SplitConfig)
    """Train, valid and test."""


class ModelConfig(Config):
    """The networks."""

    codec: CodecConfig = Field(default_factory=CodecConfig)
    """Frames to tokens and back."""
    operator: OperatorConfig = Field(default_factory=OperatorConfig)
    """Tokens to the tokens of the next frame."""
    simulator: SimulatorConfig = Field(default_factory=SimulatorConfig)
    """How the two run together."""


class StageConfig(Config):
    """How one stage is trained."""

    train: TrainConfig
    """Budget and optimizer."""
    batch: int = Field(default=32, ge=1)
    """Windows per step."""
    unroll: int = Field(default=1, ge=1)
    """Steps ahead that are trained through."""
    workers: int = Field(default=0, ge=0)
    """Processes of each rank that build its windows; 0: a thread of its own does."""

    @model_validator(mode="before")
    @classmethod
    def _over_the_defaults(cls, values: Any) -> Any:
        """A part of `train` changes that part alone; a budget, of steps or of seconds, takes the place of the other."""
        given = values.get("train") if isinstance(values, dict) else None
        default = cls.model_fields["train"].default_factory
        if not isinstance(given, dict) or default is None:
            return values
        kept = asdict(default())  # type: ignore[call-arg]
        if given.keys() & BUDGET:
            kept = {key: value for key, value in kept.items() if key not in BUDGET}
        return {**values, "train": {**kept, **given}}


class CodecStageConfig(StageConfig):
    """Stage codec."""

    train: TrainConfig = Field(default_factory=lambda: TrainConfig(steps=200, lr=1e-3, ema=0.99, validate_first=True))
    """Budget and optimizer."""
    loss: CodecLoss = Field(default_factory=CodecLoss)
    """Weights of the losses."""


class OperatorStageConfig(StageConfig):
    """Stage operator."""

    train: TrainConfig = Field(default_factory=lambda: TrainConfig(steps=2000, lr=2e-3))
    """Budget and optimizer."""
    loss: OperatorLoss = Field(default_factory=OperatorLoss)
    """Weights of the losses."""


class EvalConfig(Config):
    """How the simulator is judged."""

    protocol: Literal["A", "B", "C", "D", "G"] = "A"
    """The published protocol; its context is replaced by the operator's where they differ, and the label says so."""
    baselines: tuple[Literal["fno", "uno"], ...] = ()
    """Trained for the same time on the same data; needs the extra `baselines`."""
    zero_shot: tuple[Annotated[int, Field(ge=2)], ...] = ()
    """Finer grids to judge on, as multiples of the trained resolution: 2 is twice the cells per axis."""
    unseen: dict[str, tuple[dict[str, float | str], ...]] = Field(default_factory=dict)
    """Other parameters to judge at, by task, for example `{burgers1d: [{nu: 0.02}]}`."""
    samples: int = Field(default=16, ge=2)
    """Trajectories that are made for each, where the run's own file has none on such a grid."""

    @field_validator("unseen")
    @classmethod
    def _solvable(
        cls, unseen: dict[str, tuple[dict[str, float | str], ...]]
    ) -> dict[str, tuple[dict[str, float | str], ...]]:
        try:
            made = {
                task: tuple(GenerateConfig(task=task, params=p).params for p in sets) for task, sets in unseen.items()
            }
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None
        return made


class CacheConfig(Config):
    """The latent cache: what the frozen codec makes of the training data, encoded once and read from disk."""

    incidental = frozenset({"folder", "rebuild", "readers"})

    use: bool = False
    """Train the operator on encoded windows; with fp32 the losses are the same to the bit."""
    dtype: Kind = "fp32"
    """How tokens are stored: fp32, or half the size as bf16 or fp16, with the rounding said in the manifest."""
    folder: str | None = None
    """Where caches lie, for example on a fast scratch disk; `cache/latents` of the run's folder by default."""
    rebuild: bool = False
    """Replace a cache that is damaged or was made of other weights or data, instead of refusing it."""
    readers: int = Field(default=2, ge=1)
    """Threads that read ahead while it is built."""


class RunConfig(Config):
    """A run: data, model, stages, evaluation."""

    incidental = frozenset({"dist", "limits", "out", "device"})

    name: str = Field(default="run", pattern=r"^\w[\w.-]*$")
    """The run's folder is `<out>/<name>`."""
    out: str = "runs"
    """Where run folders are made."""
    seed: int = Field(default=0, ge=0)
    """Seed of everything that is random and has no seed of its own."""
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """auto, cpu, cuda or cuda:N."""
    dist: DistConfig = Field(default_factory=DistConfig)
    """On how many processes it trains, and how the model lives on them."""
    limits: Limits = Field(default_factory=Limits)
    """How long a process may stand still before it counts as hung, and how often a run is started again."""
    data: dict[str, DataConfig] = Field(default_factory=dict)
    """Data sets, by a name of your choice."""
    mix: Mix = Field(default_factory=Mix)
    """How often each task is drawn in training."""
    cache: CacheConfig = Field(default_factory=CacheConfig)
    """Whether the operator is trained from a latent cache, and where that lies."""
    start_from: str | None = None
    """A run folder or a simulator to train further: its tasks keep what they know, and new ones are added."""
    model: ModelConfig = Field(default_factory=ModelConfig)
    """The networks."""
    codec: CodecStageConfig = Field(default_factory=CodecStageConfig)
    """The first stage."""
    operator: OperatorStageConfig = Field(default_factory=OperatorStageConfig)
    """The second stage."""
    evaluation: EvalConfig = Field(default_factory=EvalConfig)
    """How the simulator is judged."""

    @model_validator(mode="after")
    def _shareable(self) -> RunConfig:
        for name, stage in (("codec", self.codec), ("operator", self.operator)):
            if self.dist.strategy == "fsdp" and stage.train.optimizer == "muon":
                raise ValueError(f"{name}.train.optimizer is muon, which needs whole matrices, and fsdp cuts them.")
            if stage.batch < self.dist.world:
                raise ValueError(f"{name}.batch is {stage.batch}, which {self.dist.world} ranks cannot share.")
        return self

    @model_validator(mode="after")
    def _one_set_per_task(self) -> RunConfig:
        tasks = [data.task for data in self.data.values()]
        for task in tasks:
            if tasks.count(task) > 1:
                raise ValueError(f"two data sets hold {task}; a simulator learns a task from one.")
        if self.mix.weights and set(self.mix.weights) != set(tasks):
            odd = min(set(self.mix.weights) ^ set(tasks))
            raise ValueError(f"mix.weights needs a number for each task of the data and no other; look at {odd}.")
        return self
