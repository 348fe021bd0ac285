"""Second-order finite volumes on a box: ghost cells, limited slopes, and a stepper with one CFL step per sample."""

from __future__ import annotations

import functools
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from ups.lazy_imports import Tensor, torch
from ups.triton_check import runs_triton
from ups.types import Grid


def with_ghosts(u: Tensor, axis: int, periodic: bool, width: int = 2) -> Tensor:
    """`u` with `width` more cells at both ends of `axis`: the other end's if periodic, else copies of the edge."""
    n = u.shape[axis]
    if periodic:
        low, high = u.narrow(axis, n - width, width), u.narrow(axis, 0, width)
    else:
        repeat = [1] * u.dim()
        repeat[axis] = width
        low, high = u.narrow(axis, 0, 1).repeat(repeat), u.narrow(axis, n - 1, 1).repeat(repeat)
    return torch.cat([low, u, high], dim=axis)


def half_slope(u: Tensor, axis: int) -> Tensor:
    """Half the monotonised central slope of the inner cells (one less at each end of `axis`), times the cell width.

    The mean of the two one-sided differences, halved, cut to lie between 0 and each of them: few operations matter
    here, for each one is a pass over memory, and fresh memory costs more than the arithmetic.
    """
    n = u.shape[axis]
    step = u.narrow(axis, 1, n - 1) - u.narrow(axis, 0, n - 1)
    back, ahead = step.narrow(axis, 0, n - 2), step.narrow(axis, 1, n - 2)
    low, high = torch.maximum(back, ahead).clamp_max_(0), torch.minimum(back, ahead).clamp_min_(0)
    return torch.add(back, ahead).mul_(0.25).clamp_(low, high)


def face_states(u: Tensor, axis: int, periodic: bool) -> tuple[Tensor, Tensor]:
    """MUSCL values left and right of the n + 1 faces along `axis`."""
    padded = with_ghosts(u, axis, periodic)
    n = u.shape[axis]
    half = half_slope(padded, axis)
    left = padded.narrow(axis, 1, n + 1) + half.narrow(axis, 0, n + 1)
    right = padded.narrow(axis, 2, n + 1) - half.narrow(axis, 1, n + 1)
    return left, right


def divergence(flux: Tensor, axis: int, dx: float) -> Tensor:
    """(F_{i+1/2} − F_{i−1/2}) / dx for the n cells between n + 1 faces."""
    n = flux.shape[axis] - 1
    return (flux.narrow(axis, 1, n) - flux.narrow(axis, 0, n)).mul_(1 / dx)


def flux_sum(grid: Grid, flux: Callable[[Tensor, Tensor, int], Tensor]) -> Callable[[Tensor], Tensor]:
    """−∇·F of states `(B, C, *S)`, all axes at once; `flux` is that between the states at both sides of faces."""
    axes = [(2 + a, dx, periodic) for a, (dx, periodic) in enumerate(zip(grid.spacing, grid.periodic, strict=True))]

    def tendency(q: Tensor) -> Tensor:
        change = [divergence(flux(*face_states(q, a, periodic), a - 2), a, -dx) for a, dx, periodic in axes]
        return functools.reduce(torch.add, change)

    return tendency


class PerSample:
    """A number per sample, which steps read as `current`: those of the samples that are still on their way."""

    def __init__(self, values: Tensor) -> None:
        self.values = self.current = values

    def choose(self, rows: Tensor) -> None:
        self.current = self.values[rows]

    def wide(self, ndim: int) -> Tensor:
        """Shaped to multiply states of so many dimensions."""
        return self.current.view(-1, *([1] * (ndim - 1)))


