"""Search: what looks least wrong goes on; with eyes that see the truth more candidates come nearer to it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import ups
from grids import grid_of
from small_flows import KINDS, TASK, Noisy, simulator, window
from ups.engine.loop import Trainer
from ups.engine.ranks.dist import Dist
from ups.engine.train import TrainConfig
from ups.models import Simulator, assemble
from ups.models.config import CriticConfig, SimulatorConfig
from ups.models.critic import Critic
from ups.models.ensembles import Draws
from ups.models.search import Search, calls_of, judges_of, searched
from ups.physics import TASKS
from ups.stages.critic import CriticStage
from ups.stages.residual import ResidualStage
from ups.types import ConfigError

PARAMS = {"beta": 1.0}
ALL = ("codec", "operator", "residual", "critic")


@pytest.fixture(scope="module")
def trained() -> Simulator:
    made = simulator(parts=ALL)
    for kind in (ResidualStage, CriticStage):
        stage = kind(made)
        stage.fit(Noisy().batch(0))
        settings = TrainConfig(steps=80, lr=5e-3, validate_every=0, prefetch=0, checkpoint_seconds=None)
        Trainer(settings, stage, Noisy(), Dist()).fit()
    return made.eval()


class Seeing(Critic):
    """A critic that knows the truth: here it is what the operator predicts."""

    def error(self, drawn: Tensor, z: Tensor, last: Tensor, condition: Any) -> Tensor:  # noqa: ARG002
        return (drawn - z).flatten(1).square().mean(1)


def test_one_candidate_is_a_plain_draw(trained: Simulator) -> None:
    given = window(3, targets=4)
    with torch.no_grad():
        plain = trained.simulate(given, 4, draw=Draws(5, [0]))
        assert torch.equal(searched(trained, given, 4, Search(candidates=1, seed=5)), plain)


def test_a_search_steps_by_the_mean_over_moved_copies_as_a_rollout_does_and_counts_them() -> None:
    made, given = simulator(parts=ALL).eval(), window(3, targets=3)
    generator, search = torch.Generator().manual_seed(0), Search(candidates=1, seed=5)
    for p in made.parameters():
        p.data += 0.1 * torch.randn(p.shape, generator=generator)
    frames, calls = {}, {}
    with torch.no_grad():
        for shifts in (1, 4):
            made.config = SimulatorConfig(shift_average=shifts)
            frames[shifts], calls[shifts] = searched(made, given, 3, search), calls_of(made, search, given)
            plain = made.simulate(given, 3, draw=Draws(5, [0]))
            assert torch.allclose(frames[shifts], plain, atol=1e-5 * float(plain.abs().max()))
    assert float((frames[4] - frames[1]).abs().max()) > 1e-2 * float(frames[1].abs().max()), "moved copies change it"
    assert calls[4] == calls[1] + 3


def test_with_a_critic_that_knows_the_truth_more_candidates_come_nearer_to_it(
    trained: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ups.models.search.laws_of", lambda *_: ())
    seeing = simulator(parts=ALL)
    seeing.load_state_dict(trained.state_dict())
    seeing.parts["critic"].__class__ = Seeing
    seeing.eval()
    given, distances = window(64, targets=1), {}
    with torch.no_grad():
        tokens = seeing.codec.encode(given.state, given.task, grid_of(given.state, (True,)))
        still = seeing.codec.decode(tokens, given.task, (16,)).unsqueeze(1)
        for many in (1, 16):
            first = searched(seeing, given, 1, Search(candidates=many, seed=1))
            distances[many] = float((first - still).square().mean())
    assert distances[16] < 0.95 * distances[1]


def test_every_part_that_judges_draws_is_asked_whatever_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ups.models.search.laws_of", lambda *_: ())
    plain = simulator(parts=("codec", "operator", "residual"))
    configs = {name: part.config for name, part in plain.parts.items()} | {"watcher": CriticConfig(width=16, depth=1)}
    kinds = {**KINDS, "watcher": Seeing}
    made, given, search = assemble([TASK], configs, shapes={TASK.name: (16,)}, kinds=kinds).eval(), window(8), Search(8)
    looks = []
    with torch.no_grad():
        searched(made, given, 1, search, lambda _, signs, __: looks.append(signs))
        calls = calls_of(made, search, given)
        assert judges_of(made, TASK) == [made.parts["watcher"]]
        made.idle = frozenset({"watcher"})
        assert calls_of(made, search, given) == calls - search.candidates
        searched(made, given, 1, search, lambda _, signs, __: looks.append(signs))
    assert float(looks[0].std(0).min()) > 0
    assert float(looks[1].abs().max()) == 0, "nobody judges"


def test_a_part_that_judges_nothing_says_so_when_it_is_asked() -> None:
    empty = torch.empty(0)
    with pytest.raises(NotImplementedError, match="ResidualFlow judges no draws"):
        simulator().parts["residual"].error(empty, empty, empty, None)


def test_a_sample_finds_the_same_path_in_any_batch_and_again(trained: Simulator) -> None:
    u0 = np.random.default_rng(0).normal(size=(3, 16, 1)).astype(np.float32)
    search = ups.Search(candidates=4, beam=2, seed=7)
    whole = trained.rollout(u0, 3, PARAMS, search=search)
    assert whole.shape == (3, 3, 16, 1)
    assert np.array_equal(whole, trained.rollout(u0, 3, PARAMS, search=search))
    assert np.allclose(whole[:2], trained.rollout(u0[:2], 3, PARAMS, search=search), atol=1e-5)
    assert not np.allclose(whole, trained.rollout(u0, 3, PARAMS, search=ups.Search(4, 2, 8)))


def test_a_critic_ranks_draws_as_their_true_errors_do(trained: Simulator) -> None:
    """Draws of a normal distribution: the nearer to its mean, the nearer to the truth, on average."""
    stage = CriticStage(trained)
    with torch.no_grad():
        ((drawn, z, last, truth, condition),) = stage._drawn(Noisy().batch(500))
        guess = stage.module(drawn, z, last, condition)
        errors = stage.module.error(drawn, z, last, condition)
    pair = torch.stack((guess.flatten(), (drawn - truth).square().log().flatten()))
    assert float(torch.corrcoef(pair)[0, 1]) > 0.1
    assert bool((errors > 0).all())


def test_a_critic_learns_the_logarithm_of_the_square_error_of_draws_in_units_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of those that a student draws, where there is one; and before it has learnt anything it guesses 0 for all."""
    made = simulator(parts=("codec", "operator", "residual", "consistency", "critic"))
    stage, given = CriticStage(made), replace(window(3, targets=2), tokens=torch.randn(3, 3, 4, 8))
    monkeypatch.setattr(made.parts["consistency"], "sample", lambda *_: torch.full((3, 4, 8), 2.0))
    monkeypatch.setattr(made.parts["consistency"], "scale_of", lambda _: torch.tensor(0.25))
    monkeypatch.setattr(stage.module, "scale_of", lambda _: torch.tensor(0.1))
    errors = [(given.tokens[:, i] + 2.0 * 0.25 - given.tokens[:, i + 1]) / 0.1 for i in (0, 1)]
    wanted = torch.stack([(error.square() + 1e-3).log() for error in errors]).square().mean()
    exact = replace(given, tokens=torch.full((3, 3, 4, 8), 0.5) * torch.arange(3).reshape(1, 3, 1, 1))
    with torch.no_grad():
        assert float(stage.loss(given)["guess"]) == pytest.approx(float(wanted), rel=1e-4)
        assert float(stage.loss(exact)["guess"]) == pytest.approx(math.log(1e-3) ** 2, rel=1e-3), "as near as is told"


