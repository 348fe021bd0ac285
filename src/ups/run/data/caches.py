"""Builds and verifies the latent caches of a run, on all ranks together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ups.data.cache import Latents, Seals, key_of, verified
from ups.data.cache_builder import Builder, discard
from ups.data.checksums import checksum
from ups.data.trajectories import Trajectories
from ups.engine.ranks.dist import Dist
from ups.heartbeat import Pulse
from ups.models import Codec, artifact
from ups.models.grids import shift_of
from ups.progress import Progress, Screen
from ups.run.config import RunConfig
from ups.run.data.datasets import DataSet
from ups.rundir import RunDir
from ups.stages import Stage
from ups.types import DataError, Points

MEMORY = "files.json"


def place_of(config: RunConfig, folder: RunDir) -> Path:
    """Where the caches of a run lie: `<place>/<task>/<split>`."""
    return Path(config.cache.folder) if config.cache.folder else folder.cache("latents")


def identity(codec: Codec, task: str) -> dict[str, str]:
    """Digests of what a codec's tokens of a task depend on."""
    held = {name: value.detach().cpu() for name, value in codec.state_dict().items()}
    own = f"statistics.{task}."
    weights = {name: value for name, value in held.items() if not name.startswith("statistics.")}
    # Caches on disk also say which encoder it was, from when that was a key of the config.
    config = f"{str(codec.config).removesuffix(')')}, encoder='grid')"
    shape = f"{config} {codec.shapes[task]} "
    return {
        "codec weights": artifact.digest(weights),
        "codec": shape,
        "normalisation": artifact.digest({name: value for name, value in held.items() if name.startswith(own)}),
    }


def encoder(codec: Codec, part: Trajectories) -> Callable[[Tensor], Tensor]:
    """Frames to tokens on the codec's own device, and back to the CPU."""
    device = next(codec.parameters()).device
    codec.eval()
    return lambda frames: codec.encode_alike(frames.to(device), part.task, part.grid).float().cpu()


@dataclass(frozen=True)
class Caches:
    """The caches of some data sets by one codec."""

    config: RunConfig
    place: Path
    codec: Codec
    dist: Dist
    screen: Screen
    pulse: Pulse

    def folder(self, part: Trajectories, split: str, number: int) -> Path:
        """`number`: which of the task's groups of samples on one grid it is."""
        return self.place / part.task.name / (split if number == 0 else f"{split}-{number + 1}")

    def key(self, part: Trajectories) -> dict[str, str]:
        """All that the cache of a part depends on."""
        codec, task = identity(self.codec, part.task.name), part.task.name
        shift = shift_of(self.codec.corners.get(task), self.codec.shapes[task], part.grid)
        codec["codec"] += f"{shift}" if any(shift) else ""
        return key_of(part, codec, checksum(part.source, self.place / MEMORY), self.config.cache.dtype)

    def ready(self, part: Trajectories, split: str, number: int = 0) -> tuple[Path, dict[str, str], Seals]:
        """The published, verified cache of a part, its key and its seals; all ranks must ask, and share the work."""
        folder, key, settings = self.folder(part, split, number), self.key(part), self.config.cache
        name = f"latents of {part.task.name}, {split}"

        def report(done: int, total: int) -> None:
            self.pulse.beat("idle", op="latent cache")
            self.screen.following(Progress(done, total, name))

        build = Builder(
            part,
            encoder(self.codec, part),
            key,
            folder,
            settings.dtype,
            settings.rebuild,
            report=report,
            say=self.screen.say if self.dist.leads else lambda sentence: None,  # noqa: ARG005
        )
        for again in (settings.rebuild, False):
            build.run()
            seals, wrong = self._verified(folder)
            if not wrong:
                break
            if not again:
                raise DataError(wrong)
            if self.dist.leads:
                discard(folder)
            self.dist.barrier()
        return folder, key, seals

    def _verified(self, folder: Path) -> tuple[Seals, str]:
        """The seals of all shards, of which each rank verifies its share; and what is wrong, in a sentence."""
        seals: Seals = {}
        problem = ""
        try:
            seals = verified(folder, self.dist.rank, self.dist.world)
        except DataError as error:
            problem = str(error)
        together = {name: seal for share in self.dist.gather(dict(seals)) for name, seal in share.items()}
        return together, next((sentence for sentence in self.dist.gather(problem) if sentence), "")


def encoded_parts(
    config: RunConfig,
    folder: RunDir,
    sets: Sequence[DataSet],
    stage: Stage,
    dist: Dist,
    screen: Screen,
    pulse: Pulse | None,
) -> list[Latents]:
    """What a stage that sees tokens is trained on, encoded; nothing where it sees none, or the config wants no cache.

    Frames are read beside the tokens only where the stage sees both.
    """
    if not config.cache.use or stage.sees == "frames":
        return []
    caches = Caches(config, place_of(config, folder), stage.simulator.codec, dist, screen, pulse or Pulse(None, 0))
    parts: list[Latents] = []
    for number, part in ((n, part) for data in sets for n, part in enumerate(data.parts("train"))):
        frames = part if stage.sees == "both" else None
        place, key, seals = caches.ready(part, "train", number)
        points = part.grid if isinstance(part.grid, Points) else None
        parts.append(Latents(place, key, part.task, frames, seals, points))
    return parts
