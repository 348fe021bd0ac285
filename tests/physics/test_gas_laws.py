"""All laws of a gas are repaired together as one after the other, in half as many operations, on a GPU in one."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from ups.physics import TASKS
from ups.physics.gas_laws import GasRepair
from ups.physics.laws import aims_of, laws_of, repaired, repairs_of
from ups.triton_check import runs_triton
from ups.types import Grid

SHAPES = {1: (32,), 2: (12, 10), 3: (6, 5, 4)}
LARGER = {1: (2500,), 2: (33, 41), 3: (11, 10, 12)}  # more cells than a kernel takes at once, and no multiple of these
on_a_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none here"),
]


def box(ndim: int, shape: tuple[int, ...] = ()) -> Grid:
    return Grid(shape or SHAPES[ndim], (True,) * ndim, ((0.0, 1.0),) * ndim)


def gas(ndim: int, seed: int, shape: tuple[int, ...] = ()) -> Tensor:
    """Lawful states `(3, *S, 2 + ndim)` of a gas in motion."""
    size, generator = (3, *(shape or SHAPES[ndim]), 2 + ndim), torch.Generator().manual_seed(seed)
    u = torch.randn(size, generator=generator, dtype=torch.float64)
    return torch.cat((u[..., :2].abs() + 0.3, u[..., 2:] + 0.5), -1)


def wild(ndim: int, shape: tuple[int, ...] = ()) -> dict[str, Tensor]:
    """States that break one law or several."""
    fast = torch.tensor([1.0, 1.0, *[40.0] * ndim], dtype=torch.float64)
    return {
        "lawful": gas(ndim, 0, shape),
        "near": gas(ndim, 0, shape) + 0.01 * gas(ndim, 1, shape),
        "negative": gas(ndim, 1, shape) - 0.6,
        "more motion than energy": gas(ndim, 2, shape) * fast,
        "at rest": gas(ndim, 3, shape) * torch.tensor([1.0, 1.0, *[0.0] * ndim], dtype=torch.float64),
        "everywhere negative": -gas(ndim, 4, shape),
    }


def one_after_the_other(u: Tensor, reference: Tensor, ndim: int, mask: Tensor | None = None) -> Tensor:
    frames = u.unsqueeze(1)
    for law in laws_of(TASKS[f"cfd{ndim}d"], (True,) * ndim):
        frames = law.project(frames, reference, box(ndim), mask)
    return frames.squeeze(1)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("ndim", SHAPES)
def test_together_they_give_the_frame_of_one_after_the_other(ndim: int, masked: bool) -> None:
    laws, reference = laws_of(TASKS[f"cfd{ndim}d"], (True,) * ndim), gas(ndim, 0)
    mask = gas(ndim, 9)[..., 0] > 0.5 if masked else None
    assert [type(repair) for repair in repairs_of(laws)] == [GasRepair]
    for name, u in wild(ndim).items():
        found = repaired(u, laws, reference, box(ndim), mask)
        wanted = one_after_the_other(u, reference, ndim, mask)
        assert float((found - wanted).abs().max()) < 1e-13 * float(wanted.abs().max()), name


def test_a_guard_that_leaves_a_law_out_repairs_by_the_others_one_by_one() -> None:
    laws = laws_of(TASKS["cfd2d"], (True, True))
    for rest in (laws[:-1], laws[1:], laws[:1], ()):
        assert repairs_of(rest) == rest
    signs = laws_of(TASKS["cfd2d"], (True, False))
    assert repairs_of(signs) == signs, "under another boundary"


class Counted(TorchDispatchMode):
    """Counts the operations that write numbers: on a GPU, each is a kernel or more. Views are none."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aliases = [returned.alias_info for returned in func._schema.returns]
        self.count += not any(alias is not None and not alias.is_write for alias in aliases)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("ndim", [2, 3])
def test_a_step_of_a_rollout_repairs_a_gas_in_half_as_many_operations(ndim: int) -> None:
    laws, grid = laws_of(TASKS[f"cfd{ndim}d"], (True,) * ndim), box(ndim)
    reference, u = gas(ndim, 0), gas(ndim, 1).float()
    aims, each = aims_of(laws, reference, grid), [law.aim(reference, grid) for law in laws]
    with Counted() as together:
        repaired(u, laws, reference, grid, aims=aims)
    with Counted() as separate:
        frames = u.unsqueeze(1).double()
        for law, aim in zip(laws, each, strict=True):
            frames = law.restore(frames, aim, grid)
        frames.float()
    assert together.count <= 42
    assert together.count < separate.count / 2


