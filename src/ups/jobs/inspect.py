"""What a file holds and what is wrong with it: `describe` and `problems`, piece by piece, never the whole file."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ups.data import Source, blocks, open_source
from ups.data.axes import CONTRADICTED, FALLS, NO_TIMES, UNEVEN_TIMES
from ups.data.digits import Digits
from ups.data.duplicates import copies, ends_of, scattered
from ups.data.neighbours import check_neighbours
from ups.data.readers.array_dims import AS_MANY
from ups.data.readers.zarr_chunks import ABSENT
from ups.data.splits import make_split
from ups.data.units import check_units
from ups.definition import Definition
from ups.jobs.equation_check import coefficients, contradictions, stated
from ups.jobs.recipe.axis_ends import seams
from ups.jobs.recipe.variety import (
    described_task,
    differences,
    single_cells,
    times_in_words,
    uneven_times,
    varying_parameters,
)
from ups.parsing import parse_json
from ups.physics import EQUATIONS, TASKS
from ups.run.data.doubts import close_ups, fill_values, laws_in_words, lost_digits, question
from ups.types import Array, DataError, counted, counted_from, data_size, few

RECORDED = ("version", "scheme", "seed", "device", "batch")  # what a file that was made here says of its making
NOT_FINITE = "NaN or infinity in"
# What may be wrong with the values of a sample; the first that holds is said.
WANDERS = "NaN that moves in time in"
NO_CELL = "a mask of 0 everywhere, so that no cell counts, in"
TOO_LARGE = "numbers that float32, in which all is read, cannot hold, in"
TOO_SMALL = "no number that float32, in which all is read, holds with all its digits, in"
WRONG = (
    *(WANDERS, NO_CELL, NOT_FINITE, TOO_LARGE, TOO_SMALL, "one and the same number everywhere in"),
    *("no change in time in", "only zeros in the last frame of"),
)
# Samples of which no law and no coefficient is measured.
UNMEASURABLE = (WANDERS, NO_CELL, NOT_FINITE, TOO_LARGE, TOO_SMALL)

# Notes of a reader that `ups data validate` repeats: what it took for granted, and may be otherwise.
UNSURE = (ABSENT, AS_MANY, CONTRADICTED, FALLS, NO_TIMES, UNEVEN_TIMES, "is not used")

Task = str | Definition | None


def describe(path: Path, task: Task = None) -> str:
    """What a file is, in words and numbers, with the coefficients its own data obey; then its task, to be edited."""
    with open_source(path, TASKS, task) as source:
        check_neighbours(source)
        holds, broken = laws_in_words(source)
        lines = [*_headline(source), *_values(source), *coefficients(source), *(f"  {law}" for law in holds)]
        lines += [
            f"  note: {note}"
            for note in (
                *source.all_notes,
                *uneven_times(source),
                *fill_values(source),
                *differences(source),
                *seams(source),
            )
        ]
        faults = (
            *source.problems,
            *single_cells(source),
            *lost_digits(source),
            *broken,
        )
        lines += [f"  PROBLEM: {problem}" for problem in faults]
        lines += [f"  QUESTION: {words}" for words in question([source])]
        lines += ["", "# The task, to be edited, put into a config under `task:` or named with --task my.yaml:"]
        lines.append(described_task(source, Definition.of(task)).text().rstrip())
    return "\n".join(lines)


def notes(paths: Sequence[Path], task: Task = None) -> list[tuple[Path, str]]:
    """What is worth knowing of each file that can be opened, and is no fault."""
    remarks: list[tuple[Path, str]] = []
    for path in paths:
        try:
            with open_source(path, TASKS, task) as source:
                unsure = [note for note in source.notes if any(words in note for words in UNSURE)]
                varies = (*uneven_times(source), *differences(source))
                seen = (*unsure, *varies, *fill_values(source), *seams(source), *question([source]))
                remarks += [(path, note) for note in seen]
        except DataError:
            continue  # `problems` says why
    return remarks


def problems(paths: Sequence[Path], task: Task = None) -> list[tuple[Path, str]]:
    """What is wrong with each file, a sentence each; nothing where nothing is."""
    with ExitStack() as opened:
        return _problems(paths, task, opened)


def _problems(paths: Sequence[Path], task: Task, opened: ExitStack) -> list[tuple[Path, str]]:
    """What is wrong with each file; all sources are closed with `opened`."""
    faults: list[tuple[Path, str]] = []
    sound: list[Source] = []
    for path in paths:
        try:
            source = opened.enter_context(open_source(path, TASKS, task))
            check_neighbours(source)
            faults += [(path, problem) for problem in _file_problems(source)]
            sound.append(source)
        except DataError as error:
            faults.append((path, str(error).removeprefix(f"{path}: ")))
    known = [each for source in sound if len(sound) > 1 or not source.task.steady for each in ends_of(source)]
    twins = [f"{each.label} equals {same[0].label}" for same in copies(known) for each in same[1:]]
    if len(sound) > 1 and twins:
        faults.append((paths[-1], f"trajectories in more than one place: {_listed(twins, 'pair')}"))
    faults += [(paths[-1], sentence) for sentence in scattered(known)]
    try:
        check_units(sound)
    except DataError as error:
        faults.append((paths[-1], str(error).removeprefix(f"{paths[-1]}: ")))
    return faults


def _file_problems(source: Source) -> list[str]:
    scan, given, unknown = Scan(Digits(source.task.channels)), list[str](), dict[str, list[str]]()
    for index, name in enumerate(source.ids):
        counts = _counting(source, index)
        scan.sample(name, blocks(source, index), source.task.steady, counts)
        if not np.isfinite(source.inputs(index)[slice(None) if counts is None else counts]).all():
            given.append(name)
        scan.digits.sample(source.params_of(index))
        for key, value in source.params_of(index).items():
            if isinstance(value, float) and not math.isfinite(value):
                unknown.setdefault(key, []).append(name)
    faults = [*source.problems, *single_cells(source), *scan.problems()]
    faults += [f"{NOT_FINITE} what is given with {_listed(given)}"] if given else []
    faults += [f"the parameter {key} is not a finite number in {_listed(names)}" for key, names in unknown.items()]
    if not any(scan.faulty[what] for what in UNMEASURABLE) and not given and not unknown:
        faults += [*laws_in_words(source)[1], *contradictions(source)]
    return faults


@dataclass
class Scan:
    """One pass over every value: what is not finite, does not move, stops early, or was there before. Cells that do not
    count may hold anything, but NaN must stay where it is."""

    digits: Digits
    faulty: dict[str, list[str]] = field(
        default_factory=lambda: {what: [] for what in WRONG}
    )  # samples, by what is wrong
    twins: list[str] = field(default_factory=list)
    _seen: dict[bytes, str] = field(default_factory=dict)

    def sample(self, name: str, pieces: Iterable[Array], steady: bool, counts: Array | None = None) -> None:
        """`counts` `(*S,)` is true where a cell counts; None where all do."""
        digest = hashlib.blake2b(digest_size=16)
        nowhere = counts is not None and not counts.any()
        finite, moves, low, high, wanders = True, False, np.inf, -np.inf, False
        first: Array | None = None
        pattern: Array | None = None
        last_is_zero = False
        for piece in pieces:
            digest.update(np.ascontiguousarray(piece).data)
            if counts is not None:
                nothing: Array = np.asarray(np.isnan(piece).any(-1))
                pattern = nothing[0] if pattern is None else pattern
                wanders = wanders or bool((nothing & counts).any()) or bool((nothing != pattern).any())
                piece = np.where(counts[..., None], piece, np.zeros((), piece.dtype))
            self.digits.frames(piece)
            finite = finite and bool(np.isfinite(piece).all())
            first = piece[0] if first is None else first
            moves = moves or bool((piece != first).any())
            low, high = min(low, float(piece.min())), max(high, float(piece.max()))
            last_is_zero = not piece[-1].any()
        size, float32 = max(-low, high), np.finfo(np.float32)
        large, small = size > float(float32.max), 0 < size < float(float32.tiny)
        still = not moves and not steady
        holds = (wanders, nowhere, not finite, large, small, low == high, still, last_is_zero and not steady)
        if what := next((what for what, wrong in zip(WRONG, holds, strict=True) if wrong), None):
            self.faulty[what].append(name)
        if (key := digest.digest()) in self._seen and low != high:
            self.twins.append(f"{name} equals {self._seen[key]}")
        self._seen.setdefault(key, name)

    def problems(self) -> list[str]:
        faults = [f"{what} {_listed(names)}" for what, names in self.faulty.items() if names] + self.digits.problems()
        return faults + ([f"duplicated trajectories: {_listed(self.twins, 'pair')}"] if self.twins else [])


def _counting(source: Source, index: int) -> Array | None:
    """Which cells of a sample count; None where all do."""
    if not source.task.mask:
        return None
    counts: Array = source.inputs(index)[..., source.task.given.index(source.task.mask)] > 0.5
    return counts


def _headline(source: Source) -> list[str]:
    task = source.task
    cells = " × ".join(map(str, source.domain.shape))
    size = data_size(sum(p.stat().st_size for p in source.files()))
    kind = "steady" if task.steady else "transient"
    lines = [
        f"{source.path}",
        f"  {task.title} ({task.name}), {kind}, layout '{task.storage.kind}', {size}",
        f"  {counted(len(source), 'trajectory')} × {counted_from(source.lengths(), 'frame')} × {cells} cells × "
        f"{counted(len(task.channels), 'channel')} ({', '.join(task.channels)})",
    ]
    if task.inputs:
        lines.append(f"  given: {', '.join(c for f in task.inputs for c in f.channels)}")
    for letter, (lo, hi), n, wraps in zip(
        task.axes, source.domain.bounds, source.domain.shape, source.domain.periodic, strict=False
    ):
        ends = "periodic" if wraps else "bounded"
        lines.append(f"  {letter} from {lo:.6g} to {hi:.6g}, d{letter} = {(hi - lo) / n:.6g}, {ends}")
    lines += [] if task.steady else times_in_words(source)
    if source.params:
        lines.append(f"  parameters: {stated(source.params)}")
    for name, values in varying_parameters(source).items():
        lines.append(f"  each sample has its own {name}, {values}")
    return lines + _provenance(source)


def _provenance(source: Source) -> list[str]:
    made = source.attributes()
    if "ups_identity" not in made:
        return []
    try:
        laws = parse_json(str(made["ups_laws"]))
        errors = ", ".join(f"{name} {float(value):.1e}" for name, value in laws.items())
        facts = {name: " ".join(str(made[f"ups_{name}"]).split()) for name in RECORDED}
    except (KeyError, ValueError, TypeError, AttributeError):
        return ["  what it says of how it was made is damaged"]
    words = "made by ups {version}: scheme {scheme}, seed {seed}, on {device} in batches of {batch}".format(**facts)
    return [f"  {words}" + (f"; laws kept to: {errors}" if errors else "")]


@np.errstate(over="ignore", invalid="ignore")  # of numbers beyond all measure the deviation is none
def _values(source: Source) -> list[str]:
    rows = []
    for sample in close_ups(source):
        v = sample.values.reshape(-1, len(source.task.channels)).astype(np.float64)
        if source.task.mask:
            counts = sample.inputs[..., source.task.given.index(source.task.mask)].ravel() > 0.5
            v = v.reshape(-1, len(counts), v.shape[-1])[:, counts].reshape(-1, v.shape[-1])
            v = v[np.isfinite(v).all(axis=1)]
        if len(v):
            rows.append(np.stack([v.min(0), v.max(0), v.mean(0), v.var(0)]))
    if not rows:
        return ["  no cell of the trajectories looked at counts"]
    stack = np.stack(rows)
    low, high, mean = stack[:, 0].min(0) + 0.0, stack[:, 1].max(0) + 0.0, stack[:, 2].mean(0)  # −0 is 0
    std = np.sqrt(stack[:, 3].mean(0) + stack[:, 2].var(0))  # squares of what is far from 0 would lose its digits
    return [f"  values of {counted(len(rows), 'trajectory')}:"] + [
        f"    {name:<12} min {low[c]:.4g}  max {high[c]:.4g}  mean {mean[c]:.4g}  std {std[c]:.4g}"
        for c, name in enumerate(source.task.channels)
    ]


def _listed(names: Sequence[str], noun: str = "sample") -> str:
    return f"{counted(len(names), noun)} ({few(names, 6)})"


def record_split(
    path: Path, out: Path | None, convention: str, fractions: tuple[float, float, float], seed: int, task: Task
) -> tuple[Path, dict[str, int]]:
    """Divide a file's trajectories, prove the parts disjoint and complete, and write the record."""
    with open_source(path, TASKS, task) as source:
        split = make_split(source.ids, convention, fractions, seed)
        split.check(source.ids)
    out = out or path.with_name(path.name + ".split.json")
    split.save(out)
    return out, {"train": len(split.train), "valid": len(split.valid), "test": len(split.test)}


def task_table() -> str:
    """The tasks, their parameters and their schemes, as text."""
    lines = []
    for name, kind in EQUATIONS.items():
        spec = kind.spec()
        cells = "×".join([str(spec.resolution)] * spec.ndim)
        lines.append(f"{name:<12} {spec.title}")
        lines.append(f"{'':<12} {cells} cells, {spec.frames} frames; schemes: {', '.join(kind.schemes)}")
        for p in spec.parameters:
            words = f" ({', '.join(p.choices)})" if p.choices else ""
            lines.append(f"{'':<12} --{p.name} {p.default}{words}: {p.help}")
        lines.append(f"{'':<12} {spec.storage.pattern}")
        lines.append("")
    return "\n".join(lines).rstrip()
