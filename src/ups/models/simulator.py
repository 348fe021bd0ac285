"""Simulator: named parts that know the same tasks and together answer what is asked of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ups.models import artifact
from ups.models.bounds import check_shapes, no_larger_than
from ups.models.card import task_card
from ups.models.codec import Codec
from ups.models.config import CodecConfig, OperatorConfig, SimulatorConfig
from ups.models.copies import images_of
from ups.models.described import described
from ups.models.ensembles import Draws
from ups.models.header import plan_of
from ups.models.interleave import in_pieces, put_together, strides_of, taken_apart
from ups.models.operator import LatentOperator
from ups.models.part import Part, drawn_parts
from ups.models.points import frames_at, seen_from
from ups.models.questions import START, asked_task, outside, to_continue, to_solve, trained_ranges, unusual, warn
from ups.models.replay import Replays
from ups.models.request import Answer, Request, RolloutDetails, answered
from ups.models.search import Search
from ups.models.solving import Solution, check_alone, check_tolerance, in_double, solution_of, steady_system
from ups.models.stepping import Stepping
from ups.models.trust import Trust, read_trust
from ups.physics.laws import check_guard
from ups.physics.symmetries import images, images_undone
from ups.progress import one_of
from ups.tensors import Condition, TaskStatistics, Window, numeric_params
from ups.types import ConfigError, DataError, TaskSpec
from ups.version import __version__

# The parts that every simulator has, in the order in which their weights are drawn.
CORE: Mapping[str, type[Part]] = {"codec": Codec, "operator": LatentOperator}

# What an artifact raises whose header does not fit its weights; a request to stop is not among them.
DAMAGE = (ConfigError, DataError, LookupError, TypeError, ValueError, RuntimeError, AttributeError, ArithmeticError)


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
        self.config.check_tasks(self.codec.tasks)
        self._idle: frozenset[str] = frozenset()
        # Ranges of parameters that training saw; those by which they are scaled stay what they were at first.
        self.spans: dict[str, dict[str, Any]] = {}
        # Steps of rollouts that a GPU replays.
        self.replays = Replays()
        # How far it can be believed, per task, as validation data have shown.
        self.trust: dict[str, Trust] = {}
        # What it was made by: the whole, and each part by its name.
        self.provenance: dict[str, Any] = {}
        self.origins: dict[str, dict[str, Any]] = {name: {} for name in parts}
        # The least and the greatest time between frames in training, per task.
        steps = [[1.0 if t.steady else max(t.dt, 1e-30)] * 2 for t in self.tasks]
        self.register_buffer("dt", torch.tensor(steps, dtype=torch.float32))

    def __repr__(self) -> str:
        """What it is in a few lines; `print(sim.operator)` and the like show the modules of a part."""
        return described(self.codec, self.parts, self.origins, self.ranges(), self.idle)

    def card(self) -> dict[str, Any]:
        """What there is to know of it, as JSON holds it: its parts with their validation errors, and its tasks with
        their grids, fields, parameters and trained ranges."""
        errors = {name: about.get("provenance", {}).get("score") for name, about in self.origins.items()}
        return {
            "config": self.provenance.get("config"),
            "parts": {name: {"validation_error": errors.get(name)} for name in self.parts},
            "weights": sum(p.numel() for p in self.parameters()),
            "tasks": [task_card(self, task) for task in self.tasks],
        }

    @property
    def context(self) -> int:
        """The largest context of any task, in frames."""
        return int(self.operator.config.context)

    def looks_back(self, task: str) -> int:
        """Frames of context that the operator sees of a task."""
        return self.operator.looks_back(task)

    @property
    def idle(self) -> frozenset[str]:
        """Parts that correct nothing: those that are still to be trained, or that a user has laid aside."""
        return self._idle

    @idle.setter
    def idle(self, names: Collection[str]) -> None:
        chosen = frozenset([names] if isinstance(names, str) else names)
        for name in sorted(chosen - self.parts.keys()):
            raise ConfigError(f"the simulator has no part '{name}' to be idle; its parts are {', '.join(self.parts)}.")
        self._idle = chosen

    @property
    def learnt(self) -> frozenset[str]:
        """The parts that have been trained, as their origins say; all, where nothing says which."""
        named = frozenset(name for name in self.parts if self.origins.get(name, {}).get("provenance"))
        return named or frozenset(self.parts)

    def learn_statistics(self, task: TaskSpec, statistics: TaskStatistics) -> None:
        """Record what the training data of a task are like, in every part."""
        for part in self.parts.values():
            part.learn_statistics(task, statistics)
        pairs = zip(statistics.low.tolist(), statistics.high.tolist(), strict=True)
        self.spans[task.name] = dict(zip(numeric_params(task), pairs, strict=True))
        self.fit_dt(task, *statistics.dt)

    def replace(self, name: str, part: Part) -> None:
        """Put another network in the place of a part; the others stay as they are. What validation data have said of
        the old one is no longer known."""
        self.trust, corners = {}, self.codec.corners
        self.parts[name] = part
        self.add_module(name, part)
        self.learn_corners(corners)

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
        ranges: dict[str, dict[str, tuple[float, float]]] = {}
        for task, (low, high) in zip(self.tasks, self.dt.tolist(), strict=True):
            scaled = self.operator.conditioner.range_of(task.name)
            ranges[task.name] = {**trained_ranges(task, scaled, self.spans.get(task.name, {})), "dt": (low, high)}
        return ranges

    def encode_context(self, context: Tensor, condition: Condition) -> Tensor:
        """Frames `(B, K', *S, C)`, and what drives the step after them, to tokens `(B, K, *G, D)` of the K that the
        operator looks back on of the task.

        Of more frames than K the last count; where there are fewer, the first stands for those before it, carried back
        where parameters carry states along.
        """
        context = context[:, -self.looks_back(condition.task) :]
        tokens = self.codec.encode(context.flatten(0, 1), condition.task, condition.grid).z
        return self.pad_context(torch.unflatten(tokens, 0, context.shape[:2]), condition)

    def learn_corners(self, corners: Mapping[str, tuple[float, ...]]) -> None:
        """Record where the grid of each task begins (see `Grid.corner`): frames on other grids, and points, then lie
        where they truly are beside it."""
        self.codec.corners = {task: corner for task, corner in corners.items() if corner}
        for part in self.parts.values():
            part.connect(self.parts)

    def pad_context(self, z: Tensor, condition: Condition) -> Tensor:
        """Tokens `(B, K', *G, D)` as exactly the K frames that the operator looks back on; see its `pad_context`."""
        return self.operator.pad_context(z, condition)

    def answer(self, request: Request) -> Answer:
        """What it answers to a request in tensors; `rollout` and `solve` ask so of arrays, `ups rollout` of a file."""
        return answered(self, request)

    def rollout(
        self,
        u0: Any,
        steps: int,
        params: Any = None,
        dt: Any = None,
        task: TaskSpec | str | None = None,
        periodic: Sequence[bool] | Sequence[str] | None = None,
        points: Any = None,
        inputs: Any = None,
        ensemble: int | None = None,
        seed: int = 0,
        search: Search | None = None,
        error: bool = False,
        stop_at: float | None = None,
        details: bool = False,
        at: Any = None,
    ) -> Any:
        """Continue a state.

        Args:
            u0: The state in physical units, on any grid of the task's box: `(*S, C)`, `(B, *S, C)`, or with frames
                before it `(B, K, *S, C)`; of one channel also `(*S,)` or `(B, *S)`. numpy, torch, or an xarray, which
                is arranged by the names of its dimensions. Where it holds fewer frames than the operator looks back
                on, the first stands for those before it. NaN marks cells that do not count, if the task has a mask.
            steps: How many frames follow.
            params: Parameters by name, a number or one per sample; those that never varied may be left out.
            dt: The time of a step, or of each; by default that of training.
            task: Which task, where the simulator knows several.
            periodic: The axes that wrap, by name, or True or False of each; by default as the task says.
            points: Places `(P, n)` in the task's coordinates, to be answered there instead of on the grid.
            inputs: What drives the task, `(*S, C_in)` or one per sample.
            ensemble: So many draws, along a new first axis, where a part has learnt what the operator misses.
            seed: The same seed, the same draws.
            search: Go on, at each step, from those of several draws that look least wrong.
            error: Also estimate the relative error (nRMSE) of each frame, were nothing drawn.
            stop_at: The estimated error from which on frames are NaN.
            at: Places `(N, n)` in the task's coordinates where the values of `u0`, and of `inputs`, lie, if these are
                not the cells of a grid: `u0` is then `(N, C)`, `(B, N, C)` or `(B, K, N, C)`. They need not be those
                of training.
            details: Give `RolloutDetails`: also where each sample leaves what training saw, and remarks.

        Returns:
            Frames `(steps, …)` or `(B, steps, …)` as the kind of array that `u0` is; with `error` also the estimates
            `(steps,)` or `(B, steps)`. NaN where nothing counts, and after a rollout has left what training saw.

        Raises:
            ConfigError: What was given for has no answer, or does not fit into memory.

        Warns of what lies outside the trained ranges, is unlike the training data, or is not finite, unless details
        are asked for.
        """
        arrays = to_continue(self, u0, steps, params, dt, task, periodic, inputs, at)
        warn(() if details else arrays.remarks)
        places = arrays.places(points)
        answer = self.answer(Request(arrays.window, arrays.steps, places, ensemble, seed, search, error, stop_at))
        left = answer.left_range_at
        frames = arrays.given_back(answer.frames, points, ensemble, left)
        errors = None if answer.errors is None else arrays.kind.per_step(answer.errors, arrays.times)
        if details:
            return RolloutDetails(frames, errors, left, (*arrays.remarks, *answer.remarks))
        warn(answer.remarks)
        return frames if errors is None else (frames, errors)

    def solve(
        self,
        inputs: Any,
        params: Any = None,
        task: TaskSpec | str | None = None,
        periodic: Sequence[bool] | Sequence[str] | None = None,
        points: Any = None,
        tolerance: float | None = None,
        ensemble: int | None = None,
        seed: int = 0,
    ) -> Any:
        """Solve a steady task.

        Args:
            inputs: What drives it: `(*S,)`, `(*S, C_in)` or `(B, *S, C_in)`.
            tolerance: The relative residual of the discrete equations to which the prediction is refined, in double
                precision; 1e-6 is usual. None leaves it as predicted.
            params, task, periodic, points, ensemble, seed: As in `rollout`.

        Returns:
            The solution `(*S, C)` or `(B, *S, C)`, or `(*S,)` where `inputs` came so, as the kind of array they are.

        Raises:
            ConfigError: The task is not steady, or its equation is not known where a tolerance is asked for.
            PhysicsError: The tolerance is not reached.
        """
        if tolerance is not None:
            check_alone(points, ensemble)
            return self.solution(inputs, tolerance, params, task, periodic).field
        arrays = to_solve(self, inputs, params, task, periodic)
        warn(arrays.remarks)
        answer = self.answer(Request(arrays.window, 1, arrays.places(points), ensemble, seed))
        warn(answer.remarks)
        return arrays.given_back(answer.frames, points, ensemble)

    def solution(
        self,
        inputs: Any,
        tolerance: float = 1e-6,
        params: Any = None,
        task: TaskSpec | str | None = None,
        periodic: Sequence[bool] | Sequence[str] | None = None,
    ) -> Solution:
        """The solution of a steady task, refined by iterations of a solver until the relative residual of its discrete
        equations is at most `tolerance`, with what that took. The rest as in `solve`."""
        tolerance = check_tolerance(tolerance)
        arrays = to_solve(self, inputs, params, task, periodic, START)
        warn(arrays.remarks)
        system = steady_system(in_double(arrays.window, inputs, params))
        answer = self.answer(Request(arrays.window, 1))
        warn(answer.remarks)
        return solution_of(system, answer.frames[0], tolerance, arrays.kind, arrays.window.task.channels)

    def outside(self, params: Any, task: TaskSpec | str | None = None, dt: float | None = None) -> list[str]:
        """A sentence for each parameter, and for dt, that lies outside what training saw.

        `params` maps names to numbers or arrays, or is an array `(B, P)` in the order of `numeric_params(task)`.
        """
        spec = asked_task(self, task)
        return outside(params, dt, self.ranges()[spec.name], spec)

    def strange(self, window: Window) -> list[str]:
        """A sentence for each field whose given frames are unlike all that training saw, and for each such input."""
        here = window.to(self.dt.device)
        return unusual(self, here.context, here.inputs, here.task, here.mask)

    def simulate(self, window: Window, steps: int, points: Tensor | None = None, draw: Draws | None = None) -> Tensor:
        """The `steps` frames `(B, steps, *S, C)` after the context of a window, on its grid and in physical units; at
        `points (P, n)` of [0, 1)^n where given, `(B, steps, P, C)`. With `draw` they are one member of an ensemble.

        Every rollout comes here, whoever asks for it. Gradients flow unless the caller stops them.
        """
        # Members of an ensemble are not taken apart; nor then is the rollout without draws that they are held against.
        strides = strides_of(window, self.codec)
        if strides is not None and not any(part.draws for part in self.awake(window.task)):
            pieces, apart = [*in_pieces(taken_apart(window, strides))], list[Tensor]()
            for i, piece in enumerate(pieces):
                with one_of(len(pieces), i):
                    apart.append(self.simulate(piece, steps))
            return self._seen(put_together(torch.cat(apart), strides), window, points)
        moves = images_of(self, window.task, window.grid) if window.task.steady and draw is None else None
        if moves is not None:
            frames = images_undone(self.replays.frames(self, images(window, moves), steps), moves).mean(0)
            return self._seen(frames, window, points)
        return self.replays.frames(self, window, steps, points, draw)

    def _seen(self, frames: Tensor, window: Window, points: Tensor | None) -> Tensor:
        """Frames on the grid of a window as they are, or between their cells at `points`, where given."""
        if points is None:
            return frames
        begins = self.codec.beginning(window.task, window.grid)
        values = frames_at(frames, seen_from(begins, points), window.grid.periodic, window.mask)
        stepping = Stepping(self, window, points)
        return torch.stack([stepping.bounded(step) for step in values.unbind(1)], 1)

    def awake(self, task: TaskSpec) -> list[Part]:
        """The parts that have been trained and act on a task, but for those in whose place another works."""
        awake = {name: part for name, part in self.parts.items() if name not in self.idle and part.acts_on(task)}
        replaced = {name for part in awake.values() for name in part.replaces}
        return [part for name, part in awake.items() if name not in replaced]

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the networks that a step runs by `torch.compile` with these arguments. The first rollout of a shape
        then takes longer, and on a GPU its steps are no longer replayed as CUDA graphs."""
        for part in self.parts.values():
            if not part.entries:
                part.compile(*args, **{"dynamic": False, **kwargs})

    def save(self, path: str | Path, provenance: Mapping[str, Any] | None = None) -> Path:
        """Write the artifact to `path` (a file, or a folder to put it in) and return the file's path."""
        return artifact.write(Path(path), self.header(provenance), self.state_dict())

    def header(self, provenance: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What an artifact says of its weights."""
        return {
            "parts": {name: {"config": asdict(p.config), **self.origins[name]} for name, p in self.parts.items()},
            "simulator": asdict(self.config),
            "tasks": [asdict(task) for task in self.tasks],
            "shapes": self.codec.shapes,
            "corners": self.codec.corners,
            "ranges": self.ranges(),
            "trust": {name: asdict(trust) for name, trust in self.trust.items()},
            "program": __version__,
            "provenance": {**self.provenance, **(provenance or {})},
        }

    @classmethod
    def load(
        cls, path: str | Path, device: torch.device | str = "cpu", kinds: Mapping[str, type[Part]] = CORE
    ) -> Simulator:
        """The simulator an artifact holds, its weights bit for bit, ready to run; `kinds` are the parts it may have."""
        header, tensors = artifact.read(Path(path))
        try:
            plan, parts = plan_of(header, {name: kind.Config for name, kind in kinds.items()}), header["parts"]
            model = (plan.tasks, plan.configs, plan.config, plan.shapes)
            with no_larger_than(tensors):  # first without memory: a header may ask for any number of layers
                check_shapes(assemble(*model, empty=kinds, kinds=kinds), tensors)
            simulator = assemble(*model, kinds=kinds)
            simulator.load_state_dict(tensors, strict=True)
            simulator.spans = plan.spans
            simulator.learn_corners(plan.corners)
            simulator.provenance = dict(header.get("provenance", {}))
            simulator.origins = {name: {k: p[k] for k in p if k != "config"} for name, p in parts.items()}
        except DAMAGE as error:
            raise artifact.damaged(path, error) from None
        simulator.trust = read_trust(header, simulator.codec.tasks, path)
        return simulator.to(device).eval()


def assemble(
    tasks: Sequence[TaskSpec],
    configs: Mapping[str, Any],
    config: SimulatorConfig | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
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
    return Simulator(drawn_parts(tasks, configs, shapes or {}, seed, empty, kinds), config)


def build(
    tasks: Sequence[TaskSpec],
    codec: CodecConfig | None = None,
    operator: OperatorConfig | None = None,
    config: SimulatorConfig | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    seed: int = 0,
) -> Simulator:
    """A simulator of a codec and an operator alone."""
    configs = {"codec": codec or CodecConfig(), "operator": operator or OperatorConfig()}
    return assemble(tasks, configs, config, shapes, seed)
