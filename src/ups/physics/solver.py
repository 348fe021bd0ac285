"""The Equation contract, the Stepper contract, and `solve`: the one loop over saved times."""

from __future__ import annotations

import dataclasses
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from ups.lazy_imports import Tensor, torch
from ups.physics.constraints import Law
from ups.physics.random import Draw
from ups.physics.steady import SteadySystem
from ups.progress import one_of, reporter
from ups.types import Grid, Param, Params, PhysicsError, TaskSpec


class Stepper(Protocol):
    """Advances a batch of states. A state is whatever the stepper likes: a spectrum, conserved variables, a tuple.

    Each sample advances by itself: nothing a stepper does to one sample may depend on the others in the batch.
    """

    def start(self, u0: Tensor) -> Any:
        """`(B, *S, C)` physical values to a state at the first time."""

    def advance(self, state: Any, t0: float, t1: float) -> Any:
        """The state at t1, given the state at t0."""

    def read(self, state: Any) -> Tensor:
        """The physical values `(B, *S, C)` of a state."""


def solve(
    stepper: Stepper, u0: Tensor, times: Sequence[float], stored: Callable[[Tensor], Tensor] = lambda u: u
) -> Tensor:
    """All frames `(B, T, *S, C)` at `times`; the first frame is `u0` itself. `stored` is what is kept of each."""
    tell = reporter()
    first = stored(u0)
    frames = first.new_empty((first.shape[0], len(times), *first.shape[1:]))
    frames[:, 0] = first
    state = stepper.start(u0)
    for i in range(1, len(times)):
        state = stepper.advance(state, times[i - 1], times[i])
        frames[:, i] = stored(stepper.read(state))
        tell(i / (len(times) - 1))
    return frames


def param(default: float | str, help: str, **limits: Any) -> Any:
    """A dataclass field that is a parameter of the equation; limits as in `ups.types.Param`."""
    return dataclasses.field(default=default, metadata={"help": help, "limits": limits})


@dataclasses.dataclass(frozen=True)
class Equation(ABC):
    """What an equation is: its task, its initial states, and how each scheme solves it.

    A subclass is a frozen dataclass whose fields are its parameters (made with `param`), with a `task` that says what
    a file of it holds. To add an equation: write the class, add it to `EQUATIONS` in `ups/physics/__init__.py`.
    """

    task: ClassVar[TaskSpec]
    schemes: ClassVar[tuple[str, ...]] = ("accurate",)
    #: By scheme, the parameters for which a batch may hold a number per sample: `stepper_each` solves such a batch.
    per_sample: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    #: Whether a mirrored or turned sample is a sample again: nothing in it has a direction but its vector fields, which
    #: turn with space; what it is given are scalars.
    isotropic: ClassVar[bool] = False
    #: Channels, one for each axis, that turn with space though the task calls them scalars: a velocity on a line.
    vectors: ClassVar[tuple[tuple[str, ...], ...]] = ()

    def __post_init__(self) -> None:
        for p in self.parameters():
            check_param(self.task.name, p, getattr(self, p.name))

    @classmethod
    def parameters(cls) -> tuple[Param, ...]:
        """The parameters, as declared by the dataclass fields."""
        return tuple(
            Param(name=f.name, default=f.default, help=f.metadata["help"], **f.metadata["limits"])  # type: ignore[arg-type]
            for f in dataclasses.fields(cls)
        )

    @classmethod
    def spec(cls) -> TaskSpec:
        """The task with its parameters filled in."""
        return dataclasses.replace(cls.task, parameters=cls.parameters(), equation=cls.task.name)

    def params(self) -> dict[str, float | str]:
        return {p.name: getattr(self, p.name) for p in self.parameters()}

    def grid(self, resolution: int) -> Grid:
        """The task's box with `resolution` cells along its first axis, and square cells."""
        lengths = [hi - lo for lo, hi in self.task.bounds]
        shape = tuple(round(resolution * length / lengths[0]) for length in lengths)
        return Grid(shape, self.task.periodicity(self.params()), self.task.bounds)

    def times(self) -> list[float]:
        return [self.task.dt * i for i in range(self.task.frames)]

    @abstractmethod
    def initial(self, draw: Draw, grid: Grid) -> Tensor:
        """Random initial states `(B, *S, C)`: a pure function of the draw and of the cell centres of `grid`."""

    @abstractmethod
    def stepper(self, scheme: str, grid: Grid, like: Tensor) -> Stepper:
        """How `scheme` advances this equation on `grid`; its constants have the device and dtype of `like`."""

    def stepper_each(self, scheme: str, grid: Grid, values: Mapping[str, Tensor]) -> Stepper:  # noqa: ARG002
        """As `stepper`, with a number per sample `(B,)` for each name in `per_sample`.

        It is kept between batches, and new numbers are then written into `values`: it must not remember old ones.
        """
        raise PhysicsError(f"{self.task.name}: {scheme} solves samples with different parameters one by one.")

    def inputs(self, draw: Draw, grid: Grid) -> Tensor:
        """What is given rather than predicted, `(B, *S, C_in)`; no channel by default."""
        return torch.zeros((len(draw), *grid.shape, 0), dtype=draw.dtype, device=draw.device)

    @classmethod
    def steady_system(cls, params: Mapping[str, Tensor], inputs: Tensor, grid: Grid) -> SteadySystem:  # noqa: ARG003
        """Equations of the `accurate` steady states under `inputs (B, *S, C_in)`; `params`: one per sample `(B,)`."""
        raise PhysicsError(f"{cls.task.name} has no steady states that its equation alone decides.")

    def refinement(self, scheme: str, grid: Grid) -> int:  # noqa: ARG002
        """How many times finer than stored the scheme must solve to be truthful; the result is averaged down."""
        return 1

    def points(self, scheme: str, grid: Grid) -> Grid:  # noqa: ARG002
        """Where the initial state is evaluated: the cell centres, unless the scheme has its own idea."""
        return grid

    def simulate(self, draw: Draw, grid: Grid, times: Sequence[float], scheme: str) -> Tensor:
        """Trajectories `(B, T, *S, C)` of the samples in `draw`."""
        self.check_scheme(scheme)
        factor, fine, stepper = plan(self, scheme, grid, draw.device, draw.dtype)
        u0 = initial_states(self, draw, self.points(scheme, fine))
        # One frame after the other: all of them on the fine grid might not fit.
        return solve(stepper, u0, times, lambda u: self.coarsen(u.unsqueeze(1), factor).squeeze(1))

    def coarsen(self, frames: Tensor, factor: int) -> Tensor:
        """Cell averages over `factor` fine cells per axis of `(B, T, *S, C)`."""
        for axis in range(2, 2 + self.task.ndim) if factor > 1 else ():
            shape = (*frames.shape[:axis], -1, factor, *frames.shape[axis + 1 :])
            frames = frames.reshape(shape).mean(axis + 1)
        return frames

    def laws(self) -> tuple[Law, ...]:
        """What must hold along every trajectory (conservation, sign, divergence)."""
        return ()

    def check_scheme(self, scheme: str) -> None:
        if scheme not in self.schemes:
            offered = " and ".join(self.schemes)
            raise PhysicsError(f"{self.task.name} has no scheme '{scheme}'; it is solved with {offered}.")


