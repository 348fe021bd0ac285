"""Stages: each loss term moves what it claims to train, and scores are errors in physical space."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from ups.models import CodecConfig, OperatorConfig, Simulator, build
from ups.physics import TASKS
from ups.stages import CodecStage, OperatorStage
from ups.stages.codec import CodecLoss
from ups.stages.operator import OperatorLoss
from ups.tensors import Window
from ups.types import TaskSpec

TERMS = ["increment", "latent", "spectral", "conserved", "boundary"]


def simulator(task: TaskSpec, cells: int = 16) -> Simulator:
    small = OperatorConfig(width=16, depth=1, heads=2)
    sim = build([task], CodecConfig(dim=16), small, grids={task.name: (cells,) * task.ndim})
    generator = torch.Generator().manual_seed(0)
    for p in sim.parameters():  # away from the zeros it starts at, where some gradients vanish
        p.data += 0.05 * torch.randn(p.shape, generator=generator)
    return sim


def window(task: TaskSpec, cells: int = 16, targets: int = 2) -> Window:
    generator = torch.Generator().manual_seed(1)
    shape = (cells,) * task.ndim
    frames = torch.rand((3, 1 + targets, *shape, len(task.channels)), generator=generator) + 0.5
    count = sum(not p.choices for p in task.parameters)
    return Window(
        task=task,
        context=frames[:, :1],
        targets=frames[:, 1:],
        inputs=torch.zeros((3, *shape, 0)),
        params=torch.ones((3, count)),
        dt=torch.full((3,), task.dt),
        periodic=task.periodic,
        box=tuple(hi - lo for lo, hi in task.bounds),
    )


def gradient(stage: CodecStage | OperatorStage, sample: Window) -> torch.Tensor:
    stage.module.zero_grad()
    sum(stage.loss(sample).values()).backward()
    return torch.cat([p.grad.flatten() for p in stage.module.parameters() if p.grad is not None])


@pytest.mark.parametrize("term", TERMS)
def test_every_term_of_the_operator_moves_the_operator(term: str) -> None:
    task = TASKS["swe2d"]  # bounded, positive, conserving: every term has something to say
    weights = dataclasses.replace(OperatorLoss(increment=0.0), **{term: 1.0})
    stage = OperatorStage(simulator(task), weights)
    assert set(stage.loss(window(task))) == {term}
    assert float(gradient(stage, window(task)).norm()) > 0


def test_removing_a_term_changes_the_gradient_it_shared() -> None:
    task = TASKS["swe2d"]
    both = gradient(OperatorStage(simulator(task), OperatorLoss(spectral=1.0)), window(task))
    one = gradient(OperatorStage(simulator(task), OperatorLoss()), window(task))
    assert not torch.allclose(both, one)


@pytest.mark.parametrize("term", ["reconstruction", "tokens"])
def test_every_term_of_the_codec_moves_the_codec(term: str) -> None:
    task = TASKS["burgers1d"]
    weights = CodecLoss(reconstruction=float(term == "reconstruction"), tokens=float(term == "tokens"))
    stage = CodecStage(simulator(task).codec, weights)
    assert float(gradient(stage, window(task)).norm()) > 0


def test_the_operator_stage_leaves_the_codec_alone() -> None:
    sim = simulator(TASKS["burgers1d"])
    stage = OperatorStage(sim)
    gradient(stage, window(TASKS["burgers1d"]))
    assert all(p.grad is None for p in sim.codec.parameters())


@pytest.mark.parametrize("name", ["latent", "increment"])
def test_no_change_has_a_loss_of_one(name: str) -> None:
    task = TASKS["burgers1d"]
    fresh = build([task], CodecConfig(dim=16), OperatorConfig(width=16, depth=1, heads=2), grids={task.name: (16,)})
    stage = OperatorStage(fresh, dataclasses.replace(OperatorLoss(increment=0.0), **{name: 1.0}))
    assert float(stage.loss(window(task, targets=1))[name].detach()) == pytest.approx(1.0, abs=1e-3)


def test_the_score_is_the_error_of_the_decoded_rollout() -> None:
    task = TASKS["burgers1d"]
    fresh = build([task], CodecConfig(dim=16), OperatorConfig(width=16, depth=1, heads=2), grids={task.name: (16,)})
    sample = window(task)
    still = sample.state.unsqueeze(1).expand_as(sample.targets)
    persistence = (still - sample.targets).square().mean(2).sqrt() / sample.targets.square().mean(2).sqrt()
    scores = OperatorStage(fresh).evaluate([sample])
    # An operator that starts as "no change" behind an exact codec is persistence, but for the guard's repair of mass.
    assert scores["score"] == pytest.approx(float(persistence.mean()), rel=0.02)
