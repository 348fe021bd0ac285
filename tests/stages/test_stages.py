"""Stages: each loss term moves what it claims to train, and scores are errors in physical space."""

from __future__ import annotations

import dataclasses
from typing import Literal

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from grids import boxed, grid_of
from ups.config import load
from ups.models import CodecConfig, OperatorConfig, Simulator, SimulatorConfig, build
from ups.physics import TASKS
from ups.run.config import run_config
from ups.stages import STAGES, CodecStage, OperatorStage
from ups.stages.codec import FAINT, CodecLoss, CodecStageConfig
from ups.stages.operator import OperatorLoss, OperatorStageConfig
from ups.stages.stage import encoded
from ups.stages.terms import raised, square
from ups.tensors import Window
from ups.types import ConfigError, Grid, TaskSpec

TERMS = ["increment", "latent"]


def simulator(task: TaskSpec, cells: int = 16) -> Simulator:
    small = OperatorConfig(width=16, depth=1, heads=2)
    sim = build([task], CodecConfig(dim=16), small, shapes={task.name: (cells,) * task.ndim})
    generator = torch.Generator().manual_seed(0)
    for p in sim.parameters():  # away from the zeros it starts at, where some gradients vanish
        p.data += 0.05 * torch.randn(p.shape, generator=generator)
    return sim


def only(term: str, power: float = 0.5) -> OperatorStageConfig:
    """One term of the operator's loss, by itself."""
    weights = {name: float(name == term) for name in TERMS}
    return OperatorStageConfig(loss=OperatorLoss(**weights, power=power))  # type: ignore[arg-type]


def window(task: TaskSpec, cells: int = 16, targets: int = 2, batch: int = 3) -> Window:
    generator = torch.Generator().manual_seed(1)
    shape = (cells,) * task.ndim
    frames = torch.rand((batch, 1 + targets, *shape, len(task.channels)), generator=generator) + 0.5
    frames *= torch.logspace(-1, 1, batch).reshape(-1, *(1,) * (frames.ndim - 1))  # faint ones and strong ones
    given = sum(len(f.channels) for f in task.inputs)
    count = sum(not p.choices for p in task.parameters)
    return Window(
        task=task,
        context=frames[:, :1],
        targets=frames[:, 1:],
        inputs=torch.rand((batch, *shape, given), generator=generator),
        params=torch.ones((batch, count)),
        dt=torch.full((batch,), task.dt or 1.0),
        grid=Grid(shape, task.periodic, task.bounds),
    )


def gradient(stage: CodecStage | OperatorStage, sample: Window) -> torch.Tensor:
    stage.module.zero_grad()
    sum(stage.loss(sample).values()).backward()
    return torch.cat([p.grad.flatten() for p in stage.module.parameters() if p.grad is not None])


@pytest.mark.parametrize("term", TERMS)
def test_every_term_of_the_operator_moves_the_operator(term: str) -> None:
    task = TASKS["swe2d"]
    stage = OperatorStage(simulator(task), only(term))
    assert set(stage.loss(window(task))) == {term}
    assert float(gradient(stage, window(task)).norm()) > 0


def test_the_default_loss_holds_what_a_decoder_does_not_see() -> None:
    """A field leaves tokens free in more directions than one; an operator that is judged by fields alone drifts there,
    and its rollouts with it. So the tokens themselves count, unless somebody says otherwise."""
    task = TASKS["advection1d"]
    assert set(OperatorStage(simulator(task)).loss(window(task))) == {"increment", "latent"}


def test_removing_a_term_changes_the_gradient_it_shared() -> None:
    task = TASKS["swe2d"]
    both = gradient(OperatorStage(simulator(task)), window(task))
    for term in TERMS:
        one = gradient(OperatorStage(simulator(task), only(term)), window(task))
        assert not torch.allclose(both, one), term


@pytest.mark.parametrize("term", ["reconstruction", "tokens"])
def test_every_term_of_the_codec_moves_the_codec(term: str) -> None:
    task = TASKS["burgers1d"]
    weights = CodecLoss(reconstruction=float(term == "reconstruction"), tokens=float(term == "tokens"))
    stage = CodecStage(simulator(task), CodecStageConfig(loss=weights))
    assert float(gradient(stage, window(task)).norm()) > 0