@pytest.mark.parametrize("ndim", SHAPES)
def test_frames_in_float32_are_repaired_in_float64_all_the_way(ndim: int) -> None:
    laws, grid = laws_of(TASKS[f"cfd{ndim}d"], (True,) * ndim), box(ndim)
    reference = gas(ndim, 0)
    (aim,) = aims_of(laws, reference, grid)
    for name, u in wild(ndim).items():
        converted = GasRepair(ndim).restore(u.float().double().unsqueeze(1), aim, grid).squeeze(1).float()
        assert torch.equal(repaired(u.float(), laws, reference, grid, aims=[aim]), converted), name


class TestOnAGPU:
    """One kernel does what the operations of torch do, which a processor is asked for."""

    pytestmark = on_a_gpu

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize(("ndim", "shape"), [*SHAPES.items(), *LARGER.items()])
    def test_a_kernel_repairs_a_gas_as_plain_operations_do(
        self, ndim: int, shape: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        assert runs_triton(torch.device("cuda", torch.cuda.current_device()))
        laws, grid = laws_of(TASKS[f"cfd{ndim}d"], (True,) * ndim), box(ndim, shape)
        lawful = gas(ndim, 0, shape)
        empty, cold = lawful.clone(), lawful.clone()
        empty[1, ..., 0] = 0
        cold[2, ..., 1] *= -5  # less energy than its mean motion has
        error = {torch.float32: 2.5e-7, torch.float64: 1e-12}[dtype]
        for of, reference in {"": lawful, ", no mass": empty, ", no warmth": cold}.items():
            for name, u in wild(ndim, shape).items():
                here, there = u.to(dtype), u.to("cuda", dtype)
                aims = aims_of(laws, reference, grid)
                wanted, aims = repaired(here, laws, reference, grid, aims=aims), [aim.cuda() for aim in aims]
                with Counted() as operations:
                    found = repaired(there, laws, there, grid, aims=aims)
                assert operations.count == 1, "memory for the frame"
                assert found.dtype == dtype
                gap = (found.cpu() - wanted).abs().flatten(1, -2).amax(1)
                assert bool((gap <= error * wanted.abs().flatten(1, -2).amax(1)).all()), name + of

    @pytest.mark.parametrize("ndim", SHAPES)
    def test_what_is_not_a_number_spoils_as_much_of_its_sample_as_by_plain_operations(self, ndim: int) -> None:
        laws, grid, lawful = laws_of(TASKS[f"cfd{ndim}d"], (True,) * ndim), box(ndim), gas(ndim, 0)
        for channel in range(2 + ndim):
            for bad in (math.nan, math.inf, -math.inf):
                u = wild(ndim)["near"]
                u.flatten(1, -2)[1, -1, channel] = bad
                wanted = repaired(u, laws, lawful, grid)
                found = repaired(u.cuda(), laws, lawful.cuda(), grid).cpu()
                assert not bool(wanted[1].isfinite().all())
                assert torch.allclose(found, wanted, rtol=1e-12, atol=1e-13, equal_nan=True), (channel, bad)

    def test_gradients_and_masks_are_left_to_plain_operations(self) -> None:
        laws, grid, lawful = laws_of(TASKS["cfd2d"], (True, True)), box(2), gas(2, 0)
        slopes = []
        for device in ("cpu", "cuda"):
            u = wild(2)["negative"].to(device).requires_grad_()
            repaired(u, laws, lawful.to(device), grid).square().sum().backward()
            assert u.grad is not None
            slopes.append(u.grad.cpu())
        assert torch.allclose(*slopes, rtol=1e-9, atol=1e-9)
        mask, u = gas(2, 9)[..., 0] > 0.5, wild(2)["negative"]
        found = repaired(u.cuda(), laws, lawful.cuda(), grid, mask.cuda()).cpu()
        assert torch.allclose(found, repaired(u, laws, lawful, grid, mask), rtol=1e-12, atol=1e-13)

    def test_a_frame_whose_cells_lie_apart_in_memory_is_repaired_too(self) -> None:
        laws, grid, lawful = laws_of(TASKS["cfd2d"], (True, True)), box(2), gas(2, 0)
        u = wild(2)["negative"]
        apart = u.cuda().movedim(-1, 1).contiguous().movedim(1, -1)
        found = repaired(apart, laws, lawful.cuda(), grid).cpu()
        assert torch.allclose(found, repaired(u, laws, lawful, grid), rtol=1e-12, atol=1e-13)

    def test_a_gas_that_is_only_thought_of_is_repaired_by_plain_operations(self) -> None:
        with FakeTensorMode(), Counted() as operations:
            u = torch.empty(3, *SHAPES[2], 4, device="cuda")
            fixed = repaired(u, laws_of(TASKS["cfd2d"], (True, True)), u, box(2))
        assert fixed.shape == u.shape
        assert fixed.is_cuda
        assert operations.count > 20
