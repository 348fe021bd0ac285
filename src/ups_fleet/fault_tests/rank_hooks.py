"""Hooks in a rank for the lab: places for faults that no heartbeat names, and a record of every sample."""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ups.config import fingerprint
from ups.engine.loop import Trainer
from ups.engine.probe import ALL_OF_IT
from ups.engine.stage import Learnable
from ups.engine.units import units_of
from ups.eval.report import Report
from ups.run import run as whole_run
from ups.run import training
from ups.run.config import RunConfig
from ups.run.data import datasets
from ups.run.judging.conclusion import AfterTraining, EvaluationLeft
from ups.run.load import load
from ups.run.run import Run
from ups.tensors import Losses, Window
from ups_fleet.fault_tests.case import LAST_STAGE, Disturbance
from ups_fleet.supervise.fault_plan import FaultPlan

RECORDS = "samples"
# The functions, by owner and name, before which those places lie that are named by POINTS.
BEFORE: dict[str, tuple[Any, str]] = {
    "generate": (datasets, "generate"),
    "statistics": (whole_run, "keep_statistics"),
    "cache": (training, "encoded_parts"),
    "judgement": (Run, "judge"),
    "report": (AfterTraining, "_report"),
}


def install(around: Disturbance) -> Callable[[], None]:
    """Have this rank record and disturb its training. What is returned is called after its work: faults in teardown."""
    plan = FaultPlan.from_environment() or FaultPlan([], 0, 0)
    rank = int(os.environ["RANK"])
    press = around.rank(rank)

    def at(point: str, step: int = 0) -> None:
        around.at(point, rank)
        plan(point, step)

    class Watched(Trainer):
        """The real trainer, around a stage whose samples are recorded and whose steps may be struck.

        No step is a CUDA graph: replayed, it would pass by the places inside of a loss and of a block, or strike there
        every time. Ranks with graphs and without give the same bits.
        """

        def __init__(self, config: Any, stage: Learnable, batches: Any, dist: Any, store: Any, *rest: Any, **more: Any):
            records = Records(stage.name, dist.rank)
            watched: Any = Disturbed(stage, plan, records, lambda: self.step, press)
            place_hooks(stage.module, plan, lambda: getattr(self, "step", 0))
            checkpoints = getattr(store, "store", store)  # within one that says which data it was trained on
            checkpoints.at = lambda point: at(point, getattr(self, "step", 0))
            super().__init__(config, watched, batches, dist, store, *rest, **more)
            self.graph = None

    names: Any = training
    names.Trainer = Watched
    if plan.at("config"):
        names = whole_run  # where a rank reads it
        names.load = _misread(names.load, plan)
    _place_points(at)
    at("import")
    return lambda: at("teardown")


def _place_points(at: Callable[[str], None]) -> None:
    """Places outside of the steps: in data, statistics, caches, between stages, in the judgement and the report.

    The judgement and the report are short ones: they would take longer than the training.
    """

    def before(function: Callable[..., Any], point: str) -> Callable[..., Any]:
        def called(*args: Any, **more: Any) -> Any:
            at(point)
            return function(*args, **more)

        return called

    names: Any = Run
    names.judge = _brief
    names = AfterTraining
    names._report = _page
    for point, (owner, name) in BEFORE.items():
        setattr(owner, name, before(getattr(owner, name), point))
    learn = training.StageTraining.learn

    def learnt(self: Any, stage: Any, *args: Any) -> Any:
        answer = learn(self, stage, *args)
        if stage.name != LAST_STAGE:
            at("between stages")
        return answer

    names = training.StageTraining
    names.learn = learnt


class Records:
    """Which samples this rank has trained on: one line per step, with a checksum of each."""

    def __init__(self, stage: str, rank: int) -> None:
        folder = Path(os.environ["UPS_HOME"]) / RECORDS
        folder.mkdir(exist_ok=True)
        self.stage = stage
        self.file = (folder / f"{int(os.environ['UPS_ATTEMPT']):03d}-{rank}.jsonl").open("a", buffering=1)

    def note(self, step: int, window: Window) -> None:
        frames = torch.cat((window.context, window.targets), 1) if window.tokens is None else window.tokens
        whole = frames.detach().cpu().contiguous()
        ids = [zlib.crc32(row.numpy().tobytes()) for row in whole]
        self.file.write(json.dumps({"stage": self.stage, "step": step, "time": time.monotonic(), "ids": ids}) + "\n")