@functools.lru_cache(maxsize=4)
def plan(
    equation: Equation, scheme: str, grid: Grid, device: torch.device, dtype: torch.dtype
) -> tuple[int, Grid, Stepper]:
    """(refinement, grid solved on, stepper), kept between batches: on a GPU a stepper holds its compiled step."""
    factor = equation.refinement(scheme, grid)
    fine = grid.refined(factor)
    return factor, fine, equation.stepper(scheme, fine, torch.empty(0, device=device, dtype=dtype))


def simulate_each(
    kind: type[Equation], rows: Sequence[Params], draw: Draw, grid: Grid, times: Sequence[float], scheme: str
) -> Tensor:
    """Trajectories `(B, T, *S, C)` of the samples in `draw`, sample i with the parameters `rows[i]`.

    All at once where the scheme can (`per_sample`), else one after the other; both agree with solving a sample alone.
    """
    equations = [kind(**row) for row in rows]
    equations[0].check_scheme(scheme)
    names = kind.per_sample.get(scheme, ())
    alike = kind(**{name: value for name, value in rows[0].items() if name not in names})
    others = [{name: value for name, value in e.params().items() if name not in names} for e in equations]
    if names and all(other == others[0] for other in others):
        stepper, values = plan_each(alike, len(rows), scheme, grid, draw.device, draw.dtype)
        for name, numbers in values.items():
            numbers.copy_(torch.tensor([getattr(e, name) for e in equations], dtype=torch.float64))
        return solve(stepper, initial_states(alike, draw, alike.points(scheme, grid)), times)
    tell, frames = reporter(), []
    for i, (equation, sample) in enumerate(zip(equations, draw.samples, strict=True)):
        with one_of(len(rows), i):
            alone = dataclasses.replace(draw, samples=[sample])
            frames.append(equation.simulate(alone, grid, times, scheme))
        tell((i + 1) / len(rows))
    return torch.cat(frames)


@functools.lru_cache(maxsize=4)
def plan_each(
    equation: Equation, batch: int, scheme: str, grid: Grid, device: torch.device, dtype: torch.dtype
) -> tuple[Stepper, dict[str, Tensor]]:
    """(stepper, its numbers per sample), kept between batches as those of `plan` are."""
    values = {name: torch.ones(batch, device=device, dtype=dtype) for name in equation.per_sample[scheme]}
    return equation.stepper_each(scheme, grid, values), values


def check_param(task: str, p: Param, value: float | str) -> None:
    """Raise one sentence if `value` is not allowed for `p`."""
    if p.choices:
        if value not in p.choices:
            raise PhysicsError(f"{task}: {p.name} is '{value}', but must be one of {', '.join(p.choices)}.")
    elif not isinstance(value, int | float) or not math.isfinite(value):
        raise PhysicsError(f"{task}: {p.name} is {value!r}, but must be a finite number.")
    elif p.above is not None and value <= p.above:
        raise PhysicsError(f"{task}: {p.name} is {value:g}, but must be above {p.above:g}.")
    elif p.at_least is not None and value < p.at_least:
        raise PhysicsError(f"{task}: {p.name} is {value:g}, but must be at least {p.at_least:g}.")


def initial_states(equation: Equation, draw: Draw, grid: Grid) -> Tensor:
    """Initial states, drawn in aligned blocks of samples so that each is bit-identical in any batch.

    Vectorised sines and exponentials may differ in the last bit with the position of an element in memory; a block
    that always holds the same samples at the same places cannot.
    """
    block = max(1, min(64, 2**22 // math.prod(grid.shape)))
    firsts = sorted({s // block * block for s in draw.samples})
    whole = [equation.initial(dataclasses.replace(draw, samples=range(first, first + block)), grid) for first in firsts]
    place = {first + j: i * block + j for i, first in enumerate(firsts) for j in range(block)}
    rows = torch.tensor([place[s] for s in draw.samples], device=draw.device)
    return torch.cat(whole).index_select(0, rows)
