"""FNO and UNO: what they need, how they normalise, and that they learn."""

from __future__ import annotations

import dataclasses
import sys
from importlib import metadata

import pytest
import torch

from grids import grid_of
from ups.engine.train import RivalTrainConfig
from ups.eval.baselines import BASELINES
from ups.eval.fourier import RECIPE, NeuralOpBaseline, available, installed, library
from ups.eval.rollout import EvalProtocol, evaluate
from ups.models import CodecConfig, OperatorConfig, build
from ups.physics import TASKS
from ups.stages.operator import OperatorStage
from ups.tensors import Window, numeric_params
from ups.types import ConfigError, DataError, Field, TaskSpec

SMALL = (8, 4)


@pytest.fixture(scope="module")
def package() -> None:
    """Imported by the one process that runs these tests, and not by all that read this file: it takes seconds."""
    if not available():
        pytest.skip("needs the `baselines` extra")


needs_package = pytest.mark.usefixtures("package")


def waves(task: TaskSpec, samples: int = 4, cells: int = 16, ahead: int = 2, seed: int = 0) -> Window:
    """A sine along the first axis that moves by a twentieth of the box per frame."""
    rng = torch.Generator().manual_seed(seed)
    x = (torch.arange(cells) + 0.5) / cells
    t = torch.arange(2 + ahead)
    phase = 6.3 * torch.rand(samples, 1, 1, generator=rng)
    field = 3 + 2 * torch.sin(2 * torch.pi * (x - 0.05 * t[:, None]) + phase)
    space, channels = (cells,) * task.ndim, len(task.channels)
    values = field.reshape(samples, 2 + ahead, cells, *(1,) * task.ndim).expand(-1, -1, *space, channels)
    inputs = torch.zeros(samples, *space, sum(len(f.channels) for f in task.inputs))
    params = torch.full((samples, len(numeric_params(task))), 0.01)
    dt = torch.full((samples,), 0.05)
    return Window(
        task, values[:, :2], values[:, 2:], inputs, params, dt, grid_of(inputs, task.periodic, (1.0,) * task.ndim)
    )


def test_without_the_package_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "neuralop.models", None)
    monkeypatch.setitem(sys.modules, "neuralop", None)
    with pytest.raises(ConfigError, match=r"pip install 'universal-physics-stack\[baselines\]'"):
        NeuralOpBaseline(TASKS["burgers1d"], 2, "fno", SMALL)


@needs_package
@pytest.mark.parametrize("kind", ["fno", "uno"])
@pytest.mark.parametrize("name", ["burgers1d", "reacdiff2d", "diffsorp1d"])
def test_a_baseline_learns_and_serves_as_stage_and_predictor(kind: str, name: str) -> None:
    torch.manual_seed(0)
    task = TASKS[name]
    model = NeuralOpBaseline(task, 2, kind, SMALL)
    train = waves(task, ahead=1)
    model.fit([train])
    assert model.shift == pytest.approx(torch.full_like(model.shift, 3.0), abs=0.1)
    unseen = waves(task, seed=1)

    @torch.no_grad()
    def score() -> float:
        found = model.evaluate(unseen)
        assert {tuple(values.shape) for values in found.values()} == {(len(unseen),)}, "one value per sample"
        return model.score({key: float(values.mean()) for key, values in found.items()})

    assert model.view(train, 0.3) is train
    before = score()
    ours = evaluate(model, [unseen], EvalProtocol("A", 2), examples=0)
    assert before == pytest.approx(ours.score, rel=1e-4), "validation and judgement measure the same"
    optimizer = torch.optim.Adam(model.module.parameters(), 5e-3)
    for _ in range(40):
        optimizer.zero_grad()
        sum(model.loss(train).values()).backward()
        optimizer.step()
    assert score() < 0.5 * before
    assert model.predict(waves(task, cells=24), 3).shape[1:3] == (3, 24), "another resolution"


@needs_package
@pytest.mark.parametrize("kind", ["fno", "uno"])
@pytest.mark.parametrize(("name", "parameters"), [("burgers1d", 8_676), ("darcy2d", 1_165_232), ("cfd2d", 900_000)])
def test_a_baseline_has_the_parameters_that_it_is_to_match(kind: str, name: str, parameters: int) -> None:
    model = NeuralOpBaseline.matched(TASKS[name], 10, kind, parameters)
    assert model.parameter_count == pytest.approx(parameters, rel=0.05)


@needs_package
def test_parameters_that_no_network_has_are_refused() -> None:
    with pytest.raises(ConfigError, match="no fno of burgers1d has about 20 parameters"):
        NeuralOpBaseline.matched(TASKS["burgers1d"], 10, "fno", 20)


