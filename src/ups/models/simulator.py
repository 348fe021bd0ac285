"""Simulator: named parts that know the same tasks; encode → advance → refine → guard → decode."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from ups.models import artifact
from ups.models.answers import Answers
from ups.models.bounds import check_shapes, no_larger_than
from ups.models.codec import Codec
from ups.models.config import CodecConfig, OperatorConfig, SimulatorConfig
from ups.models.described import described
from ups.models.ensembles import Draws
from ups.models.header import plan_of
from ups.models.interleave import in_pieces, put_together, strides_of, taken_apart
from ups.models.operator import LatentOperator
from ups.models.part import Part, drawn_parts
from ups.models.points import frames_at, seen_from
from ups.models.questions import trained_ranges
from ups.models.replay import Replays
from ups.models.stepping import Stepping
from ups.models.trust import Trust, read_trust
from ups.physics.laws import check_guard
from ups.physics.symmetries import images, images_undone, turns
from ups.progress import one_of
from ups.tensors import Condition, TaskStatistics, Window, numeric_params
from ups.types import ConfigError, DataError, TaskSpec
from ups.version import __version__

# The parts that every simulator has, in the order in which their weights are drawn.
CORE: Mapping[str, type[Part]] = {"codec": Codec, "operator": LatentOperator}

# What an artifact raises whose header does not fit its weights; a request to stop is not among them.
DAMAGE = (ConfigError, DataError, LookupError, TypeError, ValueError, RuntimeError, AttributeError, ArithmeticError)


class Simulator(Answers):
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
        which = self.config.images
        if window.task.steady and draw is None and turns(window, which) is not None:
            frames = images_undone(self.replays.frames(self, images(window, which), steps), window, which).mean(0)
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

    def save(self, path: str | Path, provenance: Mapping[str, Any] | None = None) -> Path:
        """Write the artifact to `path` (a file, or a folder to put it in) and return the file's path."""
        return artifact.write(Path(path), self.header(provenance), self.state_dict())

    def header(self, provenance: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What an artifact says of its weights."""
        return {
            "parts": {name: {"config": asdict(p.config), **self.origins[name]} for name, p in self.parts.items()},
            "simulator": asdict(self.config),
            "tasks": [asdict(task) for task in self.tasks],
            "grids": self.codec.grids,
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
            model = (plan.tasks, plan.configs, plan.config, plan.grids)
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


def build(
    tasks: Sequence[TaskSpec],
    codec: CodecConfig | None = None,
    operator: OperatorConfig | None = None,
    config: SimulatorConfig | None = None,
    grids: Mapping[str, tuple[int, ...]] | None = None,
    seed: int = 0,
) -> Simulator:
    """A simulator of a codec and an operator alone."""
    configs = {"codec": codec or CodecConfig(), "operator": operator or OperatorConfig()}
    return assemble(tasks, configs, config, grids, seed)
