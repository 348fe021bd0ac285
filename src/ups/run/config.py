"""What can be configured of a whole run. Loading a config checks it against what is registered."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal, cast

from pydantic import Field, ValidationError, create_model, field_validator, model_validator

from ups.config import Config, HomedConfig, incidental_keys
from ups.config_shared import shared_keys
from ups.data.cache_shards import TokenFormat
from ups.data.sampler import Mix
from ups.definition import Definition
from ups.engine.ranks.dist_config import DistConfig
from ups.engine.train import TrainConfig
from ups.eval.baselines import BASELINES, USUAL
from ups.models.config import FORECASTER, NetworkConfig, SimulatorConfig
from ups.run.data.data_config import DataConfig, GenerateConfig, known
from ups.run.data.params import single
from ups.run.judging.gates_config import CHAMPION, gates_from
from ups.stages import STAGES, Stage, StageConfig
from ups.types import TaskSpec
from ups.wings import wings


class ModelConfig(Config):
    """The networks: how they run together, and a section for each part that a stage makes."""

    shared = dict.fromkeys(("network",), NetworkConfig)

    simulator: SimulatorConfig = Field(default_factory=SimulatorConfig)
    """How the parts run together."""
    network: NetworkConfig = Field(default_factory=NetworkConfig)
    """What the networks of all parts but the codec have in common; the section of a part says what differs there."""

    def part(self, name: str) -> Any:
        """How a part is made."""
        return getattr(self, name)


class EvalConfig(Config):
    """How the simulator is judged."""

    protocol: Literal["A", "B", "C", "D", "G"] = "A"
    """The published protocol. Its context is replaced by the operator's if they differ, and the label says so."""
    given: int | None = Field(default=None, ge=1)
    """True frames shown before a judged rollout starts; at least the context, and null means the context. Set it to
    compare simulators of different context on the same frames."""
    baselines: tuple[str, ...] = USUAL
    """Models to compare with, made from the same data: linear in seconds, fno and uno trained for as long as ours (they
    need the extra `baselines`); `[]`: none."""
    zero_shot: tuple[Annotated[int, Field(ge=2)], ...] = ()
    """Finer grids to judge on, as multiples of the trained resolution: 2 has twice the cells per axis."""
    unseen: dict[str, tuple[dict[str, float | str], ...]] = Field(default_factory=dict)
    """Other parameter values to judge at, by task, for example `{burgers1d: [{nu: 0.02}]}`."""
    samples: int = Field(default=16, ge=2)
    """Trajectories that are made for each of `unseen`, and of `zero_shot` if the run's file has no such grid; also how
    many `horizon` uses."""
    apart: bool = False
    """Also judge each set of parameters in the test part by itself, where a task has several."""
    horizon: int | None = Field(default=None, ge=2)
    """Also roll out `samples` test trajectories for this many times the judged frames: do they stay bounded and keep
    their laws?"""
    ensemble: int = Field(default=16, ge=0)
    """Members of each ensemble that is judged, if a part can draw (stages residual, steady); 0: no ensembles."""
    search: tuple[Annotated[int, Field(ge=1, le=256)], ...] = (1, 4, 8)
    """Draws per step in the searches that are judged, if a critic was trained; `[]`: no searches."""
    tolerance: float = Field(default=1e-6, ge=1e-10, lt=1)
    """The relative residual down to which predicted steady states are refined, if their equations are known."""

    def given_to(self, context: int) -> int:
        """True frames before a rollout of a simulator that looks back on `context`."""
        return max(context, self.given or 1)

    @field_validator("ensemble")
    @classmethod
    def _several(cls, ensemble: int) -> int:
        if ensemble == 1:
            raise ValueError("an ensemble has at least 2 members, or 0 for none")
        return ensemble

    @field_validator("baselines")
    @classmethod
    def _baselines_there_are(cls, baselines: tuple[str, ...]) -> tuple[str, ...]:
        known("baseline", baselines, BASELINES)
        return baselines

    @field_validator("unseen")
    @classmethod
    def _solvable(
        cls, unseen: dict[str, tuple[dict[str, float | str], ...]]
    ) -> dict[str, tuple[dict[str, float | str], ...]]:
        from ups.physics import TASKS

        for task in (task for task, sets in unseen.items() if {} in sets):
            raise ValueError(f"a set of parameters of {task} is empty; name at least one in it, or leave it out.")
        try:
            made = {
                task: tuple(single(GenerateConfig(task=task, params={**p}).params) for p in sets)
                if task in TASKS
                else sets
                for task, sets in unseen.items()
            }
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None
        return made


