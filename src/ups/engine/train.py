"""What goes into a training and what comes out: TrainConfig, RivalTrainConfig, Outcome, DivergenceError; no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from ups.types import ConfigError, UpsError, counted
from ups.verdict import Ending

Precision = Literal["fp32", "tf32", "bf16"]
MOST_VALIDATIONS, VALIDATION_SHARE = 10, 0.1  # of `validate_every` auto


class DivergenceError(UpsError):
    """Too many steps in a row had a loss or a gradient that is not a finite number."""

    ending = Ending.NOT_FINITE

    @classmethod
    def after(cls, stage: str, worst: int, step: int) -> DivergenceError:
        """The error of a stage that had so many such steps in a row before this one."""
        return cls(
            f"stage '{stage}': loss or gradient was not a finite number for {counted(worst, 'step')} in a row before "
            f"step {step}; lower train.lr, or look for bad data by `ups data validate`."
        )


@dataclass(frozen=True)
class TrainConfig:
    """How long and how a stage is trained. `steps` and `seconds` are budgets; training ends when one of them is used
    up."""

    # How often is logged and saved, and how windows arrive. Not `drift_every`: all ranks of all machines compare then.
    incidental: ClassVar[frozenset[str]] = frozenset(
        {"log_every", "checkpoint_steps", "checkpoint_seconds", "straggler", "prefetch"}
    )

    # Budgets: one that is given takes the place of a default, whichever that is.
    alternatives: ClassVar[frozenset[str]] = frozenset({"steps", "seconds"})
    # A stage that says so is not trained, whatever budget is later given to all.
    idle: ClassVar[Mapping[str, Any]] = {"steps": 0}

    steps: int | None = None
    """Optimizer steps; null: only `seconds` counts; 0: nothing is learnt, also under a budget that is
    given to all stages later."""
    seconds: float | None = None
    """Wall time of training, without validations. null: only `steps` counts."""
    lr: float = 1e-3
    """The highest learning rate; 3e-4 … 3e-3 are good for small models."""
    weight_decay: float = 1e-4
    """Decoupled weight decay; never applied to norms, biases, embeddings and scales."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """muon: Muon for the matrices between hidden layers and AdamW for the rest; needs fewer steps to the same error, at
    about twice the learning rate."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's two decay rates."""
    warmup: float = 0.05
    """Share of the budget during which the learning rate rises."""
    min_lr: float = 0.01
    """The learning rate at the start and at the end, as a share of `lr`."""
    ema: float = 0.999
    """Decay of the averaged weights, which are the ones that are validated and kept; 0: no average."""
    clip: float = 1.0
    """Largest norm of all gradients together; 0: gradients are not clipped."""
    microbatch: int | None = None
    """The most samples in memory at once; a larger batch is split and its gradients are averaged."""
    precision: Precision = "fp32"
    """On a GPU. tf32: matrix products round their factors to 10 bits; bf16: autocast. Weights and moments stay fp32."""
    graph: Literal["auto"] | bool = "auto"
    """On a GPU, run the step as CUDA graphs (strategy ddp, any number of ranks): if possible (auto), always (on), never
    (off)."""
    compile: bool = False
    """Use torch.compile, which takes minutes at the start."""
    activations: Literal["keep", "recompute"] = "keep"
    """recompute: takes less memory and a third more time, and excludes CUDA graphs."""
    validate_every: Literal["auto"] | int | float = "auto"
    """Steps between validations if an integer, a share of the budget if a fraction; 0: only at the end; auto: one to
    ten times, evenly spread, so that they take at most a tenth of the time."""
    validate_first: bool = False
    """Validate before the first step too, and keep those weights if none are better later."""
    log_every: int = 50
    """The most steps between two lines of the log; slow steps are logged every two seconds."""
    checkpoint_steps: int | None = None
    """Steps between checkpoints; null: only `checkpoint_seconds` counts."""
    checkpoint_seconds: float | None = 300.0
    """Seconds between checkpoints; null: only `checkpoint_steps` counts."""
    drift_every: int = 200
    """Steps between two checks that all ranks hold the same weights; 0: only when saving."""
    on_drift: Literal["stop", "mend"] = "stop"
    """What to do when ranks hold different weights or moments. stop: name the rank that differs and stop; the run then
    continues from the last checkpoint exactly as if undisturbed. mend (strategy ddp, three or more ranks): once, the
    rank that differs takes over what the others hold, and training continues; gradients that it gave since the fault
    stay in the weights."""
    straggler: float = 0.25
    """Name a rank whose own work takes this share longer than the median rank's for long enough; 0: never."""
    max_bad: int = 10
    """Steps in a row that may be skipped because a loss or gradient is not finite."""
    prefetch: int = 2
    """Windows that a thread builds ahead; 0: each is built when it is needed."""
    seed: int = 0
    """Seed of what losses draw (noise, mirror images), combined with the seed of the run, which alone decides the order
    of windows."""

    def __post_init__(self) -> None:
        if self.steps is None and self.seconds is None:
            raise ConfigError("training has no end: give steps, seconds or both.")
        every = self.validate_every
        limits = {
            "steps": (self.steps is None or self.steps >= 0, "at least 0"),
            "seconds": (self.seconds is None or self.seconds > 0, "above 0"),
            "lr": (0 < self.lr < math.inf, "above 0 and finite"),
            "weight_decay": (self.weight_decay >= 0, "at least 0"),
            "betas": (all(0 <= beta < 1 for beta in self.betas), "two numbers from 0 to below 1"),
            "warmup": (0 <= self.warmup < 1, "from 0 to below 1"),
            "min_lr": (0 <= self.min_lr <= 1, "from 0 to 1"),
            "ema": (0 <= self.ema < 1, "from 0 to below 1"),
            "clip": (self.clip >= 0, "at least 0"),
            "microbatch": (self.microbatch is None or self.microbatch >= 1, "at least 1"),
            "validate_every": (
                every == "auto" or (every >= 0 and (isinstance(every, int) or every <= 1)),
                "steps, or a part from 0 to 1",
            ),
            "log_every": (self.log_every >= 1, "at least 1"),
            "checkpoint_steps": (self.checkpoint_steps is None or self.checkpoint_steps >= 1, "at least 1"),
            "checkpoint_seconds": (self.checkpoint_seconds is None or self.checkpoint_seconds > 0, "above 0"),
            "drift_every": (self.drift_every >= 0, "at least 0"),
            "straggler": (self.straggler >= 0, "at least 0"),
            "max_bad": (self.max_bad >= 0, "at least 0"),
            "prefetch": (self.prefetch >= 0, "at least 0"),
        }
        for name, (holds, limit) in limits.items():
            if not holds:
                raise ConfigError(f"train.{name} is {getattr(self, name)}, but must be {limit}.")
        if self.graph is True and self.activations == "recompute":
            raise ConfigError("train.graph is on and train.activations is recompute, which exclude each other.")

    def progress(self, step: int, seconds: float) -> float:
        """How much of the budget is used: the larger of the two parts; 1 ends the training."""
        if self.steps == 0:
            return 1.0
        return max(step / self.steps if self.steps else 0.0, seconds / self.seconds if self.seconds else 0.0)

    def share(self, progress: float) -> float:
        """The part of `lr` at `progress` in [0, 1]: a line from `min_lr` to 1 until `warmup`, a cosine back.

        A pure function of progress, so it ends at `min_lr` whether steps or seconds end the run.
        """
        progress = min(max(progress, 0.0), 1.0)
        if progress < self.warmup:
            return self.min_lr + (1 - self.min_lr) * progress / self.warmup
        return self._decayed((progress - self.warmup) / (1 - self.warmup))

    def _decayed(self, progress: float) -> float:
        """The part of `lr` after the warmup, at `progress` in [0, 1] of what follows it."""
        return self.min_lr + (1 - self.min_lr) * 0.5 * (1 + math.cos(math.pi * progress))

    def verdict(self, step: int, validating: float) -> str:
        """Which budget ended a training at `step`, in words, and for how long it validated beside it."""
        by_steps = self.seconds is None or (self.steps is not None and step >= self.steps)
        words = f"finished: {'' if by_steps else f'{self.seconds:g} s, '}{counted(step, 'step')}"
        return f"{words}, and {validating:.0f} s of validation" if validating >= 1 else words


