"""How the networks of a simulator are made: their configs, which are read without torch."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BeforeValidator

from ups.types import ConfigError, Symmetry, TaskSpec, check_known

# The part of a simulator without which nothing is predicted.
FORECASTER = "operator"
MOST_LEVELS = 30  # no grid can be halved more often
MOST_IN_WINDOW = 1024  # tokens, each of which attends to each


@dataclass(frozen=True)
class CodecConfig:
    """A codec. It loses nothing of a frame as long as dim ≥ channels · patch^n, n being the number of axes of space;
    choose values for which that holds."""

    dim: int = 64
    """Numbers per token."""
    patch: tuple[int, int, int] = (4, 4, 2)
    """Cells per token along each axis, in 1D, 2D and 3D."""
    halo: int = 2
    """Cells beyond its patch that a token sees, on each side."""
    blocks: int = 1
    """Residual blocks of local mixing in the encoder and in the decoder."""
    width: int = 32
    """Width of the decoder's attention."""
    heads: int = 2
    """Heads of the decoder's attention."""

    def __post_init__(self) -> None:
        if min(self.dim, *self.patch, self.width, self.heads) < 1 or min(self.halo, self.blocks) < 0:
            raise ConfigError("codec.dim, patch, width and heads are at least 1, codec.halo and blocks at least 0.")
        if self.width % self.heads:
            raise ConfigError(f"codec.width {self.width} is not a multiple of codec.heads {self.heads}; change one.")


@dataclass(frozen=True)
class OperatorSize:
    """How large an operator is."""

    width: int
    depth: int
    heads: int
    ratio: float = 2.0


SIZES: dict[str, OperatorSize] = {
    "tiny": OperatorSize(width=64, depth=4, heads=4),
    "small": OperatorSize(width=128, depth=6, heads=4),
    "base": OperatorSize(width=384, depth=12, heads=6, ratio=4.0),
    "large": OperatorSize(width=768, depth=16, heads=12, ratio=4.0),
}


def _explained(default: Any, words: str) -> Any:
    """A key that several sections of a config inherit; from a docstring below it none of them would."""
    return field(default=default, metadata={"description": words})


@dataclass(frozen=True)
class NetworkConfig:
    """A network from tokens to tokens, as all parts of a simulator but the codec are made of."""

    section: ClassVar[str] = "network"  # of a run's config, where its keys are

    core: str = _explained(
        "transformer",
        "The network: transformer (all blocks on one grid) or unet (halves the grid, and doubles it again).",
    )
    mixing: Literal["attention", "fourier"] = _explained(
        "fourier",
        "How tokens far apart act on each other: by attention (in the unet within windows), or by the first Fourier "
        "modes of each axis.",
    )
    size: Literal["tiny", "small", "base", "large"] = _explained(
        "tiny",
        "A named set of width, depth and heads; these keys replace single ones of it.",
    )
    width: int | None = _explained(None, "Numbers per token inside the network.")
    depth: int | None = _explained(None, "Number of blocks.")
    heads: int | None = _explained(None, "Heads of attention, or of Fourier mixing.")
    kernel: int = _explained(5, "Reach of the local convolution, in tokens; odd.")
    modes: int = _explained(16, "Fourier modes kept per axis, where mixing is fourier.")
    norm: Literal["token", "field"] = _explained(
        "field",
        "What is normalised together: each token by itself, or the whole field of a sample, which keeps differences of "
        "amplitude between places.",
    )
    levels: int = _explained(2, "unet: how often the grid is halved.")
    growth: float = _explained(1.5, "unet: the factor by which the width grows each time.")
    windows: tuple[int, int, int] = _explained((16, 8, 4), "unet: tokens per window axis in 1D, 2D and 3D.")
    per_task_layers: bool = _explained(
        False,
        "Give each task its own first, last and conditioning layer in every block; all else is shared. For tasks that "
        "disturb each other. A task that is added later starts from the mean of the others.",
    )

    def __post_init__(self) -> None:
        at = self.section
        if self.kernel % 2 == 0:
            raise ConfigError(f"{at}.kernel is {self.kernel}; a convolution with a middle has an odd kernel.")
        given = [n for n in (self.width, self.depth, self.heads) if n is not None]
        if min(self.modes, self.kernel, *self.windows, *given) < 1:
            raise ConfigError(f"{at}.modes, kernel, windows, width, depth and heads are at least 1.")
        if not 0 <= self.levels <= MOST_LEVELS or not 0 < self.growth < math.inf:
            raise ConfigError(f"{at}.levels is from 0 to {MOST_LEVELS}, and {at}.growth a number above 0.")
        if max(each ** (axis + 1) for axis, each in enumerate(self.windows)) > MOST_IN_WINDOW:
            raise ConfigError(f"{at}.windows are {list(self.windows)}, but hold at most {MOST_IN_WINDOW} tokens.")
        if self.shape.width % (2 * self.shape.heads):
            raise ConfigError(
                f"{at}.width {self.shape.width} is not a multiple of twice {at}.heads {self.shape.heads}; "
                "change one of them."
            )

    @property
    def context(self) -> int:
        """Frames of context, of the task of which it sees most: one, unless a network says more."""
        return 1

    def looks_back(self, task: TaskSpec) -> int:  # noqa: ARG002
        """Frames of context that it sees of a task."""
        return 1

    @property
    def shape(self) -> OperatorSize:
        """The size's numbers with the changes made to them."""
        named = SIZES[self.size]
        return OperatorSize(
            self.width or named.width, self.depth or named.depth, self.heads or named.heads, named.ratio
        )