def test_the_operator_stage_leaves_the_codec_alone() -> None:
    sim = simulator(TASKS["burgers1d"])
    stage = OperatorStage(sim)
    gradient(stage, window(TASKS["burgers1d"]))
    assert all(p.grad is None for p in sim.codec.parameters())


@pytest.mark.parametrize("name", ["latent", "increment"])
def test_no_change_has_a_loss_of_one(name: str) -> None:
    task = TASKS["burgers1d"]
    fresh = build([task], CodecConfig(dim=16), OperatorConfig(width=16, depth=1, heads=2), shapes={task.name: (16,)})
    stage = OperatorStage(fresh, only(name, power=1.0))
    sample = window(task, targets=1)
    stage.fit(sample)
    assert float(stage.loss(sample)[name].detach()) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("name", ["latent", "increment"])
def test_a_faint_field_counts_as_much_as_a_strong_one(name: str) -> None:
    task = TASKS["burgers1d"]
    fresh = build([task], CodecConfig(dim=16), OperatorConfig(width=16, depth=1, heads=2), shapes={task.name: (16,)})
    stage = OperatorStage(fresh, only(name))
    sample = window(task, targets=1)
    stage.fit(sample)
    weak = dataclasses.replace(sample, context=sample.context * 0.1, targets=sample.targets * 0.1)
    with torch.no_grad():
        assert float(stage.loss(weak)[name]) == pytest.approx(float(stage.loss(sample)[name]), rel=1e-4)


def test_a_task_is_measured_on_all_of_its_grids_in_whatever_order_they_come() -> None:
    task = TASKS["burgers1d"]

    def measured(*cells: int) -> tuple[float, ...]:
        fresh = build(
            [task], CodecConfig(dim=16), OperatorConfig(width=16, depth=1, heads=2), shapes={task.name: (16,)}
        )
        stage = OperatorStage(fresh)
        stage.fit(*(steep[n] for n in cells))
        return (*stage.changes[task.name], float(fresh.operator.scale.square().mean()))

    generator = torch.Generator().manual_seed(0)
    steep = {n: window(task, targets=1) for n in (16, 32)}
    calm = torch.randn(3, 1, 32, 1, generator=generator)
    steep[32] = dataclasses.replace(steep[32], context=calm, targets=1.01 * calm, inputs=torch.zeros(3, 32, 0))
    first, second, both = measured(16), measured(32), measured(16, 32)
    assert both == pytest.approx(measured(32, 16), rel=1e-5)
    assert first[0] > 100 * second[0]
    for one, other, together in zip(first, second, both, strict=True):
        assert together == pytest.approx((len(steep[16]) * one + 3 * other) / (len(steep[16]) + 3), rel=1e-4)


def test_a_drift_is_that_of_the_grid_which_most_samples_have(monkeypatch: pytest.MonkeyPatch) -> None:
    task, samples = TASKS["burgers1d"], list[int]()
    stage = OperatorStage(simulator(task))
    monkeypatch.setattr(stage.operator, "fit_drift", lambda z, *_: samples.append(len(z)))
    few, many = window(task, 16, targets=1, batch=2), window(task, 32, targets=1, batch=5)
    stage.fit(few, many)
    stage.fit(many, few)
    assert samples == [5, 5]


def test_what_an_operator_has_learnt_before_keeps_its_scale_and_only_the_loss_is_measured_anew() -> None:
    task = TASKS["burgers1d"]
    stage = OperatorStage(simulator(task))
    scale = stage.operator.scale.clone()
    stage.fit(window(task), inherited=[task.name])
    assert torch.equal(stage.operator.scale, scale)
    assert set(stage.changes) == {task.name}
    stage.fit(sample := window(task), inherited=["kdv1d"])
    tokens = encoded(stage.codec, torch.cat((sample.context, sample.targets), 1), sample)
    assert float(stage.operator.scale.mean()) == pytest.approx(float(tokens.diff(dim=1).square().mean().sqrt()))


