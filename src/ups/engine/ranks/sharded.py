"""Sharded: a module cut in pieces by FSDP2, with a vote before every collective, so that a failure can be mended."""

from __future__ import annotations

import functools
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor

from ups.engine.ranks import fsdp_internals
from ups.engine.ranks.control import Control
from ups.engine.ranks.gradient_norm import norm_of, pieces, square_sums
from ups.engine.ranks.gradient_order import fix_gradient_order
from ups.engine.ranks.weight_sync import digests
from ups.engine.units import units_of
from ups.types import ConfigError

CPU = torch.device("cpu")
PROBATION = 20  # steps that are voted on after the start or a recovery

Gate = Literal["always", "probation", "off"]
Gather = Literal["fp32", "bf16"]


class Sharded:
    """Each rank holds a piece of every parameter, of its gradient and of its moments.

    Blocks (`module.shard_units()`) are gathered as they are needed; the rest of the module is one more unit. Gradients
    are summed over ranks once per step and divided by their number: in float32 the same bits as an all-reduce of
    the sum. On a mesh of two axes the second one shards and the first holds replicas.

    All get the first rank's weights. It gives them tensor by tensor, letting go of each, and is the only one that ever
    holds the module whole; on the others it may be on `meta` from the start.

    With `gather` bf16 blocks are rounded before they are gathered, and their gradients are summed in float32; for
    autocast to bf16, which would round their matrices afterwards. Without gradients and outside of autocast, as in a
    validation, they are gathered as they are kept.

    With `gate` always, nothing is launched on any rank after one has failed, and `recover` makes the attempt
    undone. `probation` votes only in the first steps and after a recovery; where `gated` is false, a failure in the
    middle of a step can be met by a restart only.
    """

    def __init__(
        self,
        module: nn.Module,
        mesh: DeviceMesh,
        control: Control,
        *,
        offload: bool = False,
        gate: Gate = "always",
        gather: Gather = "fp32",
    ) -> None:
        self.module, self.mesh, self.control, self.policy = module, mesh, control, gate
        self.device = torch.device("cuda", torch.cuda.current_device()) if mesh.device_type == "cuda" else CPU
        self._left, self._starts, self._depth = PROBATION, True, 0
        self._uses = Counter[str]()  # of each part since `begin`, where a backward follows
        _check(module, mesh)
        whole: dict[str, Tensor] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        source = {name: tensor.detach() for name, tensor in whole.items()} if control.rank == 0 else {}
        module.to("meta")
        units = units_of(module)
        policy = CPUOffloadPolicy(pin_memory=self.device.type == "cuda") if offload else OffloadPolicy()
        rounded = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
        travel = rounded if gather == "bf16" else MixedPrecisionPolicy()
        for unit in units:
            fully_shard(unit, mesh=mesh, reshard_after_forward=True, mp_policy=travel, offload_policy=policy)
        fully_shard(module, mesh=mesh, reshard_after_forward=None, offload_policy=policy)
        fix_gradient_order(module, units)
        for entry in getattr(module, "entries", ()):
            register_fsdp_forward_method(module, entry)
            setattr(module, entry, self._run(getattr(module, entry)))
        module.register_forward_pre_hook(self._enter)
        module.register_forward_hook(self._leave, always_call=True)
        _materialise(module, CPU if offload else self.device, self.device)
        self.parts: dict[str, FSDPModule] = {
            name: part for name, part in module.named_modules() if isinstance(part, FSDPModule)
        }
        for name, part in self.parts.items():
            self._set_up(part, name)
        # It may move local tensors once more; then they stay where they are.
        fsdp_internals.state_of(module)._lazy_init()
        fsdp_internals.before_end_of_backward(module, self._end_backward)
        self._rounding = fsdp_internals.Rounding(module)
        self._everything = {n: p for n, p in module.named_parameters() if isinstance(p, DTensor)}
        self._trained = {n: p for n, p in self._everything.items() if p.requires_grad}
        self.parameters: dict[str, Tensor] = {n: p._local_tensor for n, p in self._trained.items()}
        self._fill(source)

    @property
    def gated(self) -> bool:
        """Whether a failure of one rank in this step is known to all before the next collective."""
        return self.policy == "always" or (self.policy == "probation" and self._left > 0)

    def begin(self, last: bool) -> None:
        """Prepare for a microbatch of a step: gradients stay on the rank until the backward of the `last` one."""
        if self._starts and self._left > 0:
            self._left -= 1
        self._starts = last
        self._uses.clear()
        root: Any = self.module
        root.set_requires_gradient_sync(last)
        root.set_is_last_backward(last)

    def pack(self) -> None:
        """Nothing: the gradients are where they belong."""

    def mark(self) -> int:
        """A digest of which parameters have a gradient."""
        return zlib.crc32(" ".join(n for n, p in self._trained.items() if p.grad is not None).encode())

    def reduce(self) -> None:
        """The mean over ranks is here already, reduced during backward; the pieces' `.grad` now hold it."""
        for name, p in self._trained.items():
            gradient = p.grad
            self.parameters[name].grad = gradient._local_tensor if isinstance(gradient, DTensor) else None
            p.grad = None

    def recover(self) -> None:
        """Undo an attempt: reshard every piece, and drop every part of a gradient."""
        self._left, self._starts, self._depth = PROBATION, True, 0
        self._uses.clear()
        fsdp_internals.undo(self.module, self.device)
        self._rounding.set(True)
        for name, p in self._trained.items():
            p.grad = self.parameters[name].grad = None

    def release(self) -> None:
        """Nothing: what FSDP2 has cut is not put together again. The module is of no use after its training; whoever
        wants its weights gathers them (`full`)."""

    def norm(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """The 2-norm of the whole gradient, from every rank's pieces `gradients`."""
        if not gradients:
            return torch.zeros((), device=self.device)
        home = next(iter(gradients.values())).device
        mine = square_sums(list(gradients.values()), 1)[0].to(self.device)
        group = self.mesh.get_group(self.mesh.ndim - 1)
        sums = [torch.empty_like(mine) for _ in range(group.size())]
        self._gate("the norm of the gradient")
        dist.all_gather(sums, mine, group=group)
        return norm_of(torch.stack(sums)).to(home)

    def whole(self, name: str, local: Tensor) -> Tensor:
        """`local`, shaped like this rank's piece of the parameter, as a DTensor of the parameter's shape."""
        p = self._everything[name]
        return DTensor.from_local(local, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride())

    def full(self, name: str, local: Tensor) -> Tensor:
        """The whole tensor of which every rank gives its piece; all ranks must ask."""
        p = self._everything[name]
        if self.control.world == 1:
            return local
        group = self.mesh.get_group(self.mesh.ndim - 1)
        rows = -(-len(p) // group.size())
        mine = torch.zeros(rows, *p.shape[1:], dtype=local.dtype, device=self.device)
        mine[: len(local)] = local
        pieces_of_all = [torch.empty_like(mine) for _ in range(group.size())]
        self._gate(f"gathering {name}")
        dist.all_gather(pieces_of_all, mine, group=group)
        return torch.cat(pieces_of_all)[: len(p)].to(local.device)

    def digests(self, tensors: Mapping[str, Tensor]) -> dict[str, str]:
        """Digests of this rank's pieces, if replicas hold them too; empty where every rank holds others."""
        if self.mesh.ndim == 1:
            return {}
        axis = self.mesh.ndim - 1
        piece = f"piece {self.mesh.get_local_rank(axis) + 1} of {self.mesh.size(axis)} of"
        return {f"{piece} {name}": value for name, value in digests(tensors).items()}

    @torch.no_grad()
    def _fill(self, source: dict[str, Tensor]) -> None:
        """The first rank's values, one tensor at a time, each let go of when all have their pieces."""
        for name, target in {**self._everything, **dict(self.module.named_buffers())}.items():
            if self.control.world == 1:
                self._put(target, source.pop(name))
                continue
            whole = torch.empty(target.shape, dtype=target.dtype, device=self.device)
            if source:
                whole.copy_(source.pop(name))
            self._gate(f"broadcast of {name} ({whole.numel()} numbers)")
            dist.broadcast(whole, 0)
            self._put(target, whole)
            del whole  # before the next is there

    def _put(self, target: Tensor, whole: Tensor) -> None:
        if isinstance(target, DTensor):
            axis = self.mesh.ndim - 1
            mine = pieces(whole, self.mesh.size(axis))[self.mesh.get_local_rank(axis)]
            target._local_tensor.copy_(mine)
        else:
            target.copy_(whole)

    def _set_up(self, part: FSDPModule, name: str) -> None:
        part.set_custom_all_gather(fsdp_internals.GatedAllGather(self._gate, name or "the rest"))
        part.set_custom_reduce_scatter(fsdp_internals.GatedReduceScatter(self._gate, name or "the rest"))
        # A sum divided once is what a replicated module computes, to the bit.
        part.set_force_sum_reduction_for_comms(True)
        if name and isinstance(part, nn.Module):
            used: Any = functools.partial(self._use, name)
            compiled = part._compiled_call_impl is not None
            part.register_forward_pre_hook(torch.compiler.disable(used) if compiled else used)  # type: ignore[no-untyped-call]

    def _use(self, name: str, *_: Any) -> None:
        """A part that runs more than once before backward is reduced at its end, when all of its gradient is there.

        Else what earlier microbatches left would be reduced apart from the rest: another rounding, and one more
        collective.
        """
        if torch.is_grad_enabled():
            self._uses[name] += 1
            if self._uses[name] == 2:
                self.parts[name].set_requires_gradient_sync(False, recurse=False)

    def _end_backward(self) -> None:
        for name, uses in self._uses.items():
            if uses > 1 and self._starts:  # the last microbatch: the next `begin` starts a step
                self.parts[name].set_requires_gradient_sync(True, recurse=False)
                fsdp_internals.reduce_at_end(self.parts[name])

    def _run(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """An entry of the module, noticed as its forward is."""

        @functools.wraps(method)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._enter()
            try:
                return method(*args, **kwargs)
            finally:
                self._leave()

        return run

    def _enter(self, *_: Any) -> None:
        if self._depth == 0 and not torch.is_grad_enabled():
            self._rounding.set(torch.is_autocast_enabled(self.device.type))
        self._depth += 1
        self._use("")

    def _leave(self, *_: Any) -> None:
        """Where no backward follows, nothing stays gathered: else a change of the pieces would not be seen."""
        self._depth -= 1
        if self._depth == 0 and not torch.is_grad_enabled():
            for part in self.parts.values():
                part.reshard()
            self._rounding.set(True)

    def _gate(self, op: str) -> None:
        if self.gated:
            self.control.gate(op)


def _check(module: nn.Module, mesh: DeviceMesh) -> None:
    """Refuse what cannot be sharded truthfully."""
    for name, p in module.named_parameters():
        if p.is_complex() or p.ndim == 0:
            kind = "complex" if p.is_complex() else "a single number"
            raise ConfigError(f"strategy fsdp cannot cut the parameter '{name}', which is {kind}; use strategy ddp.")
    if mesh.ndim > 2 or (mesh.ndim == 2 and mesh.size(1) == 1):
        raise ConfigError(f"a mesh of {tuple(mesh.shape)} ranks has nothing to shard over; use strategy ddp.")


def _materialise(module: nn.Module, home: torch.device, device: torch.device) -> None:
    """Give a module on `meta` memory: its pieces at `home`, its buffers on the `device` that computes."""
    module.to_empty(device=home)
    for part in module.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = buffer.to(device)
