"""`ups init`: a commented config to start from, for the data at hand and this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ups.config import as_flag, as_seen_from, load
from ups.definition import definition_from
from ups.engine.ranks.dist import device_of
from ups.engine.train import Precision
from ups.files import check_writing, write_named
from ups.jobs.estimate.costs import Costs
from ups.jobs.inspect import problems
from ups.jobs.recipe.data_profile import DataProfile, holdings, recipe
from ups.jobs.recipe.pricing import Pricing
from ups.parsing import flat
from ups.run.config import run_config
from ups.run.sizing import FEW
from ups.types import ConfigError, counted, data_size, duration, short_number

READ, LOOK = 2**30, 2**26  # bytes of files up to which all values are looked at, and those that are looked at of more


def propose(
    files: Sequence[Path],
    task: str,
    out: Path,
    minutes: float,
    device: str,
    overwrite: bool,
    activity: Callable[[str], None],
    race: bool = False,
) -> tuple[Path, list[str]]:
    """Write a config for `files` that trains for `minutes` on `device`, after a `race` of sizes or without one; its
    path, and what there is to say of it."""
    if out.exists() and not overwrite:
        raise ConfigError(f"{out}: is there already; choose another --out, or replace it with --overwrite.")
    if not minutes > 0:
        raise ConfigError(f"--minutes is {minutes:g}, but training takes some time; give a number above 0.")
    check_writing(out, "choose another --out")
    sets = holdings(files, task)
    faults = _faults(files, task, sets)
    here = device_of(device)
    activity("choosing a model size and a batch for this machine")

    def settings_of(size: str, batch: int, precision: Precision = "fp32") -> dict[str, Any]:
        return _settings(sets, here.type, size, batch, precision, minutes)

    prices = Pricing(lambda size, batch: load(run_config(), None, dotted(settings_of(size, batch))), here)
    choice = prices.choose(60 * minutes)
    settings = settings_of(choice.size, choice.batch, choice.precision) | ({"tune": "auto"} if race else {})
    bill, step, free = prices.bills[choice.size, choice.batch], choice.price.seconds, prices.free
    head = _header(sets, bill, step, minutes, free, here.type, out, faults)
    if bill.needed > free:
        needed, left = data_size(bill.needed), data_size(free)
        head.append(f"# It does NOT fit: {needed} are needed, and {left} free; use a larger `reduce`.")
    written = as_seen_from(str(out.parent), run_config(), settings)
    write_named(out, _text(head, written, sets), "choose another --out")
    load(run_config(), out)
    remarks = [words.removeprefix("# ") for words in head[2:]]
    return out, remarks


def _faults(files: Sequence[Path], task: str, sets: Sequence[DataProfile]) -> list[str]:
    """What `ups data validate` finds wrong with files and nothing else says; of large ones, with a part of them."""
    size = sum(part.stat().st_size for path in files for part in _all_files(path))
    large = size > READ
    wrong = problems(files, definition_from(task) if task else None, LOOK // len(files) if large else 0)
    noted = [note for holding in sets for note in holding.notes]
    words = [f"{path}: PROBLEM: {words}" for path, words in wrong if not any(words in note for note in noted)]
    seen = f"the files hold {data_size(size)}, and of their values about {data_size(LOOK)} were looked at, spread over"
    return [*words, *([f"{seen} all: `ups data validate` reads the rest"] if large else [])]


def _all_files(path: Path) -> list[Path]:
    return [part for part in path.rglob("*") if part.is_file()] if path.is_dir() else [path]


def _settings(
    sets: Sequence[DataProfile], kind: str, size: str, batch: int, precision: Precision, minutes: float
) -> dict[str, Any]:
    sections = recipe(sets, kind, size)
    operator, rounded = sections["operator"], {} if precision == "fp32" else {"precision": precision}
    return {
        "name": sets[0].task.name if len(sets) == 1 else "tasks",
        "device": "cpu" if kind == "cpu" else "cuda",
        "data": {h.task.name: h.section(kind) for h in sets},
        "model": sections["model"] | {"operator": {"size": size, **sections["model"]["operator"]}},
        "batch": batch,
        "codec": sections["codec"],
        "operator": {**operator, "train": {"seconds": round(60 * minutes), **operator["train"], **rounded}},
    }


def dotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A nested config as flags."""
    return {key: as_flag(value) for key, value in flat(settings).items()}


