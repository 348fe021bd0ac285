"""What a trained simulator predicts for the trajectories of a file."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import h5py
import numpy as np
import torch

from ups.data.source import Source, SourceFacts
from ups.data.trajectories import Trajectories
from ups.data.write_points import write_points
from ups.data.write_well import HEAD_BYTES, bytes_of, check_room, write_file
from ups.files import check_writing, writing
from ups.models import Simulator, artifact
from ups.models.frames_memory import check_memory
from ups.models.request import Answer, Request
from ups.progress import one_of
from ups.run.data.fitting import definitions_of, each_spaced, fitting, open_for
from ups.run.load import load
from ups.tensors import Window
from ups.types import Array, ConfigError, DataError, Params


def rollout(
    run: Path,
    source_path: Path,
    steps: int,
    out: Path,
    samples: int,
    task: str | None,
    device: str = "cpu",
    params: Params | None = None,
    say: Callable[[str], None] = lambda sentence: None,  # noqa: ARG005
    overwrite: bool = False,
) -> Path:
    """Continue the first `samples` trajectories of a file by `steps` frames; write and return `out`: a file of The
    Well's layout with the frames that were given and those after them; of points plain arrays in HDF5."""
    if steps < 1 or samples < 1:
        raise ConfigError("steps and samples must be at least 1.")
    if out.exists() and source_path.exists() and out.samefile(source_path):
        raise ConfigError(f"{out}: is the input itself, which would be lost; choose another --out.")
    if out.exists() and not overwrite:
        raise ConfigError(f"{out}: is there already; choose another --out, or replace it with --overwrite.")
    check_writing(out, "choose another --out")
    simulator = load(run, device)
    for sentence in artifact.strangers(simulator.origins):
        say(sentence)
    with open_for(simulator, source_path, task, definitions_of(run, simulator), say) as stored:
        source = fitting(simulator, stored, params or {}, 0, say)
        spec = simulator.codec.task(source.task)
        if spec.steady and steps > 1:
            raise ConfigError(f"{spec.name} is steady, so there is one step to its solution, not {steps}; ask for one.")
        if len(source) > samples:
            say(f"the first {samples} of the {len(source)} trajectories of {source_path}; --samples asks for more.")
        spacing = simulator.ranges()[spec.name]["dt"][0]
        parts = each_spaced(source, source.ids[:samples], spacing, None)  # each thinned by the times of its own
        if len({part.grid.kind for part in parts}) > 1:
            raise DataError(f"{source_path}: its first {samples} are on several grids; ask for fewer --samples.")
        back, shortest = simulator.looks_back(spec.name), min(int(part.lengths.min()) for part in parts)
        context = max(back, min(simulator.context, shortest))
        sentences: list[str] = []
        windows = [_window(simulator, part, context, steps, sentences.append) for part in parts]
        for sentence in dict.fromkeys(sentences):
            say(sentence)
        _check_memory(windows, steps)
        size = bytes_of(spec, parts[0].shape, steps if spec.steady else context + steps)
        need = HEAD_BYTES + sum(map(len, parts)) * size
        check_room(Path(os.path.realpath(out)).parent, need, need)
        pieces, left = list[Continued](), dict[str, int | None]()
        for i, (part, window) in enumerate(zip(parts, windows, strict=True)):
            with one_of(len(parts), i):
                answer = simulator.answer(Request(window, steps))
            _check_sound(answer, source_path, part.ids)
            left |= dict(zip(part.ids, answer.left_range_at, strict=True))
            for sentence in answer.remarks:
                say(sentence)
            pieces.append(_continued(source_path, part, window, answer.frames[0].cpu(), params or {}))
        continued = Continued.joined(pieces, source.ids)
    with writing(out, "choose another --out") as beside:
        _write(continued, beside)
        with h5py.File(beside, "a") as file:
            file.attrs["ups_simulator"] = str(simulator.provenance.get("config", ""))
            file.attrs["ups_given_frames"] = 0 if spec.steady else context
            file.attrs["ups_left_range_at"] = [left[name] or 0 for name in continued.ids]
    return out


def _write(continued: Continued, path: Path) -> None:
    """Write trajectories on a grid in The Well's layout, others as plain arrays."""
    if continued.task.domain == "grid":
        write_file(continued, path, continued.task.name)
    else:
        write_points(continued, path)


def _window(simulator: Simulator, part: Trajectories, context: int, steps: int, say: Callable[[str], None]) -> Window:
    """The frames that are continued, and the steps that are taken; `say` is told what there is to say of them.

    Where times are uneven and the file has a frame for each step, these are as long as its own."""
    spec, path = part.task, part.origin
    low, high = simulator.ranges()[spec.name]["dt"]
    window = part.window(list(range(len(part))), [0] * len(part), context, 0)
    for what, values in (("first frames have", window.context), ("inputs have", window.inputs)):
        if not bool(values.isfinite().all()):
            raise DataError(f"{path}: its {what} values that are not finite; mend or leave them out.")
    dt, apart = _steps(window, low, high, torch.from_numpy(part.lengths == 1))
    if part.clock.steps is not None:
        own = int(part.lengths.min()) >= context + steps
        which = "those of the file" if own else "all as long as the first of a trajectory, for the file has not so many"
        say(f"{path}: its times are not uniform; the steps are {which}.")
        if own:
            dt, apart = part.clock.step(range(len(part)), [0] * len(part), context, steps), []
    window = dataclasses.replace(window, dt=dt)
    if apart and not spec.steady:
        theirs, taken_there = (_from_to(values) for values in zip(*apart, strict=True))
        which = "its frames" if len(apart) == len(part) else f"the frames of {len(apart)} of {len(part)} trajectories"
        say(f"{path}: {which} are {theirs} apart; steps of {taken_there} are taken, as in training.")
    taken = (None,) if spec.steady else (float(window.dt.min()), float(window.dt.max()))
    warnings = [s for step in taken for s in simulator.outside(window.params, spec.name, step)]
    for sentence in dict.fromkeys((*warnings, *simulator.strange(window))):
        say(sentence)
    return window


