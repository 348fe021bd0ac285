"""Traces: where a run broke off is read from what its parts had noted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ups_fleet.doctor.model_exercises import ModuleTrace, first_difference, last_module


class Sick(nn.Module):
    def __init__(self, forward: float = 1.0, power: float = 1.0) -> None:
        super().__init__()
        self.scale, self.power = forward, power

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale).abs() ** self.power


def follow(tmp_path: Path, *parts: nn.Module) -> tuple[ModuleTrace, Tensor]:
    trace, net = ModuleTrace(tmp_path / "trace"), nn.Sequential(nn.Linear(3, 3), nn.Sequential(*parts), nn.Linear(3, 1))
    trace.follow(net, "net")
    trace.phase("forward")
    loss = net(torch.zeros(2, 3)).sum()
    trace.phase("backward")
    loss.backward()
    return trace, loss


def test_nothing_is_broken_and_nothing_open_in_a_healthy_net(tmp_path: Path) -> None:
    trace, _ = follow(tmp_path, nn.Linear(3, 3))
    assert trace.first_broken() is None
    assert [name for name, *_ in trace.sums] == ["net.0", "net.1.0", "net.1", "net.2", "net"]


def test_the_innermost_part_that_makes_a_value_not_finite_is_named(tmp_path: Path) -> None:
    trace, _ = follow(tmp_path, Sick(float("inf")), Sick())
    assert trace.first_broken() == ("forward", "net.1.0")


def test_a_gradient_that_becomes_infinite_is_found_where_it_does(tmp_path: Path) -> None:
    torch.manual_seed(0)
    zero = Sick(0.0, 0.5)  # the slope of a square root at nothing
    trace, loss = follow(tmp_path, nn.Identity(), zero)
    assert torch.isfinite(loss)
    assert trace.first_broken() == ("backward", "net.1.1")


@pytest.mark.parametrize(
    ("lines", "place"),
    [
        ([], ("start", "")),
        (["# build"], ("build", "")),
        (["# forward", "> m", "> m.a", "< m.a", "> m.b", "> m.b.c"], ("forward", "m.b.c")),
        (["# forward", "> m", "> m.a", "< m.a"], ("forward", "m")),
        (["# backward", "} m.b", "} m", "{ m.b", "} m.a.x", "} m.a"], ("backward", "m.a.x")),
        (["# backward", "} m.b", "} m", "{ m.b"], ("backward", "m")),
        (["# backward", "} m.b", "} m", "{ m.b", "> m.a", "> m.a.z"], ("backward", "m.a.z")),
    ],
)
def test_the_place_is_the_innermost_part_that_had_begun(
    tmp_path: Path, lines: list[str], place: tuple[str, str]
) -> None:
    path = tmp_path / "trace"
    if lines:
        path.write_text("\n".join(lines) + "\n")
    assert last_module(path) == place


def test_the_first_output_that_differs_is_named() -> None:
    known = [("a", 1.0, 2.0), ("b", 3.0, 4.0), ("c", 5.0, 6.0)]
    assert first_difference(known, known, 1e-6) is None
    name, gap = first_difference([("a", 1.0, 2.0), ("b", 3.1, 4.0), ("c", 9.0, 6.0)], known, 1e-6) or ("", 0)
    assert (name, round(gap, 3)) == ("b", 0.025)
    assert (first_difference([("a", float("nan"), 2.0)], known, 1e-6) or ("",))[0] == "a"