def _header(
    sets: Sequence[DataProfile],
    bill: Costs,
    step: float,
    minutes: float,
    free: int,
    kind: str,
    out: Path,
    faults: Sequence[str],
) -> list[str]:
    fewest = duration(FEW * step)
    room = f"{counted(round(60 * minutes / step), 'step')} in that time"
    short = f"# Note: {room}, and {FEW} take about {fewest}: ask for more --minutes."
    cores = counted(len(os.sched_getaffinity(0)), "core") if kind == "cpu" else "one GPU"
    parameters = short_number(bill.parameters["total"])
    return [
        f"# ups run {out}",
        f"# Before it: `ups estimate {out}` says what it takes, `ups config show {out}` every key with its default.",
        *(f"# Data: {holding.words}." for holding in sets),
        *(
            f"# Note: {holding.task.name}: {note}."
            for holding in sets
            for note in (*holding.left_out(kind), *holding.remarks)
        ),
        *(f"# Note: {words}." for words in faults),
        f"# Hardware: {cores}, {data_size(free)} of memory free when this was written.",
        f"# Memory: about {data_size(bill.needed)} of tensors at the peak, beside the program's own.",
        f"# Time: {duration(60 * minutes)} of training, about {duration(step)} a step, and judging.",
        *([short] if FEW * step > 60 * minutes else []),
        f"# Model: {parameters} parameters.",
    ]


NOTES = {
    "name": "the run's folder is runs/NAME",
    "file": "a file, a folder, a pattern such as data/*.h5, or a list of them",
    "task": "what the data are; `ups data info FILE` prints a definition to edit",
    "periodic": "axes that wrap",
    "samples": "trajectories to make",
    "reduce": "every n-th frame and every n-th cell are used",
    "split": "few trajectories: how they are cut for training, validation and testing",
    "pieces": "of the time to validate on and to test on: each is foretold from its own first frame",
    "dim": "numbers per token: at least channels × patch^axes, or the codec loses something",
    "size": "tiny, small, base or large",
    "steps": "the codec has nothing to learn while dim is at least that: it loses nothing as it is built",
    "step_scale": "a change is measured by the sample itself; by its task where first frames are uniform",
    "advected_by": "seen to move states in proportion, and taken to do nothing else; [] if they do more",
    "context": "frames that are looked back on: a regression on cells near by foretold the next from two, not from one",
    "memoryless": "one frame says all of the next",
    "changes_when_uniform": "states were seen to become uniform and still change: measured by the task all the same",
    "per_task_layers": "each task has some layers for itself, so that they do not disturb each other",
    "batch": "windows in a step, of every stage",
    "seconds": "of training, and more is better; also as a flag, `--operator.train.seconds 3600`",
    "lr": "the highest learning rate; lower it where the loss rises",
    "tune": "a tenth of the time goes to short trainings of this size and its neighbours; the best is trained",
    "precision": "large networks take their steps sooner in it on this GPU",
}


def _text(head: Sequence[str], settings: Mapping[str, Any], sets: Sequence[DataProfile]) -> str:
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
        "# evaluation: {zero_shot: [2], baselines: [linear, fno]}  # also on a grid twice as fine; beside an FNO too",
        "# plan: [codec, operator, residual, consistency]     # learn ensembles too (docs/howto-ensembles.md)",
    ]
    return "\n".join((*head, *lines, *more)) + "\n"
