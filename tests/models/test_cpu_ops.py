"""What CPUs do in their own way is what torch would have done, forwards and backwards."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional

from ups.models.grids import pad_axis
from ups.models.kernels import cpu_ops
from ups.models.layers import AxisConv, FourierMixing, _waves
from ups.types import Grid

# Rings and walls, an axis shorter than the kernel's arm, and one as long as it.
SPACES = [
    Grid((6,), (True,)),
    Grid((5,), (False,)),
    Grid((2, 4), (True, False)),
    Grid((1, 3), (False, True)),
    Grid((2, 3, 2), (True, False, True)),
]


def by_library(x: Tensor, weight: Tensor, space: Grid) -> Tensor:
    """The same convolution out of torch's own, one axis after the other."""
    half, total = weight.shape[1] // 2, torch.zeros_like(x)
    for axis, wraps in enumerate(space.periodic):
        reach = min(half, space.shape[axis])
        moved = pad_axis(x, axis + 1, reach, reach, wraps).movedim(axis + 1, -1)
        taps = weight[axis, half - reach : half + reach + 1].T.unsqueeze(1)
        y = functional.conv1d(moved.flatten(0, -3), taps, groups=x.shape[-1])
        total = total + y.unflatten(0, moved.shape[:-2]).movedim(-1, axis + 1)
    return total


@pytest.mark.parametrize("space", SPACES)
def test_a_convolution_along_the_axes_is_that_of_the_library(space: Grid) -> None:
    x = torch.randn(2, *space.shape, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(space.ndim, 5, 3, dtype=torch.float64, requires_grad=True)
    found, wanted = cpu_ops.axis_conv(x, weight, space), by_library(x, weight, space)
    torch.testing.assert_close(found, wanted)
    dy = torch.randn_like(x)
    torch.testing.assert_close(
        torch.autograd.grad(found, (x, weight), dy), torch.autograd.grad(wanted, (x, weight), dy)
    )


def test_gelu_and_its_slope_are_those_of_the_library() -> None:
    x = torch.linspace(-12, 12, 4001, requires_grad=True)
    found, wanted = cpu_ops.gelu(x), functional.gelu(x)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
    both = (torch.autograd.grad(y.sum(), x)[0] for y in (found, wanted))
    torch.testing.assert_close(*both, rtol=1e-6, atol=1e-6)


def test_second_derivatives_are_those_of_the_library() -> None:
    x = torch.linspace(-5, 5, 101, requires_grad=True)
    curvatures = []
    for function in (cpu_ops.gelu, functional.gelu):
        (slope,) = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
        curvatures.append(torch.autograd.grad(slope.sum(), x)[0])
    torch.testing.assert_close(*curvatures, rtol=1e-5, atol=1e-5)
    space = Grid((4, 3), (True, False))
    taps = torch.randn(2, 5, 2, dtype=torch.float64, requires_grad=True)
    field = torch.randn(2, 4, 3, 2, dtype=torch.float64, requires_grad=True)
    assert gradgradcheck(lambda f, t: cpu_ops.axis_conv(f, t, space), (field, taps))


def test_products_with_small_matrices_have_the_gradient_of_products() -> None:
    factors = (torch.randn(3, 5, 2), torch.randn(3, 2, 4))
    assert gradcheck(cpu_ops.products, [f.double().requires_grad_() for f in factors])


@pytest.mark.parametrize("space", [*SPACES, Grid((16, 9), (False, True))])
def test_waves_are_mixed_as_on_any_other_device(space: Grid) -> None:
    mixing, x = FourierMixing(8, 2, 5), torch.randn(3, *space.shape, 8, requires_grad=True)
    found = mixing(x, space)
    waves = _waves(space.shape, space.periodic, 5, x.device)
    wanted = sum(mixing._along(x, axis, waves[axis]) for axis in range(space.ndim))
    assert isinstance(wanted, Tensor)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    dy, inputs = torch.randn_like(x), (x, *mixing.parameters())
    gradients = (torch.autograd.grad(y, inputs, dy) for y in (found, wanted))
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("space", [Grid((6,), (True,)), Grid((4, 5), (True, False))])
def test_weights_gathered_as_bf16_mix_and_convolve_in_float32(space: Grid) -> None:
    torch.manual_seed(1)
    x = torch.randn(2, *space.shape, 8)
    waves = _waves(space.shape, space.periodic, 3, x.device)[0]
    for layer in (FourierMixing(8, 2, 3), AxisConv(8, 5)):
        exact = layer(x, space)
        short = layer.bfloat16()(x, space)
        parts = [layer._along(x, 0, waves)] if isinstance(layer, FourierMixing) else []  # as on other devices
        layer.float()  # the rounded values
        assert torch.equal(short, layer(x, space))
        assert not torch.equal(short, exact), "rounding is seen"
        if isinstance(layer, FourierMixing):
            assert torch.equal(parts[0], layer._along(x, 0, waves))