@dataclass
class FiniteVolume:
    """Midpoint (predictor–corrector) steps, each sample with its own time step.

    `tendency(q)` is dw/dt of the state w `(B, C, *S)`; `limit(q)` the longest stable step `(B,)`, of which `cfl` is
    taken; both are told the variables q of the state, which is the state itself unless `variables` says how to get
    them; `encode` and `decode` turn physical values `(B, C, *S)` into the state and back. A sample that has reached
    the saved time takes steps of length 0, which leave it untouched, or none: on a processor the samples that are
    still on their way go on without the others. `kernels` takes the steps on a GPU; without it they are compiled.
    """

    grid: Grid
    tendency: Callable[[Tensor], Tensor]
    limit: Callable[[Tensor], Tensor]
    cfl: float
    encode: Callable[[Tensor], Tensor] = field(default=lambda u: u)
    decode: Callable[[Tensor], Tensor] = field(default=lambda w: w)
    variables: Callable[[Tensor], Tensor] = field(default=lambda w: w)
    numbers: PerSample | None = None
    kernels: Callable[[Tensor], GraphedSteps] | None = None
    _graph: GraphedSteps | None = field(default=None, init=False, repr=False)

    def start(self, u0: Tensor) -> Tensor:
        return self.encode(u0.movedim(-1, 1).contiguous())

    def read(self, state: Tensor) -> Tensor:
        return self.decode(state).movedim(1, -1)

    def advance(self, state: Tensor, t0: float, t1: float) -> Tensor:
        left = torch.full((state.shape[0],), t1 - t0, dtype=state.dtype, device=state.device)
        if not state.is_cuda:
            return self._eagerly(state, left)
        if self._graph is None or not self._graph.fits(state):
            self._graph = self._on_gpu(state)
        return self._graph.run(state, left)

    def _on_gpu(self, state: Tensor) -> GraphedSteps:
        if not runs_triton(state.device):
            return CompiledSteps(self.step, state, fused=False)
        return CompiledSteps(self.step, state) if self.kernels is None else self.kernels(state)

    def _eagerly(self, state: Tensor, left: Tensor) -> Tensor:
        """Step by step; whenever some of the samples have arrived, the others are solved without them."""
        arrived, rows, w = torch.empty_like(state), torch.arange(len(state)), state
        while len(rows):
            w, left = self.step(w, left)
            going = left > 0
            count = int(going.count_nonzero())
            if count == 0 or count < 0.85 * len(rows):
                arrived[rows[~going]] = w[~going]
                rows, w, left = rows[going], w[going], left[going]
                if self.numbers is not None:
                    self.numbers.choose(rows)
        if self.numbers is not None:
            self.numbers.current = self.numbers.values
        return arrived

    def step(self, w: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
        """One step of each sample, never past its remaining time `left`."""
        q = self.variables(w)
        dt = torch.minimum(self.cfl * self.limit(q), left)
        h = dt.view(-1, *([1] * (w.dim() - 1)))
        half = torch.addcmul(w, h, self.tendency(q), value=0.5)
        return torch.addcmul(w, h, self.tendency(self.variables(half))), left - dt


@dataclass
class StiffFiniteVolume(FiniteVolume):
    """Midpoint steps with a stiff part: `stiff(w, dt)` is its change over a whole step, taken at the half-way state.

    Second order in time like the plain midpoint rule, at the cost of one call of `stiff` per step, and as stable as
    `stiff` is by itself. (One part after the other would be first order.)
    """

    stiff: Callable[[Tensor, Tensor], Tensor] = field(default=lambda w, dt: torch.zeros_like(w))  # noqa: ARG005

    def step(self, w: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
        q = self.variables(w)
        dt = torch.minimum(self.cfl * self.limit(q), left)
        h = dt.view(-1, *([1] * (w.dim() - 1)))
        half = torch.addcmul(w, h, self.tendency(q), value=0.5)
        change = self.stiff(half, dt)
        push = self.tendency(self.variables(half.add_(change, alpha=0.5)))
        return change.addcmul_(h, push).add_(w), left - dt


Step = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class GraphedSteps(ABC):
    """Several steps replayed as one CUDA graph until no sample has time left: without it, launches take most of the
    time. Only once per replay is the host asked. States lie in `w`, the remaining times in `left`."""

    def __init__(self, w: Tensor) -> None:
        # Plain strides, as the steps' own output has: other ones would be compiled for separately.
        self.w = torch.empty(w.shape, dtype=w.dtype, device=w.device).copy_(w)
        self.left = torch.zeros(len(w), dtype=w.dtype, device=w.device)

    @abstractmethod
    def steps(self) -> None:
        """A few steps of each sample that has time left, in place."""

    @abstractmethod
    def begin(self) -> None:
        """What is to be done once when `w` and `left` are new."""

    def capture(self, first: Callable[[], object]) -> None:
        """Record the steps, after having done `first`, behind which all compilation must lie."""
        from ups.graphs import QUIET, record

        side = torch.cuda.Stream(self.w.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            first()
        torch.cuda.current_stream().wait_stream(side)
        with QUIET:
            self.graph, _ = record(self.steps, torch.cuda.graph_pool_handle(), side)

    def fits(self, w: Tensor) -> bool:
        return self.w.shape == w.shape and self.w.dtype == w.dtype and self.w.device == w.device

    def run(self, w: Tensor, left: Tensor) -> Tensor:
        self.w.copy_(w)
        self.left.copy_(left)
        self.begin()
        while bool((self.left > 0).any()):
            self.graph.replay()
        return self.w.clone()


class CompiledSteps(GraphedSteps):
    """Steps that are compiled, which saves memory traffic; `fused=False` keeps them eager."""

    STEPS = 8

    def __init__(self, step: Step, w: Tensor, fused: bool = True) -> None:
        super().__init__(w)
        self.step = torch.compile(step, fullgraph=True, dynamic=False) if fused else step
        # One process may solve many equations: the default limit on compilations of one function is no limit here.
        with torch._dynamo.config.patch(recompile_limit=1024), warnings.catch_warnings():
            # Transforms are called as they are, and there is nothing to be said about that.
            warnings.filterwarnings("ignore", message="Torchinductor does not support code generation for complex")
            # Every compilation must be over before the capture, that for the strides of its own output included.
            self.capture(lambda: self._take(3))

    def begin(self) -> None:
        """Nothing: a step asks the state alone."""

    def steps(self) -> None:
        w, left = self._take(self.STEPS)
        self.w.copy_(w)
        self.left.copy_(left)

    def _take(self, count: int) -> tuple[Tensor, Tensor]:
        w, left = self.w, self.left
        for _ in range(count):
            w, left = self.step(w, left)
        return w, left
