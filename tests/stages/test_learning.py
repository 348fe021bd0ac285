"""What a trained simulator listens to: a wrong parameter, dt, boundary, task or input ruins its forecast."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from grids import wrapping
from ups.eval.nrmse import nrmse
from ups.models import CodecConfig, OperatorConfig, Simulator, build
from ups.stages import OperatorStage
from ups.stages.operator import OperatorLoss, OperatorStageConfig
from ups.tensors import Window
from ups.types import ConfigError, Field, Grid, Param, Storage, TaskSpec

CELLS = 32
X = (torch.arange(CELLS) + 0.5) / CELLS


def task(name: str, parameter: str = "", *, driven: bool = False, steady: bool = False) -> TaskSpec:
    return TaskSpec(
        name=name,
        title=name,
        fields=(Field.scalar("u"),),
        bounds=((0.0, 1.0),),
        periodic=(not steady,),
        resolution=CELLS,
        end=1.0,
        frames=1 if steady else 21,
        storage=Storage("array", name),
        parameters=(Param(parameter, 1.0, "how fast"),) if parameter else (),
        inputs=(Field.scalar("given"),) if driven else (),
        steady=steady,
    )


DRIFT, SPREAD = task("drift", "speed"), task("spread", "rate")
FORCED, ROD = task("forced", driven=True), task("rod", driven=True, steady=True)


def ring(batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Complex amplitudes of three waves of a ring, and their wavenumbers."""
    k = 2 * math.pi * torch.arange(1, 4)
    return torch.complex(*torch.randn(2, batch, 3, generator=generator)), k


def window(
    spec: TaskSpec, context: Tensor, targets: Tensor, periodic: tuple[bool] | None = None, **known: Tensor
) -> Window:
    batch = len(context)
    facts = {"inputs": torch.zeros(batch, CELLS, 0), "params": torch.zeros(batch, 0), "dt": torch.ones(batch)}
    grid = Grid((CELLS,), spec.periodic if periodic is None else periodic, spec.bounds)
    return Window(
        task=spec,
        context=context.reshape(batch, 1, CELLS, 1),
        targets=targets.reshape(batch, -1, CELLS, 1),
        grid=grid,
        **{**facts, **known},
    )


def times(batch: int, generator: torch.Generator, steps: int = 3) -> tuple[Tensor, Tensor]:
    """dt `(B,)`, 0.02 to 0.06, and the times `(B, steps + 1, 1, 1)` of the frames."""
    dt = 0.02 + 0.04 * torch.rand(batch, generator=generator)
    return dt, dt.reshape(-1, 1, 1, 1) * torch.arange(steps + 1).reshape(1, -1, 1, 1)


def drift(batch: int, generator: torch.Generator) -> Window:
    """u_t + speed · u_x = 0 on a ring."""
    waves, k = ring(batch, generator)
    speed = 0.5 + 1.5 * torch.rand(batch, 1, generator=generator)
    dt, t = times(batch, generator)
    phase = k * (X.unsqueeze(-1) - speed.reshape(-1, 1, 1, 1) * t)
    u = (waves.reshape(batch, 1, 1, 3) * torch.exp(1j * phase)).real.sum(-1)
    return window(DRIFT, u[:, 0], u[:, 1:], params=speed, dt=dt)


def spread(batch: int, generator: torch.Generator, periodic: bool) -> Window:
    """u_t = rate · u_xx on a ring, or between walls that let nothing through."""
    rate = 0.02 + 0.13 * torch.rand(batch, 1, generator=generator)
    dt, t = times(batch, generator)
    waves, k = ring(batch, generator)
    k = k if periodic else k / 2
    shape = torch.exp(1j * k * X.unsqueeze(-1)) if periodic else torch.cos(k * X.unsqueeze(-1)).to(torch.complex64)
    u = (waves.reshape(batch, 1, 1, 3) * shape * torch.exp(-rate.reshape(-1, 1, 1, 1) * k**2 * t)).real.sum(-1)
    return window(SPREAD, u[:, 0], u[:, 1:], params=rate, dt=dt, periodic=(periodic,))