class Disturbed:
    """A stage that records its samples, with places for faults in its transform and in its loss."""

    def __init__(
        self,
        stage: Learnable,
        plan: FaultPlan,
        records: Records,
        step: Callable[[], int],
        press: Callable[[int, int], None],
    ) -> None:
        self.stage, self.plan, self.records, self.step, self.press = stage, plan, records, step, press

    def __getattr__(self, name: str) -> Any:
        """Everything else is the stage's own."""
        return getattr(self.stage, name)

    def view(self, window: Window, progress: float) -> Window:
        if progress != ALL_OF_IT:  # a look at how much memory a step takes is none
            self.records.note(self.step(), window)
        for fault in self.plan.due("view", self.step()):
            if fault.kind == "ulp":
                nudge(self.stage.module)
            else:
                fault.strike()
        return self.stage.view(window, progress)

    def loss(self, window: Window) -> Losses:
        self.press(self.step(), len(window))
        losses = self.stage.loss(window)
        for fault in self.plan.due("loss", self.step()):
            if fault.kind == "nan":
                losses = {name: value * float("nan") for name, value in losses.items()}
            elif fault.kind == "inf":
                losses = {name: _infinite(value) for name, value in losses.items()}
            else:
                fault.strike()
        return losses


def place_hooks(module: nn.Module, plan: FaultPlan, step: Callable[[], int]) -> None:
    """Places for faults inside a block: in its backward, in its recomputation, before a collective's buffers."""
    units = units_of(module)
    unit = units[-1] if units else module
    if plan.at("block"):

        def after(_: nn.Module, __: Any, output: Any) -> None:
            for tensor in [output] if isinstance(output, Tensor) else output if isinstance(output, tuple) else []:
                if isinstance(tensor, Tensor) and tensor.requires_grad:
                    tensor.register_hook(lambda _: plan("block", step()))  # type: ignore[no-untyped-call]

        unit.register_forward_hook(after)
    if plan.at("recompute"):
        inner = next(part for part in unit.modules() if part is not unit and not list(part.children()))

        def before(*_: Any) -> None:
            # Forward passes run from Python; what runs in the middle of a backward pass is a recomputation.
            if torch._C._current_graph_task_id() != -1:
                plan("recompute", step())

        inner.register_forward_pre_hook(before)
    if plan.at("buffer"):
        _strike_allocations(plan, step)


def _strike_allocations(plan: FaultPlan, step: Callable[[], int]) -> None:
    from ups.engine.ranks import fsdp_internals

    for kind in (fsdp_internals.GatedAllGather, fsdp_internals.GatedReduceScatter):
        allocate = kind.allocate

        def allocated(self: Any, *args: Any, _allocate: Any = allocate, **more: Any) -> Any:
            plan("buffer", step())
            return _allocate(self, *args, **more)

        setattr(kind, "allocate", allocated)  # noqa: B010  (a method of another's class)


@torch.no_grad()
def nudge(module: nn.Module) -> None:
    """Move one number of one weight by one ulp."""
    weight: Any = max(module.parameters(), key=lambda p: p.numel())
    values = (weight._local_tensor if hasattr(weight, "_local_tensor") else weight).view(-1)
    values[0] = torch.nextafter(values[0], torch.tensor(9.0))


def _infinite(value: Tensor) -> Tensor:
    """A number, with an infinite gradient."""
    zero = value - value.detach()
    return value.detach() + zero * float("inf") if value.requires_grad else value


def _misread(load: Callable[..., Any], plan: FaultPlan) -> Callable[..., Any]:
    """A rank that reads another config than the others."""

    def changed(model: Any, *args: Any, **more: Any) -> Any:
        config = load(model, *args, **more)
        for fault in plan.due("config", 0) if issubclass(model, RunConfig) else ():
            if fault.kind == "seed":
                config = config.model_copy(update={"seed": config.seed + 1})
            else:
                more["overrides"] = {f"{LAST_STAGE}.train.lr": 0.123}
                config = load(model, *args, **more)
        return config

    return changed


def _brief(run: Run, champion: Any = None) -> Report:  # noqa: ARG001
    """Instead of the judgement, which takes longer than the training here: check that the simulator loads."""
    load(run.folder.folder)
    return Report(run.config.name, (), "", fingerprint(run.config), run.config.seed, ())


def _page(conclusion: AfterTraining, judged: EvaluationLeft, gates: Any) -> Report | None:  # noqa: ARG001
    """Instead of the page: where the time went, and what the page would weigh."""
    with conclusion.journal("report"):
        conclusion.folder.write(conclusion.folder.phases, conclusion.seconds.seconds)
        conclusion.folder.write(conclusion.folder.results, {"lab": " " * 100_000})
    return judged.report
