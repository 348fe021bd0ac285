"""Latent caches of a run: made by its frozen codec, checked, used for training, listed, cleared."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ups.config import load
from ups.data.cache import MANIFEST, Latents, StaleError, check_key, digest, key_of, read_manifest, verify
from ups.data.cache_builder import Builder, discard, leftovers
from ups.data.checksums import checksum
from ups.data.windows import Samples
from ups.engine.dist import Dist
from ups.heartbeat import Pulse
from ups.jobs.generate import Progress
from ups.jobs.sets import DataSet, Screen, opened
from ups.jobs.settings import RunConfig
from ups.models import Codec, Simulator, artifact
from ups.rundir import RunDir
from ups.stages import CodecStage, OperatorStage
from ups.types import DataError

MEMORY = "files.json"
SPLITS = ("train", "valid")


def place_of(config: RunConfig, folder: RunDir) -> Path:
    """Where the caches of a run lie: `<place>/<task>/<split>`."""
    return Path(config.cache.folder) if config.cache.folder else folder.cache("latents")


def identity(codec: Codec, task: str) -> dict[str, str]:
    """Digests of what a codec's tokens of a task depend on."""
    held = {name: value.detach().cpu() for name, value in codec.state_dict().items()}
    own = f"statistics.{task}."
    weights = {name: value for name, value in held.items() if not name.startswith("statistics.")}
    shape = f"{codec.config} {codec.grids[task]} "
    return {
        "codec weights": artifact.digest(weights),
        "codec": shape,
        "normalisation": artifact.digest({name: value for name, value in held.items() if name.startswith(own)}),
    }


def encoder(codec: Codec, data: DataSet) -> Callable[[Tensor], Tensor]:
    """Frames to tokens on the codec's own device, and back to the CPU."""
    device = next(codec.parameters()).device
    task, periodic = data.source.task, data.source.domain.periodic
    codec.eval()
    return lambda frames: codec.encode_alike(frames.to(device), task, periodic).float().cpu()


@dataclass(frozen=True)
class Caches:
    """The caches of some data sets by one codec."""

    config: RunConfig
    place: Path
    codec: Codec
    dist: Dist
    screen: Screen
    pulse: Pulse

    def folder(self, data: DataSet, split: str) -> Path:
        return self.place / data.source.task.name / split

    def key(self, data: DataSet, split: str) -> dict[str, str]:
        """All that the cache of a part depends on."""
        told = identity(self.codec, data.source.task.name)
        return key_of(data.part(split), told, checksum(data.source, self.place / MEMORY), self.config.cache.dtype)

    def ready(self, data: DataSet, split: str) -> tuple[Path, dict[str, str]]:
        """The published, verified cache of a part and its key; all ranks must ask, and share the work."""
        folder, key, settings = self.folder(data, split), self.key(data, split), self.config.cache
        name = f"latents of {data.source.task.name}, {split}"

        def report(done: int, total: int) -> None:
            self.pulse.beat("idle", op="latent cache")
            self.screen.following(Progress(done, total, name))

        build = Builder(
            data.part(split),
            encoder(self.codec, data),
            key,
            folder,
            settings.dtype,
            settings.rebuild,
            settings.readers,
            report=report,
            say=self.screen.say if self.dist.leads else lambda sentence: None,  # noqa: ARG005
        )
        for again in (settings.rebuild, False):
            build.run()
            said = self.dist.gather(verify(folder, self.dist.rank, self.dist.world))
            wrong = next((sentence for sentence in said if sentence), None)
            if wrong is None:
                break
            if not again:
                raise DataError(wrong)
            if self.dist.leads:
                discard(folder)
            self.dist.barrier()
        return folder, key


