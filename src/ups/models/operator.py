"""LatentOperator: advances a grid of tokens by dt, driven by parameters, boundary and task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from ups.models.advection import Advection, carry, cells_of
from ups.models.codec import Codec
from ups.models.config import OperatorConfig
from ups.models.grids import Patch
from ups.models.layers import AXES, fourier_features
from ups.models.part import NamedAxis, Part
from ups.models.tokens import TokenNetwork
from ups.tensors import Condition, table
from ups.types import ConfigError, TaskSpec, counted

# A state that is less uneven and less in motion than this, beside a usual one, counts as if it were so.
STILL = 1e-3
SIZE_WAVES = 3


class StepScale(nn.Module):
    """How far the states of a batch are from rest, `(B,)`, and the embedding of that number for the network.

    A state at rest is uniform and does not change. Where states decay towards it, changes shrink with them; measured in
    this, they stay of order one, and so does what is left of the state.
    """

    def __init__(self, dim: int, width: int, condition: int) -> None:
        super().__init__()
        self.uneven = nn.Linear(dim, width, bias=False)
        self.embed = nn.Linear(2 * SIZE_WAVES + 1, condition, bias=False)

    def measure(self, z: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """How much frames `z (B, K, *G, D)` are from rest.

        Returns:
            The rms of the last frame's deviation from uniform and of its change over `scale`, and that deviation
            `(B, *G, D)`.
        """
        last = z[:, -1]
        deviation = last - last.mean(tuple(range(1, last.ndim - 1)), keepdim=True)
        uneven = deviation.flatten(1).square().mean(1)
        moving = (last - z[:, -2]).div(scale).flatten(1).square().mean(1) if z.shape[1] > 1 else 0.0
        return (uneven + moving + STILL**2).sqrt(), deviation

    def features(self, deviation: Tensor, size: Tensor) -> Tensor:
        """What tokens are beside their mean, `(B, *G, D)`, in units of `size`, as `(B, *G, width)`."""
        y: Tensor = self.uneven(deviation / size.reshape(-1, *(1,) * (deviation.ndim - 1)))
        return y

    def condition(self, size: Tensor) -> Tensor:
        """The embedding `(B, condition)` of the sizes `(B,)` that `measure` gives."""
        y: Tensor = self.embed(fourier_features(size.log() / 4, SIZE_WAVES))
        return y


def _carrying(task: TaskSpec) -> tuple[str, ...]:
    """The parameters that carry the states of a task along; ConfigError for one that cannot."""
    able = () if task.steady else tuple(p.name for p in task.parameters if not p.choices)
    for name in (name for name in task.dynamics.advected_by if name not in able):
        fact = f"it has {', '.join(able)}" if able else "nothing can move it"
        raise ConfigError(f"{task.name}: `advected_by` names '{name}', but {fact}; mend the name or leave it out.")
    return tuple(dict.fromkeys(task.dynamics.advected_by))


@table
def _stretch(box: tuple[float, ...], own: tuple[float, ...], device: torch.device) -> Tensor:
    """How much longer each axis of a box is than a task's own, `(3,)`."""
    ratios = [a / b for a, b in zip(box, own, strict=True)]
    return torch.tensor([*ratios, *[1.0] * (AXES - len(ratios))], device=device)


@table
def _downwards(count: int, device: torch.device) -> Tensor:
    """count, …, 2, 1."""
    return torch.arange(count, 0, -1, dtype=torch.float32, device=device)


def _carried(z: Tensor, ways: Tensor, condition: Condition, patch: Patch | None) -> Tensor:
    """Frames `(B, K, *G, D)`, each moved by `ways (B, K, 3)` boxes."""
    grid = condition.grid.cells(z.shape[2:-1])
    return torch.unflatten(carry(z.flatten(0, 1), ways.flatten(0, 1), grid, patch), 0, (-1, z.shape[1]))


