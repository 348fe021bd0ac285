"""Stage steady: the mean and the spread of what an operator misses of steady states, and samples turned by chance."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ups.config import load
from ups.engine.loop import Trainer
from ups.engine.ranks.dist import Dist
from ups.engine.train import TrainConfig
from ups.models import CodecConfig, OperatorConfig, Simulator, assemble
from ups.models.config import ResidualConfig, SimulatorConfig, SteadyConfig
from ups.models.residual import ResidualFlow
from ups.models.simulator import CORE
from ups.models.steady import SteadyFlow
from ups.physics import TASKS
from ups.physics.elliptic import Darcy2D
from ups.physics.random import Draw
from ups.progress import Screen
from ups.run.check import check
from ups.run.config import run_config
from ups.run.run import run_alone
from ups.stages.steady import SteadyStage
from ups.tensors import Condition, Window
from ups.types import ConfigError, Grid

KINDS = {**CORE, "residual": ResidualFlow, "steady": SteadyFlow}
DARCY, WAVE = TASKS["darcy2d"], TASKS["advection1d"]
TINY = {"width": 16, "depth": 1, "heads": 2, "modes": 4}
GRIDS = {"darcy2d": (8, 8), "advection1d": (16,)}


def simulator(parts: tuple[str, ...] = ("codec", "operator", "steady")) -> Simulator:
    configs = {
        "codec": CodecConfig(dim=8),
        "operator": OperatorConfig(**TINY),  # type: ignore[arg-type]
        "residual": ResidualConfig(**TINY),  # type: ignore[arg-type]
        "steady": SteadyConfig(**TINY),  # type: ignore[arg-type]
    }
    return assemble([DARCY, WAVE], {name: configs[name] for name in parts}, shapes=GRIDS, kinds=KINDS).eval()


@functools.cache
def window(batch: int, cells: int = 8) -> Window:
    """Media, and their true solutions."""
    grid, draw = Grid((cells, cells), DARCY.periodic, DARCY.bounds), Draw(0, range(batch))
    solution = Darcy2D().simulate(draw, grid, [0.0], "accurate").float()
    return Window(
        task=DARCY,
        context=torch.zeros_like(solution),
        targets=solution,
        inputs=Darcy2D().inputs(draw, grid).float(),
        params=torch.ones(batch, 1),
        dt=torch.ones(batch),
        grid=grid,
        ids=tuple(str(i) for i in range(batch)),
    )


def awaken(sim: Simulator) -> None:
    """Heads start at zero, and hide what lies before them."""
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in sim.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=noise)


class Noisy:
    """Tokens that no operator of no change foresees: a shift for all, and noise of a known size."""

    SHIFT, SPREAD = 0.5, 0.2

    def batch(self, step: int) -> Window:
        torch.manual_seed(step)
        first = torch.zeros(32, 1, 2, 2, 8)
        after = first + self.SHIFT + self.SPREAD * torch.randn_like(first)
        return replace(window(32), tokens=torch.cat((first, after), 1))

    def count(self, step: int) -> int:  # noqa: ARG002
        return 32

    def frames(self) -> tuple[int, int]:
        return 1, 1

    def validation(self, step: int) -> list[Window]:  # noqa: ARG002
        return [window(2)]


@pytest.fixture(scope="module")
def trained() -> Simulator:
    made = simulator()
    stage = SteadyStage(made, SteadyStage.Config.model_validate({"mean": 0.25}))
    stage.fit(Noisy().batch(0))
    Trainer(TrainConfig(steps=300, lr=5e-3, ema=0.9, validate_every=1.0), stage, Noisy(), Dist()).fit()
    return made.eval()


def test_the_mean_and_the_spread_are_learnt(trained: Simulator) -> None:
    part = trained.parts["steady"]
    given = window(64)
    before = torch.zeros(64, 1, 2, 2, 8)
    with torch.no_grad():
        mean = part.refine_tokens(before[:, 0], before, Condition.of(given))
        noise = torch.randn(64, 2, 2, 8, generator=torch.Generator().manual_seed(1))
        drawn = part.refine_tokens(before[:, 0], before, replace(Condition.of(given), noise=noise))
    assert float(mean.mean()) == pytest.approx(Noisy.SHIFT, abs=0.05)
    assert float(mean.std()) < 0.1
    assert float(drawn.mean()) == pytest.approx(Noisy.SHIFT, abs=0.05)
    assert float(drawn.std()) == pytest.approx(Noisy.SPREAD, rel=0.3)


def test_the_loss_is_the_error_of_the_mean_over_its_usual_one_or_for_some_that_of_a_velocity() -> None:
    made, given = simulator(), Window.join([Noisy().batch(step) for step in range(8)])
    given = replace(given, tokens=given.tokens + torch.tensor([0.4, 0.0]).reshape(1, 2, 1, 1, 1))
    stage = SteadyStage(made)
    stage.fit(given)
    scale, truth = stage.flow.scale_of("darcy2d"), given.tokens[:, 1]
    seen: list[torch.Tensor] = []
    stage.flow.register_forward_hook(lambda _, args, answer: seen.extend((*args[:3], answer)))
    loss = float(stage.loss(given)["steady"].detach())
    noisy, time, z, velocity = seen
    at, wanted, still = time.reshape(-1, 1, 1, 1), (truth - z) / scale, time == 0
    assert still.float().mean().item() == pytest.approx(0.75, abs=0.1)
    assert not noisy[still].any()
    drawn = (velocity - wanted + (noisy - at * wanted) / (1 - at)).square().flatten(1).mean(1) / 2

    def relative(gap: torch.Tensor) -> torch.Tensor:
        return (gap.square().flatten(1).mean(1) / truth.square().flatten(1).mean(1)).sqrt()

    mean = relative(scale * (velocity - wanted)) / relative(truth - z).mean()
    assert loss == pytest.approx(float(torch.where(still, mean, drawn).detach().mean()), rel=1e-3)


def test_an_operator_that_misses_nothing_leaves_a_finite_loss_to_learn_from() -> None:
    stage = SteadyStage(simulator())
    exact = replace(window(32), tokens=torch.ones(32, 2, 2, 2, 8))
    stage.fit(exact)
    assert stage.errors["darcy2d"] == 1e-9
    assert bool(stage.loss(exact)["steady"].isfinite())


def test_samples_are_turned_where_that_is_asked_for_and_judged_by_their_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, other, made = window(2), replace(window(2), targets=torch.zeros(2, 1, 8, 8, 1)), simulator()
    monkeypatch.setattr("ups.stages.stage.turned", lambda _: other)
    for symmetry, sees in (("both", "frames"), ({"darcy2d": "train"}, "frames"), ("rollout", "tokens")):
        made.config = SimulatorConfig(symmetry=symmetry)  # type: ignore[arg-type]
        stage = SteadyStage(made)
        assert stage.sees == sees
        torch.manual_seed(0)
        loss = stage.loss(plain)["steady"]
        torch.manual_seed(0)
        seen = other if sees == "frames" else plain
        made.config = SimulatorConfig()
        assert torch.equal(loss, stage.loss(seen)["steady"]), "of what was turned"
    assert set(stage.evaluate(plain)) == {"darcy2d nRMSE"}


def test_draws_are_those_of_their_seed_and_of_steady_tasks_alone(trained: Simulator) -> None:
    a = window(2).inputs.numpy()
    draws = trained.solve(a, task="darcy2d", ensemble=3, seed=7)
    assert draws.shape == (3, 2, 8, 8, 1)
    np.testing.assert_array_equal(trained.solve(a, task="darcy2d", ensemble=2, seed=7), draws[:2])
    assert np.abs(draws[0] - draws[1]).max() > 0
    assert np.abs(trained.solve(a, task="darcy2d", ensemble=1, seed=8) - draws[:1]).max() > 0
    u = np.ones((16, 1), np.float32)
    with pytest.raises(ConfigError, match="no part that draws advection1d"):
        trained.rollout(u, 1, {"beta": 1.0}, task="advection1d", ensemble=2)
    plain = simulator(parts=("codec", "operator"))
    np.testing.assert_array_equal(
        trained.rollout(u, 1, {"beta": 1.0}, task="advection1d"), plain.rollout(u, 1, {"beta": 1.0}, task="advection1d")
    )
    with pytest.raises(ConfigError, match="train a residual or steady stage"):
        plain.solve(a, task="darcy2d", ensemble=2)


def test_it_takes_the_place_of_the_flow_of_all_tasks_on_steady_ones() -> None:
    both = simulator(parts=("codec", "operator", "residual", "steady"))
    assert [type(part) for part in both.awake(DARCY)][2:] == [SteadyFlow]
    assert [type(part) for part in both.awake(WAVE)][2:] == [ResidualFlow]
    both.idle = frozenset({"steady"})
    assert [type(part) for part in both.awake(DARCY)][2:] == [ResidualFlow]


@pytest.mark.parametrize("changes", [{"steps": 9}, {"kernel": 4}])
def test_a_flow_that_cannot_be_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"steady\."):
        SteadyConfig(**changes)  # type: ignore[arg-type]


RUN = """
name: tiny
plan: [codec, operator, steady]
data:
  a: {task: advection1d, scheme: accurate, samples: 10, resolution: 16, device: cpu, reduce: {time: 50}}
  d: {task: darcy2d, scheme: accurate, samples: 20, resolution: 8, device: cpu}
