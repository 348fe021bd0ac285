"""Brings values from points to the cells of a grid in their box and back, by weights made once for the points."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ups.clouds import Weights, from_grid, to_grid
from ups.tensors import table
from ups.types import Points

# How often what a grid misses of the values at its points is added to it.
CORRECTIONS = 1


class SparseMap(NamedTuple):
    """What a few of many values make each of others: `place` and `weight (M, k)`, and the same seen from the values:
    entry by entry the place that each goes to, its weight, and where the entries of each value begin."""

    place: Tensor
    weight: Tensor
    back_place: Tensor
    back_weight: Tensor
    back_starts: Tensor

    @classmethod
    def of(cls, weights: Weights, count: int, device: torch.device) -> SparseMap:
        """A map of `count` values."""
        entries = weights.place.ravel()
        order = np.argsort(entries, kind="stable")
        starts = np.searchsorted(entries[order], np.arange(count))
        arrays = (weights.place, weights.weight, order // weights.place.shape[1], weights.weight.ravel()[order], starts)
        return cls(*(torch.as_tensor(array, device=device) for array in arrays))

    def __call__(self, x: Tensor) -> Tensor:
        """`(count, F)` to `(M, F)`."""
        answer: Tensor = _Mixed.apply(x, self)  # type: ignore[no-untyped-call]
        return answer


class _Mixed(torch.autograd.Function):
    """A sparse map whose gradients are added up in one order, so that they have the same bits each time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mix: SparseMap) -> Tensor:
        ctx.mix = mix
        return torch.nn.functional.embedding_bag(mix.place, x, per_sample_weights=mix.weight, mode="sum")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        mix: SparseMap = ctx.mix
        back = torch.nn.functional.embedding_bag(
            mix.back_place, grad.contiguous(), mix.back_starts, per_sample_weights=mix.back_weight, mode="sum"
        )
        return back, None


@table
def _there(points: Points, shape: tuple[int, ...], device: torch.device) -> SparseMap:
    weights = to_grid(points.table, points.bounds, points.periodic, shape)
    return SparseMap.of(weights, points.shape[0], device)


@table
def _back(points: Points, shape: tuple[int, ...], device: torch.device) -> SparseMap:
    weights = from_grid(points.table, points.bounds, points.periodic, shape)
    return SparseMap.of(weights, int(np.prod(shape)), device)


def on_grid(x: Tensor, points: Points, shape: tuple[int, ...]) -> Tensor:
    """Values `(B, N, C)` at points as those of a grid of `shape` cells in their box, `(B, *shape, C)`."""
    there, back = _there(points, shape, x.device), _back(points, shape, x.device)
    values = x.float().transpose(0, 1).flatten(1)
    cells = there(values)
    for _ in range(CORRECTIONS):
        cells = cells + there(values - back(cells))
    return cells.reshape(*shape, len(x), -1).movedim(-2, 0)


def at_points(x: Tensor, points: Points) -> Tensor:
    """Values `(B, *S, C)` of a grid in the box of points, at these: `(B, N, C)`."""
    shape = tuple(x.shape[1:-1])
    cells = x.float().flatten(1, -2).transpose(0, 1).flatten(1)
    values = _back(points, shape, x.device)(cells)
    return values.reshape(len(values), len(x), -1).transpose(0, 1)
