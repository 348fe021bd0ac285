"""What every model here is made of: norms, modulation, MLP, local and Fourier mixing along the axes."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ups.models.grids import pad_axis
from ups.models.kernels import cpu_ops, gpu_block_ops, gpu_ops
from ups.models.kernels.gpu_ops import usable
from ups.tensors import table
from ups.types import Grid

Waves = tuple[Tensor, Tensor]
AXES = 3
EPS = 1e-6  # of a mean square
Affine = tuple[Tensor, Tensor]  # weight and bias of a linear layer


def drawn(*shape: int, over: float, around: float = 0.0) -> Tensor:
    """Normal numbers of deviation 1 / `over`, `around` a number; on the device `meta` their shape alone.

    There torch works out each operation in Python, for which it first imports its compiler: seconds at every load.
    """
    numbers = torch.empty(shape)
    return numbers if numbers.is_meta else torch.randn(shape) / over + around


def draw_small(weight: Tensor) -> None:
    """Fill a weight with normal numbers of deviation 0.02; see `drawn` of the device `meta`."""
    if not weight.is_meta:
        nn.init.normal_(weight, std=0.02)


def widened(weight: Tensor) -> Tensor:
    """A weight that was gathered as bf16 in float32, any other as it is."""
    return weight.float() if weight.dtype == torch.bfloat16 else weight


def rms_norm(x: Tensor) -> Tensor:
    """x / rms(x) of each token (the last axis), in float32 whatever the precision around it."""
    return functional.rms_norm(x.float(), x.shape[-1:], eps=EPS).to(x.dtype)


def modulated(x: Tensor, over: str, scale: Tensor, shift: Tensor) -> Tensor:
    """x / rms(x) · (1 + scale) + shift.

    The rms is that of each `token`, or of the whole `field` of a sample, which keeps how large one token is beside
    another. Of a field it is one number: a factor of the scale, so that the field is gone through once.
    """
    return modulated_beside(x, over, scale, shift)[0]


def modulated_beside(x: Tensor, over: str, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """`modulated`, and x as it goes on beside it: on a GPU the gradients of both then meet without a kernel more."""
    if over == "token":
        return torch.addcmul(shift, rms_norm(x), 1 + scale), x
    if usable(x):
        return gpu_ops.field_norm(x, scale, shift, EPS)
    factor = torch.rsqrt(x.float().square().mean(tuple(range(1, x.ndim)), keepdim=True) + EPS)
    return torch.addcmul(shift, x, (1 + scale) * factor), x


class TaskLinears(nn.ModuleDict):
    """A linear layer of each task's own; all begin as the same."""

    def __init__(self, layer: nn.Linear, tasks: Sequence[str]) -> None:
        with torch.random.fork_rng(devices=[]):  # all other layers begin as they would without
            super().__init__({task: nn.Linear(layer.in_features, layer.out_features) for task in tasks})
        for own in self.values():
            own.load_state_dict(layer.state_dict())


def affine(layer: nn.Linear | TaskLinears, task: str) -> Affine:
    """Weight and bias of a layer for a task."""
    mine = layer if isinstance(layer, nn.Linear) else layer[task]
    assert isinstance(mine, nn.Linear)
    return mine.weight, mine.bias


def gated(a: Tensor, b: Tensor, layer: Affine, h: Tensor) -> Tensor:
    """(a + b) · silu(layer(h))."""
    weight, bias = layer
    if not usable(h):
        return (a + b) * functional.silu(functional.linear(h, weight, bias))
    gate = functional.linear(h, weight)
    if a.dtype == b.dtype == gate.dtype:
        return gpu_block_ops.gated(a, b, gate, bias)
    return (a + b) * functional.silu(gate + bias.to(gate.dtype))


def residual(x: Tensor, gate: Tensor, layer: Affine, h: Tensor) -> Tensor:
    """x + gate · layer(h), with one gate per sample and channel."""
    weight, bias = layer
    if not usable(x):
        plain: Tensor = x + gate * functional.linear(h, weight, bias)
        return plain
    return _added(x, gate, functional.linear(h, weight), bias)


def _added(x: Tensor, gate: Tensor, branch: Tensor, bias: Tensor) -> Tensor:
    if x.dtype == torch.promote_types(x.dtype, branch.dtype):
        return gpu_block_ops.residual(x, gate, branch, bias)
    return x + gate * (branch + bias.to(branch.dtype))


def residual_modulated(
    x: Tensor, gate: Tensor, layer: Affine, h: Tensor, over: str, scale: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor]:
    """What `modulated_beside` gives of `residual`: on a GPU the norm of a field begins where the sum is made."""
    if over == "token" or not usable(x):
        return modulated_beside(residual(x, gate, layer, h), over, scale, shift)
    weight, bias = layer
    branch = functional.linear(h, weight)
    if x.dtype == torch.promote_types(x.dtype, branch.dtype):
        return gpu_block_ops.residual_norm(x, gate, branch, bias, scale, shift, EPS)
    return modulated_beside(_added(x, gate, branch, bias), over, scale, shift)


