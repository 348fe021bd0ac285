"""Stage: the base of every stage, which trains one part of a simulator; and the config that all stages have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from ups.config import Config
from ups.config_shared import over_default
from ups.engine.train import TrainConfig
from ups.eval.nrmse import over_tasks, validation_nrmse
from ups.lazy_imports import Tensor, torch
from ups.physics.symmetries import mirrors_of, turned
from ups.tensors import Condition, Losses, Window
from ups.types import ConfigError, TaskSpec, counted

if TYPE_CHECKING:
    from ups.models import Codec, Part, Simulator


class StageConfig(Config):
    """How one stage is trained."""

    incidental = frozenset({"workers"})

    train: TrainConfig
    """Budget and optimizer."""
    batch: int = Field(default=32, ge=1)
    """Windows per step."""
    batches: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    """`batch` for single tasks, by name: fewer windows where a sample is large."""
    workers: int = Field(default=0, ge=0)
    """Processes per rank that build windows; 0: a thread of the rank builds them."""

    def batch_of(self, task: str) -> int:
        """Windows in a step of a task."""
        return self.batches.get(task, self.batch)

    @property
    def ahead(self) -> int:
        """Frames after the context in a window that is trained on."""
        return 1

    @property
    def least_batch(self) -> int:
        """The smallest batch of any task."""
        return min([self.batch, *self.batches.values()])

    @model_validator(mode="before")
    @classmethod
    def _over_the_defaults(cls, values: Any) -> Any:
        """A part of `train` changes that part alone; a budget, of steps or of seconds, takes the place of the other."""
        return over_default(cls, "train", values)


class UnrolledConfig(StageConfig):
    """How a stage is trained that may go several steps ahead."""

    unroll: int = Field(default=1, ge=1)
    """Steps of a rollout in each training window."""

    @property
    def ahead(self) -> int:
        return self.unroll


class Stage(ABC):
    """Trains one part of a simulator; all other parts are frozen.

    A subclass says what it is called, which parts must have been learnt before it (`needs`), which it trains (`makes`),
    how it is configured (`Config`, and `PartConfig` for the network), and what is minimised (`loss`). The rest has
    defaults: a stage is judged by whole rollouts in physical space.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    makes: ClassVar[str]
    Config: ClassVar[type[StageConfig]]
    PartConfig: ClassVar[type]
    # Optional parts that change what it learns: where a simulator has them, it is trained after them.
    also_uses: ClassVar[tuple[str, ...]] = ()
    # As how many plain rollouts `evaluate` counts.
    rollouts: ClassVar[float] = 1

    def __init__(self, simulator: Simulator, config: Any = None) -> None:
        self.simulator = simulator
        self.config: Any = self.Config.model_validate({}) if config is None else config
        self.module = simulator.parts[self.makes]
        for name, part in simulator.parts.items():
            part.requires_grad_(name == self.makes)

    @staticmethod
    @abstractmethod
    def part() -> type[Part]:
        """The class of the part it makes; imported here, so that a config is read without networks."""

    @classmethod
    def learns(cls, task: TaskSpec) -> bool:  # noqa: ARG003
        """Whether it is trained on a task; on all by default."""
        return True

    @property
    def sees(self) -> Literal["frames", "tokens", "both"]:
        """What of a window the loss looks at: frames, or what the frozen codec made of them, or both."""
        return "frames"

    def fit(self, *windows: Window, inherited: Collection[str] = ()) -> None:  # noqa: B027  (most measure nothing)
        """Measure what the losses need on windows from all over a task, one for each of its grids, before training,
        with the same windows on every rank. `inherited`: the tasks that the part has learnt before; its own scales of
        those stay as they are."""

    def view(self, window: Window, progress: float) -> Window:  # noqa: ARG002  (most see the same from first to last)
        """The part of a window that is trained on at `progress` (0 … 1) of the budget."""
        return window

    @abstractmethod
    def loss(self, window: Window) -> Losses:
        """Named, weighted terms, each a mean over samples of a value that depends on that sample alone."""

    @contextmanager
    def at_rest(self, say: Callable[[str], None]) -> Iterator[None]:
        """Around a validation: no part of the simulator is in training, so that on a GPU its rollouts are replayed.

        What they have captured is let go of at the end: memory belongs to training, whose microbatch was chosen
        without it. Why a rollout cannot be replayed is said once.
        """
        from ups.engine.validation import resting

        with resting(self.simulator), self.simulator.replays.lent(say):
            yield

    def evaluate(self, window: Window) -> dict[str, Tensor]:
        """nRMSE of the whole rollout of each sample, `(B,)`, in physical units."""
        with torch.no_grad():
            rollout = self.simulator.simulate(window, window.targets.shape[1])
            usual = self.simulator.codec.statistics_of(window.task).scale
            errors = validation_nrmse(rollout, window.targets, usual, window.task, window.weights)
            return {f"{window.task.name} nRMSE": errors}

    def score(self, means: Mapping[str, float]) -> float:
        """One number for all tasks."""
        return over_tasks(means.values())


def learns_images(stage: Stage) -> bool:
    """Whether a stage for which images are made learns some task from them: of frames, for no cache holds them."""
    tasks = (task for task in stage.simulator.tasks if stage.simulator.config.images_in("train", task.name))
    return any(stage.learns(task) and mirrors_of(task) is not None for task in tasks)


def with_images(simulator: Simulator, window: Window) -> Window:
    """A window with each sample turned by chance, if its task is learnt from images too."""
    return turned(window) if simulator.config.images_in("train", window.task.name) else window


def encoded(codec: Codec, frames: Tensor, window: Window) -> Tensor:
    """Tokens `(B, T, *G, D)` of frames of a window's task, to the bit as a cache holds them."""
    z = codec.encode_alike(frames.flatten(0, 1), window.task, window.grid)
    return torch.unflatten(z, 0, frames.shape[:2])


def context_and_targets(simulator: Simulator, window: Window) -> tuple[Tensor, Tensor]:
    """Tokens of the frames that the operator looks back on, `(B, K, *G, D)`, and of the targets, `(B, M, *G, D)`: the
    window's own, or encoded now."""
    count = window.context.shape[1]
    if window.tokens is None:
        z = encoded(simulator.codec, torch.cat((window.context, window.targets), 1), window)
        return simulator.pad_context(z[:, :count], Condition.of(window)), z[:, count:]
    if count != (expected := simulator.looks_back(window.task.name)):
        raise ConfigError(
            f"encoded windows have {counted(count, 'frame')} of context and the operator takes {expected}."
        )
    return window.tokens[:, :count], window.tokens[:, count:]