@needs_package
def test_the_loss_leaves_cells_out_that_do_not_count() -> None:
    task = dataclasses.replace(TASKS["burgers1d"], inputs=(Field.scalar("mask"),), mask="mask")
    model, nowhere = NeuralOpBaseline(task, 2, "fno", SMALL), waves(task)
    everywhere = dataclasses.replace(nowhere, inputs=torch.ones_like(nowhere.inputs))
    model.fit([everywhere])
    assert model.loss(nowhere)["h1"].item() == 0
    assert model.loss(everywhere)["h1"].item() > 0.1


@needs_package
def test_the_loss_of_a_batch_is_the_mean_of_the_losses_of_its_samples() -> None:
    model = NeuralOpBaseline(TASKS["burgers1d"], 2, "fno", SMALL)
    window = waves(TASKS["burgers1d"])
    model.fit([window])
    alone = torch.stack([model.loss(part)["h1"] for part in window.split(1)])
    assert model.loss(window)["h1"].item() == pytest.approx(alone.mean().item(), rel=1e-5)


@needs_package
def test_a_network_that_is_not_finite_scores_badly() -> None:
    model = NeuralOpBaseline(TASKS["burgers1d"], 2, "fno", SMALL)
    model.increment.fill_(float("nan"))
    with torch.no_grad():
        found = model.evaluate(waves(TASKS["burgers1d"]))
    assert model.score({key: float(values.mean()) for key, values in found.items()}) >= 1e6