def test_a_step_that_changes_nothing_has_a_finite_loss_and_one_that_cannot_be_measured_is_refused() -> None:
    task = TASKS["burgers1d"]
    stage, sample = OperatorStage(simulator(task)), window(task)
    still = dataclasses.replace(sample, targets=sample.context.expand(-1, 2, -1, -1))
    stage.fit(still)
    assert all(value.isfinite() for value in stage.loss(still).values())
    for wrong in (sample.targets[:, :0], sample.targets * torch.nan):
        with pytest.raises(ConfigError, match="burgers1d: a step cannot be measured on windows without targets or fin"):
            stage.fit(dataclasses.replace(sample, targets=wrong))


@pytest.mark.parametrize("term", ["latent", "increment"])
def test_the_loss_of_several_steps_is_the_mean_of_theirs(term: str) -> None:
    task = TASKS["burgers1d"]
    fresh = build([task], CodecConfig(dim=16), OperatorConfig(width=16, depth=1, heads=2), shapes={task.name: (16,)})
    stage, sample = OperatorStage(fresh, only(term)), window(task)
    stage.fit(sample)
    first, second, both = (
        float(stage.loss(dataclasses.replace(sample, targets=targets))[term].detach())
        for targets in (sample.targets[:, :1], sample.targets[:, 1:], sample.targets)
    )
    assert both == pytest.approx((first + second) / 2, rel=1e-4), "an operator that starts as no change foretells none"
    assert first != pytest.approx(second, rel=1e-2)


def test_a_step_that_is_trained_through_begins_at_what_was_predicted_and_not_at_the_truth() -> None:
    task, seen = TASKS["burgers1d"], list[torch.Tensor]()
    stage = OperatorStage(simulator(task))
    stage.operator.register_forward_hook(lambda _, args, answer: seen.extend((args[0], answer)))
    stage.loss(window(task, targets=2))
    assert torch.equal(seen[2][:, -1], seen[1])
    assert not torch.equal(seen[2], seen[0])


def test_more_frames_than_are_looked_back_on_change_nothing_unless_they_are_encoded_already() -> None:
    task = TASKS["burgers1d"]
    stage, sample = OperatorStage(simulator(task)), window(task)
    longer = dataclasses.replace(sample, context=torch.cat((2 * sample.context, sample.context), 1))
    torch.testing.assert_close(stage.loss(longer), stage.loss(sample))
    tokens = torch.zeros(3, 4, 4, 16)
    with pytest.raises(ConfigError, match="have 2 frames of context and the operator takes 1"):
        stage.loss(dataclasses.replace(longer, tokens=tokens))
    bare = dataclasses.replace(sample, context=sample.context[..., :0], targets=sample.targets[..., :0])
    with pytest.raises(ConfigError, match="the loss increment compares fields, and these windows hold tokens alone"):
        stage.loss(dataclasses.replace(bare, tokens=tokens[:, 1:]))


def test_the_operator_sees_tokens_where_its_loss_is_content_with_them_and_frames_where_they_are_turned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = TASKS["darcy2d"]
    sim, sample = simulator(task), window(task, targets=1)
    assert [OperatorStage(sim, only(term)).sees for term in ("latent", "increment")] == ["tokens", "both"]
    other = dataclasses.replace(sample, targets=2 * sample.targets)
    monkeypatch.setattr("ups.stages.stage.turned", lambda _: other)
    stage = OperatorStage(sim)
    plain, twice = stage.loss(sample), stage.loss(other)
    for symmetry, loss in (("train", twice), ("both", twice), ({"darcy2d": "train"}, twice), ("rollout", plain)):
        sim.config = SimulatorConfig(symmetry=symmetry)  # type: ignore[arg-type]
        assert stage.loss(sample) == loss
        assert stage.sees == ("frames" if loss == twice else "both")
    assert plain != twice
    wave = simulator(TASKS["advection1d"])
    wave.config = SimulatorConfig(symmetry="both")
    assert OperatorStage(wave).sees == "both", "there are no images of what knows a direction"


