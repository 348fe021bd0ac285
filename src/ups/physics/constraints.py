"""The laws a field must obey, each once: `residual` measures it, `project` repairs it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ups.later import Tensor, torch
from ups.types import Domain


class Law(Protocol):
    """A law over frames `(B, T, *S, C)`; where a `mask (B, *S)` is given, over the cells in which it is true."""

    @property
    def name(self) -> str:
        """What is kept, in a word or two."""

    @property
    def says(self) -> str:
        """The law as a sentence without its full stop."""

    def residual(self, u: Tensor, domain: Domain, mask: Tensor | None = None) -> Tensor:
        """How much each sample breaks the law, `(B,)`; 0 when it holds, relative to the size of what it measures."""

    def project(self, u: Tensor, reference: Tensor, domain: Domain, mask: Tensor | None = None) -> Tensor:
        """The nearest frames that obey the law, given a `reference` state `(B, *S, C)` that does."""


def mean_over(values: Tensor, space: tuple[int, ...], mask: Tensor | None, keepdim: bool = False) -> Tensor:
    """The mean over the axes `space`, of the cells in which `mask` is true; it broadcasts against `values`."""
    if mask is None:
        return values.mean(space, keepdim=keepdim)
    count = mask.sum(space, keepdim=keepdim).clamp_min(1)
    return torch.where(mask, values, torch.zeros_like(values)).sum(space, keepdim=keepdim) / count


@dataclass(frozen=True)
class Conserved:
    """The integral of a density over the box stays what it was in the first frame.

    `density` maps `(..., C)` to `(...)`; `scale`, likewise, to what the drift is measured against (|density| if none).
    `channel` is the channel that `project` shifts by a constant to restore the integral; it must enter the density
    linearly (mass and scalar conservation; −1 where no single channel does, and `project` then changes nothing).
    """

    name: str
    density: Callable[[Tensor], Tensor]
    channel: int = -1
    scale: Callable[[Tensor], Tensor] | None = None

    @property
    def says(self) -> str:
        return f"{self.name} is conserved"

    def residual(self, u: Tensor, domain: Domain, mask: Tensor | None = None) -> Tensor:
        total = self._mean(self.density(u.double()), domain, mask)
        return (total - total[:, :1]).abs().amax(1) / self._size(u, domain, mask)

    def _mean(self, density: Tensor, domain: Domain, mask: Tensor | None) -> Tensor:
        """The mean over space of a density `(B, T, *S)`, `(B, T)`."""
        return mean_over(density, tuple(range(2, 2 + domain.ndim)), None if mask is None else mask.unsqueeze(1))

    def _size(self, u: Tensor, domain: Domain, mask: Tensor | None = None) -> Tensor:
        measured = self.scale(u.double()) if self.scale else self.density(u.double()).abs()
        return self._mean(measured, domain, mask).amax(1).clamp_min(torch.finfo(torch.float64).tiny)

    def sampling_error(self, u: Tensor, domain: Domain, mask: Tensor | None = None) -> Tensor:
        """How much of the drift the grid may explain, `(B,)`: point values of a field that the grid does not resolve
        do not sum to its integral. Estimated from the two grids of every other cell."""
        q = self.density(u.double())
        n = q.shape[2] // 2 * 2
        halves = [(q[:, :, i:n:2], None if mask is None else mask[:, i:n:2]) for i in (0, 1)]
        even, odd = (self._mean(half, domain, cells) for half, cells in halves)
        return (even - odd).abs().amax(1) / self._size(u, domain, mask)

    def project(self, u: Tensor, reference: Tensor, domain: Domain, mask: Tensor | None = None) -> Tensor:
        if self.channel < 0:
            return u
        space = tuple(range(-domain.ndim - 1, -1))
        channel = slice(self.channel, self.channel + 1)
        fixed = u.clone()
        cells = None if mask is None else mask.unsqueeze(-1)
        want = mean_over(reference[..., channel], space, cells, keepdim=True).unsqueeze(1)
        cells = None if cells is None else cells.unsqueeze(1)
        fixed[..., channel] += want - mean_over(u[..., channel], space, cells, keepdim=True)
        return fixed


@dataclass(frozen=True)
class Within:
    """A channel never leaves the interval from `low` to `high`; an infinite end is no bound."""

    name: str
    channel: int
    low: float = -math.inf
    high: float = math.inf

    @property
    def says(self) -> str:
        if math.isinf(self.high):
            return f"{self.name} is never below {self.low:g}"
        if math.isinf(self.low):
            return f"{self.name} is never above {self.high:g}"
        return f"{self.name} stays between {self.low:g} and {self.high:g}"

    def residual(self, u: Tensor, domain: Domain, mask: Tensor | None = None) -> Tensor:  # noqa: ARG002
        q = u[..., self.channel].flatten(1)
        if mask is not None:  # in a cell that does not count stands a value that breaks no bound of the others
            cells = mask.unsqueeze(1).expand(u.shape[:-1]).flatten(1)
            q = torch.where(cells, q, q.masked_fill(~cells, -math.inf).amax(1, keepdim=True))
        excess = torch.maximum(self.low - q.amin(1), q.amax(1) - self.high).clamp_min(0)
        return excess / q.abs().amax(1).clamp_min(torch.finfo(q.dtype).tiny)

    def project(self, u: Tensor, reference: Tensor, domain: Domain, mask: Tensor | None = None) -> Tensor:  # noqa: ARG002
        fixed = u.clone()
        fixed[..., self.channel] = u[..., self.channel].clamp(self.low, self.high)
        return fixed


@dataclass(frozen=True)
class Positive(Within):
    """A channel never falls below `low`, which is 0 unless given."""

    low: float = 0.0


@dataclass(frozen=True)
class DivergenceFree:
    """A velocity, one channel per axis of a periodic box, has no divergence. It is measured by Fourier modes, so that
    `laws_of` claims it of no box with a mask or a wall."""

    name: str
    channels: tuple[int, ...]

    @property
    def says(self) -> str:
        return f"{self.name} has no divergence"

    def _spectra(self, u: Tensor, domain: Domain) -> tuple[tuple[Tensor, ...], list[Tensor], Tensor, Tensor]:
        """Wavenumbers, spectra of the components, of the divergence (over i), and the squares of the wavenumbers."""
        from ups.physics.spectral import wavenumbers

        ks = wavenumbers(domain, u.device, torch.float64)
        hats = [torch.fft.fftn(u[..., c].double(), dim=tuple(range(-domain.ndim, 0))) for c in self.channels]
        divergence = sum((k * hat for k, hat in zip(ks, hats, strict=True)), torch.zeros_like(hats[0]))
        return ks, hats, divergence, sum((k**2 for k in ks), torch.zeros_like(ks[0]))

    def residual(self, u: Tensor, domain: Domain, mask: Tensor | None = None) -> Tensor:
        assert mask is None, "the divergence of a masked field is not measured"
        _, hats, divergence, square = self._spectra(u, domain)
        size = square * sum((hat.abs() ** 2 for hat in hats), torch.zeros_like(hats[0].real))
        tiny = torch.finfo(torch.float64).tiny
        return (divergence.abs().pow(2).flatten(1).sum(1) / size.flatten(1).sum(1).clamp_min(tiny)).sqrt()

    def project(self, u: Tensor, reference: Tensor, domain: Domain, mask: Tensor | None = None) -> Tensor:  # noqa: ARG002
        assert mask is None, "the divergence of a masked field is not repaired"
        ks, hats, divergence, square = self._spectra(u, domain)
        along = divergence / square.masked_fill(square == 0, 1.0)
        fixed = u.clone()
        for c, k, hat in zip(self.channels, ks, hats, strict=True):
            fixed[..., c] = torch.fft.ifftn(hat - k * along, dim=tuple(range(-domain.ndim, 0))).real.to(u.dtype)
        return fixed