class LatentOperator(TokenNetwork):
    """z(t + dt) = z(t) + s_task · network(z(t), increments before it, inputs, condition).

    `s_task (D,)` is the size of an increment of that task (`fit_increments`), so that the network works with numbers of
    order one whatever dt is. With `step_scale: sample` this size is multiplied by `StepScale.measure` of the sample,
    except for steady tasks. An untrained operator predicts no change. Where parameters carry the states of a task
    along (`Advection`), all frames are first moved to where they are at t + dt, and "no change" means that.
    """

    Config: ClassVar[type] = OperatorConfig
    scale: Tensor
    least: Tensor
    most: Tensor
    rows: ClassVar[tuple[str, ...]] = ("scale", "least", "most", "conditioner.task")

    def __init__(
        self,
        config: OperatorConfig,
        dim: int,
        tasks: Sequence[TaskSpec],
        patch: Sequence[int] = (4, 4, 2),
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        super().__init__(config, config.context, dim, tasks, patch, shapes)
        self.register_buffer("scale", torch.ones(len(tasks), dim))
        self.register_buffer("least", torch.full((len(tasks), dim), -math.inf))
        self.register_buffer("most", torch.full((len(tasks), dim), math.inf))
        if config.by_sample:  # last: the weights of all else are those of an operator without it
            self.step_scale = StepScale(dim, config.shape.width, config.shape.width)
        self.carriers = carried = {task.name: by for task in tasks if (by := _carrying(task))}
        self.conditioner.hidden_params = carried
        self.drift = nn.ModuleDict({name: Advection(len(by), config.shape.width) for name, by in carried.items()})
        self.memoryless = frozenset(task.name for task in tasks if config.looks_back(task) == 1)
        # A steady task has one step, from nothing: there is no state to measure.
        moving = {task.name for task in tasks if not (task.steady or task.dynamics.changes_when_uniform)}
        moving -= frozenset() if config.step_scale == "sample" else self.memoryless
        self.scaled_by_sample = frozenset(moving if config.by_sample else ())
        self.codec: tuple[Codec, ...] = ()  # whose tokens these are, if they lose nothing; it is no part of this one

    def connect(self, parts: Mapping[str, Part]) -> None:
        super().connect(parts)
        codec = parts["codec"]
        assert isinstance(codec, Codec)
        self.codec = (codec,)

    def looks_back(self, task: str) -> int:
        """Frames of context that it sees of a task."""
        return 1 if task in self.memoryless else int(self.config.context)

    def fit_increments(self, task: str, std: Tensor | float) -> None:
        """Record the size of an increment of `task`: rms of z(t + dt) − z(t), one number or one per channel `(D,)`."""
        size = torch.as_tensor(std, dtype=self.scale.dtype, device=self.scale.device).clamp_min(1e-6)
        self.scale[self.row(task)] = size

    def fit_range(self, task: str, tokens: Tensor) -> None:
        """Record the range of the tokens `(N, D)` of `task`; one that was recorded before is widened by it."""
        row, (least, most) = self.row(task), tokens.detach().to(self.least).aminmax(dim=0)
        known = self.least[row].isfinite()
        self.least[row] = torch.where(known, torch.minimum(self.least[row], least), least)
        self.most[row] = torch.where(known, torch.maximum(self.most[row], most), most)

    def by_name(self, task: TaskSpec) -> dict[str, NamedAxis]:
        named = super().by_name(task)
        if task.name in self.drift:
            axis, place = NamedAxis(0, self.carriers[task.name], silent=True), f"drift.{task.name}"
            named |= {f"{place}.speeds": axis, f"{place}.size": axis._replace(silent=False)}
        return named

    def fit_drift(self, z: Tensor, condition: Condition, dt: Tensor) -> Advection | None:
        """Fit the drift of a task to frames `z (B, K, *G, D)` that are `dt (B, K - 1)` apart, record its speeds, and
        return it; None for a task without one. Use what is returned: the operator's own may still be on `meta`."""
        if condition.task not in self.drift:
            return None
        params, patch = self._winds(condition), self._patch(condition.task)
        states = z if patch is None else torch.unflatten(cells_of(z.flatten(0, 1), patch), 0, tuple(z.shape[:2]))
        drift = Advection.fitted(params, dt, states, condition.grid.periodic).to(z.device)
        with torch.no_grad():
            drift.speeds.mul_(self._stretched(condition, z.device))
        measured = {name: value for name, value in drift.state_dict().items() if name != "embed"}  # that is learnt
        self.drift[condition.task].load_state_dict(measured, strict=False)
        return drift

    def increments(self, z: Tensor, condition: Condition, dt: Tensor, drift: Advection | None) -> Tensor:
        """Each frame of `z (B, K, *G, D)` but the first, minus the one before it: `(B, K - 1, *G, D)`. With a `drift`,
        the earlier frame is first shifted as far as the parameters carry it in `dt (B, K - 1)`."""
        if drift is None or not dt.shape[1]:
            return z.diff(dim=1)
        params = self._winds(condition)
        ways = torch.stack([drift.way(params, step) for step in dt.unbind(1)], 1)
        ways = ways / self._stretched(condition, z.device)
        return z[:, 1:] - _carried(z[:, :-1], ways, condition, self._patch(condition.task))

    def _winds(self, condition: Condition) -> Tensor:
        """The parameters `(B, P)` that carry the states of a batch."""
        names = self.conditioner.numbers[condition.task]
        return torch.stack([condition.params[:, names.index(name)] for name in self.carriers[condition.task]], 1)

    def pad_context(self, z: Tensor, condition: Condition) -> Tensor:
        """Exactly the K frames that the operator looks back on, of `z (B, K', *G, D)`: the last K of more.

        Of fewer, the first frame is repeated. Where parameters carry states, each copy is shifted back to where it was,
        by steps as long as the next one."""
        frames = self.looks_back(condition.task)
        missing = max(0, frames - z.shape[1])
        before = [z[:, :1]] * missing
        if missing and condition.task in self.drift and any(condition.grid.periodic):
            ways = self._way(condition, z.device).unsqueeze(1) * -_downwards(missing, z.device).unsqueeze(1)
            before = [_carried(torch.cat(before, 1), ways, condition, self._patch(condition.task))]
        return torch.cat((*before, z[:, -frames:]), 1)

    def _way(self, condition: Condition, device: torch.device) -> Tensor:
        """How far the states of a batch are carried in a step, `(B, 3)` in boxes."""
        drift = self.drift[condition.task]
        assert isinstance(drift, Advection)
        return drift.way(self._winds(condition), condition.dt) / self._stretched(condition, device)

    def _stretched(self, condition: Condition, device: torch.device) -> Tensor:
        """How much longer each axis of the box is than the task's own, `(3,)`: speeds are in boxes of that size."""
        own = self.conditioner.lengths[condition.task]
        return _stretch(condition.grid.lengths or own, own, device)

    def _patch(self, task: str) -> Patch | None:
        """How tokens hold the cells of a task; None where they hold less than those, or the codec is not known."""
        return self.codec[0].patch_of(task) if self.codec else None

    def forward(self, z: Tensor, condition: Condition) -> Tensor:
        """Tokens of the last frames `z (B, K, *G, D)`, as many as it looks back on of the task, to those of the next,
        `(B, *G, D)`."""
        task = condition.task
        if z.shape[1] != (frames := self.looks_back(task)):
            raise ConfigError(
                f"the operator was built for {counted(frames, 'frame')} of context of {task}, not {z.shape[1]}."
            )
        c = self.conditioner(condition)
        if condition.task in self.drift:
            drift = self.drift[condition.task]
            assert isinstance(drift, Advection)
            way = self._way(condition, z.device)
            tokens, patch = condition.grid.cells(z.shape[2:-1]), self._patch(condition.task)
            z = _carried(z, way.unsqueeze(1) * _downwards(z.shape[1], z.device).unsqueeze(1), condition, patch)
            c = c + drift.condition(way, tokens if patch is None else patch.cells(tokens))
        scale, features = self.scale[self.row(condition.task)], None
        last, alone = z[:, -1], condition.task in self.memoryless
        if by_sample := condition.task in self.scaled_by_sample:
            size, deviation = self.step_scale.measure(z, scale)
            c, scale = c + self.step_scale.condition(size), scale * size.reshape(-1, *(1,) * (z.ndim - 2))
            features = self.step_scale.features(deviation, size)
        if alone:
            past = (torch.zeros_like(last),) * (self.config.context - 1)
        else:
            past = (z.diff(dim=1) / (scale.unsqueeze(1) if by_sample else scale)).unbind(1)
        delta = self.network((last, *past), c, condition, features)
        return torch.addcmul(last, delta, scale)