@needs_package
def test_a_baseline_and_a_simulator_are_validated_by_the_same_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a field is zero throughout, in one sample or in all: no weights are chosen by it alone."""
    task = TASKS["reacdiff2d"]
    ours = OperatorStage(build([task], CodecConfig(dim=32), OperatorConfig(width=16, depth=1, heads=2)))
    for zero in (slice(1), slice(None)):
        given = waves(task, cells=8)
        given = dataclasses.replace(given, context=given.context.clone(), targets=given.targets.clone())
        for frames in (given.context, given.targets):
            frames[zero, ..., 1] = 0
        model = NeuralOpBaseline(task, 2, "fno", SMALL)
        model.fit([given])
        values = torch.cat((given.context, given.targets), 1).flatten(0, -2)
        ours.simulator.codec.fit_statistics(task, values.mean(0), values.std(0, correction=0))
        answer = given.targets + 1e-2
        monkeypatch.setattr(model, "predict", lambda *_, answer=answer: answer)
        monkeypatch.setattr(ours.simulator, "simulate", lambda *_, answer=answer: answer)
        (theirs, first), (own,) = model.evaluate(given).values(), ours.evaluate(given).values()
        assert torch.allclose(theirs, own, rtol=1e-4)
        assert torch.allclose(first, own, rtol=0.2)
        assert 1e-3 < own.min() < own.max() < 2e-2


def media(samples: int = 6, cells: int = 16) -> Window:
    """Solutions of mean 5 and deviation 1 that look as their inputs do, which are of mean 2 and deviation 3."""
    task, rng = TASKS["darcy2d"], torch.Generator().manual_seed(0)
    field = torch.randn(samples, cells, cells, 1, generator=rng)
    field = (field - field.mean()) / field.std(correction=0)
    solution, params = 5 + field.unsqueeze(1), torch.ones(samples, len(numeric_params(task)))
    one = torch.ones(samples)
    return Window(
        task,
        torch.zeros_like(solution),
        solution,
        2 + 3 * field,
        params,
        one,
        grid_of(field, task.periodic, (1.0, 1.0)),
    )


@needs_package
def test_the_empty_frames_of_a_steady_task_are_no_data() -> None:
    model, window = NeuralOpBaseline(TASKS["darcy2d"], 1, "fno", SMALL), media()
    model.fit([window])
    assert (float(model.shift), float(model.scale)) == pytest.approx((5, 1), rel=1e-5)
    assert (float(model.input_shift), float(model.input_scale)) == pytest.approx((2, 3), rel=1e-5)
    other = dataclasses.replace(window, context=torch.full_like(window.context, 7.0))
    assert torch.equal(model.predict(window, 1), model.predict(other, 1)), "nor are they looked at"
    for weights in model.parameters():
        weights.data.zero_()
    assert model.predict(window, 1).detach() == pytest.approx(5 + 0 * window.targets), "the mean is what it adds to"


@needs_package
def test_a_steady_task_is_learnt_as_the_library_does() -> None:
    model, window = NeuralOpBaseline(TASKS["darcy2d"], 1, "fno", SMALL), media()
    model.fit([window])
    x, y = window.inputs.movedim(-1, 1), window.targets[:, 0].movedim(-1, 1)
    coded = []
    for values in (x, y):
        normalizer = library("data.transforms.normalizers").UnitGaussianNormalizer(dim=[0, 2, 3])
        normalizer.fit(values)
        coded.append(normalizer.transform(values))
    empty = torch.zeros(len(x), len(model.param_shift), *x.shape[2:])  # parameters that never vary
    wanted = library("losses").H1Loss(d=2, reduction="mean", periodic_in_x=False, periodic_in_y=False)(
        model.net(torch.cat([coded[0], empty], 1)), coded[1]
    )
    assert model.loss(window)["h1"].item() == pytest.approx(wanted.item(), rel=1e-3)


@needs_package
@pytest.mark.parametrize("kind", ["fno", "uno"])
def test_what_is_given_is_heard_in_any_unit(kind: str) -> None:
    def losses(scale: float) -> list[float]:
        torch.manual_seed(0)
        model = NeuralOpBaseline(TASKS["darcy2d"], 1, kind, SMALL)
        window = dataclasses.replace(media(), inputs=scale * media().inputs)
        model.fit([window])
        optimizer = torch.optim.SGD(model.module.parameters(), 1e-2)
        found = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = model.loss(window)["h1"]
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    assert losses(1e4) == pytest.approx(losses(1.0), rel=1e-4)


@needs_package
@pytest.mark.parametrize("kind", ["fno", "uno"])
def test_the_seed_decides_the_weights_and_nothing_else_changes(kind: str) -> None:
    def make(task: TaskSpec, context: int, _: int) -> NeuralOpBaseline:
        return NeuralOpBaseline(task, context, kind, SMALL)

    def weights(seed: int) -> torch.Tensor:
        network = dataclasses.replace(BASELINES[kind], make=make).untrained(TASKS["burgers1d"], 2, 1, seed).module
        return torch.cat([p.flatten().to(torch.complex64) for p in network.parameters()])

    before = torch.get_rng_state()
    assert torch.equal(weights(3), weights(3))
    assert not torch.equal(weights(3), weights(4))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_learning_rate_is_that_of_the_librarys_config() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([weight], lr=5e-3)
    steps = torch.optim.lr_scheduler.StepLR(optimizer, step_size=60, gamma=0.5)
    train = RivalTrainConfig(steps=300, **RECIPE)
    for epoch in range(300):
        rate = train.lr * train.share(epoch / 300)
        assert rate == pytest.approx(optimizer.param_groups[0]["lr"]), epoch
        optimizer.step()
        steps.step()
    assert (RECIPE["weight_decay"], RECIPE["betas"], RECIPE["clip"], RECIPE["ema"]) == (1e-4, (0.9, 0.999), 0, 0)


@needs_package
def test_untrained_increments_have_the_scale_of_the_data() -> None:
    task = TASKS["burgers1d"]
    model = NeuralOpBaseline(task, 2, "fno", SMALL)
    window = waves(task)
    model.fit([window])
    steps = torch.cat([window.context, window.targets], 1).diff(dim=1)
    assert float(model.increment) == pytest.approx(float(steps.square().mean().sqrt()), rel=1e-5)
    assert torch.equal(model.param_scale, torch.ones(2)), "a parameter that never varies is not blown up"
    model.fit([dataclasses.replace(window, params=1e-15 * (1 + torch.arange(4.0)).unsqueeze(1))])
    assert float(model.param_scale[0]) < 1e-10, "a parameter that varies is heard in any unit"
    assert model.parameter_count == sum(p.numel() * (2 if p.is_complex() else 1) for p in model.parameters())


@needs_package
def test_a_parameter_changes_the_forecast() -> None:
    task = TASKS["burgers1d"]
    model = NeuralOpBaseline(task, 2, "fno", SMALL)
    window = waves(task)
    frames = (window.context, window.inputs)
    ones = torch.ones(4, 2)
    assert not torch.allclose(model(*frames, ones), model(*frames, 2 * ones))


@needs_package
def test_what_does_not_fit_is_refused() -> None:
    model = NeuralOpBaseline(TASKS["burgers1d"], 3, "fno", SMALL)
    with pytest.raises(DataError, match="3 given frames"):
        model.predict(waves(TASKS["burgers1d"]), 1)
    with pytest.raises(ConfigError, match="make another"):
        model.predict(waves(TASKS["advection1d"]), 1)


def test_to_know_that_the_package_is_there_it_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "neuralop", raising=False)
    assert installed() == ("neuraloperator" in {d.metadata["Name"] for d in metadata.distributions()})
    assert "neuralop" not in sys.modules
    monkeypatch.setattr(sys, "path", [])
    assert not installed()