@dataclass(frozen=True)
class RivalTrainConfig(TrainConfig):
    """How a baseline is trained, by the recipe of its own library."""

    halvings: int = 0
    """Instead of decaying as a cosine, the learning rate is halved this many times, at even intervals, as by torch's
    StepLR; 0: cosine."""

    def _decayed(self, progress: float) -> float:
        if not self.halvings:
            return super()._decayed(progress)
        return float(0.5 ** min(self.halvings, math.floor(progress * (self.halvings + 1))))


def affordable(budget: float, cost: float) -> int:
    """How many validations, from 1 to 10, take at most a tenth of a `budget` that includes them; both in one unit."""
    return max(1, min(MOST_VALIDATIONS, int(VALIDATION_SHARE * budget / cost))) if cost > 0 else MOST_VALIDATIONS


@dataclass(frozen=True)
class Outcome:
    """How a training went; the module holds the weights of `best_step`, averaged."""

    steps: int
    seconds: float  # of training, over all processes; validations are not in it
    samples: int
    score: float  # best validation score, lower is better; inf if none was finite
    best_step: int
    skipped: int  # steps left out because loss or gradient was not finite
    recovered: int  # attempts that ran out of memory and were repeated
    memory: int
    verdict: str  # which budget ended it, in words
    input_wait: float = 0.0  # share of the seconds of the last process in which no window was ready
    mended: list[int] = field(default_factory=list)  # ranks that held other weights and took over the others'
    stragglers: list[dict[str, Any]] = field(default_factory=list)  # ranks that held the others up, as they were named
    history: list[dict[str, float]] = field(default_factory=list)  # one row per validation
    phases: dict[str, float] = field(default_factory=dict)  # seconds of the last process in each, none counted twice

    def facts(self) -> dict[str, Any]:
        return dict(vars(self))
