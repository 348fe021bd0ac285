"""Simulator: named parts that know the same tasks; encode → advance → refine → guard → decode."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ups.models import artifact
from ups.models.arrays import Given, inputs_of, joined, state_of
from ups.models.bounds import check_shapes, no_larger_than
from ups.models.calibration import ensemble_of
from ups.models.codec import Codec
from ups.models.config import SimulatorConfig
from ups.models.ensembles import Draws, check_ensemble, stacked
from ups.models.operator import LatentOperator
from ups.models.part import Part, drawn_parts
from ups.models.points import cells_at
from ups.models.questions import outside, places_of, trained_ranges, window_of
from ups.models.search import Search, check_search, searched
from ups.models.solving import Solution, check_alone, check_tolerance, driven_by, solution_of, steady_system
from ups.models.stepping import Stepping
from ups.models.trust import Trust, Watch
from ups.physics.laws import check_guard
from ups.physics.symmetries import images, images_undone, isotropic
from ups.tensors import TaskStatistics, Window, numbers_of
from ups.types import ConfigError, DataError, TaskSpec, UpsError
from ups.version import __version__

# The parts that every simulator has, in the order in which their weights are drawn.
CORE: Mapping[str, type[Part]] = {"codec": Codec, "operator": LatentOperator}


class Simulator(nn.Module):
    """Parts by name, a codec and an operator among them, that know the same tasks.

    `sim.rollout(u0, steps=100, params={"nu": 0.01})` is the whole of its use, or `sim.solve(inputs)` where the task is
    steady: one step of length 1 from a zero field to the solution. The spacing in time is that of training.
    """

    rows: ClassVar[tuple[str, ...]] = ("dt",)
    codec: Codec
    operator: LatentOperator
    dt: Tensor

    def __init__(self, parts: Mapping[str, Part], config: SimulatorConfig | None = None) -> None:
        super().__init__()
        self.parts = dict(parts)
        for name, part in parts.items():
            self.add_module(name, part)
        self.config = config or SimulatorConfig()
        check_guard(self.tasks, self.config.guard)
        # Parts that are still to be trained: they correct nothing yet.
        self.idle: frozenset[str] = frozenset()
        # Ranges of parameters that training saw; those by which they are scaled stay what they were at first.
        self.spans: dict[str, dict[str, Any]] = {}
        # How far it can be believed, per task, as validation data have shown.
        self.trust: dict[str, Trust] = {}
        # What it was made by: the whole, and each part by its name.
        self.provenance: dict[str, Any] = {}
        self.origins: dict[str, dict[str, Any]] = {name: {} for name in parts}
        # The least and the greatest time between frames in training, per task.
        steps = [[1.0 if t.steady else max(t.dt, 1e-12)] * 2 for t in self.tasks]
        self.register_buffer("dt", torch.tensor(steps, dtype=torch.float32))

    @property
    def context(self) -> int:
        """Frames that it looks back on."""
        return int(self.operator.config.context)

    def learn_statistics(self, task: TaskSpec, statistics: TaskStatistics) -> None:
        """Record what the training data of a task are like, in every part."""
        for part in self.parts.values():
            part.learn_statistics(task, statistics)
        pairs = zip(statistics.low.tolist(), statistics.high.tolist(), strict=True)
        self.spans[task.name] = dict(zip(numbers_of(task), pairs, strict=True))
        self.fit_dt(task, *statistics.dt)

    def replace(self, name: str, part: Part) -> None:
        """Put another network in the place of a part; the others stay as they are."""
        self.parts[name] = part
        self.add_module(name, part)

    @property
    def tasks(self) -> tuple[TaskSpec, ...]:
        return tuple(self.codec.tasks.values())

    def fit_dt(self, task: TaskSpec | str, low: float, high: float) -> None:
        """Record the range of the time between frames in training; that of a steady task is 1 whatever its data say."""
        spec = self.codec.task(task)
        if not spec.steady:
            self.dt[list(self.codec.tasks).index(spec.name)] = torch.tensor([low, high])

    def ranges(self) -> dict[str, dict[str, tuple[float, float]]]:
        """Per task, the trained range of each parameter and of dt."""
        found: dict[str, dict[str, tuple[float, float]]] = {}
        for task, (low, high) in zip(self.tasks, self.dt.tolist(), strict=True):
            scaled = self.operator.conditioner.range_of(task.name)
            found[task.name] = {**trained_ranges(task, scaled, self.spans.get(task.name, {})), "dt": (low, high)}
        return found

    def outside(self, params: Any, task: TaskSpec | str | None = None, dt: float | None = None) -> list[str]:
        """A sentence for each parameter, and for dt, that lies outside what training saw.

        `params` maps names to numbers or arrays, or is an array `(B, P)` in the order of `numbers_of(task)`.
        """
        spec = self._asked_task(task)
        return outside(params, dt, self.ranges()[spec.name], spec)

    def encode_context(self, context: Tensor, task: TaskSpec | str, periodic: tuple[bool, ...]) -> Tensor:
        """Frames `(B, K', *S, C)` to tokens `(B, K, *G, D)` of the operator's K.

        Of more frames than K the last count; where there are fewer, the first stands for those before it.
        """
        context = context[:, -self.context :]
        tokens = self.codec.encode(context.flatten(0, 1), task, periodic).z
        return self.filled(torch.unflatten(tokens, 0, context.shape[:2]))

    def filled(self, z: Tensor) -> Tensor:
        """Tokens `(B, K', *G, D)` of some frames as the operator's K, as `encode_context` says."""
        missing = self.context - z.shape[1]
        return torch.cat((*[z[:, :1]] * max(0, missing), z[:, max(0, -missing) :]), 1)

    def simulate(self, window: Window, steps: int, points: Tensor | None = None, draw: Draws | None = None) -> Tensor:
        """The `steps` frames `(B, steps, *S, C)` after the context of a window, on its grid and in physical units; at
        `points (P, n)` of [0, 1)^n where given, `(B, steps, P, C)`. With `draw` they are one member of an ensemble.

        Every rollout comes here, whoever asks for it. Gradients flow unless the caller stops them.
        """
        if self.config.images and window.task.steady and points is None and draw is None and isotropic(window):
            return images_undone(Stepping(self, images(window)).frames(steps), window).mean(0)
        return Stepping(self, window, points).frames(steps, draw)

    def awake(self, task: TaskSpec) -> list[Part]:
        """The parts that have been trained and act on a task, but for those in whose place another works."""
        awake = {name: part for name, part in self.parts.items() if name not in self.idle and part.acts_on(task)}
        replaced = {name for part in awake.values() for name in part.replaces}
        return [part for name, part in awake.items() if name not in replaced]

    def rollout(
        self,
        u0: Any,
        steps: int,
        params: Any = None,
        dt: Any = None,
        task: TaskSpec | str | None = None,
        periodic: tuple[bool, ...] | None = None,
        points: Any = None,
        inputs: Any = None,
        ensemble: int | None = None,
        seed: int = 0,
        search: Search | None = None,
        error: bool = False,
        stop_at: float | None = None,
    ) -> Any:
        """The `steps` frames after `u0`, as the kind of array `u0` is (numpy, torch or xarray).

        `u0` is `(*S, C)`, `(B, *S, C)` or `(B, K, *S, C)` in physical units, on any grid of the task's box; of a task
        with one channel also `(*S,)` or `(B, *S)`, unless the last axis has length 1 and so is the channel. The answer
        is `(steps, …)` or `(B, steps, …)`. An xarray is arranged by the names of its dimensions (the task's axes, time,
        channel), and a Dataset has a variable for each channel; answers are labelled alike. With fewer frames than the
        operator's context, the first stands for those before it. `params` maps names to a number, or to one per sample;
        one outside the trained range warns. `dt` is the trained one unless given: a number, or one for each step.
        `task` is needed where the simulator knows several. `points (P, n)`, in the task's own coordinates, asks for
        values there instead of on the grid. `inputs`, `(*S, C_in)` or one per sample, is what drives the task (a
        force), where it is driven. Where the task has a mask and `inputs` leaves it out, NaN in `u0` says which cells
        do not count; they are NaN in the answer too. `ensemble` asks for so many draws, along a new first axis, where
        a part of the simulator has learnt what the operator misses; the same `seed`, the same members. `search` spends
        compute on one rollout: of several draws at each step those go on that look least wrong. With `error` the answer
        is a pair: the frames, and an estimate `(steps,)` or `(B, steps)` of the relative error (nRMSE) of each, were
        nothing drawn. From the step on at which the estimate passes `stop_at`, frames are NaN.
        """
        spec = self._asked_task(task)
        if not isinstance(steps, int | np.integer) or steps < 1:
            raise ConfigError(f"a rollout has at least one step, and a whole number of them, not {steps!r}.")
        if spec.steady:
            raise ConfigError(
                f"{spec.name} is steady and has no steps; ask for its solution with sim.solve(inputs, …)."
            )
        state, driven = state_of(u0, spec, self.dt.device), inputs_of(inputs, spec, self.dt.device)
        given = joined(state.values, None if driven is None else driven.values[:, 0], spec)
        window, each = window_of(*given, steps, params, dt, periodic, spec, self.ranges()[spec.name])
        times = each.item() * np.arange(1, steps + 1) if len(each) == 1 else each.cumsum(0).numpy()
        if search is not None:
            check_search(self, search, spec, ensemble, points)
        watch = Watch(self, window, seed, stop_at) if error or stop_at is not None else None
        count = steps if watch is None else watch.count(steps)
        frames = self._answer(window, count, points, ensemble, seed, search)
        frames = frames if watch is None else watch.stopped(frames, steps)
        answers = [state.answer(member, times, spec.channels, points is not None) for member in frames]
        answer = answers[0] if ensemble is None else stacked(answers)
        return (answer, state.per_step(watch.errors, times)) if error and watch is not None else answer

    def solve(
        self,
        inputs: Any,
        params: Any = None,
        task: TaskSpec | str | None = None,
        periodic: tuple[bool, ...] | None = None,
        points: Any = None,
        tolerance: float | None = None,
        ensemble: int | None = None,
        seed: int = 0,
    ) -> Any:
        """The solution of a steady task driven by `inputs` (`(*S,)`, `(*S, C_in)` or `(B, *S, C_in)`), as the kind of
        array that is: `(*S, C)` or `(B, *S, C)`, or `(*S,)` where it came so. With a `tolerance` it is refined as by
        `solution`, and in double precision. The rest as in `rollout`."""
        if tolerance is not None:
            check_alone(points, ensemble)
            return self.solution(inputs, tolerance, params, task, periodic).field
        driven, window = self._driven(inputs, params, task, periodic)
        frames, names = self._answer(window, 1, points, ensemble, seed), window.task.channels
        answers = [driven.answer_once(member, np.ones(1), names, points is not None) for member in frames]
        return answers[0] if ensemble is None else stacked(answers)

    def solution(
        self,
        inputs: Any,
        tolerance: float = 1e-6,
        params: Any = None,
        task: TaskSpec | str | None = None,
        periodic: tuple[bool, ...] | None = None,
    ) -> Solution:
        """The solution of a steady task, refined by iterations of a solver until the relative residual of its discrete
        equations is at most `tolerance`, with what that took. The rest as in `solve`."""
        tolerance = check_tolerance(tolerance)
        driven, window = self._driven(inputs, params, task, periodic)
        system, names = steady_system(window), window.task.channels
        return solution_of(system, self._answer(window, 1)[0], tolerance, driven, names)

    def _driven(
        self, inputs: Any, params: Any, task: TaskSpec | str | None, periodic: tuple[bool, ...] | None
    ) -> tuple[Given, Window]:
        """What a user gives to be solved, and the window of it."""
        spec = self._asked_task(task)
        driven, given = driven_by(inputs, spec, self.dt.device)
        return driven, window_of(*given, 1, params, None, periodic, spec, self.ranges()[spec.name])[0]

    def _answer(
        self,
        window: Window,
        steps: int,
        points: Any = None,
        ensemble: int | None = None,
        seed: int = 0,
        search: Search | None = None,
    ) -> Tensor:
        """The frames `(M, B, steps, …, C)` after a window, NaN where nothing counts; M is 1 without an ensemble."""
        if ensemble is not None:
            self._check_ensemble(ensemble, seed, window.task)
        places = None if points is None else places_of(points, window.task, window.periodic).to(window.context.device)
        training = self.training
        self.eval()
        try:
            with torch.no_grad():
                if search is not None:
                    answer = searched(self, window, steps, search).unsqueeze(0)
                elif ensemble is None:
                    answer = self.simulate(window, steps, places).unsqueeze(0)
                else:
                    answer = ensemble_of(self, window, steps, ensemble, seed, places)
        finally:
            self.train(training)
        if window.mask is not None:
            cells = window.mask.unsqueeze(1) if places is None else cells_at(window.mask, places).unsqueeze(1)
            answer = answer.masked_fill(~cells.unsqueeze(-1), torch.nan)
        return answer

    def _check_ensemble(self, members: int, seed: int, task: TaskSpec) -> None:
        check_ensemble(members, seed)
        if not any(part.draws for part in self.awake(task)):
            stage = "residual or steady" if task.steady else "residual"
            raise ConfigError(
                f"the simulator has no part that draws {task.name}, so all members would be one; train a {stage} stage."
            )

    def _asked_task(self, task: TaskSpec | str | None) -> TaskSpec:
        if task is None and len(self.tasks) > 1:
            raise ConfigError(f"the simulator knows {', '.join(self.codec.tasks)}; say which with task=….")
        return self.codec.task(task if task is not None else self.tasks[0])

    def save(self, path: str | Path, provenance: Mapping[str, Any] | None = None) -> Path:
        """Write the artifact to `path` (a file, or a folder to put it in) and return the file's path."""
        header = {
            "parts": {name: {"config": asdict(p.config), **self.origins[name]} for name, p in self.parts.items()},
            "simulator": asdict(self.config),
            "tasks": [asdict(task) for task in self.tasks],
            "grids": self.codec.grids,
            "ranges": self.ranges(),
            "trust": {name: asdict(trust) for name, trust in self.trust.items()},
            "program": __version__,
            "provenance": {**self.provenance, **(provenance or {})},
        }
        return artifact.write(Path(path), header, self.state_dict())

    @classmethod
    def load(
        cls, path: str | Path, device: torch.device | str = "cpu", kinds: Mapping[str, type[Part]] = CORE
    ) -> Simulator:
        """The simulator an artifact holds, its weights bit for bit, ready to run; `kinds` are the parts it may have."""
        header, tensors = artifact.read(Path(path))
        try:
            parts, plan = header["parts"], artifact.plan(header, {name: kind.Config for name, kind in kinds.items()})
            with no_larger_than(tensors):  # first without memory: a header may ask for any number of layers
                check_shapes(assemble(*plan, empty=kinds, kinds=kinds), tensors)
            simulator = assemble(*plan, kinds=kinds)
            simulator.load_state_dict(tensors, strict=True)
            simulator.spans = artifact.spans(header)
            simulator.trust = {name: Trust.of(values) for name, values in header.get("trust", {}).items()}
            simulator.provenance = dict(header["provenance"])
            simulator.origins = {name: {k: p[k] for k in p if k != "config"} for name, p in parts.items()}
        except (UpsError, LookupError, TypeError, ValueError, RuntimeError, AttributeError, ArithmeticError) as error:
            first = " ".join(str(error).split()).rstrip(".")[:200]
            raise DataError(
                f"{path}: its weights are not of the model it describes ({first}); save it again."
            ) from None
        return simulator.to(device).eval()


def assemble(
    tasks: Sequence[TaskSpec],
    configs: Mapping[str, Any],
    config: SimulatorConfig | None = None,
    grids: Mapping[str, tuple[int, ...]] | None = None,
    seed: int = 0,
    empty: Collection[str] = (),
    kinds: Mapping[str, type[Part]] = CORE,
) -> Simulator:
    """A simulator with fresh weights. They follow from the arguments alone, and no other random number changes.

    `configs` names its parts and how each is made; they are drawn one after the other in the order of `kinds`. Those
    in `empty` are on `meta`: shapes without memory, to be filled. All after the first empty one must be empty too.
    """
    if not tasks:
        raise ConfigError("a simulator needs at least one task.")
    return Simulator(drawn_parts(tasks, configs, grids or {}, seed, empty, kinds), config)