def test_a_power_lets_hard_samples_outweigh_easy_ones_less() -> None:
    """Of one sample the loss is the square error to that power; of several the mean of them."""
    task, losses = TASKS["advection1d"], {}
    sim, sample = simulator(task), window(task, targets=1)
    for power in (1.0, 0.5):
        stage = OperatorStage(sim, OperatorStageConfig(loss=OperatorLoss(power=power)))
        each = [stage.loss(sample.rows(i, i + 1)) for i in range(len(sample))]
        losses[power] = {name: torch.stack([loss[name] for loss in each]) for name in ("increment", "latent")}
        for name, mean in stage.loss(sample).items():
            assert torch.allclose(mean, losses[power][name].mean())
    for name, squares in losses[1.0].items():
        assert torch.allclose(losses[0.5][name], squares.sqrt(), rtol=1e-4)


@pytest.mark.parametrize(("step_scale", "power"), [("task", 1.0), ("sample", 0.5)])
def test_by_the_gauge_of_the_sample_errors_count_by_their_root_and_by_that_of_a_task_by_their_square(
    step_scale: Literal["task", "sample"], power: float
) -> None:
    task, sample = TASKS["advection1d"], window(TASKS["advection1d"], targets=1)
    chosen = OperatorConfig(width=16, depth=1, heads=2, step_scale=step_scale)
    sim = build([task], CodecConfig(dim=16), chosen, shapes={task.name: (16,)})
    stages = [OperatorStage(sim), *(OperatorStage(sim, only("latent", p)) for p in (power, 1.5 - power))]
    usual, named, other = (float(stage.loss(sample)["latent"].detach()) for stage in stages)
    assert usual == named != other


def test_a_power_has_a_slope_where_there_is_no_error_and_lies_above_zero() -> None:
    error = torch.zeros(3, requires_grad=True)
    assert raised(error, 1.0) is error, "the square itself"
    raised(error, 0.5).sum().backward()
    assert error.grad is not None
    assert error.grad.isfinite().all()
    for power in (0.0, 1.5, -1.0):
        with pytest.raises(ConfigError, match=r"operator\.loss\.power"):
            OperatorLoss(power=power)


def test_the_score_is_the_error_of_the_decoded_rollout() -> None:
    task = TASKS["burgers1d"]
    fresh = build([task], CodecConfig(dim=16), OperatorConfig(width=16, depth=1, heads=2), shapes={task.name: (16,)})
    sample = window(task)
    still = sample.state.unsqueeze(1).expand_as(sample.targets)
    persistence = (still - sample.targets).square().mean(2).sqrt() / sample.targets.square().mean(2).sqrt()
    found = OperatorStage(fresh).evaluate(sample)
    # An operator that starts as "no change" behind an exact codec is persistence, but for the guard's repair of mass.
    assert set(found) == {"burgers1d nRMSE"}
    torch.testing.assert_close(found["burgers1d nRMSE"], persistence.mean((1, 2)), rtol=0.02, atol=0)


def test_scores_are_the_worst_task_of_the_codec_and_the_geometric_mean_of_the_operator() -> None:
    sim = simulator(TASKS["burgers1d"])
    assert CodecStage(sim).score({"a": 0.1, "b": 0.4}) == 0.4
    assert OperatorStage(sim).score({"a": 0.1, "b": 0.4}) == pytest.approx(0.2)
    assert OperatorStage(sim).score({"a": 0.0, "b": 1.0}) == pytest.approx(1e-6), "none is too small to count"


def test_a_rollout_that_is_lost_counts_as_a_large_error_and_not_as_none() -> None:
    task = TASKS["burgers1d"]
    sim = simulator(task)
    sample = window(task)
    sample.context[1] = float("nan")
    sample.targets[2] = float("nan")
    found, coded = (stage(sim).evaluate(sample) for stage in (OperatorStage, CodecStage))
    assert found["burgers1d nRMSE"][1] == 1e6
    assert found["burgers1d nRMSE"][0] < 1e6
    assert [error == 1e6 for error in coded["burgers1d reconstruction"]] == [False, False, True]


def test_the_codec_reconstruction_error_is_per_sample_and_in_physical_units() -> None:
    task = TASKS["burgers1d"]
    stage, sample = CodecStage(simulator(task)), window(task, targets=1)
    back = stage.reconstructed(sample)
    expected = (back - sample.targets).square().mean((2, 3)).sqrt() / sample.targets.square().mean((2, 3)).sqrt()
    torch.testing.assert_close(stage.evaluate(sample)["burgers1d reconstruction"], expected[:, 0].detach())