def encoded_parts(
    config: RunConfig,
    folder: RunDir,
    sets: Sequence[DataSet],
    stage: CodecStage | OperatorStage,
    dist: Dist,
    screen: Screen,
    pulse: Pulse | None,
) -> list[Samples]:
    """What the operator is trained on, encoded; nothing where the config does without a cache, or for another stage.

    Frames are read beside the tokens only where a loss compares fields.
    """
    if not config.cache.use or not isinstance(stage, OperatorStage):
        return []
    caches = Caches(config, place_of(config, folder), stage.codec, dist, screen, pulse or Pulse(None, 0))
    parts: list[Samples] = []
    for data in sets:
        truth = data.part("train") if stage.needs_frames else None
        parts.append(Latents(*caches.ready(data, "train"), data.source.task, truth))
    return parts


def build(folder: RunDir, config: RunConfig, device: str, screen: Screen) -> list[Path]:
    """Build, or adopt, the caches of a finished run's training and validation parts."""
    with ExitStack() as stack, Dist.alone(device) as dist:
        caches, sets = _of(folder, config, dist, screen, stack)
        return [caches.ready(data, split)[0] for data in sets for split in SPLITS]


def _of(
    folder: RunDir, config: RunConfig, dist: Dist, screen: Screen, stack: ExitStack
) -> tuple[Caches, list[DataSet]]:
    if not folder.artifact("simulator").exists():
        raise DataError(f"{folder.folder}: has no trained codec yet; train it first with `ups run`.")
    if not config.data:
        raise DataError(f"{folder.config}: names no data, so nothing can be encoded; put the run's own back.")
    simulator = Simulator.load(folder.artifact("simulator"), dist.device)
    place = folder.cache("data")
    sets = [stack.enter_context(opened(data, place, screen.following)) for data in config.data.values()]
    return Caches(config, place_of(config, folder), simulator.codec, dist, screen, Pulse(None, 0)), sets


def run_of(path: Path, overrides: dict[str, str]) -> tuple[RunDir, RunConfig]:
    """The run that a folder holds, or that a config describes, and its config."""
    if path.is_dir():
        folder = RunDir.at(path)
        return folder, load(RunConfig, folder.config, overrides)
    config = load(RunConfig, path, overrides)
    return RunDir.at(Path(config.out) / config.name), config


def published(path: Path) -> list[Path]:
    """The caches below a folder, which is a run's or one of caches."""
    if not path.is_dir():
        raise DataError(f"{path}: there is no such folder; name a run's folder, or one of caches.")
    if (path / "config.yaml").is_file():
        folder, config = run_of(path, {})
        path = place_of(config, folder)
    found = sorted(p.parent for p in path.glob(f"**/{MANIFEST}") if not any(x.startswith(".") for x in p.parts[-4:]))
    if not found:
        raise DataError(f"{path}: holds no latent cache; build one with `ups cache build`.")
    return found


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
    """Delete what killed builders left, and in a finished run's own folder each cache that is not of its codec and
    data; a sentence for each."""
    said = []
    place = path
    if (path / "config.yaml").is_file():
        folder, config = run_of(path, {})
        place = place_of(config, folder)
        if folder.artifact("simulator").exists():
            with ExitStack() as stack, Dist.alone("cpu") as dist:
                said += _clear_stale(*_of(folder, config, dist, screen, stack))
    elif not path.is_dir():
        raise DataError(f"{path}: there is no such folder; name a run's folder, or one of caches.")
    for left in leftovers(place) if place.is_dir() else ():
        shutil.rmtree(left, ignore_errors=True)
        said.append(f"{left}: was left by a builder that was stopped; deleted.")
    return said


def _clear_stale(caches: Caches, sets: Sequence[DataSet]) -> list[str]:
    said = []
    for data in sets:
        for split in SPLITS:
            folder = caches.folder(data, split)
            try:
                if folder.exists():
                    check_key(folder, read_manifest(folder), caches.key(data, split))
            except StaleError:
                discard(folder)
                said.append(f"{folder}: was made of something else than this run's codec and data; deleted.")
    return said