def _check_memory(windows: Sequence[Window], steps: int) -> None:
    """ConfigError unless the frames after all windows fit into memory here: once alone, once after those that are
    given."""
    first, samples = windows[0], sum(map(len, windows))
    check_memory(first.task.name, steps, samples, first.context[0, 0].numel(), torch.device("cpu"), 2)


def _steps(
    window: Window, low: float, high: float, lone: torch.Tensor
) -> tuple[torch.Tensor, list[tuple[float, float]]]:
    """The steps `(B,)` that are taken from a window, trained from `low` to `high`: of each sample its own, or else the
    nearest of these; and where they are not its own, both. Samples of a `lone` frame have none: they take the shortest.

    One given frame says nothing of the spacing; several must be told theirs, which the file's frames may miss.
    """
    own = window.dt
    keep = (own >= 0.999 * low) & (own <= 1.001 * high) | (window.context.shape[1] > 1)
    near = torch.where(keep, own, own.clamp(low, high))
    near = torch.where((own - low).abs() <= 1e-3 * low, torch.full_like(own, low), near)
    near, moved = torch.where(lone, torch.full_like(own, low), near), ~keep & ~lone
    return near, [*zip(own[moved].tolist(), near[moved].tolist(), strict=True)]


def _from_to(values: Sequence[float]) -> str:
    least, most = min(values), max(values)
    return f"{least:.4g}" if f"{least:.4g}" == f"{most:.4g}" else f"{least:.4g} to {most:.4g}"


def _continued(path: Path, part: Trajectories, window: Window, frames: torch.Tensor, params: Params) -> Continued:
    """The given frames of a window and those predicted after them; of a steady task the latter alone. NaN in cells that
    do not count."""
    source, given, spec = part.source, window.context.shape[1], window.task
    clocks = [source.times_of(row)[part.reduction.frames] for row in part.rows]
    starts = [0.0 if spec.steady else float(clock[given - 1]) for clock in clocks]
    dt = window.dt.double().numpy()
    later = dt[:, None] * np.arange(1, frames.shape[1] + 1) if dt.ndim == 1 else dt.cumsum(1)
    times = np.array(starts)[:, None] + later
    context, inputs = window.context, window.inputs
    if window.mask is not None:  # predicted frames are NaN there already
        nothing, mask = ~window.mask.unsqueeze(-1), spec.given.index(spec.mask)
        context, inputs = context.masked_fill(nothing.unsqueeze(1), torch.nan), inputs.masked_fill(nothing, torch.nan)
        inputs[..., mask] = window.inputs[..., mask]
    if not spec.steady:
        times = np.concatenate([np.stack([clock[:given] for clock in clocks]), times], 1)
        frames = torch.cat([context.to(frames), frames], 1)
    settings = [{**source.params_of(row), **params} for row in part.rows]
    facts = SourceFacts(spec, settings[0], part.grid, times[0], tuple(part.ids))
    return Continued(path, facts, frames.numpy(), times, settings, inputs.numpy())


class Continued(Source):
    """Trajectories in memory: the frames that were given, and those that a simulator predicts after them."""

    def __init__(
        self, path: Path, facts: SourceFacts, values: Array, times: Array, params: Sequence[Params], inputs: Array
    ) -> None:
        super().__init__(path, facts)
        self.values, self.clocks, self.settings, self.given = values, times, params, inputs

    @classmethod
    def joined(cls, pieces: Sequence[Continued], order: Sequence[str]) -> Continued:
        """Several on one grid as one, its trajectories in the order of these names."""
        if len(pieces) == 1 and list(pieces[0].ids) == list(order[: len(pieces[0])]):
            return pieces[0]
        place = {name: i for i, name in enumerate(order)}
        held = [(piece, i) for piece in pieces for i in range(len(piece))]
        held.sort(key=lambda one: place[one[0].ids[one[1]]])
        values, clocks, inputs = (
            np.stack([getattr(piece, name)[i] for piece, i in held]) for name in ("values", "clocks", "given")
        )
        settings, ids = [piece.settings[i] for piece, i in held], tuple(piece.ids[i] for piece, i in held)
        facts = SourceFacts(pieces[0].task, settings[0], pieces[0].grid, clocks[0], ids)
        return cls(pieces[0].path, facts, values, clocks, settings, inputs)

    def _values(self, index: int, frames: slice) -> Array:
        return np.asarray(self.values[index, frames])

    def _inputs(self, index: int) -> Array:
        return np.asarray(self.given[index])

    def params_of(self, index: int) -> Params:
        return self.settings[index]

    def times_of(self, index: int) -> Array:
        return np.asarray(self.clocks[index])


def _check_sound(answer: Answer, path: Path, ids: Sequence[str]) -> None:
    """DataError for the first rollout that is not finite."""
    if bool(answer.lost.any()):
        sample, frame = (int(i) for i in answer.lost.nonzero()[0])
        raise DataError(
            f"{path}: the prediction of sample {ids[sample]} is not finite from frame {frame + 1} on; ask for fewer "
            "--steps, or train the simulator longer."
        )
