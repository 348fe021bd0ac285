"""Physics in the loss: each term moves the gradient it claims to, counts "no change" as it says, and is asked of tasks
that have it alone."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from ups.models import CodecConfig, OperatorConfig, Simulator, build
from ups.physics import EQUATIONS, TASKS
from ups.physics.laws import laws_of
from ups.physics.random import Draw
from ups.physics.weak import WeakForm
from ups.stages import OperatorStage
from ups.stages.operator import OperatorLoss, OperatorStageConfig
from ups.stages.terms import box_of, lawless, unbalanced
from ups.tensors import Window, numeric_params
from ups.types import ConfigError, Field

CELLS = {1: 128, 2: 24, 3: 8}
CASES = [
    ("conserved", "cfd1d"),
    ("weak", "burgers1d"),
    ("divergence", "nsincom2d"),
    ("positive", "swe2d"),
    ("range", "advection1d"),
]


def sample(name: str, targets: int = 1, count: int = 3) -> Window:
    """True frames of an equation, some time after their start."""
    equation, task = EQUATIONS[name](), TASKS[name]
    domain, draw = equation.domain(CELLS[task.ndim]), Draw(0, range(count))
    first = 20 if name == "diffsorp1d" else 1  # whose front must have come in
    late = [] if task.steady else [task.dt * (first + i / 5) for i in range(1 + targets)]
    frames = equation.simulate(draw, domain, [0.0, *late], "accurate").float()
    frames = torch.cat((torch.zeros_like(frames), frames), 1) if task.steady else frames[:, 1:]
    params = torch.tensor([float(equation.params()[p]) for p in numeric_params(task)])
    return Window(
        task=task,
        context=frames[:, :1],
        targets=frames[:, 1:],
        inputs=equation.inputs(draw, domain).float(),
        params=params.expand(count, -1),
        dt=torch.full((count,), task.dt / 5 or 1.0),
        periodic=domain.periodic,
        box=domain.lengths,
    )


def simulator(name: str, moved: float = 0.05) -> Simulator:
    task, small = TASKS[name], OperatorConfig(width=16, depth=1, heads=2)
    sim = build([task], CodecConfig(), small, grids={name: (CELLS[task.ndim],) * task.ndim})
    generator = torch.Generator().manual_seed(0)
    for p in sim.operator.parameters():  # away from "no change", where it starts
        p.data += moved * torch.randn(p.shape, generator=generator)
    return sim


def only(term: str) -> OperatorStageConfig:
    return OperatorStageConfig(loss=OperatorLoss(increment=0.0, latent=0.0, laws={term: 1.0}))


@pytest.mark.parametrize(("term", "name"), CASES)
def test_a_step_along_its_gradient_reduces_what_the_term_is_of(term: str, name: str) -> None:
    sim, window = simulator(name, 0.3), sample(name)
    stage = OperatorStage(sim, only(term))
    if term == "positive":  # low water, so that some of it is below the ground
        window = dataclasses.replace(window, context=window.context - 1.0)
    losses, residuals = [], []
    for _ in range(2):
        stage.module.zero_grad()
        loss = stage.loss(window)[term]
        loss.backward()
        losses.append(float(loss.detach()))
        with torch.no_grad():
            sim.config = dataclasses.replace(sim.config, guard=False)
            frame = sim.simulate(window, 1)
            pair = torch.cat((window.targets, frame), 1)
            laws = [law for law in laws_of(window.task, window.periodic) if law.kind == term]
            residuals.append(sum(float(law.residual(pair, box_of(window)).square().mean()) for law in laws))
            slopes = [p.grad for p in stage.module.parameters() if p.grad is not None]
            rate = 0.2 * losses[-1] / sum(float(s.square().sum()) for s in slopes)
            for p in stage.module.parameters():
                p -= rate * (0 if p.grad is None else p.grad)
    assert 0 < losses[1] < 0.97 * losses[0]
    assert term == "weak" or residuals[1] < residuals[0]


LONG = ("diffsorp1d", "cfd2d", "cfd3d")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in LONG else ())
        for name, task in TASKS.items()
        if WeakForm.of(task)
    ],
)
def test_the_weak_form_is_one_for_no_change_and_small_for_the_truth(name: str) -> None:
    window = sample(name)
    form = WeakForm.of(window.task)
    assert form is not None
    params = dict(zip(numeric_params(window.task), window.params.unbind(-1), strict=True))
    rest = (window.inputs, params, window.dt, box_of(window))
    still, true = (form.remainder(window.state, after, *rest) for after in (window.state, window.targets[:, 0]))
    assert still.tolist() == pytest.approx([1.0] * 3, abs=0.02)
    assert float(true.max()) < 0.05
    alone = form.remainder(*(x[1:2] for x in (window.state, window.targets[:, 0], window.inputs)),
                           {n: p[1:2] for n, p in params.items()}, window.dt[1:2], box_of(window))  # fmt: skip
    assert float(alone) == pytest.approx(float(true[1]), rel=1e-5)
    wrong = {n: 3 * p for n, p in params.items()}
    if params and name not in ("cfd1d", "cfd2d", "cfd3d"):  # whose viscosity is too small to be seen in one step
        other = form.remainder(window.state, window.targets[:, 0], window.inputs, wrong, *rest[2:])
        assert float(other.mean()) > 2 * float(true.mean())


def test_the_weak_loss_is_least_at_the_truth_where_that_does_not_obey_the_equation_itself() -> None:
    """Frames too far apart in time: the trapezoidal rule is wrong between them."""
    window = sample("burgers1d")
    window = dataclasses.replace(window, dt=0.2 * window.dt)
    after = window.targets[:, 0].clone().requires_grad_()
    loss = unbalanced(window.state, after, (window.state, window.targets[:, 0]), window, 0)
    assert loss.tolist() == [0.0] * 3
    (slope,) = torch.autograd.grad(loss.sum(), after)
    assert not slope.any()
    still = unbalanced(window.state, window.state, (window.state, window.targets[:, 0]), window, 0)
    assert still.tolist() == pytest.approx([1.0] * 3)


def test_a_sample_in_which_hardly_anything_happens_does_not_outweigh_the_others() -> None:
    sim, window = simulator("burgers1d", 0.0), sample("burgers1d")
    still = window.context[:, -1] + 1e-3 * (window.targets[:, 0] - window.context[:, -1])
    targets = torch.cat((still[:1].unsqueeze(1), window.targets[1:]))
    stage = OperatorStage(sim, only("weak"))
    stage.fit(window)
    with torch.no_grad():
        for p in sim.operator.parameters():
            p += 0.02 * torch.randn_like(p)
        usual, faint = (float(stage.loss(w)["weak"]) for w in (window, dataclasses.replace(window, targets=targets)))
    assert faint < 10 * usual


def test_persistence_has_a_weak_loss_of_one_also_where_windows_hold_tokens_alone() -> None:
    sim, window = simulator("burgers1d", 0.0), sample("burgers1d")
    stage = OperatorStage(sim, only("weak"))
    stage.fit(window)
    assert float(stage.loss(window)["weak"].detach()) == pytest.approx(1.0, abs=0.05)
    frames = torch.cat((window.context, window.targets), 1)
    tokens = torch.unflatten(sim.codec.encode_alike(frames.flatten(0, 1), window.task, (True,)), 0, (3, 2)).detach()
    cached = dataclasses.replace(window, context=window.context[..., :0], tokens=tokens)
    assert float(stage.loss(cached)["weak"].detach()) == pytest.approx(float(stage.loss(window)["weak"].detach()), 1e-3)


def test_the_weak_form_is_of_the_length_of_its_own_step() -> None:
    window = sample("burgers1d")
    uneven = dataclasses.replace(window, dt=torch.stack((window.dt, 3 * window.dt), 1))
    after = window.targets[:, 0] + 0.1 * window.state
    for step, times in enumerate((1, 3)):
        even = dataclasses.replace(window, dt=times * window.dt)
        found, wanted = (
            unbalanced(window.state, after, (window.state, window.targets[:, 0]), each, number)
            for each, number in ((uneven, step), (even, 0))
        )
        assert torch.equal(found, wanted)
        assert (found > 1e-3).all()


def test_the_weak_form_compares_each_step_with_the_frame_predicted_before_it() -> None:
    stage, window = OperatorStage(simulator("kdv1d", 0.0), only("weak")), sample("kdv1d", targets=3)
    stage.fit(window)
    assert float(stage.loss(window)["weak"].detach()) == pytest.approx(1.0, abs=0.1)


def test_a_term_that_no_task_has_is_refused_with_a_sentence() -> None:
    for term, name in (
        ("conserved", "reacdiff1d"),
        ("divergence", "cfd1d"),
        ("weak", "swe2d"),
        ("positive", "ks1d"),
        ("range", "ks1d"),
    ):
        with pytest.raises(ConfigError, match=rf"loss\.laws\.{term} is for laws that no task here \({name}\) has"):
            OperatorStage(simulator(name), only(term))


def test_laws_of_an_equation_are_penalised_in_its_own_units() -> None:
    task, scale = TASKS["cfd1d"], torch.tensor([1.0, 100.0, 5.0])
    found, truth = 1 + torch.rand(2, 3, 16, 3, generator=torch.Generator().manual_seed(0))
    given = (torch.empty(3, 16, 0), torch.ones(3, len(numeric_params(task))), torch.ones(3), task.periodic, (1.0,))
    window = Window(task, truth.unsqueeze(1), truth.unsqueeze(1), *given)
    physical = lawless("conserved", found, truth, window, torch.ones(3))
    assert (physical > 0).all()
    torch.testing.assert_close(lawless("conserved", found / scale, truth / scale, window, scale), physical)


@pytest.mark.parametrize("kind", ["conserved", "positive", "divergence"])
def test_laws_that_a_task_declares_are_penalised_alike_in_any_units_of_its_fields_and_its_box(kind: str) -> None:
    smoke, flow = Field.scalar("smoke"), Field.vector("flow", "u", "v")
    task = dataclasses.replace(
        TASKS["nsincom2d"], name="mine", equation="", fields=(smoke, flow), inputs=(), parameters=(),
        conserved=("smoke",), positive=("smoke",), divergence_free=("flow",),
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    truth, found = (torch.randn(3, 8, 6, 3, generator=generator) for _ in range(2))

    def penalties(units: tuple[float, float, float], metre: float) -> torch.Tensor:
        scale = torch.tensor(units)
        frames = (truth * scale).unsqueeze(1)
        none = torch.empty(3, 8, 6, 0)
        window = Window(
            task, frames, frames, none, torch.empty(3, 0), torch.ones(3), (True, True), (2 * metre, metre)
        )  # fmt: skip
        return lawless(kind, found, truth, window, scale)

    usual = penalties((1.0, 1.0, 1.0), 0.5)
    assert (usual > 1e-3).all()
    assert torch.allclose(penalties((1e-9, 1e8, 1e8), 1e7), usual, rtol=1e-4)
