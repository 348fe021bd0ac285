"""What a file holds and what is wrong with it: `describe` and `problems`, piece by piece, never the whole file."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ups.data import Source, blocks, open_source
from ups.data.axes import CONTRADICTED, FALLS, NO_TIMES, UNEVEN_TIMES
from ups.data.clock import is_even
from ups.data.digits import Digits
from ups.data.duplicates import copies, ends_of, scattered
from ups.data.neighbours import check_neighbours
from ups.data.readers.array_dims import AS_MANY
from ups.data.readers.zarr_chunks import ABSENT
from ups.data.splits import make_split
from ups.data.units import check_units
from ups.data.views import Spread
from ups.definition import Definition, definition_of
from ups.jobs.equation_check import coefficients, contradictions, stated
from ups.jobs.recipe.signs import seams
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
# Encoders halve a grid this often and more; an axis that does not allow it is padded.
HALVED = 8
# Values of a parameter up to which each is named.
LISTED = 12

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


def problems(paths: Sequence[Path], task: Task = None, size: int = 0) -> list[tuple[Path, str]]:
    """What is wrong with each file, a sentence each; nothing where nothing is. With a `size`, only so many bytes of
    each are looked at, about, spread over all of it."""
    with ExitStack() as opened:
        return _problems(paths, task, size, opened)


def _problems(paths: Sequence[Path], task: Task, size: int, opened: ExitStack) -> list[tuple[Path, str]]:
    """What is wrong with each file; all sources are closed with `opened`."""
    faults: list[tuple[Path, str]] = []
    sound: list[Source] = []
    for path in paths:
        try:
            source = opened.enter_context(open_source(path, TASKS, task))
            check_neighbours(source)
            part = Spread(source, size) if size else source
            faults += [(path, problem) for problem in _file_problems(source, part)]
            sound.append(part)
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


def _file_problems(source: Source, part: Source) -> list[str]:
    """What is wrong with a source, and with the values of the part of it that is looked at."""
    scan, given, unknown = Scan(Digits(source.task.channels)), list[str](), dict[str, list[str]]()
    for index, name in enumerate(part.ids):
        counts = _counting(part, index)
        scan.sample(name, blocks(part, index), source.task.steady, counts)
        if not np.isfinite(part.inputs(index)[slice(None) if counts is None else counts]).all():
            given.append(name)
    for index, name in enumerate(source.ids):
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
    size = data_size(sum(p.stat().st_size for p in source.files()))
    kind = "steady" if task.steady else "transient"
    lines = [
        f"{source.path}",
        f"  {task.title} ({task.name}), {kind}, layout '{task.storage.kind}', {size}",
        f"  {counted(len(source), 'trajectory')} × {counted_from(source.lengths(), 'frame')} × {source.grid.words} × "
        f"{counted(len(task.channels), 'channel')} ({', '.join(task.channels)})",
    ]
    if task.inputs:
        lines.append(f"  given: {', '.join(c for f in task.inputs for c in f.channels)}")
    for letter, (lo, hi), n, wraps in zip(
        task.axes, source.grid.bounds, source.grid.resolved, source.grid.periodic, strict=False
    ):
        apart = f", d{letter} = {(hi - lo) / n:.6g}" if task.domain == "grid" else ""
        lines.append(f"  {letter} from {lo:.6g} to {hi:.6g}{apart}, {'periodic' if wraps else 'bounded'}")
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


def differences(source: Source) -> list[str]:
    """What differs from sample to sample, and grids that cannot be halved three times; none of it is a fault."""
    rows = range(len(source))
    grids = set(map(source.grid_of, rows))
    lengths = [len(source.times_of(i)) for i in rows]
    clocks = {id(t): np.asarray(t, np.float64) for t in map(source.times_of, rows)}.values()
    steps = sorted({step for t in clocks if len(t) > 1 and is_even(t) for step in _apart(t)})  # others: a problem
    shapes = sorted({grid.shape for grid in grids})
    notes = []
    if len(shapes) > 1:
        cells = few((" × ".join(map(str, shape)) for shape in shapes), 6)
        notes.append(f"the samples have {len(shapes)} grids: {cells}")
    if len({grid.bounds for grid in grids}) > 1:
        notes.append("the samples lie in boxes of different sizes or places")
    if len(set(lengths)) > 1:
        notes.append(f"the samples have from {min(lengths)} to {max(lengths)} frames")
    if len(steps) > 1:
        notes.append(f"the time between frames differs from sample to sample, from {steps[0]:g} to {steps[-1]:g}")
    on_grid = source.task.domain == "grid"
    odd = sorted({n for shape in shapes for n in shape if n % HALVED and n > 1}) if on_grid else []
    if odd:
        notes.append(
            f"axes of {few(map(str, odd), 6)} cells are no multiple of {HALVED}; larger patches than fit will pad them"
        )
    return notes


def times_in_words(source: Source) -> list[str]:
    """A line of `data info`: from when to when frames of all samples were taken, and how far apart."""
    rows = {id(t): np.asarray(t, np.float64) for t in map(source.times_of, range(len(source)))}.values()
    long = [t for t in rows if len(t) > 1]
    if not long:
        return []
    ends, steps = [float(t[-1]) for t in long], [step for t in long for step in _apart(t)]
    low, high = min(steps), max(steps)
    apart = f"dt = {low:g}" if low == high else f"dt from {low:g} to {high:g}"
    shortest = "" if _digits(min(ends)) == _digits(max(ends)) else f" (in the shortest to {min(ends):g})"
    return [f"  t from {min(float(t[0]) for t in long):g} to {max(ends):g}{shortest}, {apart}"]


def varying_parameters(source: Source) -> dict[str, str]:
    """The range of each parameter that differs from sample to sample, in words."""
    values: dict[str, dict[float | str, None]] = {}
    for i in range(len(source)) if len(source.params) < len(source.task.parameters) else ():
        for name, value in source.params_of(i).items():
            if name not in source.params:
                values.setdefault(name, {})[value] = None
    return {name: _range(list(distinct)) for name, distinct in values.items()}


def _range(values: list[float | str]) -> str:
    numbers = [value for value in values if not isinstance(value, str)]
    if len(numbers) < len(values):
        return f"among {few(map(str, values), 6)}"
    if len(numbers) <= LISTED:
        return f"among {', '.join(f'{number:.6g}' for number in sorted(numbers))}"
    return f"{len(numbers)} values from {min(numbers):.6g} to {max(numbers):.6g}"


def uneven_times(source: Source) -> list[str]:
    """A note where frames lie at uneven times within samples, unless the reader has said so."""
    if any("t axis is not uniform" in text or UNEVEN_TIMES in text for text in (*source.problems, *source.notes)):
        return []
    uneven = [source.ids[i] for i in range(len(source)) if not is_even(np.asarray(source.times_of(i), np.float64))]
    return [f"{UNEVEN_TIMES} in {len(uneven)} of {counted(len(source), 'sample')}"] if uneven else []


def single_cells(source: Source) -> list[str]:
    """A problem for each axis that has one cell in all samples: along it a network sees nothing."""
    most = np.max([source.grid_of(i).shape for i in range(len(source))], axis=0)
    flat = [name for name, cells in zip(source.task.axes, most, strict=False) if cells == 1]
    if len(flat) == source.task.ndim:
        what = (
            "there is one cell alone, and data without an extent in space, as those of ordinary differential equations"
        )
        return [f"{what}, cannot be learnt by ups"]
    wrong = "has one cell, and nothing can be learnt along it; write the data without it"
    return [f"the axis {name} {wrong}" for name in flat]


def described_task(source: Source, definition: Definition) -> Definition:
    """The task of a source in the user's words. Where axes and arrays lie stays as the user said it, and a box or
    boundary only stands there if all samples share it."""
    whole = definition_of(source.task)
    grids = [source.grid_of(i) for i in range(len(source))]
    boxes, wraps = {grid.bounds for grid in grids}, {grid.periodic for grid in grids}
    periodic = tuple(name for name, flag in zip(source.task.axes, grids[0].periodic, strict=False) if flag)
    return dataclasses.replace(
        whole,
        dims=definition.dims or whole.dims,
        datasets=definition.datasets,
        ignore=definition.ignore,
        bounds=dict(zip(source.task.axes, next(iter(boxes)), strict=False)) if len(boxes) == 1 else {},
        periodic=periodic if periodic and len(wraps) == 1 else None,
        steady=whole.steady or None,
        parameters=definition.parameters,
        dt=definition.dt if definition.dt is not None and _are_apart(source, definition.dt) else None,
    )


def _are_apart(source: Source, dt: float) -> bool:
    """Whether the frames of all samples are `dt` apart, to a thousandth of it."""
    each = {id(times): times for times in map(source.times_of, range(len(source)))}
    return all(bool((np.abs(np.diff(times) - dt) <= 1e-3 * dt).all()) for times in each.values())


def _apart(times: Array) -> tuple[float, ...]:
    """The time between frames: one number where they are even, and else the least and the greatest."""
    if is_even(times):
        return (_digits((times[-1] - times[0]) / (len(times) - 1)),)
    steps = np.diff(times)
    return _digits(steps.min()), _digits(steps.max())


def _digits(step: float) -> float:
    """A step of time without the rounding of float32."""
    return float(f"{step:.5g}")


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
