"""Puts a module on ranks, in place: activation checkpointing → compile → replicated or sharded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor, nn

from ups.engine.ranks.dist import Dist
from ups.engine.ranks.replicated import Replicated
from ups.engine.train import TrainConfig
from ups.engine.units import Undo, compile_unit, recompute, units_of
from ups.types import ConfigError


class Parallel(Protocol):
    """A module on its ranks. `parameters` are the plain local tensors that the optimizer and the average move, by
    state-dict name: changing them in place changes what the next forward sees."""

    @property
    def parameters(self) -> Mapping[str, Tensor]: ...
    @property
    def gated(self) -> bool: ...  # whether a failing rank finds the others at a vote, and not inside a collective
    def begin(self, last: bool) -> None: ...  # before each microbatch of a step; after the last, gradients are reduced
    def pack(self) -> None: ...  # after the last microbatch, before the vote: all that can fail of the reduction
    def mark(self) -> int: ...  # a digest of what `reduce` will reduce: equal on all ranks, or they would mix it up
    def reduce(self) -> None: ...  # after a common yes: `.grad` of `parameters` is the mean over ranks
    def recover(self) -> None: ...  # after a common no: as if the attempt had not been
    def release(self) -> None: ...  # after training: a replicated module as it was before, its weights apart
    def norm(self, gradients: Mapping[str, Tensor]) -> Tensor: ...  # of the whole gradient, the same bits on all ranks
    def whole(self, name: str, local: Tensor) -> Tensor: ...  # a local tensor as part of the one all ranks hold
    def full(self, name: str, local: Tensor) -> Tensor: ...  # that one, gathered; all ranks must ask
    def digests(self, tensors: Mapping[str, Tensor]) -> dict[str, str]: ...  # of what other ranks should hold alike


def parallelize(module: nn.Module, config: TrainConfig, ranks: Dist) -> Parallel:
    """Put `module` on this rank's device and among the others, before any optimizer is made."""
    if ranks.config.strategy == "ddp":  # what is sharded may be on no device yet
        module.to(ranks.device)
    units, undo = units_of(module), list[Undo]()
    if config.activations == "recompute":
        if not units:
            raise ConfigError("train.activations is recompute, but the stage's module names no blocks; set it to keep.")
        undo += [recompute(unit) for unit in units]
    if config.compile:
        undo += [compile_unit(unit) for unit in units or [module]]
    if ranks.config.strategy == "ddp":
        return Replicated(module, ranks, undo)
    from ups.engine.ranks.sharded import Sharded  # FSDP2 is slow to import, and most runs need none of it

    assert ranks.mesh is not None
    if config.optimizer == "muon":
        raise ConfigError("optimizer muon needs whole matrices, and strategy fsdp cuts them; use adamw, or ddp.")
    c = ranks.config
    gather = c.gather if c.rounds(config.precision) else "fp32"
    return Sharded(module, ranks.mesh, ranks.control, offload=c.offload, gate=c.gate, gather=gather)