def test_a_critic_is_judged_by_the_same_draws_every_time_on_four_steps_of_what_steps() -> None:
    stage, given = CriticStage(simulator(parts=ALL)), window(3, targets=6)
    first = stage.evaluate(given)["advection1d guess"]
    assert torch.equal(first, stage.evaluate(given)["advection1d guess"])
    assert torch.equal(first, stage.evaluate(replace(given, targets=given.targets[:, :4]))["advection1d guess"])
    assert [CriticStage.learns(task) for task in (TASK, TASKS["darcy2d"])] == [True, False]


def test_a_critic_keeps_the_scales_of_tasks_that_it_has_learnt_and_measures_those_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage, told = CriticStage(simulator(parts=ALL)), list[tuple[Any, ...]]()
    z, last = torch.full((2, 4, 8), 5.0), torch.full((2, 4, 8), 2.0)
    monkeypatch.setattr(stage, "_drawn", lambda *_, **__: [(z + 1, z, last, z + 5, None)])
    monkeypatch.setattr(stage.module, "fit_scales", lambda *args: told.append(args))
    stage.fit(window(2), inherited=[TASK.name])
    assert told == []
    stage.fit(window(2))
    ((name, missed, changed),) = told
    assert (name, missed.tolist(), changed.tolist()) == (TASK.name, [4.0] * 8, [3.0] * 8)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"candidates": 0}, "candidates is 0"),
        ({"candidates": 2, "beam": 3}, "a beam of 3 needs as many candidates"),
        ({"candidates": 10**6}, "more than 4096 draws"),
        ({"seed": -1}, "seed is -1"),
        ({"candidates": 2.5}, "candidates is 2.5"),
    ],
)
def test_a_search_that_cannot_be_is_one_sentence(words: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Search(**words)


def test_what_cannot_be_searched_says_so(trained: Simulator) -> None:
    u0 = np.zeros((16, 1), np.float32)
    with pytest.raises(ConfigError, match="no part that draws"):
        simulator(parts=("codec", "operator")).rollout(u0, 1, PARAMS, search=Search())
    with pytest.raises(ConfigError, match=r"must be a ups\.Search"):
        trained.rollout(u0, 1, PARAMS, search=8)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="leave ensemble and points out"):
        trained.rollout(u0, 1, PARAMS, search=Search(), ensemble=2)