def forced(batch: int, generator: torch.Generator) -> Window:
    """u_t = f(x)."""
    (start, k), (force, _) = ring(batch, generator), ring(batch, generator)
    u, f = ((a.unsqueeze(1) * torch.exp(1j * k * X.unsqueeze(-1))).real.sum(-1) for a in (start, 10 * force))
    dt, t = times(batch, generator)
    frames = u.unsqueeze(1) + t.squeeze(-1) * f.unsqueeze(1)
    return window(FORCED, frames[:, 0], frames[:, 1:], inputs=f.unsqueeze(-1), dt=dt)


def solution(a: Tensor) -> Tensor:
    """u of −(a u')' = 10 between walls at u = 0: a u' = 10 (c − x), c such that u returns to zero."""
    x = (torch.arange(a.shape[1]) + 0.5) / a.shape[1]
    c = (x / a).sum(1, keepdim=True) / (1 / a).sum(1, keepdim=True)
    slope = 10 * (c - x) / a / a.shape[1]
    return slope.cumsum(1) - slope / 2


def rod(batch: int, generator: torch.Generator) -> Window:
    """The steady state of a rod that conducts better here than there."""
    k = math.pi * torch.arange(1, 4).unsqueeze(1)
    a = torch.exp(0.4 * (torch.randn(batch, 3, 1, generator=generator) * torch.cos(k * X)).sum(1))
    return window(ROD, torch.zeros(batch, CELLS), solution(a), inputs=a.unsqueeze(-1))


MAKERS: dict[str, Callable[[int, torch.Generator], Window]] = {
    "drift": drift,
    "ring": partial(spread, periodic=True),
    "walls": partial(spread, periodic=False),
    "forced": forced,
    "rod": rod,
}