def test_the_codec_is_judged_by_every_eighth_frame() -> None:
    task = TASKS["burgers1d"]
    stage, sample, errors = CodecStage(simulator(task)), window(task, targets=10), {}
    for frame in (None, 0, 4, 8):
        other = dataclasses.replace(sample, targets=sample.targets.clone())
        if frame is not None:
            other.targets[:, frame] = other.targets[:, frame].flip(1)
        errors[frame] = stage.evaluate(other)["burgers1d reconstruction"].tolist()
    assert [errors[frame] == errors[None] for frame in (0, 4, 8)] == [False, True, False]


def test_tokens_of_what_was_decoded_come_to_those_it_was_decoded_from_and_not_these_to_them() -> None:
    task = TASKS["burgers1d"]
    stage = CodecStage(simulator(task), CodecStageConfig(loss=CodecLoss(reconstruction=0.0, tokens=1.0)))
    sample = window(task)
    found = gradient(stage, sample)
    state = stage.module.encode(sample.state, task, grid_of(sample.state, task.periodic))
    back = stage.module.decode(state, task, (16,))
    wanted = state.z.detach()
    again = stage.module.encode(back, task, grid_of(back, task.periodic)).z
    stage.module.zero_grad()
    (square(again - wanted) / (square(wanted) + FAINT)).mean().backward()
    by_hand = torch.cat([p.grad.flatten() for p in stage.module.parameters() if p.grad is not None])
    torch.testing.assert_close(found, by_hand, rtol=1e-4, atol=1e-7)


# Terms of one and the same window, cut into parts of these sizes.
PARTS = [(5, 3), (1, 7), (2, 2, 2, 2)]


def apart(sample: Window, sizes: tuple[int, ...]) -> list[Window]:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [sample.rows(end - size, end) for size, end in zip(sizes, ends, strict=True)]


@pytest.mark.parametrize("term", [*TERMS, "reconstruction", "tokens"])
@pytest.mark.parametrize("name", ["swe2d", "darcy2d", "nsincom2d"])
def test_the_loss_of_a_window_is_the_mean_of_the_losses_of_its_parts(name: str, term: str) -> None:
    task = TASKS[name]
    sim, sample = simulator(task), window(task, batch=8)
    stage: CodecStage | OperatorStage
    if term in TERMS:
        stage = OperatorStage(sim, only(term))
        stage.fit(sample.rows(0, 3))
    else:
        weights = CodecLoss(reconstruction=float(term == "reconstruction"), tokens=float(term == "tokens"))
        stage = CodecStage(sim, CodecStageConfig(loss=weights))
    with torch.no_grad():
        whole = float(stage.loss(sample)[term])
        for sizes in PARTS:
            parts = sum(len(part) * float(stage.loss(part)[term]) for part in apart(sample, sizes)) / len(sample)
            assert parts == pytest.approx(whole, rel=1e-6), sizes


def test_noise_is_measured_by_each_sample_alone() -> None:
    task = TASKS["burgers1d"]
    sim, sample = simulator(task, 64), window(task, 64)
    loud = dataclasses.replace(sample, context=sample.context.clone())
    loud.context[2] *= 1e3

    def seen(given: Window, noise: float) -> torch.Tensor:
        """The context that the operator is shown."""
        stage = OperatorStage(sim, OperatorStageConfig(loss=OperatorLoss(noise=noise)))
        torch.manual_seed(0)
        kept: list[torch.Tensor] = []
        hook = stage.operator.register_forward_pre_hook(lambda _, args: kept.append(args[0]))
        stage.loss(given)
        hook.remove()
        return kept[0].flatten(1)

    assert seen(loud, 0.5)[:2].tolist() == seen(sample, 0.5)[:2].tolist()
    clean = seen(sample, 0.0)
    torch.testing.assert_close((seen(sample, 0.5) - clean).std(1), 0.5 * clean.std(1), rtol=0.15, atol=0)


