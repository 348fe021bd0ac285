"""onnx: a whole rollout as one graph, checked by onnxruntime against torch before it is handed out."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from ups.types import Array, ConfigError, TaskSpec
from ups_apps.export.card import export_card
from ups_apps.export.job import Export, ExportFormat
from ups_apps.export.programs import Arguments, example
from ups_apps.export.pt2 import programs_of

STEPS = 20  # of the rollout that is held against torch's
NEAR = 1e-5  # of the largest value of a channel: a difference by which the two may differ
NEEDED = "it needs packages that are not installed: pip install 'universal-physics-stack[export]'."


def write(job: Export) -> None:
    """The rollout of the one task as a graph with inputs `state`, `inputs`, `params`, `dt (steps, B)`, as far as the
    task has them, and the output `frames (steps, B, *S, C)`; of a steady task the solution of `inputs`."""
    require()
    whole = whole_of(job, models_of(job))
    for word, text in export_card(job.simulator, job.tasks).items():
        whole.metadata_props.add(key=word, value=text if isinstance(text, str) else json.dumps(text))
    data = whole.SerializeToString()
    check(job, data)
    job.out.write_bytes(data)


def whole_of(job: Export, models: Mapping[str, Any]) -> Any:
    """The models of the one task as one."""
    return models["solve"] if job.task.steady else rollout_of(models["begin"], models["step"])


def require() -> None:
    """ConfigError where packages are missing."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise ConfigError(f"--to onnx and html: {NEEDED}") from None


def models_of(job: Export) -> dict[str, Any]:
    """The programs of the one task as models of ONNX; ConfigError with the reason where one cannot be exported."""
    return {name: _translated(program, job.task, name) for name, program in programs_of(job).items()}


def _translated(program: ExportedProgram, task: TaskSpec, name: str) -> Any:
    quiet = logging.getLogger("torch.onnx")
    before = quiet.level
    quiet.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = torch.onnx.export(program, (), dynamo=True, verbose=False)
    except torch.onnx.OnnxExporterError as error:
        reason = " ".join(str(error.__cause__ or error).split())[:300]
        raise ConfigError(
            f"{task.name}: its {name} cannot be written as ONNX ({reason}); --to pt2 has no such limit."
        ) from None
    finally:
        quiet.setLevel(before)
    assert made is not None
    model = made.model_proto
    outputs = {"begin": ("tokens",), "step": ("after", "frame"), "solve": ("frames",)}[name]
    return _renamed(model, dict(zip((out.name for out in model.graph.output), outputs, strict=True)))


def _renamed(model: Any, names: Mapping[str, str]) -> Any:
    """A model with some values called otherwise."""
    _rename(model.graph, names)
    return model


def _rename(graph: Any, names: Mapping[str, str]) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _rename(inner, names)


def rollout_of(begin: Any, step: Any) -> Any:
    """The first tokens, and then a step for each row of `dt`, as one model."""
    from onnx import TensorProto, compose, helper

    first, body = (compose.add_prefix(model, prefix) for model, prefix in ((begin, "begin/"), (step, "step/")))
    shared = [value.name for value in begin.graph.input]
    _rename(first.graph, {f"begin/{name}": "dt_of_first" if name == "dt" else name for name in shared})
    outer = {f"step/{name}": name for name in shared if name != "dt"}
    _rename(body.graph, {**outer, "step/start": "begin/tokens"})
    carried = {value.name: value for value in body.graph.input}
    loop = helper.make_graph(
        [*body.graph.node],
        "step",
        [carried["step/tokens"], carried["step/dt"]],
        [*body.graph.output],
        value_info=[*body.graph.value_info],
    )
    ends = ["last_tokens", "frames"]
    scan = helper.make_node("Scan", ["begin/tokens", "dt"], ends, num_scan_inputs=1, body=loop)
    number = helper.make_tensor("first_row", TensorProto.INT64, [], [0])
    at = helper.make_node("Gather", ["dt", "first_row"], ["dt_of_first"], axis=0)
    frame = [dim.dim_value or "batch" for dim in body.graph.output[1].type.tensor_type.shape.dim]
    times = helper.make_tensor_value_info("dt", TensorProto.FLOAT, ["steps", "batch"])
    given = [value for value in first.graph.input if value.name != "dt_of_first"]
    graph = helper.make_graph(
        [at, *first.graph.node, scan],
        "rollout",
        [*given, times],
        [helper.make_tensor_value_info("frames", TensorProto.FLOAT, ["steps", *frame])],
        [number, *first.graph.initializer, *body.graph.initializer],
    )
    sets = {one.domain: one for model in (begin, step) for one in model.opset_import}
    return helper.make_model(graph, opset_imports=[*sets.values()], ir_version=begin.ir_version)


def check(job: Export, data: bytes) -> None:
    """ConfigError unless onnxruntime gives what torch gives, over a whole rollout and for another batch than that which
    was traced."""
    import onnxruntime

    task, grid = job.task, job.grid(job.task)
    steps = 1 if task.steady else STEPS
    window = example(job.simulator, task, grid, samples=2)
    given = {name: value.numpy() for name, value in Arguments(task, grid).arguments(window).items()}
    if not task.steady:
        given["dt"] = np.broadcast_to(given["dt"], (steps, 2)).copy()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(data, options)
    (frames,) = session.run(["frames"], given)
    with torch.no_grad():
        truth = job.simulator.simulate(window, steps)
    if window.mask is not None:
        truth = truth.masked_fill(~window.mask[:, None, ..., None], torch.nan)
    away = difference(
        frames if task.steady else frames.swapaxes(0, 1), truth.numpy()[:, 0] if task.steady else truth.numpy()
    )
    if not away <= NEAR:
        raise ConfigError(
            f"{task.name}: onnxruntime differs from torch by {away:.1e} of the largest value after {steps} steps, more "
            f"than {NEAR:g}; --to pt2 has no such limit."
        )


def difference(frames: Array, truth: Array) -> float:
    """The largest difference over the largest value; infinite where not the same cells count."""
    counts = np.isfinite(truth)
    if not (counts == np.isfinite(frames)).all() or not counts.any():
        return float("inf")
    return float(np.abs(frames - truth)[counts].max() / np.abs(truth[counts]).max())


FORMAT = ExportFormat(write)
