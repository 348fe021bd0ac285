"""A small training for graphs: two tasks in turn, of different sizes and heads; steps recorded without a GPU."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from grids import grid_of
from small_training import TASK, Failing
from ups.engine import loop
from ups.engine.graph import Graphs
from ups.engine.learner import Learner
from ups.engine.loop import Trainer
from ups.engine.randomness import generators, set_generators
from ups.engine.ranks.dist import Dist
from ups.engine.ranks.replicated import Replicated
from ups.engine.train import TrainConfig
from ups.heartbeat import Fire, Pulse
from ups.progress import TrainingProgress
from ups.tensors import Losses, Window

NAMES = ("first", "second")
STEPS = 20


class Heads(nn.Module):
    """A trunk with dropout and a head for each task; a bias of one number leaves a second rank an empty piece."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        torch.manual_seed(5)
        layers = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.Tanh())]
        self.trunk = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Dropout(0.2), *layers)
        self.heads = nn.ModuleDict({name: nn.Linear(width, 1) for name in NAMES})

    def forward(self, x: Tensor, task: str) -> Tensor:
        y: Tensor = self.heads[task](self.trunk(x))
        return y


class TwoHeads:
    """Learns y = sin(sum x) for one task and its cosine for the other; each leaves the other's head alone."""

    name = "heads"

    def __init__(self, width: int = 12, depth: int = 1) -> None:
        self.module = Heads(width, depth)

    def view(self, w: Window, progress: float) -> Window:  # noqa: ARG002
        return w

    def loss(self, w: Window) -> Losses:
        return {"fit": self._errors(w).mean(), "small": 1e-3 * self.module.trunk[0].weight.square().sum()}

    def evaluate(self, w: Window) -> dict[str, Tensor]:
        return {"error": self._errors(w)}

    def score(self, means: Mapping[str, float]) -> float:
        return means["error"]

    def _errors(self, w: Window) -> Tensor:
        errors: Tensor = (self.module(w.params, w.task.name) - w.targets[:, 0, :, 0]).square().mean(1)
        return errors


