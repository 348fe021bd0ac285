"""html: one file that simulates in a browser by itself: the page, the models, and a runtime for them."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import json
from contextlib import ExitStack
from importlib import resources
from typing import Any

import numpy as np

from ups.types import TaskSpec, data_size
from ups_apps.export.card import LEFT_OUT, LICENCE
from ups_apps.export.job import Export, ExportFormat
from ups_apps.export.onnx import check, models_of, require, whole_of
from ups_apps.page.page import rendered
from ups_apps.play.starts import Beginning, UnseenSamples, drawn, has_equation
from ups_apps.serve.shelf import Shelved, about, card_of

EXAMPLES = 6  # of each task: unseen samples, or where the data are gone random draws of its equation
LARGE = 20_000_000  # bytes that are sent by mail no more


def write(job: Export) -> None:
    """The page of `ups play` with an engine of its own: the models of all tasks, and onnxruntime-web to run them."""
    require()
    held, models, examples = Shelved(job.name, job.run, job.simulator), dict[str, str](), dict[str, Any]()
    with ExitStack() as stack:
        samples = UnseenSamples(held, stack, job.say)
        for task in job.tasks:
            part = dataclasses.replace(job, tasks=(task,))
            made = models_of(part)
            check(part, whole_of(part, made).SerializeToString())
            models |= {f"{task.name}/{name}": text_of(model.SerializeToString()) for name, model in made.items()}
            examples[task.name] = [_start(start) for start in _starts(held, samples, task)]
    cards = [_card(held, task, len(examples[task.name])) for task in job.tasks]
    facts = [*about([held]), ("licence", LICENCE), ("left out", "; ".join(LEFT_OUT))]
    content = {"card": {"name": job.name, "about": facts, "tasks": cards}, "models": models, "examples": examples}
    page = rendered(job.name, _engine(content))
    job.out.write_text(page, "utf-8")
    if len(page) > LARGE:
        job.say(f"the page has {data_size(len(page))}, most of it weights; a smaller operator makes a smaller page.")


def text_of(data: bytes) -> str:
    """Bytes as text that JavaScript reads: gzipped, in base64."""
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


def _engine(content: dict[str, Any]) -> str:
    """The program of the page that answers it, with all that it holds."""
    folder = resources.files("ups_apps.export.browser")
    runtime = {
        name: base64.b64encode(folder.joinpath(f"onnxruntime.{ending}.gz").read_bytes()).decode()
        for name, ending in (("runtime", "mjs"), ("wasm", "wasm"))
    }
    worker, engine, licence = (
        folder.joinpath(name).read_text("utf-8") for name in ("worker.js", "engine.js", "LICENSE.onnxruntime-web")
    )
    whole = json.dumps({**content, **runtime, "worker": worker}, allow_nan=False)
    return f"/* onnxruntime-web, which this page holds:\n{licence}*/\n{engine}\nstartPage(localEngine({whole}));"


def _starts(held: Shelved, samples: UnseenSamples, task: TaskSpec) -> list[Beginning]:
    """A few states to begin with."""
    if count := samples.count(task.name):
        return [samples[task.name, i] for i in range(min(EXAMPLES, count))]
    return [drawn(held, task.name, seed) for seed in range(EXAMPLES)] if has_equation(task) else []


def _start(start: Beginning) -> dict[str, Any]:
    """A start as the engine reads it."""
    arrays = {name: array for name in ("state", "inputs") if (array := getattr(start, name)) is not None}
    there = arrays["state"][0] if "state" in arrays else arrays["inputs"]
    texts = {name: text_of(np.ascontiguousarray(array, "<f4").tobytes()) for name, array in arrays.items()}
    frames = len(arrays["state"]) if "state" in arrays else 1
    shape = list(there.shape[:-1])
    return {
        "state": None,
        "inputs": None,
        **texts,
        "shape": shape,
        "frames": frames,
        "params": start.params,
        "dt": start.dt,
    }


def _card(held: Shelved, task: TaskSpec, examples: int) -> dict[str, Any]:
    """The card of a task, without what no page can do alone."""
    alone = {"draws": False, "estimates": False, "random": False, "truth": False}
    return {**card_of(held, task), **alone, "examples": examples}


FORMAT = ExportFormat(write, several=True)
