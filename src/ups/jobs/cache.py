"""`ups cache`: the latent caches of a finished run are built, checked, listed and cleared."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ups.config import load
from ups.data.cache import MANIFEST, StaleError, check_key, digest, read_manifest, verify
from ups.data.cache_builder import discard, leftovers
from ups.data.trajectories import Trajectories
from ups.engine.ranks.dist import Dist
from ups.heartbeat import Pulse
from ups.jobs.relative_paths import found_config
from ups.models import Simulator
from ups.progress import Screen
from ups.run.config import RunConfig, run_config
from ups.run.data.caches import Caches, place_of
from ups.run.data.datasets import DataSet, as_known, fetch_data, open_sets
from ups.run.load import config_of, part_kinds
from ups.rundir import RunDir
from ups.types import DataError

SPLITS = ("train", "valid")


def build(folder: RunDir, config: RunConfig, device: str, screen: Screen) -> list[Path]:
    """Build, or adopt, the caches of a finished run's training and validation parts."""
    with ExitStack() as stack, Dist.alone(device) as dist:
        caches, sets = _of(folder, found_config(config), dist, screen, stack)
        return [caches.ready(part, split, n)[0] for split, n, part in _parts(sets)]


def _of(
    folder: RunDir, config: RunConfig, dist: Dist, screen: Screen, stack: ExitStack
) -> tuple[Caches, list[DataSet]]:
    if not folder.artifact("simulator").exists():
        raise DataError(f"{folder.folder}: has no trained codec yet; train it first with `ups run`.")
    if not config.data:
        raise DataError(f"{folder.config}: names no data, so nothing can be encoded; put the run's own back.")
    simulator = Simulator.load(folder.artifact("simulator"), dist.device, part_kinds())
    place = folder.cache("data")
    fetch_data(config.data, screen.following)
    sets = open_sets(config.data, place, screen.following, stack, simulator=config.model.simulator)
    sets = as_known(sets, simulator.codec.tasks)
    return Caches(config, place_of(config, folder), simulator.codec, dist, screen, Pulse(None, 0)), sets


def run_of(path: Path, overrides: dict[str, str]) -> tuple[RunDir, RunConfig]:
    """The run that a folder holds, or that a config describes, and its config."""
    if path.is_dir():
        folder = RunDir.at(path)
        config = config_of(folder, overrides)
    else:
        config = load(run_config(), path, overrides)
        folder = RunDir.at(Path(config.out) / config.name)
    folder.require_own_files()
    return folder, config


def published(path: Path) -> list[Path]:
    """The caches below a folder, which is a run's or one of caches."""
    if not path.is_dir():
        raise DataError(f"{path}: there is no such folder; name a run's folder, or one of caches.")
    if RunDir(path).config.is_file():
        folder, config = run_of(path, {})
        path = place_of(config, folder)
    caches = sorted(p.parent for p in path.glob(f"**/{MANIFEST}") if not any(x.startswith(".") for x in p.parts[-4:]))
    if not caches:
        raise DataError(f"{path}: holds no latent cache; build one with `ups cache build`.")
    return caches


def check(path: Path) -> Iterator[tuple[Path, str | None]]:
    """Each cache below a folder, and what is wrong with it, if anything is."""
    for folder in published(path):
        yield folder, verify(folder)


def table(path: Path) -> list[list[str]]:
    """A row per cache below a folder, after a header."""
    rows = [["cache", "samples", "frames", "tokens", "dtype", "rounding", "size", "shards", "key"]]
    for folder in published(path):
        try:
            m: dict[str, Any] = read_manifest(folder)
        except DataError as error:
            rows.append([str(folder), str(error), *[""] * 7])
            continue
        tokens, rounding = " × ".join(map(str, m["tokens"])), f"{m['rounding']['relative']:.1e}"
        size = f"{m['bytes'] / 1e6:.1f} MB"
        counts = [str(m["samples"]), str(m["frames"]), tokens, m["dtype"], rounding, size, str(len(m["shards"]))]
        rows.append([str(folder), *counts, digest(m["key"])])
    return rows


def clear(path: Path, screen: Screen) -> list[str]:
    """Delete what stopped builders left and, for a finished run, each cache that was made with another codec or other
    data; a message for each deletion."""
    messages = []
    place = path
    if RunDir(path).config.is_file():
        folder, config = run_of(path, {})
        place = place_of(config, folder)
        if folder.artifact("simulator").exists():
            with ExitStack() as stack, Dist.alone("cpu") as dist:
                messages += _clear_stale(*_of(folder, config, dist, screen, stack))
    elif not path.is_dir():
        raise DataError(f"{path}: there is no such folder; name a run's folder, or one of caches.")
    for left in leftovers(place) if place.is_dir() else ():
        shutil.rmtree(left, ignore_errors=True)
        messages.append(f"{left}: was left by a builder that was stopped; deleted.")
    return messages


def _clear_stale(caches: Caches, sets: Sequence[DataSet]) -> list[str]:
    messages = []
    for split, number, part in _parts(sets):
        folder = caches.folder(part, split, number)
        try:
            if folder.exists():
                check_key(folder, read_manifest(folder), caches.key(part))
        except StaleError:
            try:
                discard(folder)
                messages.append(f"{folder}: was made of something else than this run's codec and data; deleted.")
            except DataError as error:
                messages.append(str(error))
    return messages


def _parts(sets: Sequence[DataSet]) -> Iterator[tuple[str, int, Trajectories]]:
    """Everything that is cached: the split, its number among those of the task, and the trajectories."""
    for data in sets:
        for split in SPLITS:
            yield from ((split, n, part) for n, part in enumerate(data.parts(split)))
