"""`ups sweep` from start to end: checks every point before the first run is begun."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from ups.config import load
from ups.run.check import check
from ups.run.config import RunConfig, run_config
from ups.run.data.data_config import DataConfig
from ups.run.data.datasets import fetch_data
from ups.types import ConfigError, UpsError
from ups.verdict import Ending
from ups_fleet.run_folders.state import COMPLETE, RunState
from ups_fleet.running.supervised import in_sentences
from ups_fleet.sweep import study
from ups_fleet.sweep.axes import SweepAxis, SweepPoint, axes_of, drawn, grid, points_of
from ups_fleet.sweep.summary import Settings, remember, write
from ups_fleet.sweep.sweep import Listed, Queue, Sweep, command_of, slots_of

MOST = 10_000  # points: more are a mistake


@dataclass(frozen=True)
class SweepRequest:
    """What was asked for. `random` and `optuna` are numbers of points; with neither, it is a grid."""

    config: Path
    over: tuple[str, ...]
    flags: Mapping[str, str]
    out: Path | None = None
    jobs: int | None = None
    devices: tuple[str, ...] = ()
    random: int | None = None
    optuna: int | None = None
    seed: int = 0
    seeds: int | None = None


def sweep(
    request: SweepRequest,
    say: Callable[[str], None],
    command: Sequence[str],
    checking: AbstractContextManager[object] | None = None,
) -> tuple[int, Path, list[Settings]]:
    """Carry a sweep out; its exit code, its folder, and its settings with their runs. `checking` is held while its
    points are checked."""
    with checking or nullcontext():
        base, folder, axes, seeds, listed = _laid_out(request, lambda data: fetch_data(data, in_sentences(say)))
        slots = slots_of(request.devices, request.jobs, base.device, _gpus())
    folder.mkdir(parents=True, exist_ok=True)
    queue: Queue = (
        Listed(listed) if listed is not None else study.Study(folder, axes, request.optuna or 0, seeds, request.seed)
    )
    remember(folder, listed or (), command)
    words = command_of(request.config, folder, lambda point: {**request.flags, **point.flags})

    def changed() -> None:
        write(folder, remember(folder, (), command))

    def begun(point: SweepPoint) -> None:
        remember(folder, (point,), command)

    alike = not any(axis.key.split(".")[0] == "data" for axis in axes)
    made = any(not data.there for data in base.data.values())
    job = Sweep(folder, queue, slots, words, say, changed, begun, shared=made and alike)
    stopped = job.carry_out()
    settings = write(folder, remember(folder, (), command))
    return _code(stopped, job.ended, say), folder, settings


def points(request: SweepRequest) -> tuple[Path, list[SweepPoint]]:
    """The folder of a sweep and all its points, checked, for whoever carries them out elsewhere."""
    if request.optuna is not None:
        raise ConfigError("--optuna learns from each point before it chooses the next; use --random N.")
    _, folder, _, _, listed = _laid_out(request, lambda _: None)
    return folder, listed or []


def _laid_out(
    request: SweepRequest, provide: Callable[[Mapping[str, DataConfig]], None]
) -> tuple[RunConfig, Path, list[SweepAxis], list[int], list[SweepPoint] | None]:
    """Config, folder, axes, seeds and points of a sweep, checked; no points where Optuna chooses them. `provide`
    fetches data that are elsewhere."""
    axes, base = axes_of(request.over), load(run_config(), request.config, dict(request.flags))
    _check(request, axes, base)
    provide(base.data)
    folder = (request.out or Path(base.out) / f"{base.name}-sweep").absolute()
    seeds = [base.seed + i for i in range(request.seeds)] if request.seeds is not None else []
    listed = None if request.optuna is not None else _points(request, axes, seeds)
    _check_points(request, axes, listed, base)
    return base, folder, axes, seeds, listed


def _check(request: SweepRequest, axes: Sequence[SweepAxis], base: RunConfig) -> None:
    """A ConfigError for what contradicts itself."""
    if not axes and request.seeds is None:
        raise ConfigError("a sweep needs something to vary: --over KEY=VALUE,VALUE, or --seeds N.")
    if request.random is not None and request.optuna is not None:
        raise ConfigError("--random and --optuna exclude each other; give one of them.")
    for flag, count in (("--random", request.random), ("--optuna", request.optuna), ("--seeds", request.seeds)):
        if count is not None and not 1 <= count <= MOST:
            raise ConfigError(f"{flag} is {count}, but must be from 1 to {MOST}.")
    if (request.random is not None or request.optuna is not None) and not axes:
        raise ConfigError("--random and --optuna choose values; say of what with --over KEY=log:LOW..HIGH.")
    if request.seeds is not None and any(axis.key == "seed" for axis in axes):
        raise ConfigError("--seeds and --over seed both say which seeds; keep one of them.")
    for axis in (axis for axis in axes if axis.key in request.flags):
        raise ConfigError(f"--{axis.key} and --over {axis.key} both set it; keep one of them.")
    if base.dist.world > 1:
        raise ConfigError(f"a sweep is of runs on one device each, and the config asks for {base.dist.world} ranks.")
    if request.optuna is not None:
        study.require()


def _points(request: SweepRequest, axes: Sequence[SweepAxis], seeds: Sequence[int]) -> list[SweepPoint]:
    if request.random is not None:
        return points_of(drawn(axes, request.random, request.seed), seeds)
    count = max(1, len(seeds))
    for axis in axes:
        count *= max(1, len(axis.values))
    if count > MOST:
        raise ConfigError(f"that is a grid of {count} runs, and {MOST} are the most; use --random N.")
    return points_of(grid(axes), seeds)


def _check_points(
    request: SweepRequest, axes: Sequence[SweepAxis], points: Sequence[SweepPoint] | None, base: RunConfig
) -> None:
    """Load the config of every point, and check one of them through: a mistake is one before any is begun."""
    ends = [{axis.key: value} for axis in axes for value in _ends(axis)]
    flag_sets = [dict(point.flags) for point in points] if points is not None else ends
    for flags in flag_sets:
        load(run_config(), request.config, {**request.flags, **flags})
    first = flag_sets[0] if flag_sets else {}
    try:
        check(load(run_config(), request.config, {**request.flags, **first}))
    except UpsError as error:
        raise type(error)(f"{base.name}: {error}") from None


def _ends(axis: SweepAxis) -> tuple[str, ...]:
    if axis.range is None:
        return axis.values
    ends = (axis.range.low, axis.range.high)
    return tuple(str(int(end)) if axis.range.kind == "int" else str(end) for end in ends)


def _code(stopped: int | None, ended: Mapping[str, RunState], say: Callable[[str], None]) -> int:
    """The exit code: 0 where every run has ended well."""
    if stopped is not None:
        return int(Ending.INTERRUPTED if stopped == signal.SIGINT else Ending.PREEMPTED)
    bad = sorted(name for name, state in ended.items() if state.word != "finished")
    missed = [name for name in bad if ended[name].word in COMPLETE]
    failed = [name for name in bad if name not in missed]
    for names, what in ((failed, "did not finish"), (missed, "missed a gate")):
        if names:
            say(f"{len(names)} of {len(ended)} runs {what}: {', '.join(names[:5])}{' …' if len(names) > 5 else ''}.")
    return 1 if bad else 0


def _gpus() -> int:
    import torch

    return int(torch.cuda.device_count())
