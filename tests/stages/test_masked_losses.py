"""What stands where nothing counts has no part in any loss, scale or score."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from grids import grid_of
from ups.models import CodecConfig, OperatorConfig, Simulator, build
from ups.stages import CodecStage, OperatorStage
from ups.stages.operator import OperatorLoss, OperatorStageConfig
from ups.stages.terms import share, square
from ups.tensors import Window
from ups.types import Field, TaskSpec

TASK = TaskSpec(
    name="basin",
    title="A basin",
    fields=(Field.scalar("h"), Field.scalar("c")),
    bounds=((0.0, 1.0), (0.0, 1.0)),
    periodic=(False, True),
    resolution=16,
    end=1.0,
    frames=11,
    inputs=(Field.scalar("water"),),
    conserved=("h",),
    mask="water",
)


def simulator() -> Simulator:
    small = OperatorConfig(width=16, depth=1, heads=2)
    sim = build([TASK], CodecConfig(dim=32), small, shapes={"basin": (16, 16)})
    generator = torch.Generator().manual_seed(0)
    for p in sim.parameters():
        p.data += 0.05 * torch.randn(p.shape, generator=generator)
    return sim


def window(targets: int = 2) -> Window:
    generator = torch.Generator().manual_seed(1)
    frames = torch.rand((3, 1 + targets, 16, 16, 2), generator=generator) + 0.5
    mask = torch.ones(3, 16, 16, 1)
    for i in range(3):
        mask[i, : 3 + i, 4:9] = 0
    return Window(
        task=TASK,
        context=frames[:, :1],
        targets=frames[:, 1:],
        inputs=mask,
        params=torch.zeros(3, 0),
        dt=torch.full((3,), 0.1),
        grid=grid_of(mask, TASK.periodic, (1.0, 1.0)),
    )


def spoilt(w: Window) -> Window:
    """The same, with other values in the targets where nothing counts."""
    assert w.mask is not None
    return dataclasses.replace(w, targets=torch.where(w.mask[:, None, ..., None], w.targets, 50 * w.targets))


def test_no_field_that_the_operator_is_asked_for_has_what_is_masked() -> None:
    stage = OperatorStage(simulator(), OperatorStageConfig(loss=OperatorLoss(latent=0.0)))
    one, other = (stage.loss(w)["increment"] for w in (window(), spoilt(window())))
    assert float(one) > 0
    assert float(one) == pytest.approx(float(other), rel=1e-6)
    unmasked = dataclasses.replace(TASK, mask="")
    free = [stage.loss(dataclasses.replace(w, task=unmasked))["increment"] for w in (window(), spoilt(window()))]
    assert abs(float(free[1]) / float(free[0]) - 1) > 0.02  # the same term sees it where the task has no mask


def test_the_codec_is_asked_for_nothing_that_is_masked() -> None:
    stage = CodecStage(simulator())
    steady = dataclasses.replace(TASK, steady=True)
    sample = dataclasses.replace(window(1), task=steady)
    mask = sample.mask
    assert mask is not None
    frame = sample.targets[:, 0]
    back = stage.module.decode(stage.module.encode(frame, TASK, grid_of(frame, TASK.periodic)), TASK)
    want = torch.stack([(b - f)[m].square().mean() for b, f, m in zip(back, frame, mask, strict=True)]).mean()
    assert float(stage.loss(sample)["reconstruction"]) == pytest.approx(float(want), rel=1e-5)


def test_scales_and_scores_are_those_of_the_cells_that_count() -> None:
    sim = simulator()
    stage = OperatorStage(sim)
    stage.fit(window())
    before = stage.changes["basin"][0]
    stage.fit(spoilt(window()))
    assert stage.changes["basin"][0] == pytest.approx(before, rel=1e-6)
    scores = [stage.evaluate(w)["basin nRMSE"] for w in (window(), spoilt(window()))]
    assert torch.allclose(scores[0], scores[1])


def test_the_codec_is_judged_by_the_cells_that_count(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = CodecStage(simulator())
    monkeypatch.setattr(stage, "reconstructed", lambda given: spoilt(given).targets)
    assert stage.evaluate(window())["basin reconstruction"].tolist() == [0.0] * 3


def test_terms_with_a_mask_of_ones_are_those_without() -> None:
    generator = torch.Generator().manual_seed(2)
    found, truth = torch.rand(2, 3, 8, 6, 2, generator=generator)
    whole = torch.ones(3, 8, 6, dtype=torch.bool)
    assert torch.allclose(square(found, whole), square(found))
    assert torch.allclose(share(found, truth, whole), share(found, truth))


def test_what_has_no_cell_or_no_truth_to_be_measured_by_is_no_error_where_nothing_is_missed() -> None:
    found = torch.rand(3, 8, 6, 2, generator=torch.Generator().manual_seed(2))
    nothing, none = torch.zeros_like(found), torch.zeros(3, 8, 6, dtype=torch.bool)
    assert square(found, none).tolist() == [0.0] * 3
    assert share(nothing, nothing).tolist() == [0.0] * 3


def test_steps_of_their_own_length_are_what_the_operator_is_told() -> None:
    """A step of a window whose steps differ is that of a window of its length."""
    sim = simulator().eval()
    even = window()
    same = dataclasses.replace(even, dt=torch.full((3, 2), 0.1))
    stage = OperatorStage(sim)
    assert all(torch.equal(a, b) for a, b in zip(stage.loss(even).values(), stage.loss(same).values(), strict=True))
    uneven = dataclasses.replace(even, dt=torch.tensor([[0.1, 0.4]]).expand(3, 2))
    with torch.no_grad():
        first, both = sim.simulate(even, 1), sim.simulate(uneven, 2)
        assert torch.equal(both[:, :1], first)
        assert not torch.equal(both[:, 1], sim.simulate(even, 2)[:, 1])
    assert not torch.equal(stage.loss(uneven)["latent"], stage.loss(even)["latent"])


def odd() -> tuple[Simulator, Window]:
    """The same task on a grid that patches do not divide, with steps that differ."""
    sim = build([TASK], CodecConfig(dim=32), OperatorConfig(width=16, depth=1, heads=2), shapes={"basin": (14, 15)})
    full = window()
    cut = {name: getattr(full, name)[..., :14, :15, :] for name in ("context", "targets", "inputs")}
    return sim, dataclasses.replace(full, dt=torch.tensor([[0.1, 0.3]]).expand(3, 2).clone(), **cut)


def test_no_loss_decides_anything_by_the_value_of_a_mask() -> None:
    sim, sample = odd()
    stages = [OperatorStage(sim), CodecStage(sim)]
    stages[0].fit(sample)
    with FakeTensorMode(allow_non_fake_inputs=True) as fakes:  # numbers that nobody can read
        blind = sample._each(fakes.from_tensor)
        for stage in stages:
            assert all(value.shape == () for value in stage.loss(blind).values())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none here")
def test_a_cuda_graph_of_a_masked_loss_gives_what_the_loss_gives() -> None:
    sim, sample = odd()
    sim, sample = sim.cuda(), sample.to("cuda")
    for stage in (OperatorStage(sim), CodecStage(sim)):
        with torch.no_grad():
            want = sum(stage.loss(sample).values())
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                total = sum(stage.loss(sample).values())
            graph.replay()
        assert torch.allclose(total, want, rtol=1e-4)
