"""Replicated: every rank holds the whole module; one all-reduce of all gradients after a common yes."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ups.engine.optim import trained
from ups.engine.ranks.dist import Dist
from ups.engine.ranks.gradient_norm import norm_of, square_sums
from ups.engine.ranks.gradient_order import fix_gradient_order
from ups.engine.ranks.weight_sync import as_real, digests
from ups.engine.units import Undo, units_of


@dataclass(frozen=True, eq=False)
class Packed:
    """The gradients of a step. `gradients` is what `.grad` of each parameter will be once they are reduced, None where
    the step's loss did not touch it; `mark` is a digest of which it touched. Of several ranks all lie in `used`, a part
    of one buffer, as the real tensors `views`."""

    mark: int
    gradients: Sequence[Tensor | None]
    used: Tensor | None = None
    views: tuple[Tensor, ...] = ()


class Replicated:
    """Every rank holds the module. Backward runs without any collective; `pack` then copies all gradients into one
    buffer that exists from the start, and after the vote `reduce` adds it up over ranks, so that nothing can fail
    between the vote and the reduction but the network.

    A local failure of any kind thus never meets a peer inside a collective. Compared with reducing during backward
    only the overlap is given up.

    A graph that computes the gradients and packs them changes memory alone: whoever replays it sets `packed` to what
    `pack` had made of it when it was captured.
    """

    gated = True

    def __init__(self, module: nn.Module, ranks: Dist, undo: Iterable[Undo] = ()) -> None:
        self.ranks = ranks
        self._undo = [*undo]  # what `release` takes back, last first
        self.parameters = trained(module)
        self.spent: list[Tensor] = []
        self.packed: Packed | None = None  # of the step under way
        self._shown: Packed | None = None  # what `.grad` of the parameters holds
        if ranks.world == 1:
            return
        first = next(iter(self.parameters.values()))
        numbers = sum(as_real(p).numel() for p in self.parameters.values())
        self.flat = torch.zeros(numbers, dtype=torch.float32, device=first.device)
        self._layouts: dict[int, Packed] = {}
        self._undo += fix_gradient_order(module, units_of(module))
        with torch.no_grad():
            for tensor in module.state_dict().values():  # the same seed made them; one source makes it certain
                if isinstance(tensor, Tensor):
                    dist.broadcast(as_real(tensor), 0, group=ranks.group)

    def begin(self, last: bool) -> None:  # noqa: ARG002
        """No collective runs before `reduce`; what the last step left can go now."""
        self.spent.clear()
        self.packed = self._shown = None

    @torch.no_grad()
    def pack(self) -> None:
        """Nothing here waits for the device or for a peer: a graph can hold it."""
        gradients = [p.grad for p in self.parameters.values()]
        if self.ranks.world == 1:
            self.packed = self._shown = Packed(0, gradients)
            return
        touched = " ".join(name for name, p in self.parameters.items() if p.grad is not None)
        mark = zlib.crc32(touched.encode())
        if mark not in self._layouts:
            self._layouts[mark] = self._layout(mark)
        self.packed = self._layouts[mark]
        own = [as_real(g) for g in gradients if g is not None]
        torch._foreach_copy_(list(self.packed.views), own)
        if not self.flat.is_cuda:
            # Let go of now, the host's memory would go back to the system, and each page be asked for anew.
            self.spent = own

    def mark(self) -> int:
        return 0 if self.packed is None else self.packed.mark

    @torch.no_grad()
    def reduce(self) -> None:
        if self.packed is not None and self.packed.used is not None:
            with self.ranks.control.wait("the sum of the gradients"):
                dist.all_reduce(self.packed.used, group=self.ranks.group)
            self.packed.used.div_(self.ranks.world)
        self.show()

    def show(self) -> None:
        """`.grad` of the parameters becomes what is packed, where it is not that already."""
        if self.packed is not None and self.packed is not self._shown:
            for p, gradient in zip(self.parameters.values(), self.packed.gradients, strict=True):
                p.grad = gradient
            self._shown = self.packed

    def _layout(self, mark: int) -> Packed:
        """Where the gradients lie in the buffer: those that there are, one after the other."""
        views: list[Tensor] = []
        gradients: list[Tensor | None] = []
        at = 0
        for p in self.parameters.values():
            if p.grad is None:
                gradients.append(None)
                continue
            real = as_real(p)
            views.append(self.flat[at : at + real.numel()].view(real.shape))
            gradients.append(torch.view_as_complex(views[-1]) if p.is_complex() else views[-1])
            at += real.numel()
        return Packed(mark, gradients, self.flat[:at], tuple(views))

    def recover(self) -> None:
        self.spent.clear()
        self.packed = self._shown = None
        for p in self.parameters.values():
            p.grad = None

    def release(self) -> None:
        """Take back every change to the module but that of its weights."""
        self.recover()
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
