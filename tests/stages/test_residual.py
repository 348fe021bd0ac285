"""Stage residual: the spread and the mean of what an operator misses are learnt, and drawn again by seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from small_flows import KINDS, Noisy, simulator, window
from ups.engine.loop import Trainer
from ups.engine.ranks.dist import Dist
from ups.engine.train import TrainConfig
from ups.models import Simulator
from ups.models.config import ResidualConfig, SimulatorConfig
from ups.models.ensembles import Draws
from ups.run.config import run_config
from ups.stages.residual import ResidualStage
from ups.tensors import Condition, LatentState, Window
from ups.types import ConfigError


@pytest.fixture(scope="module")
def trained() -> Simulator:
    made = simulator()
    stage = ResidualStage(made)
    stage.fit(Noisy().batch(0))
    settings = TrainConfig(steps=300, lr=3e-3, validate_every=0, prefetch=0, checkpoint_seconds=None)
    Trainer(settings, stage, Noisy(), Dist()).fit()
    return made.eval()


def test_draws_have_the_mean_and_the_spread_of_what_is_missed(trained: Simulator) -> None:
    given = Noisy().batch(1)
    before = given.tokens[:, :1]
    condition = Condition.of(given)
    with torch.no_grad():
        z = trained.operator(before, condition)
        assert torch.equal(z, before[:, -1]), "an untrained operator predicts no change"
        mean = trained.parts["residual"].refine_tokens(z, before, condition) - z
        draws = torch.stack(
            [
                trained.parts["residual"].refine_tokens(z, before, replace(condition, noise=Draws(0, [m])(0, z))) - z
                for m in range(24)
            ]
        )
    assert mean.mean().item() == pytest.approx(Noisy.SHIFT, rel=0.1)
    assert draws.mean().item() == pytest.approx(Noisy.SHIFT, rel=0.1)
    assert draws.std(0).mean().item() == pytest.approx(Noisy.SPREAD, rel=0.2)


def test_a_member_is_the_same_in_any_ensemble_and_batch(trained: Simulator) -> None:
    u0 = np.random.default_rng(0).normal(size=(3, 16, 1)).astype(np.float32)
    words = {"steps": 3, "params": {"beta": 1.0}}
    many = trained.rollout(u0, ensemble=5, seed=7, **words)
    assert many.shape == (5, 3, 3, 16, 1)
    assert np.array_equal(trained.rollout(u0, ensemble=2, seed=7, **words), many[:2])
    assert np.allclose(trained.rollout(u0[:2], ensemble=2, seed=7, **words), many[:2, :2], atol=1e-5)
    assert not np.allclose(many[0], many[1])
    assert not np.allclose(trained.rollout(u0, ensemble=1, seed=8, **words), many[:1])
    plain = trained.rollout(u0, **words)
    assert np.array_equal(plain, trained.rollout(u0, **words)), "without an ensemble nothing is drawn"
    kinds = trained.rollout(torch.from_numpy(u0[0]), ensemble=2, seed=7, **words)
    assert isinstance(kinds, torch.Tensor)
    assert kinds.shape == (2, 3, 16, 1)


def test_an_artifact_draws_the_same(trained: Simulator, tmp_path) -> None:  # type: ignore[no-untyped-def]
    again = Simulator.load(trained.save(tmp_path / "a.safetensors"), kinds=KINDS)
    u0 = np.zeros((16, 1), np.float32)
    words = {"steps": 2, "params": {"beta": 1.0}, "ensemble": 2}
    assert np.allclose(trained.rollout(u0, **words), again.rollout(u0, **words), atol=1e-6), "but for round-off"


def test_it_learns_from_the_steps_that_it_will_correct() -> None:
    """By as many moved copies as a rollout averages over."""
    given, seen = replace(window(2), context=torch.randn(2, 1, 16, 1)), {}
    for shifts in (1, 4):
        torch.manual_seed(0)
        sim = simulator(ResidualConfig(width=16, depth=1, heads=2, modes=4)).eval()
        sim.config = SimulatorConfig(shift_average=shifts, guard=False)
        for p in sim.operator.parameters():
            p.data += 0.2 * torch.randn_like(p)
        ((z, *_),) = ResidualStage(sim)._steps(given)
        sim.idle = frozenset({"residual"})
        with torch.no_grad():
            seen[shifts] = sim.codec.decode(LatentState(z, given.grid), given.task)
            assert torch.allclose(seen[shifts], sim.simulate(given, 1)[:, 0], atol=1e-5)
    assert not torch.allclose(seen[1], seen[4], atol=1e-3)


def shown(stage: ResidualStage, given: Window) -> list[torch.Tensor]:
    """The tokens that each step of a loss begins at."""
    seen: list[torch.Tensor] = []
    hook = stage.flow.register_forward_pre_hook(lambda _, args: seen.append(args[3]))
    stage.loss(given)
    hook.remove()
    return seen


def test_every_step_begins_at_the_truth_and_misses_what_leads_to_the_next() -> None:
    stage, given = ResidualStage(simulator()), replace(window(3, targets=2), tokens=torch.randn(3, 3, 4, 8))
    truth = given.tokens
    assert [torch.equal(last, truth[:, i]) for i, last in enumerate(shown(stage, given))] == [True, True]
    assert [torch.equal(last, truth[:, i]) for i, (_, last, *_) in enumerate(stage._steps(given))] == [True, True]
    (_, last, missed, _) = stage._steps(given)[1]
    assert torch.allclose(last + missed, truth[:, 2]), "an untrained operator predicts no change"


def test_the_loss_is_of_velocities_from_noise_to_what_is_missed_and_for_one_in_eight_of_the_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    stage, scale = ResidualStage(simulator()), torch.full((8,), 0.25)
    given = replace(window(256, targets=2), tokens=torch.randn(256, 3, 4, 8))
    monkeypatch.setattr(stage.flow, "scale_of", lambda _: scale)
    monkeypatch.setattr(stage.flow, "sample", lambda *_: torch.zeros(256, 4, 8))
    seen: list[tuple[torch.Tensor, ...]] = []
    stage.flow.register_forward_hook(lambda _, args, answer: seen.append((*args[:3], answer)))
    loss, errors = stage.loss(given)["flow"].detach(), list[torch.Tensor]()
    for step, (noisy, time, z, velocity) in enumerate(seen, start=1):
        still, at = time == 0, time.reshape(-1, 1, 1)
        assert still.float().mean().item() == pytest.approx(1 / 8, abs=0.07)
        assert not noisy[still].any(), "the mean begins at no noise"
        wanted = (given.tokens[:, step] - z) / scale
        errors.append((velocity - wanted + (noisy - at * wanted) / (1 - at)).square().mean() / 2)
    assert len(errors) == 2
    assert float(loss) == pytest.approx(float(torch.stack(errors).detach().mean()), rel=1e-3)


def test_sizes_are_measured_number_by_number_on_all_windows_unless_they_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage, told = ResidualStage(simulator()), list[tuple[str, torch.Tensor, torch.Tensor]]()
    sizes = 1.0 + torch.arange(8)
    z, last = torch.full((2, 4, 8), 5.0), torch.full((2, 4, 8), 2.0)
    monkeypatch.setattr(stage, "_steps", lambda w: [(z, last, (7.0 if len(w) > 2 else 1.0) * sizes.expand(2, 4, 8), 0)])
    monkeypatch.setattr(stage.flow, "fit_scales", lambda *args: told.append(args))
    stage.fit(window(2), window(3), inherited=["advection1d"])
    assert told == []
    stage.fit(window(2), window(3), inherited=["burgers1d"])
    ((name, missed, changed),) = told
    assert name == "advection1d"
    assert torch.allclose(missed, 5 * sizes), "the root of the mean of 1 and 49"
    assert changed.tolist() == [3.0] * 8
    with pytest.raises(ConfigError, match="advection1d: what is missed in a step is not finite; train the operator"):
        ResidualStage._sizes("advection1d", [z * torch.nan], [z])


def test_a_step_is_from_the_last_frames_that_the_operator_looks_back_on_and_takes_its_own_time() -> None:
    stage, given = ResidualStage(simulator()), window(2, targets=2)
    longer = replace(given, context=torch.cat((torch.randn(2, 2, 16, 1), given.context), 1))
    uneven = replace(longer, dt=torch.tensor([[0.1, 0.3]] * 2))
    for (z, last, missed, _), other in zip(stage._steps(given), stage._steps(longer), strict=True):
        for tensor, same in zip((z, last, missed), other, strict=False):
            assert torch.allclose(tensor, same, atol=1e-6)
    assert [condition.dt[0].item() for *_, condition in stage._steps(uneven)] == pytest.approx([0.1, 0.3])


def test_encoded_windows_of_another_context_than_the_operators_are_refused() -> None:
    given = window(2, targets=2)
    longer = replace(given, context=given.context.expand(-1, 2, -1, -1), tokens=torch.randn(2, 4, 4, 8))
    with pytest.raises(ConfigError, match="have 2 frames of context and the operator takes 1"):
        ResidualStage(simulator()).loss(longer)


def test_the_crps_counts_in_deviations_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, given = ResidualStage(simulator()), window(3, targets=2)
    stage.codec.fit_statistics(given.task, torch.zeros(1), torch.full((1,), 2.0))
    members = (given.targets + 0.5).expand(4, *given.targets.shape)
    monkeypatch.setattr("ups.models.ensembles.members_of", lambda *_, **__: members)
    assert stage.evaluate(given)["advection1d CRPS"].tolist() == pytest.approx([0.25] * 3)


def test_while_it_learns_it_is_judged_by_the_crps_of_whole_rollouts(trained: Simulator) -> None:
    (name, errors), *_ = ResidualStage(trained).evaluate(window(4, targets=2)).items()
    assert name == "advection1d CRPS"
    assert errors.shape == (4,)
    assert bool((errors > 0).all())


def test_a_draw_that_is_no_number_where_a_cell_counts_is_lost_with_and_without_a_mask(
    trained: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, mask = window(3, targets=2), torch.arange(16).expand(3, 16) > 0
    members = given.targets.expand(4, *given.targets.shape).clone()
    members[:, 1, 0, 5], members[:, 2, :, 0] = torch.nan, torch.nan
    monkeypatch.setattr("ups.models.ensembles.members_of", lambda *_, **__: members)
    for cells, lost in ((None, [0.0, 1e6, 1e6]), (mask, [0.0, 1e6, 0.0])):
        monkeypatch.setattr(Window, "mask", cells)
        assert ResidualStage(trained).evaluate(given)["advection1d CRPS"].tolist() == lost


@pytest.mark.parametrize(
    ("ensemble", "seed", "words"),
    [(0, 0, "ensemble is 0"), (2.5, 0, "ensemble is 2.5"), (2, -1, "seed is -1"), (10**9, 0, "more than")],
)
def test_an_ensemble_that_makes_no_sense_is_one_sentence(
    trained: Simulator, ensemble: int, seed: int, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        trained.rollout(np.zeros((16, 1), np.float32), 1, {"beta": 1.0}, ensemble=ensemble, seed=seed)


def test_a_simulator_without_a_residual_has_no_ensembles() -> None:
    plain = simulator(parts=("codec", "operator"))
    with pytest.raises(ConfigError, match="has no part that draws"):
        plain.rollout(np.zeros((16, 1), np.float32), 1, {"beta": 1.0}, ensemble=2)


@pytest.mark.parametrize("changes", [{"steps": 0}, {"steps": 9}, {"kernel": 4}, {"width": 15}])
def test_a_flow_that_cannot_be_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"residual\."):
        ResidualConfig(**changes)  # type: ignore[arg-type]


def test_its_config_is_a_section_of_every_run_and_of_the_report() -> None:
    made = run_config().model_validate({"residual": {"train": {"steps": 7}}, "model": {"residual": {"steps": 3}}})
    assert (made.stage("residual").train.steps, made.stage("residual").train.lr) == (7, 1e-3)
    assert made.model.part("residual").steps == 3
    with pytest.raises(ValueError, match="at least 2 members, or 0"):
        run_config().model_validate({"evaluation": {"ensemble": 1}})
