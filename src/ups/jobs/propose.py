"""`ups init`: a commented config to start from, for the data at hand and this machine."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ups.config import load
from ups.data import Source, open_source
from ups.definition import definition_from, is_file_name
from ups.engine.ranks.dist import device_of
from ups.files import write_named
from ups.jobs.estimate import Costs, costs
from ups.jobs.forecast import duration, free_memory, number, size
from ups.jobs.history import Triple, hides, triples
from ups.jobs.seams import seamless, wrapping
from ups.jobs.timing import ceilings
from ups.jobs.winds import Glance, glances, winds_in
from ups.physics import EQUATIONS, TASKS
from ups.physics.random import Draw
from ups.physics.solver import initial_states
from ups.physics.symmetries import winds_of
from ups.run.config import run_config
from ups.tensors import told_apart
from ups.types import Array, ConfigError, DataError, TaskSpec, counted

FRAMES = 41  # of a trajectory, about which are kept
CELLS = {"cpu": {1: 256, 2: 64, 3: 16}, "cuda": {1: 1024, 2: 128, 3: 64}}  # along an axis, about which are kept
STEPS = 400  # of the operator that the budget must have room for
SLOWER = 2.0  # times what the ceilings of a device promise that a step takes
SHARE = 0.5  # of the free memory that may be taken
FEW = 5  # trajectories, under which they are cut in time
LOOKED_AT = 8  # samples, about, whose first frames are looked at
UNIFORM, TINY = 0.01, 1e-30  # part of the deviation of all values that a uniform state has at most; no deviation
MANY = 60  # trajectories, below which a larger part of them is for testing
CANDIDATES = {
    "cpu": [("small", 16), ("tiny", 32), ("tiny", 16), ("tiny", 8)],
    "cuda": [("base", 64), ("small", 64), ("small", 32), ("tiny", 32), ("tiny", 8)],
}


@dataclass(frozen=True)
class Holding:
    """The data of one task: its files, none where they are to be made, and what is in them."""

    task: TaskSpec
    files: tuple[str, ...]
    samples: int
    frames: int
    cells: tuple[int, ...]
    definition: str  # the name or the YAML file that the user gave
    uneven: bool  # no first frame is uniform, or there is none: a change can be measured by the sample
    seen: tuple[Glance, ...] = ()  # frames of a few samples
    winds: tuple[str, ...] = ()  # parameters that carry its states along
    past: tuple[Triple, ...] = ()  # more frames of a few samples
    hidden: bool = False  # what comes next is in the frame before the last too
    seamless: tuple[str, ...] = ()  # axes that may wrap, though nobody says so

    @property
    def words(self) -> str:
        spec, cells = self.task, " × ".join(map(str, self.cells))
        what = counted(self.samples, "sample")
        if not spec.steady:
            what = f"{counted(self.samples, 'trajectory')} × {counted(self.frames, 'frame')}"
        title = spec.name if spec.title in ("", spec.name) else f"{spec.title} ({spec.name})"
        return f"{title}: {what} × {cells} cells × {', '.join(spec.channels)}"

    def section(self, kind: str) -> dict[str, Any]:
        """The entry of a config."""
        entry: dict[str, Any] = {"file": self.files[0] if len(self.files) == 1 else list(self.files)}
        if not self.files:
            entry = {"task": self.task.name, "samples": self.samples, "resolution": self.cells[0]}
            entry |= {"scheme": "accurate"}
        elif self.definition:
            entry["task"] = self.definition
        thin = {"space": _every(max(self.cells), CELLS[kind][self.task.ndim])} if self.files else {}
        thin |= {} if self.task.steady else {"time": _every(self.frames, FRAMES)}
        thin = {name: every for name, every in thin.items() if every > 1}
        cut: dict[str, Any] = {}
        if self.samples < FEW:
            cut = {"split": {"time": [0.7, 0.15, 0.15]}}
        elif self.samples < MANY:  # of a tenth of them a test could tell nothing
            cut = {"split": {"fractions": [0.6, 0.15, 0.25]}}
        return {**entry, **({"reduce": thin} if thin else {}), **cut}


def _every(count: int, wanted: int) -> int:
    return max(1, count // wanted)


def holdings(files: Sequence[Path], task: str) -> list[Holding]:
    """What files hold, by task; without files, a task that is made."""
    if not files:
        return [_made(task or "burgers1d")]
    tasks: dict[str, Holding] = {}
    for path in files:
        with open_source(path, TASKS, definition_from(task) if task else None) as source:
            facts = (len(source), len(source.times), source.domain.shape, task)
            here = Holding(source.task, (str(path),), *facts, source.task.steady or _all_uneven(source))
            here = here if source.task.steady else _looked_at(here, source)
        name, earlier = here.task.name, tasks.get(here.task.name)
        if earlier is not None and earlier.task.channels != here.task.channels:
            names, others = (", ".join(h.task.channels) for h in (here, earlier))
            raise DataError(f"{path}: {name} has the fields {names}, and in {earlier.files[0]} {others}.")
        if earlier is not None:
            together = (earlier.files + here.files, earlier.samples + here.samples)
            uneven, seen, past = earlier.uneven and here.uneven, earlier.seen + here.seen, earlier.past + here.past
            here = replace(here, files=together[0], samples=together[1], uneven=uneven, seen=seen, past=past)
        tasks[name] = here
    for holding in tasks.values():
        if holding.samples < FEW and holding.task.steady:
            raise DataError(
                f"{holding.files[0]}: {holding.samples} steady states cannot be cut into data to train on, to validate "
                f"on and to test on; at least {FEW} can."
            )
        if not told_apart(holding.task):
            raise DataError(
                f"{holding.files[0]}: has one frame of each sample, and neither inputs nor parameters that tell "
                "samples apart: there is nothing to predict it from; give at least two frames, or `inputs`."
            )
    return [replace(h, winds=winds_in(h.task, h.seen), hidden=hides(h.past), seen=(), past=()) for h in tasks.values()]


def _looked_at(holding: Holding, source: Source) -> Holding:
    """With frames of a few samples, as far apart as they will be."""
    every = _every(holding.frames, FRAMES)
    thin = _every(max(holding.cells), CELLS["cpu"][holding.task.ndim])
    seen, past = tuple(glances(source, every)), tuple(triples(source, every, thin))
    return replace(holding, seen=seen, past=past, seamless=seamless(source))


def _made(task: str) -> Holding:
    """A generated task, small enough for a laptop."""
    if is_file_name(task) or task not in EQUATIONS:
        raise ConfigError(f"there is no task '{task}' to make data of; `ups data tasks` lists them, or name FILES.")
    spec = TASKS[task]
    cells = {1: 128, 2: 32, 3: 16}[spec.ndim]
    equation = EQUATIONS[task]()
    frames = 1 if spec.steady else len(equation.times())
    starts = initial_states(equation, Draw(0, range(LOOKED_AT)), equation.domain(cells)).numpy()
    uneven = spec.steady or all(_uneven(state, state) for state in starts)
    return Holding(spec, (), 128, frames, (cells,) * spec.ndim, "", uneven, winds=winds_of(spec))


def _all_uneven(source: Source) -> bool:
    """Whether the first frame of none of a few samples is uniform."""
    few = range(0, len(source), max(1, len(source) // LOOKED_AT))
    return all(
        _uneven(source.read(i, slice(1))[0], source.read(i, slice(len(source.times_of(i)) - 1, None))[0]) for i in few
    )


def _uneven(first: Array, last: Array) -> bool:
    """Whether a state `(*S, C)` is not uniform, in deviations of itself and of what becomes of it."""
    cells = tuple(range(first.ndim - 1))
    size = np.nanstd(np.stack((first, last)).astype(np.float64), (0, *(axis + 1 for axis in cells)))
    deviation = np.nanstd(first.astype(np.float64), cells) / np.maximum(size, TINY)
    return bool(np.sqrt(np.mean(deviation**2)) > UNIFORM)


def propose(
    files: Sequence[Path],
    task: str,
    out: Path,
    minutes: float,
    device: str,
    overwrite: bool,
    activity: Callable[[str], None],
) -> tuple[Path, list[str]]:
    """Write a config for `files` that trains for `minutes` on `device`; its path, and what there is to say of it."""
    if out.exists() and not overwrite:
        raise ConfigError(f"{out}: is there already; choose another --out, or replace it with --overwrite.")
    if not minutes > 0:
        raise ConfigError(f"--minutes is {minutes:g}, but training takes some time; give a number above 0.")
    sets = holdings(files, task)
    here = device_of(device)
    activity("choosing a model size and a batch for this machine")
    roof, free = ceilings(here, bf16=False), free_memory(here)
    for model, batch in CANDIDATES[here.type]:
        settings = _settings(sets, here.type, model, batch, minutes)
        config = load(run_config(), None, _dotted(settings))
        bill = costs(config, here.type)
        step = SLOWER * roof.seconds(bill.stages[-1].work, bill.stages[-1].captured)
        if bill.needed <= SHARE * free and STEPS * step <= 60 * minutes:
            break
    head = _header(sets, bill, step, minutes, free, here.type, out)
    if bill.needed > free:
        head.append(f"# It does NOT fit: {size(bill.needed)} are needed, and {size(free)} free; use a larger `reduce`.")
    write_named(out, _text(head, settings, sets), "choose another --out")
    load(run_config(), out)
    remarks = [words.removeprefix("# ") for words in head[2:]]
    return out, remarks


def _settings(sets: Sequence[Holding], kind: str, model: str, batch: int, minutes: float) -> dict[str, Any]:
    patch = [4, 2 if kind == "cpu" else 4, 2]
    dim = max(len(h.task.channels) * patch[h.task.ndim - 1] ** h.task.ndim for h in sets)
    gauge = "sample" if all(h.uneven for h in sets) else "task"
    carried = {h.task.name: list(h.winds) for h in sets if h.winds}
    told: dict[str, Any] = {"carried": carried} if any(h.winds != winds_of(h.task) for h in sets) else {}
    if any(h.hidden for h in sets):
        told |= {"context": 2}
        told |= {"memoryless": names} if (names := [h.task.name for h in sets if not h.hidden]) else {}
    rate = 2e-3 if model == "base" else 4e-3
    many = {"codec": {"batch": batch}, "operator": {"batch": batch}}
    return {
        "name": sets[0].task.name if len(sets) == 1 else "tasks",
        "device": "cpu" if kind == "cpu" else "cuda",
        "data": {h.task.name: h.section(kind) for h in sets},
        "model": {
            "codec": {"dim": 16 * math.ceil(dim / 16), "patch": patch},
            "operator": {"size": model, "gauge": gauge, **told},
        },
        "codec": {**many["codec"], "train": {"steps": 0}},
        "operator": {
            **many["operator"],
            "loss": {"increment": 0.0},
            "train": {"seconds": round(60 * minutes), "lr": rate, "optimizer": "muon", "ema": 0.99},
        },
    }


def _dotted(settings: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """A nested config as flags."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _dotted(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value}
    return flat


