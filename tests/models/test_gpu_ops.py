"""Our own GPU kernels give what plain torch gives on a CPU, gradients too; a GPU that is only thought of has them."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ups.models.blocks import Block, BlockShape, GlobalAttention, WindowAttention
from ups.models.kernels.gpu_block_ops import (
    activated,
    gated,
    heads_of,
    mixed,
    residual,
    residual_norm,
    window_attention,
    window_fits,
)
from ups.models.kernels.gpu_ops import axis_conv, channel_parts, field_norm, usable
from ups.models.layers import AxisConv, FourierMixing, modulated_beside
from ups.types import Grid

GRIDS = [
    ((9,), (True,)),
    ((9,), (False,)),
    ((2,), (True,)),  # shorter than the arm of the kernel
    ((2,), (False,)),
    ((65, 5), (True, False)),
    ((5, 4), (False, True)),
    ((2, 11), (False, False)),
    ((2, 3), (False, False)),
    ((3, 4, 5), (False, True, False)),
]


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none here")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("samples", [3, 9])  # of many, grids of two axes are gone through in patches
@pytest.mark.parametrize(("width", "taps"), [(5, 7), (70, 3), (128, 5), (12, 5)])
@pytest.mark.parametrize(("shape", "periodic"), GRIDS)
def test_fused_convolutions_and_their_gradients_are_those_of_the_library(
    shape: tuple[int, ...], periodic: tuple[bool, ...], width: int, taps: int, samples: int
) -> None:
    assert usable(torch.ones(1, device="cuda"))
    torch.manual_seed(0)
    layer, x, weight = AxisConv(width, taps), *(torch.randn(samples, *shape, width) for _ in range(2))

    def results(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
        there = layer.to(device)
        there.zero_grad()
        among = torch.full((samples + 2, *shape, width), torch.nan, device=device, dtype=dtype)
        among[1:-1] = x.to(device)  # what lies before and after it in memory is nobody's: it must not be read
        entering = among[1:-1].requires_grad_()
        y, one, two = there.beside(entering, Grid(shape, periodic))
        assert y.dtype == dtype
        (y * weight.to(device, dtype) + one * two).sum().backward()
        gradients = (entering.grad, there.kernel.grad, there.gain.grad)
        return [value.detach().cpu().double() for value in (y, *gradients) if value is not None]

    truth = results("cpu", torch.float32)
    for dtype, error in ((torch.float32, 2e-6), (torch.bfloat16, 1e-2)):
        for mine, theirs in zip(results("cuda", dtype), truth, strict=True):
            assert (mine - theirs).abs().max() <= error * theirs.abs().max(), (dtype, mine.shape)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("shape", [(3, 9, 8), (2, 40, 5, 70), (2, 3, 4, 5, 6), (4, 300, 200, 128)])
def test_fused_norms_of_fields_and_their_gradients_are_those_of_plain_torch(shape: tuple[int, ...]) -> None:
    assert usable(torch.ones(1, device="cuda"))
    torch.manual_seed(0)
    row = (shape[0], *(1,) * (len(shape) - 2), shape[-1])
    values = [torch.randn(shape) + 1, torch.randn(row), torch.randn(row)]
    weight = torch.randn(shape)

    def results(device: str) -> list[torch.Tensor]:
        x, scale, shift = given = [value.to(device, copy=True).requires_grad_() for value in values]
        y, beside = modulated_beside(x, "field", scale, shift)
        (y * weight.to(device) + beside * beside).sum().backward()
        return [value.detach().cpu() for value in (y, *(one.grad for one in given)) if value is not None]

    for mine, theirs in zip(results("cuda"), results("cpu"), strict=True):
        assert (mine - theirs).abs().max() <= 1e-5 * theirs.abs().max(), mine.shape


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("shape", [(3, 9, 8), (2, 40, 30, 70), (2, 3, 4, 5, 6), (3, 1500, 96)])
def test_the_norm_of_a_residual_sum_and_its_gradients_are_those_of_plain_torch(
    shape: tuple[int, ...], beside: bool
) -> None:
    torch.manual_seed(0)
    row = (shape[0], *(1,) * (len(shape) - 2), shape[-1])
    kinds = (shape, row, shape, shape[-1:], row, row)
    x, gate, branch, bias, scale, shift = values = [
        torch.randn(of, dtype=torch.double).requires_grad_() for of in kinds
    ]
    weight, other = torch.randn(shape, dtype=torch.double), torch.randn(shape, dtype=torch.double) * beside
    y = x + gate * (branch + bias)
    factor = torch.rsqrt(y.square().mean(tuple(range(1, y.ndim)), keepdim=True) + 1e-6)
    h = y * factor * (1 + scale) + shift
    truth = h, y, *torch.autograd.grad((h * weight + y * other).sum(), values)
    for dtype, error in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        given = [v.detach().to("cuda", torch.float32 if v is bias else dtype).requires_grad_() for v in values]
        mine = residual_norm(*given, 1e-6)
        loss = (mine[0] * weight.to("cuda", dtype)).sum()
        loss = loss + (mine[1] * other.to("cuda", dtype)).sum() if beside else loss
        gradients = torch.autograd.grad(loss, given)
        for ours, theirs in zip((*mine, *gradients), truth, strict=True):
            assert (ours.cpu().double() - theirs).norm() <= error * theirs.norm(), (dtype, ours.shape)
        assert [g.dtype for g in gradients] == [v.dtype for v in given]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(("modes", "outer", "inner"), [(3, 5, 1), (4, 2, 7), (4, 40, 17)])  # the last one in shares
def test_mixed_waves_and_their_gradients_are_those_of_complex_matrices(modes: int, outer: int, inner: int) -> None:
    torch.manual_seed(0)
    shapes = ((outer, 2, modes, inner, 3, 20), (4, 3, 20, 20), (4, 3, 20, 20), (3, 60))
    values = [torch.randn(shape, dtype=torch.double, requires_grad=True) for shape in shapes]
    x, real, imaginary, gain = values
    matrix = torch.complex(real, imaginary)[:modes] * gain[1].unflatten(0, (3, 1, 20))
    there = torch.einsum("omrhi,mhij->omrhj", torch.complex(x[:, 0], x[:, 1]), matrix)
    y = torch.view_as_real(there).movedim(-1, 1)
    weight = torch.randn_like(y)
    truth = y, *torch.autograd.grad((y * weight).sum(), values)
    for dtype, error in ((torch.float32, 2e-6), (torch.bfloat16, 2e-2)):  # of the weights
        given = [v.detach().to("cuda", torch.float32 if v is x else dtype).requires_grad_() for v in values]
        mine = mixed(*given, axis=1)
        gradients = torch.autograd.grad((mine * weight.to("cuda", torch.float32)).sum(), given)
        for ours, theirs in zip((mine, *gradients), truth, strict=True):
            assert (ours.cpu().double() - theirs).abs().max() <= error * theirs.abs().max(), (dtype, ours.shape)
        assert [g.dtype for g in gradients] == [v.dtype for v in given]


MIXERS: dict[str, Callable[[BlockShape], nn.Module]] = {
    "everywhere": GlobalAttention,
    "windows": lambda shape: WindowAttention(shape, (4, 4, 2), False),
    "shifted windows": lambda shape: WindowAttention(shape, (4, 4, 2), True),
    "fourier": lambda shape: FourierMixing(shape.width, shape.heads, 3),
}


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize(("shape", "periodic"), [((40,), (True,)), ((8, 12), (False, True)), ((4, 2, 6), (False,) * 3)])
def test_a_block_of_fused_kernels_and_its_gradients_are_those_of_plain_torch(
    shape: tuple[int, ...], periodic: tuple[bool, ...], mixer: str
) -> None:
    torch.manual_seed(0)
    space, size = Grid(shape, periodic), BlockShape(48, 3, 20, 2.0, 5, "field", ("burgers1d", "kdv1d"))
    block = Block(size, lambda: MIXERS[mixer](size))
    for weight in block.parameters():
        nn.init.normal_(weight, std=0.3)
    x, c, weight = torch.randn(3, *shape, 48), torch.randn(3, 20), torch.randn(3, *shape, 48)

    def results(device: str, mixed: bool) -> list[torch.Tensor]:
        there = copy.deepcopy(block).to(device)
        entering, driven = (value.to(device, copy=True).requires_grad_() for value in (x, c))
        with torch.autocast(device, torch.bfloat16, enabled=mixed):
            y = there(entering.bfloat16() if mixed else entering, driven, space, "burgers1d")
        (y.float() * weight.to(device)).sum().backward()
        gradients = [entering.grad, driven.grad, *(p.grad for p in there.parameters())]
        return [value.detach().cpu().double() for value in (y, *gradients) if value is not None]

    truth = results("cpu", False)
    for rounded, error in ((False, 2e-5), (True, 0.1)):
        mine = results("cuda", rounded)
        assert len(mine) == len(truth)
        for ours, theirs in zip(mine, truth, strict=True):
            assert (ours - theirs).norm() <= error * theirs.norm(), (rounded, ours.shape)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(("side", "size"), [(8, 48), (8, 64), (8, 96), (8, 144), (8, 256), (11, 64), (16, 32)])
def test_windows_attend_as_in_plain_torch_whether_or_not_one_program_can_hold_them(side: int, size: int) -> None:
    torch.manual_seed(0)
    space = Grid((2 * side, side), (False, True))
    layer = WindowAttention(BlockShape(2 * size, 2, 4, 2.0, 5, "field"), (side,) * 3, True)
    x, weight = torch.randn(3, 2 * side, side, 2 * size), torch.randn(3, 2 * side, side, 2 * size)

    def results(device: str, rounded: bool) -> list[torch.Tensor]:
        there, entering = copy.deepcopy(layer).to(device), x.to(device, copy=True).requires_grad_()
        with torch.autocast(device, torch.bfloat16, enabled=rounded):
            y = there(entering, space)
        (y.float() * weight.to(device)).sum().backward()
        return [value.detach().cpu().double() for value in (y, entering.grad, *(p.grad for p in there.parameters()))]

    truth = results("cpu", False)
    for rounded, error in ((False, 2e-5), (True, 0.1)):  # 3 % of a bias where the library rounds, on a processor too
        for ours, theirs in zip(results("cuda", rounded), truth, strict=True):
            assert (ours - theirs).norm() <= error * theirs.norm(), (rounded, ours.shape)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU that is here says what fits")
def test_a_window_fits_that_a_program_can_hold_with_all_it_needs_on_the_way_back() -> None:
    numbers = {dtype: torch.empty(1, device="meta", dtype=dtype) for dtype in (torch.bfloat16, torch.float32)}
    assert window_fits(64, 144, numbers[torch.bfloat16])  # the deepest level of a large unet
    assert not window_fits(64, 256, numbers[torch.bfloat16])
    assert window_fits(64, 64, numbers[torch.float32])
    assert not window_fits(64, 128, numbers[torch.float32])
    assert not window_fits(256, 16, numbers[torch.float32])  # 256 KiB of weights between tokens


@pytest.mark.parametrize(("size", "parts"), [(5, (16, 0)), (16, (16, 0)), (17, (32, 0)), (33, (32, 16)), (64, (64, 0))])
def test_channels_are_cut_into_the_fewest_places_that_two_powers_of_two_give(size: int, parts: tuple[int, int]) -> None:
    assert channel_parts(size) == parts
    assert (channel_parts(96), channel_parts(144)) == ((64, 32), (128, 16))


@pytest.mark.slow
@pytest.mark.parametrize("mixer", MIXERS)
def test_a_compiled_block_gives_what_it_gives_uncompiled_whatever_tables_it_looks_up(mixer: str) -> None:
    size, space = BlockShape(12, 3, 4, 2.0, 5, "field"), Grid((8, 12), (False, True))
    block, x, c = Block(size, lambda: MIXERS[mixer](size)), torch.randn(2, 8, 12, 12), torch.randn(2, 4)
    for weight in block.parameters():
        nn.init.normal_(weight, std=0.3)
    plain = block(x, c, space, "burgers1d")
    block.compile(backend="aot_eager")
    torch.testing.assert_close(block(x, c, space, "burgers1d"), plain)


def test_shapes_gradients_and_flops_are_known_without_a_gpu() -> None:
    def there(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="meta", requires_grad=True)

    x, kernel, gain, scale = there(2, 6, 8), there(8, 5), there(3, 8), there(2, 1, 8)
    with FlopCounterMode(display=False) as counter:
        y, one, two = axis_conv(x, kernel, gain, Grid((6,), (True,)))
        (y + one * two).sum().backward()
    assert counter.get_total_flops() == 3 * (2 * 2 * 6 * 8 * 5), "forwards, and backwards to both"
    sum(value.sum() for value in field_norm(x, scale, scale, 1e-6)).backward()  # type: ignore[union-attr]
    for value in (x, kernel, gain, scale):
        assert value.grad is not None
        assert (value.grad.shape, value.grad.stride()) == (value.shape, value.stride())
    assert not usable(torch.ones(1))


def test_what_goes_on_beside_an_operation_brings_its_own_gradient_back() -> None:
    x = torch.randn(2, 6, 8, device="meta", requires_grad=True)
    rows, kernel, gain = (torch.randn(n, 8, device="meta") for n in (2, 8, 3))
    summed = residual_norm(x, rows, x, kernel[0], rows, rows, 1e-6)[1:]
    beside = (field_norm(x, rows, rows, 1e-6)[1:], axis_conv(x, kernel[:, :5], gain, Grid((6,), (True,)))[1:], summed)
    for made in beside:
        for one in made:  # none of it came through the operation itself
            (gradient,) = torch.autograd.grad(one.sum(), x, retain_graph=True)
            assert gradient.shape == x.shape


def test_operations_of_a_block_know_their_shapes_and_flops_without_a_gpu() -> None:
    def there(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="meta", requires_grad=True)

    x, row, bias, qkv, places = there(2, 6, 8), there(2, 8), there(8), there(2, 6, 24), there(1, 2, 3, 3)
    waves, matrix, gain = there(2, 2, 4, 3, 2, 5), there(6, 2, 5, 5), there(3, 10)
    turn = (torch.empty(6, 2, device="meta"), torch.empty(6, 2, device="meta"))
    order = torch.empty(6, dtype=torch.int32, device="meta")
    # What is asked, of which tensors, and the products that it takes forwards: two FLOPs a multiply-add.
    asked: list[tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...], int]] = [
        (gated, (x, x, x, bias), 0),
        (activated, (x, bias), 0),
        (residual, (x, row, x, bias), 0),
        (lambda *given: sum(residual_norm(*given, 1e-6)), (x, row, x, bias, row, row), 0),  # type: ignore[arg-type, return-value]
        (lambda *given: residual_norm(*given, 1e-6)[0], (x, row, x, bias, row, row), 0),  # type: ignore[arg-type]
        (lambda qkv: sum(one.sum() for one in heads_of(qkv, 2, turn, 1e-6)), (qkv,), 0),  # type: ignore[misc, return-value]
        (lambda qkv, bias: window_attention(qkv, order, bias, 1e-6), (qkv, places), 2 * 2 * (2 * 6 * 8 * 3)),
        (functools.partial(mixed, axis=1), (waves, matrix, matrix, gain), 4 * 2 * (2 * 4 * 3 * 2 * 5 * 5)),
    ]
    for operation, given, flops in asked:
        with FlopCounterMode(display=False) as counter:
            y = operation(*given)
        assert counter.get_total_flops() == flops
        for one, gradient in zip(given, torch.autograd.grad(y.sum(), given), strict=True):
            assert (gradient.shape, gradient.dtype) == (one.shape, one.dtype)
