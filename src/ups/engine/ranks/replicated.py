"""Replicated: every rank holds the whole module; one all-reduce of all gradients after a common yes."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ups.engine.optim import trained
from ups.engine.ranks.dist import Dist
from ups.engine.ranks.drift import as_real, digests
from ups.engine.ranks.gradient_norm import norm_of, square_sums
from ups.engine.ranks.gradient_order import fix_gradient_order
from ups.engine.units import Undo, units_of


class Replicated:
    """Every rank holds the module. Backward runs without any collective; `collect` then reduces all gradients in one
    buffer that exists from the start, so that nothing can fail between the vote and the reduction but the network.

    A local failure of any kind thus never meets a peer inside a collective. Compared with reducing during backward
    only the overlap is given up.
    """

    gated = True

    def __init__(self, module: nn.Module, ranks: Dist, undo: Iterable[Undo] = ()) -> None:
        self.ranks = ranks
        self._undo = [*undo]  # what `release` takes back, last first
        self.parameters = trained(module)
        self.spent: list[Tensor] = []
        if ranks.world == 1:
            return
        first = next(iter(self.parameters.values()))
        numbers = sum(as_real(p).numel() for p in self.parameters.values())
        self.flat = torch.zeros(numbers, dtype=torch.float32, device=first.device)
        self.views: dict[int, list[Tensor]] = {}
        self._undo += fix_gradient_order(module, units_of(module))
        with torch.no_grad():
            for tensor in module.state_dict().values():  # the same seed made them; one source makes it certain
                if isinstance(tensor, Tensor):
                    dist.broadcast(as_real(tensor), 0, group=ranks.group)

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
        gradients = [as_real(p.grad) for p in touched if p.grad is not None]
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
            real = as_real(p)
            views.append(self.flat[at : at + real.numel()].view(real.shape))
            at += real.numel()
        return views

    def recover(self) -> None:
        for p in self.parameters.values():
            p.grad = None

    def release(self) -> None:
        """Take back every change to the module but that of its weights."""
        self.recover()
        self.spent.clear()
        while self._undo:
            self._undo.pop()()

    def norm(self, gradients: Mapping[str, Tensor]) -> Tensor:
        if self.ranks.world == 1:
            return torch.nn.utils.get_total_norm(list(gradients.values()), foreach=True)
        return norm_of(square_sums([as_real(g) for g in gradients.values()], self.ranks.world))

    def whole(self, name: str, local: Tensor) -> Tensor:  # noqa: ARG002
        return local

    def full(self, name: str, local: Tensor) -> Tensor:  # noqa: ARG002
        return local

    def digests(self, tensors: Mapping[str, Tensor]) -> dict[str, str]:
        return digests(tensors)