class InTurn:
    """Windows of the two tasks, `sizes` samples of all ranks; each rank gets its share."""

    def __init__(self, dist: Dist, sizes: tuple[int, int] = (10, 14)) -> None:
        self.dist, self.sizes = dist, sizes

    def whole(self, step: int, size: int) -> Window:
        x = torch.randn(size, 4, generator=torch.Generator().manual_seed(step))
        total = x.sum(1, keepdim=True)
        y = (total.cos() if step % 2 else total.sin())[:, None, :, None]
        task = dataclasses.replace(TASK, name=NAMES[step % 2])
        grid = grid_of(y[:, 0], (True,), (1.0,))
        return Window(task, x[:, None, :, None], y, torch.zeros(size, 4, 0), x, torch.ones(size), grid)

    def batch(self, step: int) -> Window:
        size, rank, world = self.count(step), self.dist.rank, self.dist.world
        return self.whole(step, size).rows(size * rank // world, size * (rank + 1) // world)

    def count(self, step: int) -> int:
        return self.sizes[step % 2]

    def frames(self) -> tuple[int, int]:
        return self.sizes[0], 8

    def validation(self, step: int) -> list[Window]:  # noqa: ARG002
        return [self.whole(10**6, 6), self.whole(10**6 + 1, 6)]


class Closures:
    """A recorder without a GPU. As a capture does, `record` changes what Python sees and no number; and as a replay
    does, what it gives changes numbers, in the memory that was recorded, and nothing that Python sees."""

    def __init__(self, learner: Learner, replicated: Replicated, failures: Mapping[int, Exception]) -> None:
        self.learner, self.replicated, self.failures = learner, replicated, failures
        self.recorded = self.replayed = self.forgotten = 0
        self.out_of_date = False

    def aside(self, window: Window) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def strict(self) -> AbstractContextManager[None]:
        return nullcontext()

    def forget(self) -> None:
        self.forgotten += 1
        self.out_of_date = False

    def stale(self) -> bool:
        return self.out_of_date

    @torch.no_grad()
    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        self.recorded += 1
        numbers, before = self._numbers(), self._seen()
        old, states = [t.clone() for t in numbers], generators(torch.device("cpu"))
        with torch.enable_grad():
            work()
        for tensor, value in zip(numbers, old, strict=True):
            tensor.copy_(value)
        set_generators(states, torch.device("cpu"))
        if self.recorded in self.failures:
            raise self.failures[self.recorded]
        made = self._seen()

        @torch.no_grad()
        def replay() -> None:
            self.replayed += 1
            here = self._seen()
            self._see(before)
            with torch.enable_grad():
                work()
            for a, b in zip(self._tensors(made), self._tensors(self._seen()), strict=True):
                a.copy_(b)
            self._see(here)

        return replay

    def _numbers(self) -> list[Tensor]:
        meter, flat = self.learner.meter, getattr(self.replicated, "flat", torch.zeros(1))
        return [*self.learner.lasting().values(), *meter.sums.values(), meter.bad, flat]

    def _seen(self) -> tuple[Any, ...]:
        r = self.replicated
        return [p.grad for p in r.parameters.values()], self.learner.terms, r.packed, r._shown, [*r.spent]

    def _see(self, seen: tuple[Any, ...]) -> None:
        r = self.replicated
        gradients, self.learner.terms, r.packed, r._shown, spent = seen
        r.spent = [*spent]
        for p, gradient in zip(r.parameters.values(), gradients, strict=True):
            p.grad = gradient

    def _tensors(self, seen: tuple[Any, ...]) -> Iterator[Tensor]:
        return (t for t in (*seen[0], *seen[1].values()) if t is not None)


class Noting(Trainer):
    """Keeps the gradient that can be read after every step."""

    def _step(self, windows: Any, progress: float) -> bool:
        stop = super()._step(windows, progress)
        self.__dict__.setdefault("gradients", []).append(
            {n: g.cpu().clone() for n, g in self.learner.passing().items()}
        )
        return stop


def train(
    dist: Dist,
    stage: tuple[int, int] = (12, 1),
    faults: tuple[Any, ...] = (),
    failures: Mapping[int, Exception] | None = None,
    must: bool = False,
    stale_at: int | None = None,
    fire: Fire = lambda phase, step: None,  # noqa: ARG005
    **changes: Any,
) -> dict[str, Any]:
    """One rank of it; with `failures` of captures by number (none: {}) its steps are recorded without a GPU."""
    loop.PATIENCE = math.inf  # a line of the log by the clock would divide the means of losses elsewhere
    notes: list[TrainingProgress] = []
    plans = [Failing(*fault) for fault in faults if fault[0] == dist.rank]
    settings = {"steps": STEPS, "lr": 0.02, "clip": 0.5, "ema": 0.9, "validate_every": 9, "prefetch": 0}
    batches = InTurn(dist, changes.pop("sizes", (10, 14)))
    recorder: Closures | None = None

    def strike(phase: str, step: int) -> None:
        for plan in (*plans, fire):
            plan(phase, step)
        if recorder is not None and phase == "data" and step == stale_at:
            recorder.out_of_date = True

    trainer = Noting(
        TrainConfig(**{**settings, "microbatch": 4, "drift_every": 5, **changes}),
        TwoHeads(*stage),
        batches,
        dist,
        report=notes.append,
        pulse=Pulse(None, dist.rank, strike),
    )
    if failures is not None:
        assert isinstance(trainer.parallel, Replicated)
        recorder = Closures(trainer.learner, trainer.parallel, failures)
        trainer.graph = Graphs(trainer.learner, trainer.parallel, must, trainer._say, recorder)
    outcome, graph = trainer.fit(), trainer.graph
    return {
        "weights": trainer.weights(),
        "gradients": trainer.__dict__["gradients"],
        "history": [{k: v for k, v in row.items() if k != "seconds"} for row in outcome.history],
        "recovered": outcome.recovered,
        "microbatch": trainer.state.microbatch,
        "seconds": outcome.seconds,
        "notes": [p.note for p in notes if p.note],
        "captured": [] if graph is None else [key[-1] for key in graph.captured],  # type: ignore[index]
        "eager": 0 if graph is None else len(graph.eager),
        "recorder": {} if recorder is None else {k: v for k, v in vars(recorder).items() if isinstance(v, int)},
    }


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Weights, the gradients that could be read after every step, and validations, to the bit."""
    return not differences(a, b)


def differences(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """What of it is not the same, and by how much."""
    rows = zip(a["history"], b["history"], strict=True)
    found = [f"validation {x['step']}: {k} {x[k]!r}, {y[k]!r}" for x, y in rows for k in x if x[k] != y[k]]
    if len(a["gradients"]) != len(b["gradients"]):
        found.append(f"gradients of {len(a['gradients'])} and {len(b['gradients'])} steps")
    pairs = [("weights", a["weights"], b["weights"])]
    pairs += [(f"step {i}", x, y) for i, (x, y) in enumerate(zip(a["gradients"], b["gradients"], strict=False))]
    for where, x, y in pairs:
        found += [f"{where}: {n} is missing" for n in x.keys() ^ y.keys()]
        unlike = [n for n in x.keys() & y.keys() if not torch.equal(x[n], y[n])]
        found += [f"{where}: {n} by {(x[n] - y[n]).abs().max():.2e} of {x[n].abs().max():.2e}" for n in sorted(unlike)]
    return found
