"""pt2: programs of torch.export, which run with torch alone and give the same bits on the same device."""

from __future__ import annotations

import io
import json
import warnings
from typing import Any

import torch
from torch._dynamo.exc import UserError
from torch.export import Dim, ExportedProgram, export
from torch.export.pt2_archive._package import package_pt2
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from ups.types import ConfigError
from ups_apps.export.card import export_card
from ups_apps.export.job import Export, ExportFormat
from ups_apps.export.programs import Arguments, FirstTokens, NextStep, Program, SteadySolution, example

BATCH = Dim("batch", min=1, max=2**16)


def write(job: Export) -> None:
    """The programs `begin` and `step` of a task, or `solve` of a steady one, and the card, in one archive."""
    programs = programs_of(job)
    arguments = {name: list(program.example_inputs[1]) for name, program in programs.items()}
    card = export_card(job.simulator, job.tasks, programs=arguments)
    archive = io.BytesIO()  # a file must end in .pt2, and a draft of one does not
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No complete tensor found")  # of weights of which a program uses a part
        package_pt2(archive, exported_programs=programs, extra_files={"card.json": json.dumps(card, indent=1)})
    job.out.write_bytes(archive.getvalue())


def programs_of(job: Export) -> dict[str, ExportedProgram]:
    """The programs of the one task, each for any batch."""
    task, grid = job.task, job.grid(job.task)
    given, window = Arguments(task, grid), example(job.simulator, task, grid)
    arguments = given.arguments(window)
    if task.steady:
        return {"solve": traced(SteadySolution(job.simulator, given), arguments)}
    begin = FirstTokens(job.simulator, given)
    with torch.no_grad():
        start = begin(**arguments)
    step = NextStep(job.simulator, given)
    tokens = {"start": start, "tokens": start.clone()}
    return {"begin": traced(begin, arguments), "step": traced(step, {**tokens, **arguments})}


def traced(program: Program, arguments: dict[str, torch.Tensor]) -> ExportedProgram:
    """A program for any number of samples, its arguments given by name.

    Raises:
        ConfigError: torch finds a part that it cannot write down for any number of samples.
    """
    shapes: dict[str, Any] = {name: {0: BATCH} for name in arguments}
    try:
        with torch.no_grad():
            return export(program.eval(), (), kwargs=arguments, dynamic_shapes=shapes)
    except (UserError, ConstraintViolationError) as error:
        task, reason = program.given.task.name, next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(
            f"{task}: torch.export cannot write down this simulator ({reason}); nothing is written."
        ) from error


FORMAT = ExportFormat(write)