def test_the_steps_trained_through_grow_from_one_to_all_within_the_curriculum() -> None:
    task = TASKS["burgers1d"]
    sample = window(task, targets=4)

    def steps(curriculum: float, progress: float) -> int:
        stage = OperatorStage(simulator(task), OperatorStageConfig(loss=OperatorLoss(curriculum=curriculum)))
        return stage.view(sample, progress).targets.shape[1]

    assert [steps(0.5, p) for p in (0.0, 0.16, 0.17, 0.34, 0.49, 0.5, 1.0)] == [1, 1, 2, 3, 3, 4, 4]
    assert [steps(1.0, p) for p in (0.0, 0.99, 1.0)] == [1, 3, 4]
    assert steps(0.0, 0.0) == 4
    first = OperatorStage(simulator(task)).view(sample, 0.0)
    assert torch.equal(first.targets, sample.targets[:, :1])
    assert CodecStage(simulator(task)).view(sample, 0.3) is sample
    with pytest.raises(ConfigError, match="curriculum"):
        OperatorLoss(curriculum=1.5)


def test_the_codec_of_a_steady_task_is_trained_on_its_solutions() -> None:
    task = TASKS["darcy2d"]
    stage, sample = CodecStage(simulator(task)), window(task, targets=1)
    still = dataclasses.replace(sample, context=torch.zeros_like(sample.context))
    assert float(stage.loss(still)["reconstruction"].detach()) == float(stage.loss(sample)["reconstruction"].detach())
    other = dataclasses.replace(still, targets=still.targets * 2)
    assert float(stage.loss(other)["reconstruction"].detach()) != float(stage.loss(still)["reconstruction"].detach())


@pytest.mark.parametrize("name", ["burgers1d", "darcy2d", "nsincom2d"])
def test_a_loss_decides_nothing_by_the_value_of_a_tensor(name: str) -> None:
    task = TASKS[name]
    sim, sample = simulator(task, 8), boxed(window(task, 8), *(2.0,) * task.ndim)
    stages = [OperatorStage(sim, OperatorStageConfig(loss=OperatorLoss(noise=0.1))), CodecStage(sim)]
    stages[0].fit(sample)
    with FakeTensorMode(allow_non_fake_inputs=True) as fakes:  # numbers that nobody can read
        blind = sample._each(fakes.from_tensor)
        for stage in stages:
            assert all(value.shape == () for value in stage.loss(blind).values())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none here")
@pytest.mark.parametrize("name", ["burgers1d", "darcy2d", "nsincom2d", "cfd3d"])
def test_a_cuda_graph_of_the_loss_and_its_gradient_gives_what_the_loss_gives(name: str) -> None:
    task = TASKS[name]
    sim, sample = simulator(task, 8).cuda(), boxed(window(task, 8).to("cuda"), *(2.0,) * task.ndim)
    stage = OperatorStage(sim, OperatorStageConfig())
    stage.fit(sample)

    def update() -> torch.Tensor:
        for p in stage.module.parameters():
            p.grad = None
        total = torch.stack(list(stage.loss(sample).values())).sum()
        total.backward()
        return total.detach()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            expected = update()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = update()
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_is_called_what_its_line_says_and_needs_what_others_make(name: str) -> None:
    stage = STAGES[name]
    assert stage.name == name
    assert {*stage.needs, stage.makes} <= {other.makes for other in STAGES.values()}
    assert stage.part().Config is stage.PartConfig


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_that_goes_no_step_ahead_has_no_unroll(name: str) -> None:
    if name == "operator":
        assert load(run_config(), None, {f"{name}.unroll": 3}).stage(name).ahead == 3
        return
    assert run_config()().stage(name).ahead == 1
    with pytest.raises(ConfigError, match=f"--{name}.unroll is not a known key"):
        load(run_config(), None, {f"{name}.unroll": 2})


@pytest.mark.parametrize(("term", "value"), [("increment", -1.0), ("noise", float("nan")), ("latent", float("inf"))])
def test_a_weight_that_rewards_what_is_wrong_is_refused(term: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"operator.loss.{term} is"):
        OperatorLoss(**{term: value})  # type: ignore[arg-type]