@dataclass(frozen=True)
class OperatorConfig(NetworkConfig):
    """A latent operator. Good values: the defaults on a laptop, those of `configs/rows` on a GPU. All of these have a
    `transformer` core with Fourier mixing. With attention, the time of a `unet` core grows in proportion to its tokens
    (docs/speed.md) and that of a `transformer` with their square; wherever both were measured the `unet` had the larger
    error (docs/benchmarks.md)."""

    section: ClassVar[str] = "operator"

    context: int = 1
    """Frames of context that the operator sees; of a task that is `memoryless` it sees the last one alone."""
    step_scale: Literal["auto", "task", "sample"] = "auto"
    """The unit in which the change of a step is measured. task: the usual change of the task. sample: that, times how
    uneven and how much in motion the sample's last frame is; good for states that decay. With one frame of context,
    `sample` cannot change a uniform state; use `task` there. auto: `sample` for tasks with several frames of context,
    `task` for those with one. A task that says `changes_when_uniform` is always measured by `task`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.context < 1:
            raise ConfigError(f"operator.context is {self.context}, but must be at least 1.")

    def looks_back(self, task: TaskSpec) -> int:
        """Frames of context that it sees of a task."""
        return 1 if task.dynamics.memoryless else self.context

    @property
    def by_sample(self) -> bool:
        """Whether a change is measured by the sample itself."""
        return self.step_scale == "sample" or (self.step_scale == "auto" and self.context > 1)


@dataclass(frozen=True)
class ResidualConfig(NetworkConfig):
    """The flow that draws what the operator misses, for ensembles."""

    section: ClassVar[str] = "residual"

    norm: Literal["token", "field"] = "token"
    """What is normalised together: each token by itself, or the whole field of a sample."""
    steps: int = 2
    """Steps from noise to a draw; each evaluates the network twice."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.steps <= 8:
            raise ConfigError(f"residual.steps is {self.steps}; a draw takes 1 to 8 steps.")


@dataclass(frozen=True)
class SteadyConfig(NetworkConfig):
    """The flow that draws steady states around the operator's prediction."""

    section: ClassVar[str] = "steady"

    steps: int = 2
    """Steps from noise to a draw; each evaluates the network twice."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.steps <= 8:
            raise ConfigError(f"steady.steps is {self.steps}; a draw takes 1 to 8 steps.")


@dataclass(frozen=True)
class ConsistencyConfig:
    """The student that draws in one step what the flow draws in several. Its network has the shape of its teacher's."""


@dataclass(frozen=True)
class CriticConfig(NetworkConfig):
    """The critic that guesses how wrong a drawn frame is."""

    section: ClassVar[str] = "critic"

    norm: Literal["token", "field"] = "token"
    """What is normalised together: each token by itself, or the whole field of a sample."""


def _names(guard: Any) -> Any:
    """One name of a law stands for a list of it; what is neither yes, no nor names is a ConfigError."""
    if isinstance(guard, str):
        return (guard,)
    if isinstance(guard, list | tuple) and all(isinstance(name, str) for name in guard):
        return tuple(guard)
    if isinstance(guard, bool):
        return guard
    raise ConfigError(f"guard is true, false or names of laws, for example [mass, positive], not {guard!r}.")


def _worded(symmetry: Any) -> Any:
    """The word `off`, which YAML takes for false without quotes, in the place of that."""
    if isinstance(symmetry, dict):
        return {task: _worded(word) for task, word in symmetry.items()}
    return "off" if symmetry is False else symmetry


@dataclass(frozen=True)
class SimulatorConfig:
    """How a simulator runs."""

    guard: Annotated[bool | tuple[str, ...], BeforeValidator(_names)] = True
    """Repair each frame so that it obeys the laws of its task, and continue from the repaired one: all laws (true),
    none (false), or a list of them by name (mass, momentum, energy, density …) or kind (conserved, positive, range,
    divergence, boundary)."""
    shift_average: int = 1
    """Average each step over this many copies of the state, shifted by fractions of a patch along periodic axes. Lowers
    errors and patch artefacts; a step costs that many times as much. No effect on steady tasks and tasks with
    inputs."""
    symmetry: Annotated[Symmetry | dict[str, Symmetry], BeforeValidator(_worded)] = "off"
    """Where mirror images of states, and in a square those with x and y exchanged, are used beside the states
    themselves, of equations without a preferred direction. train: stages operator and steady learn from them too.
    rollout: each step is the mean over all of them, which lowers errors; in a square it costs eight times as much. Or
    both, or off; or by task, `{darcy2d: both}`, and off for others. See docs/howto-simulate.md."""

    def images_in(self, where: Literal["train", "rollout"], task: str) -> bool:
        """Whether images of the states of a task are used there."""
        word = self.symmetry if isinstance(self.symmetry, str) else self.symmetry.get(task, "off")
        return word in (where, "both")

    def check_tasks(self, known: Collection[str]) -> None:
        """A ConfigError where it names a task that is not known."""
        for task in () if isinstance(self.symmetry, str) else self.symmetry:
            if task not in known:
                raise ConfigError(f"model.simulator.symmetry names '{task}', but the tasks are {', '.join(known)}.")

    def __post_init__(self) -> None:
        words = [self.symmetry] if isinstance(self.symmetry, str) else self.symmetry.values()
        check_known("simulator.symmetry", words, get_args(Symmetry))
        if self.shift_average < 1:
            raise ConfigError(
                f"simulator.shift_average is {self.shift_average}, but must be at least 1; 1 is the state as it is."
            )
