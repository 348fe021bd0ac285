"""Stage consistency: a student ends in one step where its teacher's flow ends, and giving nothing is no way out."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from small_flows import SMALL, TASK, Bent, simulator, window
from ups.engine.loop import Trainer
from ups.engine.ranks.dist import Dist
from ups.engine.train import TrainConfig
from ups.models import CodecConfig, OperatorConfig, Simulator
from ups.models.config import ConsistencyConfig, ResidualConfig
from ups.models.consistency import ConsistencyStep
from ups.models.ensembles import Draws
from ups.models.simulator import assemble
from ups.physics import TASKS
from ups.progress import Screen
from ups.run.check import check
from ups.run.config import run_config
from ups.run.load import load, part_kinds
from ups.run.run import run_alone
from ups.stages.consistency import ConsistencyStage
from ups.stages.residual import ResidualStage
from ups.tensors import Condition
from ups.types import ConfigError

QUICK = {"validate_every": 0, "prefetch": 0, "checkpoint_seconds": None}


@pytest.fixture(scope="module")
def taught() -> Simulator:
    sim = simulator(parts=("codec", "operator", "residual", "consistency"))
    for kind in (ResidualStage, ConsistencyStage):
        stage = kind(sim)
        stage.fit(Bent().batch(0))
        Trainer(TrainConfig(steps=100, lr=5e-3, **QUICK), stage, Bent(), Dist()).fit()
    return sim.eval()


def test_a_student_that_knows_other_tasks_takes_from_its_teacher_what_is_a_new_ones_own_alone() -> None:
    tasks, grids = [TASKS["burgers1d"], TASKS["advection1d"]], {"burgers1d": (16,), "advection1d": (16,)}
    configs = {
        "codec": CodecConfig(dim=8),
        "operator": OperatorConfig(),
        "residual": ResidualConfig(per_task_layers=True),
    }
    sim = assemble(tasks, {**configs, "consistency": ConsistencyConfig()}, None, grids, kinds=part_kinds())
    student, teacher = sim.parts["consistency"], sim.parts["residual"]
    with torch.no_grad():
        for tensor in student.state_dict().values():
            tensor.add_(1)
    before = {name: tensor.clone() for name, tensor in student.state_dict().items()}
    stage = ConsistencyStage(sim)
    for task in tasks:
        stage.fit(dataclasses.replace(window(2), task=task), inherited=["burgers1d"])
    moved = {name for name, tensor in student.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved == {*student.rows, *(name for name in before if "advection1d" in name.split("."))}
    for name in moved:
        now, theirs = student.state_dict()[name], teacher.state_dict()[name]
        assert torch.equal(now[1] if name in student.rows else now, theirs[1] if name in student.rows else theirs)
    assert all(torch.equal(student.state_dict()[name][0], before[name][0]) for name in student.rows)


def test_a_student_has_the_noise_of_its_teacher_or_none_for_the_mean_and_begins_at_the_truth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    sim = simulator(parts=("codec", "operator", "residual", "consistency"))
    stage, given, off, begun = ConsistencyStage(sim), window(256, targets=2), [0.0], list[torch.Tensor]()
    given = dataclasses.replace(given, tokens=torch.randn(256, 3, 4, 8))

    def taught(noise: torch.Tensor | None, z: torch.Tensor, *_: object) -> torch.Tensor:
        return torch.full_like(z, 7.0) if noise is None else 2 * noise

    def learnt(noise: torch.Tensor, z: torch.Tensor, last: torch.Tensor, *_: object) -> torch.Tensor:
        silent = ~noise.flatten(1).any(1)
        assert silent.float().mean().item() == pytest.approx(1 / 8, abs=0.07)
        begun.append(last)
        return off[0] + torch.where(silent.reshape(-1, 1, 1), taught(None, z), taught(noise, z))

    monkeypatch.setattr(stage.teacher, "sample", taught)
    monkeypatch.setattr(stage.module, "sample", learnt)
    assert float(stage.loss(given)["distance"].detach()) == 0
    assert torch.equal(begun[0], given.tokens[:, 0])
    assert torch.equal(begun[1], given.tokens[:, 1])
    off[0] = 3.0
    assert float(stage.loss(given)["distance"].detach()) == pytest.approx(9.0), "of a step, in the mean"


def distance(student: ConsistencyStep, sim: Simulator) -> tuple[float, float]:
    """Mean square of the student's draws minus the teacher's on the same noise; and of the teacher's."""
    given = Bent().batch(1000)
    before, condition = given.tokens[:, :1], Condition.of(given)
    with torch.no_grad():
        z = sim.operator(before, condition)
        noise = Draws(3, [0])(0, z)
        asked = (noise, z, before[:, -1], condition)
        wanted = sim.parts["residual"].sample(*asked)
        return float((student.sample(*asked) - wanted).square().mean()), float(wanted.square().mean())


