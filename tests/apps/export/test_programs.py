"""A rollout by the exported programs is that of the simulator, for every kind of task."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from moving import moving
from torch import Tensor

from ups.models import Simulator
from ups.models.config import SimulatorConfig
from ups.tensors import Window
from ups.types import ConfigError
from ups_apps.export.job import Export
from ups_apps.export.onnx import check, models_of, whole_of
from ups_apps.export.programs import Arguments, FirstTokens, NextStep, SteadySolution, example
from ups_apps.export.pt2 import traced

STEPS = 4
BY_COPIES = SimulatorConfig(shift_average=2)
KINDS = {
    "driven by a parameter": ("burgers1d", 1, None),
    "carried along": ("advection1d", 2, None),
    "of several frames": ("ks1d", 3, None),
    "between walls": ("reacdiff2d", 1, None),
    "with inputs": ("nsincom2d", 1, None),
    "averaged over copies": ("burgers1d", 1, BY_COPIES),
    "steady": ("darcy2d", 1, None),
    "with a mask": ("darcy2d", 1, "masked"),
}


def of_kind(kind: str) -> Simulator:
    name, context, more = KINDS[kind]
    return moving(name, 16, context, more if isinstance(more, SimulatorConfig) else None, masked=more == "masked")


def rolled(job: Export, window: Window, programs: dict[str, torch.nn.Module]) -> Tensor:
    given = Arguments(job.task, job.grid(job.task)).arguments(window)
    if job.task.steady:
        answer: Tensor = programs["solve"](**given)
        return answer.unsqueeze(1)
    start = tokens = programs["begin"](**given)
    frames = []
    for _ in range(STEPS):
        tokens, frame = programs["step"](start=start, tokens=tokens, **given)
        frames.append(frame)
    return torch.stack(frames, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_programs_of_torch_give_the_frames_of_a_rollout_to_the_bit(kind: str) -> None:
    """What is traced, before it is traced: the same programs as a tracer takes apart."""
    simulator = of_kind(kind)
    (task,) = simulator.tasks
    job = Export(simulator, Path(), (task,), Path(), print)
    arguments = Arguments(task, job.grid(task))
    window = example(simulator, task, job.grid(task), samples=2)
    kinds = {"begin": FirstTokens, "step": NextStep, "solve": SteadySolution}
    programs = {name: kind(simulator, arguments) for name, kind in kinds.items()}
    with torch.no_grad():
        truth = simulator.simulate(window, 1 if task.steady else STEPS)
        frames = rolled(job, window, programs)
    if window.mask is not None:
        truth = truth.masked_fill(~window.mask[:, None, ..., None], torch.nan)
    assert torch.equal(frames.nan_to_num(-1e9), truth.nan_to_num(-1e9))
    assert bool(truth.isnan().any()) == bool(task.mask)
    assert (frames[:, -1] - window.state).nan_to_num(0.0).abs().max() > 1e-2, "something happens"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_onnxruntime_agrees_with_torch_over_a_whole_rollout_or_the_reason_is_said(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    simulator = of_kind(kind)
    job = Export(simulator, Path(), simulator.tasks, tmp_path / "it.onnx", print)
    check(job, whole_of(job, models_of(job)).SerializeToString())


def test_a_program_that_torch_cannot_write_for_any_number_of_samples_is_refused_in_a_sentence() -> None:
    class Counting(FirstTokens):
        def forward(self, state: Tensor) -> Tensor:  # type: ignore[override]
            return state * (2**14 // len(state))

    simulator = moving("advection1d", 16)
    (task,) = simulator.tasks
    grid = Export(simulator, Path(), (task,), Path(), print).grid(task)
    with pytest.raises(ConfigError, match=r"advection1d: torch\.export cannot write down this simulator"):
        traced(Counting(simulator, Arguments(task, grid)), {"state": torch.ones(3, 1, 16, 1)})


def test_a_graph_that_differs_from_torch_is_refused() -> None:
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    simulator = moving("darcy2d", 16)
    job = Export(simulator, Path(), simulator.tasks, Path(), print)
    shapes = {"inputs": ["batch", 16, 16, 1], "params": ["batch", 1], "frames": ["batch", 16, 16, 1]}
    known = {name: onnx.helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()}
    same = onnx.helper.make_node("Identity", ["inputs"], ["frames"])
    graph = onnx.helper.make_graph([same], "same", [known["inputs"], known["params"]], [known["frames"]])
    opset = [onnx.helper.make_opsetid("", 20)]
    with pytest.raises(ConfigError, match="differs from torch"):
        check(job, onnx.helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString())