class CacheConfig(Config):
    """The latent cache: training data encoded once by the frozen codec, then read from disk."""

    incidental = frozenset({"folder", "rebuild"})
    located = dict.fromkeys(("folder",), bool)

    use: bool = False
    """Train the operator on cached tokens. With dtype fp32 the losses are the same to the bit."""
    dtype: TokenFormat = "fp32"
    """How tokens are stored: as fp32, or in half the space as bf16 or fp16; the manifest then tells the rounding
    error."""
    folder: str | None = None
    """Where caches are kept, for example on a fast scratch disk; by default `cache/latents` in the run's folder."""
    rebuild: bool = False
    """Replace a cache that is damaged or was made from other weights or data, instead of refusing it."""


class RunConfig(HomedConfig):
    """A run: data, model, stages, evaluation. `run_config()` is this with a section for each stage there is."""

    incidental = frozenset({"dist", "out", "device", "second_copy", "gates", "data_from", "workers"})
    after_training = frozenset({"evaluation"})
    names = frozenset({"name"})
    located = dict.fromkeys(("start_from", "data_from", "second_copy", "gates"), bool)  # of gates: the champion
    shared = dict.fromkeys(("train", "batch", "batches", "workers"), StageConfig)

    name: str = Field(default="run", pattern=r"^\w[\w.-]*$")
    """The run's folder is `<out>/<name>`."""
    out: str = "runs"
    """Where run folders are made."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of everything that is random and has no seed of its own."""
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """auto, cpu, cuda or cuda:N."""
    dist: DistConfig = Field(default_factory=DistConfig)
    """How many processes train the run, and how the model is divided among them."""
    data: dict[str, DataConfig] = Field(default_factory=dict)
    """Data sets, by a name of your choice."""
    data_from: str | None = None
    """A run folder. Data that it has made and that this run would make identically are linked from there instead of
    being made again. `ups sweep` uses it."""
    mix: Mix = Field(default_factory=Mix)
    """How often each task is drawn in training."""
    cache: CacheConfig = Field(default_factory=CacheConfig)
    """Whether stages that learn from tokens are trained from a latent cache, and where it is kept."""
    start_from: str | None = None
    """A run folder or a simulator to train further: its tasks keep what they have learnt, and new ones are added."""
    plan: tuple[str, ...] = ("codec", "operator")
    """The stages, in the order in which they are trained; each has a section of the same name."""
    train: TrainConfig = Field(default_factory=lambda: TrainConfig(steps=2000))
    """Budget and optimizer of all stages. What is written here takes the place of what a stage has by default; the
    `train` of a stage says what differs there."""
    tune: Literal["auto"] | None = None
    """auto: spend a tenth of the operator's budget on short trainings of its size, the next smaller and the next larger
    one, and train the one with the least validation error; null: train what the config says."""
    batch: int = Field(default=32, ge=1)
    """Windows per step, in all stages that say no other."""
    batches: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    """`batch` for single tasks, by name, in all stages that say no others."""
    workers: int = Field(default=0, ge=0)
    """Processes per rank that build windows, in all stages that say no other number."""
    second_copy: str | None = None
    """A folder, best on another disk, for a second copy of the newest checkpoint of each stage. It is used if the one
    in the run's folder is damaged or gone."""
    model: ModelConfig = Field(default_factory=ModelConfig)
    """The networks."""
    evaluation: EvalConfig = Field(default_factory=EvalConfig)
    """How the simulator is judged."""
    gates: dict[str, str | dict[str, float]] = Field(default_factory=dict)
    """What the results must reach: by task, upper bounds on metrics of the evaluation, on `over_persistence` and on how
    far laws are broken; under `champion`, a run that must not be significantly better on any task.
    {burgers1d: {nrmse: 0.1, mass: 1.0e-5}, champion: runs/best}. Docs: howto-gates.md."""

    def __reduce__(self) -> tuple[Any, ...]:
        """For another process, which makes the class anew."""
        return _unpickled, (self.model_dump(),)

    def stage(self, name: str) -> StageConfig:
        """How a stage is trained."""
        settings = getattr(self, name)
        assert isinstance(settings, StageConfig)
        return settings

    @property
    def stages(self) -> dict[str, type[Stage]]:
        """The stages of the plan, in its order."""
        return {name: STAGES[name] for name in self.plan}

    @property
    def bounds(self) -> dict[str, dict[str, float]]:
        """The gates of each task, by metric."""
        return {task: bounds for task, bounds in self.gates.items() if isinstance(bounds, dict)}

    @property
    def champion(self) -> str | None:
        """The run that no task may be worse than."""
        champion = self.gates.get(CHAMPION)
        return champion if isinstance(champion, str) else None

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """The definition of the files of each entry of `data`, as a simulator keeps it; equal ones once."""
        definitions = [data.definition.plain() for data in self.data.values()]
        return [definition for i, definition in enumerate(definitions) if definition not in definitions[:i]]

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that the plan or a forecast needs, in the order in which they are built."""
        forecasting = (stage for stage in STAGES.values() if stage.makes == FORECASTER)
        wanted = {part for stage in (*self.stages.values(), *forecasting) for part in (stage.makes, *stage.needs)}
        return tuple(stage.makes for stage in STAGES.values() if stage.makes in wanted)

    @property
    def context(self) -> int:
        """The largest context of any task, in frames."""
        return max(network.context for network in self._networks)

    def looks_back(self, task: TaskSpec) -> int:
        """The context of a task, in frames."""
        return max(network.looks_back(task) for network in self._networks)

    @property
    def _networks(self) -> list[NetworkConfig]:
        """How the parts that are networks from tokens to tokens are made: those that look back on frames."""
        parts = [self.model.part(stage.makes) for stage in STAGES.values()]
        return [part for part in parts if isinstance(part, NetworkConfig)]

    @property
    def forecasting(self) -> StageConfig:
        """How the part is trained that forecasts; what is compared with it is trained alike."""
        return self.stage(next(name for name, stage in STAGES.items() if stage.makes == FORECASTER))

    @field_validator("gates", mode="before")
    @classmethod
    def _bounds(cls, gates: Any) -> Any:
        return gates_from(gates)

    @field_validator("plan")
    @classmethod
    def _stages_there_are(cls, plan: tuple[str, ...]) -> tuple[str, ...]:
        known("stage", plan, STAGES)
        if not plan or len(set(plan)) < len(plan):
            raise ValueError("a plan names at least one stage, and each of them once.")
        return plan

    @model_validator(mode="after")
    def _in_an_order_that_works(self) -> RunConfig:
        """Every part that a stage needs is made before it, or taken over from the simulator to start from."""
        made: set[str] = set()
        for name, stage in self.stages.items():
            for part in (*stage.needs, *stage.also_uses):
                later = any(other.makes == part for other in self.stages.values())
                if part not in made and (later or (self.start_from is None and part in stage.needs)):
                    maker = next((n for n, other in STAGES.items() if other.makes == part), part)
                    raise ValueError(
                        f"stage {name} needs the part '{part}'; put stage {maker} before it in plan, or name a "
                        "simulator that has it as start_from."
                    )
            made.add(stage.makes)
        if FORECASTER not in made and self.start_from is None:
            raise ValueError(f"the plan makes no part '{FORECASTER}', so nothing would be predicted; add its stage.")
        return self

    @model_validator(mode="after")
    def _tunable(self) -> RunConfig:
        if self.tune is None:
            return self
        network = self.model.part(FORECASTER)
        for key in ("width", "depth", "heads"):
            if getattr(network, key) is not None:
                raise ValueError(
                    f"tune is auto, which tries named sizes, and model.{FORECASTER}.{key} is given; leave one out."
                )
        if self.start_from is not None:
            raise ValueError(
                "tune is auto, which tries sizes, and start_from goes on with a network that has its size; leave one "
                "out."
            )
        if self.dist.strategy == "fsdp":
            raise ValueError(
                "tune is auto, and dist.strategy is fsdp, whose ranks hold parts of a network that cannot be put "
                "together again after a trial; use ddp, or leave tune out."
            )
        return self

    @model_validator(mode="after")
    def _weighed(self) -> RunConfig:
        """Where the tasks are known before any file is opened; otherwise it is checked then."""
        tasks = {Definition.of(data.task).name for data in self.data.values()}
        if self.mix.weights and all(tasks) and set(self.mix.weights) != tasks:
            odd = min(set(self.mix.weights) ^ tasks)
            raise ValueError(f"mix.weights needs a number for each task of the data and no other; look at {odd}.")
        return self

    @model_validator(mode="after")
    def _shareable(self) -> RunConfig:
        if self.dist.backend == "nccl" and self.device == "cpu":
            raise ValueError("dist.backend is nccl, which needs GPUs, and device is cpu; change one of them.")
        if self.dist.gather == "bf16" and not any(self.stage(name).train.precision == "bf16" for name in self.plan):
            raise ValueError(
                "dist.gather is bf16, which is for stages that compute in bf16, and none of the plan does; set the "
                "train.precision of a stage to bf16, or leave dist.gather out."
            )
        for name in self.plan:
            stage = self.stage(name)
            if self.dist.strategy == "fsdp" and stage.train.optimizer == "muon":
                cut = "which needs whole matrices, and fsdp cuts them; use adamw, or dist.strategy ddp"
                raise ValueError(f"{name}.train.optimizer is muon, {cut}.")
            for key, size in {"batch": stage.batch, **{f"batches.{t}": n for t, n in stage.batches.items()}}.items():
                if size < self.dist.world:
                    raise ValueError(f"{name}.{key} is {size}, which {self.dist.world} ranks cannot share.")
        return self


def run_config() -> type[RunConfig]:
    """The config of a run, with a section for every stage of STAGES and, under `model`, for the part it makes."""
    bases = (wing.config() for wing in wings())
    return _with_sections(tuple(STAGES.values()), tuple(base for base in bases if base is not None))


def without_effect() -> frozenset[str]:
    """The keys, dotted, and groups of keys in which runs that learn alike may differ: what they are called, how they
    are carried out."""
    return frozenset(incidental_keys(run_config()()) | RunConfig.names)


def written_once() -> dict[str, list[str]]:
    """The keys that are written once for several sections, and those that they count for, all dotted."""
    return shared_keys(run_config())


def _unpickled(values: dict[str, Any]) -> RunConfig:
    return run_config().model_validate(values)


@cache
def _with_sections(stages: tuple[type[Stage], ...], bases: tuple[type[Config], ...]) -> type[RunConfig]:
    def section(kind: type, description: str) -> Any:
        return (kind, Field(default_factory=kind, description=description))

    networks = {s.makes: section(s.PartConfig, f"The part '{s.makes}'.") for s in stages}
    model = create_model("ModelConfig", __base__=ModelConfig, **networks)
    sections = {s.name: section(s.Config, f"How stage {s.name} is trained.") for s in stages}
    above = bases or (RunConfig,)
    made = create_model("RunConfig", __base__=above, model=section(model, "The networks."), **sections)
    made.incidental = frozenset().union(*(base.incidental for base in above))
    return cast("type[RunConfig]", made)