@table
def _octaves(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.pi / 2 * 2.0 ** torch.arange(count, device=device, dtype=dtype)


def fourier_features(x: Tensor, count: int) -> Tensor:
    """x, and sin and cos of π 2^k x / 2 for k < count, along a new last axis of 2 · count + 1."""
    angle = x.unsqueeze(-1) * _octaves(count, x.dtype, x.device)
    return torch.cat((x.unsqueeze(-1), angle.sin(), angle.cos()), -1)


class Mlp(nn.Module):
    """Linear, GELU, linear, with a hidden layer `ratio` times as wide."""

    def __init__(self, width: int, ratio: float = 2.0) -> None:
        super().__init__()
        hidden = int(width * ratio)
        self.enter = nn.Linear(width, hidden)
        self.leave = nn.Linear(hidden, width)

    def forward(self, h: Tensor, x: Tensor | None = None, gate: Tensor | None = None) -> Tensor:
        """The layers applied to `h`; x + gate · that where both are given."""
        if usable(h):
            weight, bias = self.enter.weight, self.enter.bias
            hidden = gpu_block_ops.activated(functional.linear(h, weight, bias.detach()), bias)
        else:
            hidden = cpu_ops.gelu(self.enter(h))
        if x is not None and gate is not None:
            return residual(x, gate, (self.leave.weight, self.leave.bias), hidden)
        y: Tensor = self.leave(hidden)
        return y


class AxisConv(nn.Module):
    """Depthwise convolution along each axis of `(B, *G, D)`, the results summed.

    One kernel serves every axis, so weights learnt in 1D work in 3D; a gain per axis and channel lets a channel look in
    one direction only. Padding wraps on periodic axes and repeats the last token at walls.
    """

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(drawn(width, kernel, over=kernel**0.5))
        self.gain = nn.Parameter(drawn(AXES, width, over=2, around=1))

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        return self.beside(x, grid)[0]

    def beside(self, x: Tensor, grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
        """The convolution, and x as it goes on twice beside it; see `modulated_beside`."""
        if usable(x):
            return gpu_ops.axis_conv(x, self.kernel, self.gain, grid)
        if x.is_cpu:
            return cpu_ops.axis_conv(x, self.kernel.t() * widened(self.gain[: grid.ndim]).unsqueeze(1), grid), x, x
        return self._by_library(x, grid), x, x

    def _by_library(self, x: Tensor, grid: Grid) -> Tensor:
        half = self.kernel.shape[1] // 2
        total = None
        for axis, wraps in enumerate(grid.periodic):
            n = grid.shape[axis]
            # A ring shorter than the kernel's arm would wrap more than once; the arm is cut to the ring.
            reach = min(half, n)
            padded = pad_axis(x, axis + 1, reach, reach, wraps)
            weight = (self.kernel * widened(self.gain[axis]).unsqueeze(1)).narrow(1, half - reach, 2 * reach + 1)
            flat = padded.reshape(math.prod(padded.shape[: axis + 1]), n + 2 * reach, -1, x.shape[-1])
            # Channels last in memory; a 2D convolution is what CPUs and GPUs have fast depthwise kernels for.
            out = functional.conv2d(
                flat.permute(0, 3, 1, 2), weight[:, None, :, None].to(flat.dtype), groups=x.shape[-1]
            )
            out = out.permute(0, 2, 3, 1).reshape(x.shape)
            total = out if total is None else total + out
        assert total is not None
        return total


@table
def _waves(shape: tuple[int, ...], periodic: tuple[bool, ...], modes: int, device: torch.device) -> list[Waves]:
    """The first `modes` waves of each axis, or as many as it has."""
    grid = Grid(shape, periodic)
    counts = (min(modes, n // 2 + 1 if wraps else n) for n, wraps in zip(grid.shape, grid.periodic, strict=True))
    return [_waves_of(*axis, device) for axis in zip(grid.shape, counts, grid.periodic, strict=True)]


def _waves_of(n: int, modes: int, periodic: bool, device: torch.device) -> Waves:
    """(analysis `(2M, n)`, synthesis `(n, 2M)`): the first M cosines and sines of an axis, and back.

    A bounded axis is seen as half of its mirror image: only cosines are analysed, while sines of the doubled box may be
    written, so that a derivative of a mirrored field has somewhere to go.
    """
    k = np.arange(modes)[:, None]
    phase = (2 if periodic else 1) * np.pi * k * (np.arange(n)[None] + 0.5) / n
    alone = (k == 0) | ((2 * k == n) if periodic else (k == n))
    weight = np.where(alone, 1.0, 2.0) / n
    sines = np.sin(phase) if periodic else np.zeros_like(phase)
    analysis = np.concatenate((np.cos(phase), sines)) * np.concatenate((weight, weight))
    synthesis = np.concatenate((np.cos(phase), np.sin(phase))).T
    return tuple(torch.as_tensor(m, dtype=torch.float32, device=device) for m in (analysis, synthesis))  # type: ignore[return-value]


class FourierMixing(nn.Module):
    """Along each axis, the first `modes` waves are mixed between the channels of a head by a complex matrix per wave.

    Cost is linear in tokens: modes are read and written by matrix products with a fixed number of waves. Runs in
    float32. Equivariant under shifts of a periodic axis; on a bounded one the field is mirrored at the walls.
    """

    def __init__(self, width: int, heads: int, modes: int) -> None:
        super().__init__()
        size = width // heads
        self.heads, self.modes = heads, modes
        self.real = nn.Parameter(drawn(modes, heads, size, size, over=size**0.5))
        self.imaginary = nn.Parameter(drawn(modes, heads, size, size, over=size**0.5))
        self.gain = nn.Parameter(drawn(AXES, width, over=2, around=1))

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            y, waves = x.float(), _waves(grid.shape, grid.periodic, self.modes, x.device)
            if usable(y):
                along = (self._fused(y, axis, waves[axis]) for axis in range(grid.ndim))
            elif x.is_cpu:
                along = (self._on_cpu(y, axis, waves[axis], grid.periodic[axis]) for axis in range(grid.ndim))
            else:
                along = (self._along(y, axis, waves[axis]) for axis in range(grid.ndim))
            return functools.reduce(torch.add, along).to(x.dtype)

    def _matrices(self, axis: int, modes: int) -> tuple[Tensor, Tensor]:
        """Real and imaginary parts along an axis, the gain of what they answer in them."""
        gain = torch.unflatten(widened(self.gain[axis]), 0, (self.heads, 1, -1))
        return self.real[:modes] * gain, self.imaginary[:modes] * gain

    def _on_cpu(self, x: Tensor, axis: int, waves: Waves, wraps: bool) -> Tensor:
        return cpu_ops.mix_waves(x, axis, waves, self._matrices(axis, len(waves[0]) // 2), sines=wraps)

    def _fused(self, x: Tensor, axis: int, between: Waves) -> Tensor:
        analysis, synthesis = between
        modes = len(analysis) // 2
        flat = x.reshape(math.prod(x.shape[: axis + 1]), len(synthesis), -1)
        waves = torch.matmul(analysis, flat).reshape(len(flat), 2, modes, -1, self.heads, self.real.shape[2])
        mixed = gpu_block_ops.mixed(waves, self.real, self.imaginary, self.gain, axis)
        return torch.matmul(synthesis, mixed.reshape(len(flat), 2 * modes, -1)).reshape(x.shape)

    def _along(self, x: Tensor, axis: int, between: Waves) -> Tensor:
        analysis, synthesis = between
        modes = len(analysis) // 2
        flat = x.reshape(math.prod(x.shape[: axis + 1]), len(synthesis), -1)
        waves = torch.unflatten(torch.matmul(analysis, flat), 1, (2, modes))
        waves = torch.unflatten(waves, -1, (-1, self.heads, self.real.shape[2]))
        real, imaginary = widened(self.real[:modes]), widened(self.imaginary[:modes])
        rows = (torch.cat((real, imaginary), -1), torch.cat((-imaginary, real), -1))
        weight = torch.unflatten(torch.stack(rows, 2), -1, (2, -1))  # (modes, heads, part in, in, part out, out)
        mixed = torch.einsum("bpmrhi,mhpiqj->bqmrhj", waves, weight).flatten(3).flatten(1, 2)
        return torch.matmul(synthesis, mixed).reshape(x.shape) * self.gain[axis]


class LocalMix(nn.Module):
    """A residual block of local mixing: x + MLP(norm(x) + conv(norm(x))); starts as the identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = AxisConv(width, 3)
        self.mlp = Mlp(width)
        nn.init.zeros_(self.mlp.leave.weight)
        nn.init.zeros_(self.mlp.leave.bias)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        h = rms_norm(x)
        y: Tensor = x + self.mlp(h + self.conv(h, grid))
        return y


@table
def _walls(shape: tuple[int, ...], periodic: tuple[bool, ...], device: torch.device) -> Tensor:
    """Where each token is between the walls, `(*G, 3 · 4)`: zero along axes that wrap, which have no places."""
    grid = Grid(shape, periodic)
    columns = []
    for axis, (n, wraps) in enumerate(zip(grid.shape, grid.periodic, strict=True)):
        at = (np.arange(n) + 0.5) / n
        near = np.exp(-at * n / 2), np.exp(-(1 - at) * n / 2)
        for column in (np.cos(np.pi * at), np.cos(2 * np.pi * at), *near):
            place = tuple(n if a == axis else 1 for a in range(grid.ndim))
            columns.append(np.broadcast_to((0.0 if wraps else 1.0) * column.reshape(place), grid.shape))
    columns += [np.zeros(grid.shape)] * (4 * (AXES - grid.ndim))
    return torch.as_tensor(np.stack(columns, -1), dtype=torch.float32, device=device)


class Walls(nn.Module):
    """What a token learns of its place: how far along each bounded axis, and how near to its walls. `(1, *G, D)`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = nn.Linear(4 * AXES, width, bias=False)

    def forward(self, grid: Grid, device: torch.device) -> Tensor:
        y: Tensor = self.enter(_walls(grid.shape, grid.periodic, device)).unsqueeze(0)
        return y