def test_a_student_ends_where_its_teacher_ends_and_one_step_of_the_teacher_does_not(taught: Simulator) -> None:
    student = taught.parts["consistency"]
    assert isinstance(student, ConsistencyStep)
    near, size = distance(student, taught)
    untrained = ConsistencyStep(SMALL, 8, [TASK])
    untrained.start_from(taught.parts["residual"])
    far, _ = distance(untrained, taught)
    assert near < 0.1 * size
    assert near < 0.5 * far


def test_giving_nothing_is_no_optimum(taught: Simulator) -> None:
    stage = ConsistencyStage(taught)
    given = Bent().batch(2000)

    def loss() -> torch.Tensor:
        torch.manual_seed(0)
        return stage.loss(given)["distance"]

    learnt = loss().item()
    weights = {name: value.clone() for name, value in stage.module.state_dict().items()}
    with torch.no_grad():  # noise + network = 0 for every noise is far from the draws; so is the same answer always
        stage.module.head.weight.zero_()
        stage.module.head.bias.zero_()
    nothing = loss()
    nothing.backward()
    pull = stage.module.head.weight.grad
    stage.module.load_state_dict(weights)
    stage.module.zero_grad(set_to_none=True)
    assert nothing.item() > 3 * learnt
    assert pull is not None
    assert float(pull.norm()) > 1e-3


def test_a_student_draws_in_its_teachers_place_at_a_quarter_of_its_evaluations(taught: Simulator) -> None:
    calls = {"residual": 0, "consistency": 0}
    hooks = [
        taught.parts[name].register_forward_hook(lambda *_, name=name: calls.update({name: calls[name] + 1}))
        for name in calls
    ]
    given = window(2, targets=2)
    with torch.no_grad():
        one = taught.simulate(given, 2, draw=Draws(0, [0]))
        assert calls == {"residual": 0, "consistency": 2}
        taught.idle = frozenset({"consistency"})
        other = taught.simulate(given, 2, draw=Draws(0, [0]))
        taught.idle = frozenset()
    for hook in hooks:
        hook.remove()
    assert calls == {"residual": 8, "consistency": 2}
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    "plan", [["consistency", "residual"], ["residual", "operator"], ["critic", "residual"], ["critic", "consistency"]]
)
def test_a_stage_before_one_whose_part_it_needs_is_refused_whatever_it_starts_from(plan: list[str]) -> None:
    with pytest.raises(ValueError, match=f"stage {plan[0]} needs the part '{plan[1]}'; put stage {plan[1]} before it"):
        run_config().model_validate({"plan": plan, "start_from": "anything"})


def test_a_student_without_its_teacher_is_refused() -> None:
    with pytest.raises((ConfigError, ValueError), match="needs the part 'residual'"):
        run_config().model_validate({"plan": ["codec", "operator", "consistency"]})


def test_a_new_flow_behind_an_old_operator_measures_what_that_one_misses(tmp_path: Path) -> None:
    small = {"width": 8, "depth": 1, "heads": 2}
    base = {
        "out": str(tmp_path),
        "data": {"b": {"task": "advection1d", "samples": 8, "frames": 6, "resolution": 16}},
        "model": {"codec": {"dim": 8}, "operator": small, "residual": small},
        "evaluation": {"ensemble": 0},
        **{name: {"train": {"steps": 2}} for name in ("codec", "operator", "residual")},
    }
    first = run_config().model_validate({**base, "name": "first"})
    run_alone(first, Screen.silent())
    onward = {**base, "start_from": str(tmp_path / "first")}
    run_alone(run_config().model_validate({**onward, "name": "second", "plan": ["residual"]}), Screen.silent())
    scale = load(tmp_path / "second").parts["residual"].scale
    assert float(scale.max()) < 0.9, "in units of what is missed, not of the tokens themselves"
    old = {**base, "start_from": str(tmp_path / "second"), "name": "third", "plan": ["operator"]}
    with pytest.raises(ConfigError, match=r"'residual' of .* has learnt to work with the old one"):
        check(run_config().model_validate(old))