model:
  codec: {dim: 16}
  operator: {width: 16, depth: 1, heads: 2, modes: 4}
  steady: {width: 16, depth: 1, heads: 2, modes: 4}
  simulator: {symmetry: train}
codec: {batch: 4, train: {steps: 2}}
operator: {batch: 4, train: {steps: 2}}
steady: {batch: 4, train: {steps: 3}}
evaluation: {ensemble: 2, tolerance: 1.0e-4}
device: cpu
"""


def test_a_run_learns_it_on_steady_tasks_alone_and_the_report_counts_the_iterations_saved(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(RUN)
    config = load(run_config(), tmp_path / "c.yaml", {"out": str(tmp_path)})
    folder, report = run_alone(config, Screen.silent())
    assert {row.task for row in report.drawn if row.stage == "steady"} == {"darcy2d"}
    rows = {(r["task"], r["metric"]): r["value"] for r in json.loads(folder.results.read_text())}
    assert rows["darcy2d", "residual refined"] <= 1e-4
    saved = rows["darcy2d", "iterations from zero"] - rows["darcy2d", "iterations"]
    assert rows["darcy2d", "iterations saved"] == pytest.approx(saved)
    assert rows["darcy2d", "nrmse refined"] < 1e-3
    assert ("darcy2d", "ensemble crps") in rows
    assert not any(task == "advection1d" and metric.startswith(("iterations", "ensemble")) for task, metric in rows)
    assert "Refinement" in (folder.folder / "report.html").read_text()
    changes = {"out": str(tmp_path), "data": {"a": config.data["a"].model_dump()}, "model.simulator.symmetry": "off"}
    only = load(run_config(), tmp_path / "c.yaml", changes)
    with pytest.raises(ConfigError, match="stage steady learns none of advection1d"):
        check(only)