def _header(
    sets: Sequence[Holding], bill: Costs, step: float, minutes: float, free: int, kind: str, out: Path
) -> list[str]:
    cores = counted(len(os.sched_getaffinity(0)), "core") if kind == "cpu" else "one GPU"
    parameters = number(bill.parameters["total"])
    return [
        f"# ups run {out}",
        f"# Before it: `ups estimate {out}` says what it takes, `ups config show {out}` every key with its default.",
        *(f"# Data: {holding.words}." for holding in sets),
        *(f"# Note: {holding.task.name}: {note}." for holding in sets for note in wrapping(holding.seamless)),
        f"# Hardware: {cores}, {size(free)} of memory free when this was written.",
        f"# Memory: about {size(bill.needed)} of tensors at the peak, beside the program's own.",
        f"# Time: {duration(60 * minutes)} of training, about {duration(step)} a step, and judging.",
        f"# Model: {parameters} parameters.",
    ]


NOTES = {
    "name": "the run's folder is runs/NAME",
    "file": "a file, a folder, a pattern such as data/*.h5, or a list of them",
    "task": "what the data are; `ups data info FILE` prints a definition to edit",
    "samples": "trajectories to make",
    "reduce": "every n-th frame and every n-th cell are used",
    "split": "few trajectories: how they are cut for training, validation and testing",
    "dim": "numbers per token: at least channels × patch^axes, or the codec loses something",
    "size": "tiny, small, base or large",
    "steps": "the codec has nothing to learn while dim is at least that: it loses nothing as it is built",
    "gauge": "a change is measured by the sample itself; by its task where first frames are uniform",
    "carried": "seen to move states in proportion, and taken to do nothing else; {} if they do more",
    "context": "frames that are looked back on: one was seen to leave half of what comes next open, and two to tell it",
    "memoryless": "tasks of which one frame says all",
    "batch": "windows in a step",
    "seconds": "of training, and more is better; also as a flag, `--operator.train.seconds 3600`",
    "lr": "the highest learning rate; lower it where the loss rises",
}


def _text(head: Sequence[str], settings: Mapping[str, Any], sets: Sequence[Holding]) -> str:
    """The YAML of a config, each key with a remark where it first stands."""
    body = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)
    noted: set[str] = set()
    lines = []
    for line in body.splitlines():
        words = [key for key in NOTES if f"{key}:" in line.replace("{", " ").split() and key not in noted]
        noted.update(words)
        indent = line[: len(line) - len(line.lstrip())]
        alone = len(words) == 1
        lines += [f"{indent}# {key}: {NOTES[key]}" for key in words if not alone]
        lines.append(f"{line}  # {NOTES[words[0]]}" if alone else line)
    several = ["# mix: {policy: weights, weights: {TASK: 1, …}}   # how often each task is drawn; evenly by default"]
    more = [
        *(several if len(sets) > 1 else []),
        "# evaluation: {zero_shot: [2]}                       # also judge on a grid twice as fine",
        "# plan: [codec, operator, residual, consistency]     # learn ensembles too (docs/howto-ensembles.md)",
    ]
    return "\n".join((*head, *lines, *more)) + "\n"
