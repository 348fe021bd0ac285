"""Codec: frames in physical units to a grid of tokens, and back at any grid or points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ups.models.config import CodecConfig
from ups.models.decoder import CellDecoder
from ups.models.encoders import GridEncoder, Statistics
from ups.models.grids import (
    Patch,
    beginning,
    check_finer,
    check_grid,
    cropped,
    in_patches,
    padded,
    resample,
    shift_of,
)
from ups.models.part import Blueprint, NamedAxis, Part
from ups.models.points import seen_from
from ups.models.scattered import at_points, on_grid
from ups.tensors import LatentState, TaskStatistics
from ups.types import ConfigError, Grid, Points, TaskSpec, counted

# Tokens that `encode_alike` makes at once, per kind of device; where none are named, as many as it is given.
PIECES = {"cuda": 16384}


class Codec(Part):
    """Encodes frames of known tasks and decodes them again, physical units in and out.

    `shapes` says how many cells each task is trained on (its own resolution where it is not named). Frames on another
    grid are resampled to it first, and decoded frames are resampled from it, so that the tokens always mean the same:
    what an operator learnt about neighbouring tokens holds at any resolution that is asked of it. A grid that the patch
    does not divide is padded to one that it does, and decoded frames are cropped.
    """

    Config: ClassVar[type] = CodecConfig
    # It has no `forward`: these are the methods through which it is run.
    entries: ClassVar[tuple[str, ...]] = ("encode", "moved", "decode")

    def __init__(
        self,
        config: CodecConfig,
        tasks: Sequence[TaskSpec],
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.tasks = {task.name: task for task in tasks}
        self.shapes = {t.name: tuple((shapes or {}).get(t.name, (t.resolution,) * t.ndim)) for t in tasks}
        self.corners: dict[str, tuple[float, ...]] = {}  # where those begin, as `Grid.corner` says, where it is known
        for task in tasks:
            if "." in task.name or hasattr(nn.ModuleDict, task.name):
                raise ConfigError(f"'{task.name}' cannot be the name of a task, for torch has a use for it; rename it.")
            if len(self.shapes[task.name]) != task.ndim:
                raise ConfigError(
                    f"{task.name} has {counted(task.ndim, 'axis')}, but its grid is {self.shapes[task.name]}."
                )
            check_grid(self.shapes[task.name], config.patch[task.ndim - 1], task.name)
        self.statistics = nn.ModuleDict({t.name: Statistics(len(t.channels)) for t in tasks})
        self.encoder = GridEncoder(tasks, config.dim, config.patch, config.halo, config.blocks)
        self.decoder = CellDecoder(tasks, config.dim, config.patch, config.blocks, config.width, config.heads)
        self.decoder.start_as_inverse_of(self.encoder, tasks)

    @classmethod
    def build(cls, config: Any, blueprint: Blueprint) -> Self:
        return cls(config, blueprint.tasks, blueprint.shapes)

    def learn_statistics(self, task: TaskSpec, statistics: TaskStatistics) -> None:
        self.fit_statistics(task, statistics.mean, statistics.std, statistics.least, statistics.most)

    def by_name(self, task: TaskSpec) -> dict[str, NamedAxis]:
        """What makes a token starts silent, what reads it as it is built: one must be there to learn from."""
        name, read = task.name, NamedAxis(0, task.channels)
        return {
            f"statistics.{name}.mean": read,
            f"statistics.{name}.std": read,
            f"statistics.{name}.least": read,
            f"statistics.{name}.most": read,
            f"encoder.enter.{name}.weight": NamedAxis(1, task.channels, silent=True),
            f"decoder.linear.{name}.weight": read,
            f"decoder.linear.{name}.bias": read,
            f"decoder.leave.{name}.weight": read,
        }

    def shard_units(self) -> list[nn.Module]:
        return [*self.encoder.blocks, *self.decoder.blocks]

    def task(self, task: TaskSpec | str) -> TaskSpec:
        """The task of that name as the codec knows it."""
        name = task.name if isinstance(task, TaskSpec) else task
        if name not in self.tasks:
            raise ConfigError(f"the simulator was not trained on '{name}'; it knows {', '.join(self.tasks)}.")
        return self.tasks[name]

    def statistics_of(self, task: TaskSpec | str) -> Statistics:
        statistics = self.statistics[self.task(task).name]
        assert isinstance(statistics, Statistics)
        return statistics

    def fit_statistics(
        self, task: TaskSpec | str, mean: Tensor, std: Tensor, least: Tensor | None = None, most: Tensor | None = None
    ) -> None:
        """Record mean, standard deviation and range `(C,)` of the training frames; see `Statistics`."""
        self.statistics_of(task).fit(mean, std, least, most)

    def patch_of(self, task: TaskSpec | str) -> Patch | None:
        """How tokens of a task hold the cells of their patches, blocks of mixing aside; None where they cannot."""
        spec = self.task(task)
        size, layer = self.config.patch[spec.ndim - 1], self.decoder.linear[spec.name]
        assert isinstance(layer, nn.Linear)
        if self.config.dim < layer.out_features:
            return None
        return Patch(layer.weight.detach(), self.encoder.core_of(spec).flatten(1), size)

    def tokens(self, task: TaskSpec | str) -> tuple[int, ...]:
        """The shape of the token grid of a task."""
        spec = self.task(task)
        return in_patches(self.shapes[spec.name], self.config.patch[spec.ndim - 1])

    def encode(self, frames: Tensor, task: TaskSpec | str, grid: Grid) -> LatentState:
        """Frames `(B, *S, C)` on any grid of the task's box to tokens `(B, *G, D)`."""
        spec = self.task(task)
        if frames.ndim != len(grid.shape) + 2 or frames.shape[-1] != len(spec.channels):
            wanted = f"{counted(spec.ndim, 'axis')} and the channels {', '.join(spec.channels)}"
            raise ConfigError(f"{spec.name} has {wanted}; frames of shape {tuple(frames.shape)} do not fit (B, *S, C).")
        x = self._on_own_grid(self.statistics_of(spec)(frames), spec, grid)
        return LatentState(self.encoder(x, spec, grid), grid._replace(corner=self.beginning(spec, grid)))

    def beginning(self, task: TaskSpec, grid: Grid) -> tuple[float, ...]:
        """Where a grid begins beside the task's own, as `grids.beginning` says."""
        return beginning(self.corners.get(task.name, ()), self.shapes[task.name], grid)

    def _on_own_grid(self, x: Tensor, task: TaskSpec, grid: Grid) -> Tensor:
        own = self.shapes[task.name]
        check_finer(math.prod(own), math.prod(grid.shape), task.name)
        if isinstance(grid, Points):
            return padded(on_grid(x, grid, own), self.config.patch[task.ndim - 1], grid.periodic)
        shift = shift_of(self.corners.get(task.name), own, grid)
        return padded(resample(x, own, grid.periodic, shift), self.config.patch[task.ndim - 1], grid.periodic)

    def brought_to(self, frames: Tensor, task: TaskSpec, state: LatentState, cells: tuple[int, ...]) -> Tensor:
        """Frames on the task's grid, on one of `cells` that begins where that of `state` did, or at its points."""
        if isinstance(state.grid, Points):
            return at_points(frames, state.grid)
        shift = shift_of(self.corners.get(task.name), self.shapes[task.name], state.grid._replace(shape=cells))
        return resample(frames, cells, state.grid.periodic, tuple(-later for later in shift))

    def moved(self, z: Tensor, change: Tensor, task: TaskSpec | str, grid: Grid) -> Tensor:
        """Tokens `(B, *G, D)` whose frames, on any grid, were changed by `change (B, *S, C)`; as they are where that is
        nothing. Cheaper than the difference of two encodings, and as good (docs/laws.md)."""
        spec = self.task(task)
        x = self._on_own_grid(change.float() / self.statistics_of(spec).scale, spec, grid)
        return z + self.encoder.change(x, spec, grid.periodic)

    def encode_alike(self, frames: Tensor, task: TaskSpec | str, grid: Grid) -> Tensor:
        """Tokens `(B, *G, D)` of frames, each with the same bits in whatever company it is encoded.

        A GPU chooses its kernels by the size of what it is given, and they round differently: it is given pieces of one
        size. On a CPU frames do not change each other's bits.
        """
        rows = PIECES.get(frames.device.type)
        if rows is None:
            return self.encode(frames, task, grid).z
        size = max(1, rows // math.prod(self.tokens(task)))
        tokens = []
        for piece in torch.split(frames, size):
            whole = torch.cat((piece, piece.new_zeros(size - len(piece), *piece.shape[1:])))
            tokens.append(self.encode(whole, task, grid).z[: len(piece)])
        return torch.cat(tokens)

    def decode(self, state: LatentState, task: TaskSpec | str, shape: tuple[int, ...] | None = None) -> Tensor:
        """The frames `(B, *S, C)` that tokens stand for, on the task's grid or on one of `shape`, resampled from it:
        exact for all that the task's grid resolves."""
        spec = self.task(task)
        x, statistics = self._frames(state, spec), self.statistics_of(spec)
        x = x if shape is None else self.brought_to(x, spec, state, shape)
        return x * statistics.std + statistics.mean

    def places(self, points: Tensor, task: TaskSpec, state: LatentState) -> Tensor:
        """Points `(…, n)` in units of the task's box as seen from where the decoded frame of tokens begins: between
        walls with the task's grid, along axes that wrap with the frames that were encoded, not moved there."""
        own = self.corners.get(task.name)
        if own is None:
            return points
        both = zip(own, state.grid.corner or own, state.grid.periodic, strict=True)
        return seen_from(tuple(there if wraps else here for here, there, wraps in both), points)

    def _frames(self, state: LatentState, task: TaskSpec) -> Tensor:
        """The normalised frames that tokens stand for, on the task's grid."""
        grid = state.grid.cells(state.z.shape[1:-1])
        x = self.decoder.grid(state.z, task, grid, (self.config.patch[task.ndim - 1],) * task.ndim)
        return cropped(x.float(), self.shapes[task.name], state.grid.periodic)