def train(steps: int = 480) -> Simulator:
    """A small simulator of the four tasks, trained through the stage's loss for some seconds."""
    simulator = build(
        [DRIFT, SPREAD, FORCED, ROD],
        CodecConfig(dim=8, width=8, blocks=0),
        OperatorConfig(width=32, depth=2, heads=2, modes=8),
    )
    stage = OperatorStage(simulator, OperatorStageConfig(loss=OperatorLoss(increment=0.0)))
    generator = torch.Generator().manual_seed(0)
    for make in MAKERS.values():
        sample = make(128, generator)
        name = sample.task.name
        simulator.codec.fit_statistics(name, sample.targets.flatten(0, 2).mean(0), sample.targets.flatten(0, 2).std(0))
        if sample.task.inputs:
            simulator.operator.fit_inputs(name, sample.inputs.mean((0, 1)), sample.inputs.std((0, 1)))
        simulator.operator.fit_ranges(name, sample.params.amin(0), sample.params.amax(0))
        simulator.fit_dt(name, 0.02, 0.06)
        stage.fit(sample)
    optimizer = torch.optim.AdamW(stage.module.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    turns = [*MAKERS.values(), rod]  # which is learnt slowest
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 4e-3 * (1 - step / steps)
        sample = turns[step % len(turns)](32, generator)
        sample = dataclasses.replace(sample, targets=sample.targets[:, :1])
        loss = torch.stack(list(stage.loss(sample).values())).sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(stage.module.parameters(), 1.0)
        optimizer.step()
    return simulator.eval()


@pytest.fixture(scope="module")
def simulator() -> Simulator:
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(1)  # tiny tensors: more threads only wait for one another
    found = train()
    torch.set_num_threads(threads)
    torch.set_rng_state(before)
    return found


def unseen(kind: str) -> Window:
    return MAKERS[kind](64, torch.Generator().manual_seed(99))


def forecast(simulator: Simulator, given: Window) -> Tensor:
    with torch.no_grad():
        return simulator.simulate(given, given.targets.shape[1])


@pytest.mark.parametrize("kind", MAKERS)
def test_a_few_seconds_of_training_beat_no_change_tenfold_on_every_task(simulator: Simulator, kind: str) -> None:
    given = unseen(kind)
    ours = nrmse(forecast(simulator, given), given.targets).mean()
    still = nrmse(given.state.unsqueeze(1).expand_as(given.targets), given.targets).mean()
    assert ours < 0.1 * still


def shuffled(given: Window, what: str) -> Window:
    """The window with the values of one condition handed to the next sample."""
    return dataclasses.replace(given, **{what: getattr(given, what).roll(1, 0)})


WRONG: dict[str, tuple[str, Callable[[Window], Window]]] = {
    "speed": ("drift", partial(shuffled, what="params")),
    "rate": ("ring", partial(shuffled, what="params")),
    "dt of drift": ("drift", partial(shuffled, what="dt")),
    "dt of forced": ("forced", partial(shuffled, what="dt")),
    "force": ("forced", partial(shuffled, what="inputs")),
    "conductivity": ("rod", partial(shuffled, what="inputs")),
    "walls taken for a ring": ("walls", lambda given: wrapping(given, True)),
    "a ring taken for walls": ("ring", lambda given: wrapping(given, False)),
    "drift taken for spread": ("drift", partial(dataclasses.replace, task=SPREAD)),
    "spread taken for drift": ("ring", partial(dataclasses.replace, task=DRIFT)),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_condition_changes_the_forecast_and_makes_it_worse(simulator: Simulator, what: str) -> None:
    kind, spoil = WRONG[what]
    given = unseen(kind)
    right, wrong = forecast(simulator, given), forecast(simulator, spoil(given))
    assert not torch.allclose(right, wrong, atol=1e-3)
    assert nrmse(wrong, given.targets).mean() > 1.5 * nrmse(right, given.targets).mean()


def test_a_steady_solution_follows_its_input_and_not_only_the_mean_of_all_solutions(simulator: Simulator) -> None:
    given = unseen("rod")
    found = simulator.solve(given.inputs, task="rod")
    mean = given.targets.mean(0, keepdim=True).expand_as(given.targets)
    ours = nrmse(found.unsqueeze(1), given.targets).mean()
    assert found.shape == given.targets[:, 0].shape
    assert ours < 0.4 * nrmse(mean, given.targets).mean()


def test_a_steady_solution_is_found_on_a_grid_that_was_not_trained(simulator: Simulator) -> None:
    x = (torch.arange(64) + 0.5) / 64
    a = torch.exp(0.4 * torch.cos(math.pi * x))
    found = simulator.solve(a.numpy(), task="rod")
    truth = solution(a.unsqueeze(0))[0]
    assert found.shape == (64,)
    assert float((torch.as_tensor(found) - truth).norm() / truth.norm()) < 0.15


def test_rollout_asks_for_what_drives_a_task_and_takes_one_input_for_all_samples(simulator: Simulator) -> None:
    given = unseen("forced")
    u0, f = given.state[:2], given.inputs[0]
    found = simulator.rollout(u0, 2, dt=0.04, task="forced", inputs=f)
    truth = u0.unsqueeze(1) + 0.04 * torch.tensor([1.0, 2.0]).reshape(1, 2, 1, 1) * f
    assert nrmse(found, truth).mean() < 0.1
    with pytest.raises(ConfigError, match=r"forced is driven by given; give inputs"):
        simulator.rollout(u0, 2, task="forced")
    with pytest.raises(ConfigError, match="has no inputs"):
        simulator.rollout(u0, 2, {"speed": 1.0}, task="drift", inputs=f)
    with pytest.raises(ConfigError, match="inputs for 3 samples, but 2 states"):
        simulator.rollout(u0, 2, task="forced", inputs=given.inputs[:3])
    with pytest.raises(ConfigError, match=r"steady.*sim.solve"):
        simulator.rollout(u0, 2, task="rod", inputs=f)
    with pytest.raises(ConfigError, match="not steady"):
        simulator.solve(f, task="forced")
