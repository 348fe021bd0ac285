"""How a module lives on ranks: activation checkpointing → compile → replicated or sharded, in place, in this order."""

from __future__ import annotations

import functools
import hashlib
import zlib
from collections.abc import Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ups.engine.dist import Dist
from ups.engine.norms import norm_of, square_sums
from ups.engine.optim import total_norm, trained
from ups.engine.seams import add_seams
from ups.engine.train import TrainConfig
from ups.types import ConfigError


class Parallel(Protocol):
    """A module on its ranks. `parameters` are the plain local tensors that the optimizer and the average move, by
    state-dict name: changing them in place changes what the next forward sees."""

    @property
    def parameters(self) -> Mapping[str, Tensor]: ...
    @property
    def gated(self) -> bool: ...  # whether a failing rank finds the others at a vote, and not inside a collective
    def begin(self, last: bool) -> None: ...  # before each microbatch of a step; after the last, gradients are reduced
    def mark(self) -> int: ...  # a digest of what `collect` will reduce: equal on all ranks, or they would mix it up
    def collect(self) -> None: ...  # after a common yes: `.grad` of `parameters` is the mean over ranks
    def recover(self) -> None: ...  # after a common no: as if the attempt had not been
    def norm(self, gradients: Mapping[str, Tensor]) -> Tensor: ...  # of the whole gradient, the same bits on all ranks
    def whole(self, name: str, local: Tensor) -> Tensor: ...  # a local tensor as part of the one all ranks hold
    def full(self, name: str, local: Tensor) -> Tensor: ...  # that one, gathered; all ranks must ask
    def digests(self) -> dict[str, str]: ...  # of each parameter that every rank should hold alike


def parallelize(module: nn.Module, config: TrainConfig, ranks: Dist) -> Parallel:
    """Put `module` on this rank's device and among the others, before any optimizer is made."""
    if ranks.config.strategy == "ddp":  # what is sharded may be on no device yet
        module.to(ranks.device)
    units = units_of(module)
    if config.activations == "recompute":
        if not units:
            raise ConfigError("train.activations is recompute, but the stage's module names no blocks; set it to keep.")
        for unit in units:
            _recomputed(unit)
    if config.compile:
        for unit in units or [module]:
            unit.compile()
    if ranks.config.strategy == "fsdp":
        from ups.engine.sharded import Sharded  # FSDP2 is slow to import, and most runs need none of it

        assert ranks.mesh is not None
        if config.optimizer == "muon":
            raise ConfigError("optimizer muon needs whole matrices, and strategy fsdp cuts them; use adamw, or ddp.")
        return Sharded(
            module,
            ranks.mesh,
            ranks.control,
            offload=ranks.config.offload,
            gate=ranks.config.gate,
        )
    return Replicated(module, ranks)


def units_of(module: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a module that names them."""
    named: Any = getattr(module, "shard_units", list)
    return list(named())


def _recomputed(unit: nn.Module) -> None:
    """Forget a block's activations after its forward and compute them again in its backward; no name changes."""
    unit.forward = functools.partial(checkpoint, unit.forward, use_reentrant=False)


class Replicated:
    """Every rank holds the module. Backward runs without any collective; `collect` then reduces all gradients in one
    buffer that exists from the start, so that nothing can fail between the vote and the reduction but the network.

    A local failure of any kind thus never meets a peer inside a collective. Compared with reducing during backward
    only the overlap is given up.
    """

    gated = True

    def __init__(self, module: nn.Module, ranks: Dist) -> None:
        self.ranks = ranks
        self.parameters = trained(module)
        self.spent: list[Tensor] = []
        if ranks.world == 1:
            return
        first = next(iter(self.parameters.values()))
        numbers = sum(_real(p).numel() for p in self.parameters.values())
        self.flat = torch.zeros(numbers, dtype=torch.float32, device=first.device)
        self.views: dict[int, list[Tensor]] = {}
        add_seams(module, units_of(module))
        with torch.no_grad():
            for tensor in module.state_dict().values():  # the same seed made them; one source makes it certain
                if isinstance(tensor, Tensor):
                    dist.broadcast(_real(tensor), 0, group=ranks.group)

    def begin(self, last: bool) -> None:  # noqa: ARG002
        """No collective runs before `collect`; what the last step left can go now."""
        self.spent.clear()

    def mark(self) -> int:
        if self.ranks.world == 1:
            return 0
        names = " ".join(name for name, p in self.parameters.items() if p.grad is not None)
        return zlib.crc32(names.encode())

    @torch.no_grad()
    def collect(self) -> None:
        if self.ranks.world == 1:
            return
        touched = [p for p in self.parameters.values() if p.grad is not None]
        mark = self.mark()
        if mark not in self.views:
            self.views[mark] = self._views(touched)
        views = self.views[mark]
        gradients = [_real(p.grad) for p in touched if p.grad is not None]
        torch._foreach_copy_(views, gradients)
        if not self.flat.is_cuda:
            # Let go of now, the host's memory would go back to the system, and each page be asked for anew.
            self.spent = gradients
        used = self.flat[: sum(view.numel() for view in views)]
        with self.ranks.control.wait("the sum of the gradients"):
            dist.all_reduce(used, group=self.ranks.group)
        used.div_(self.ranks.world)
        for p, view in zip(touched, views, strict=True):
            p.grad = torch.view_as_complex(view) if p.is_complex() else view

    def _views(self, touched: list[Tensor]) -> list[Tensor]:
        views, at = [], 0
        for p in touched:
            real = _real(p)
            views.append(self.flat[at : at + real.numel()].view(real.shape))
            at += real.numel()
        return views

    def recover(self) -> None:
        for p in self.parameters.values():
            p.grad = None

    def norm(self, gradients: Mapping[str, Tensor]) -> Tensor:
        if self.ranks.world == 1:
            return total_norm(list(gradients.values()))
        return norm_of(square_sums([_real(g) for g in gradients.values()], self.ranks.world))

    def whole(self, name: str, local: Tensor) -> Tensor:  # noqa: ARG002
        return local

    def full(self, name: str, local: Tensor) -> Tensor:  # noqa: ARG002
        return local

    def digests(self) -> dict[str, str]:
        if self.ranks.world == 1:
            return {}
        return {name: digest(p) for name, p in self.parameters.items()}


def digest(tensor: Tensor) -> str:
    """A short hash of a tensor's bytes."""
    data: Any = _real(tensor.detach()).cpu().contiguous().numpy()
    return hashlib.blake2b(data.tobytes(), digest_size=8).hexdigest()


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
