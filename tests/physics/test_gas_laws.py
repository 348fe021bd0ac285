"""All laws of a gas are repaired together as one after the other, in half as many operations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ups.physics import TASKS
from ups.physics.gas_laws import GasRepair
from ups.physics.laws import aims_of, laws_of, repaired, repairs_of
from ups.types import Domain

SHAPES = {1: (32,), 2: (12, 10), 3: (6, 5, 4)}


def box(ndim: int) -> Domain:
    return Domain.box(((0.0, 1.0),) * ndim, SHAPES[ndim], (True,) * ndim)


def gas(ndim: int, seed: int) -> Tensor:
    """Lawful states `(3, *S, 2 + ndim)` of a gas in motion."""
    u = torch.randn(3, *SHAPES[ndim], 2 + ndim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.cat((u[..., :2].abs() + 0.3, u[..., 2:] + 0.5), -1)


def wild(ndim: int) -> dict[str, Tensor]:
    """States that break one law or several."""
    fast = torch.tensor([1.0, 1.0, *[40.0] * ndim], dtype=torch.float64)
    return {
        "lawful": gas(ndim, 0),
        "near": gas(ndim, 0) + 0.01 * gas(ndim, 1),
        "negative": gas(ndim, 1) - 0.6,
        "more motion than energy": gas(ndim, 2) * fast,
        "at rest": gas(ndim, 3) * torch.tensor([1.0, 1.0, *[0.0] * ndim], dtype=torch.float64),
        "everywhere negative": -gas(ndim, 4),
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
    laws, domain = laws_of(TASKS[f"cfd{ndim}d"], (True,) * ndim), box(ndim)
    reference, u = gas(ndim, 0), gas(ndim, 1).float()
    aims, each = aims_of(laws, reference, domain), [law.aim(reference, domain) for law in laws]
    with Counted() as together:
        repaired(u, laws, reference, domain, aims=aims)
    with Counted() as separate:
        frames = u.unsqueeze(1).double()
        for law, aim in zip(laws, each, strict=True):
            frames = law.restore(frames, aim, domain)
        frames.float()
    assert together.count <= 42
    assert together.count < separate.count / 2
