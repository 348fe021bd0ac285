"""The data sets of a run: files that are there or are made first, cut in three, as windows for a stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ups.data import Source, open_source
from ups.data.sampler import Validations
from ups.data.splits import Split, make_split
from ups.data.trajectories import Trajectories
from ups.data.windows import CELLS, Samples, Windows
from ups.engine.ranks.dist import Dist
from ups.engine.train import Progress
from ups.eval.results import DataFact
from ups.physics import TASKS
from ups.run.config import DataConfig, GenerateConfig, RunConfig
from ups.run.generate import Report as Following
from ups.run.generate import generate
from ups.stages import StageConfig
from ups.types import DataError, TaskSpec

Say = Callable[[str], None]
Watch = Callable[[Progress], None]


@dataclass(frozen=True)
class Screen:
    """Where a run shows what it does: sentences, the making of data, the progress of training."""

    say: Say
    following: Following
    watch: Watch

    @classmethod
    def silent(cls) -> Screen:
        """For ranks whose words nobody reads."""
        return cls(_nothing, _nothing, _nothing)


def _nothing(_: object) -> None:
    """Not shown."""


@dataclass
class DataSet:
    """One task's trajectories, cut in three."""

    config: DataConfig
    source: Source
    split: Split
    parts: dict[str, Trajectories] = field(default_factory=dict)

    @property
    def task(self) -> TaskSpec:
        return self.source.task

    @property
    def grid(self) -> tuple[int, ...]:
        """Cells per axis that are trained on."""
        return tuple(n // self.config.reduce.space for n in self.source.domain.shape)

    @property
    def step(self) -> float:
        """Time between two frames that are trained on; 0 for a steady task."""
        times = self.source.times[self.config.reduce.start :: self.config.reduce.time]
        return float(times[1] - times[0]) if len(times) > 1 else 0.0

    def part(self, name: str) -> Trajectories:
        """The trajectories of one part; read once, where they fit in memory."""
        if name not in self.parts:
            try:
                ids = self.split.part(name)
            except DataError as error:
                raise DataError(f"{self.source.task.name}: {error}") from None
            self.parts[name] = Trajectories(self.source, ids, self.config.reduce).sound()
        return self.parts[name]

    def fact(self) -> DataFact:
        made = self.source.attributes().get("ups_identity")
        version = str(made) if made is not None else f"{self.source.path.stat().st_size} bytes"
        counts = f"{len(self.split.train)} / {len(self.split.valid)} / {len(self.split.test)}"
        grid = " × ".join(map(str, self.grid))
        params = ", ".join(f"{k} = {v}" for k, v in self.source.params.items())
        frames = len(self.source.times[self.config.reduce.start :: self.config.reduce.time])
        return DataFact(self.source.task.name, self.source.path.name, version, counts, grid, frames, params)


@contextmanager
def opened(data: DataConfig, folder: Path, following: Following) -> Iterator[DataSet]:
    """The data set of a config, its file made first where the config names none."""
    if data.file:
        path = Path(data.file)
    else:
        keys = set(GenerateConfig.model_fields)
        path = generate(GenerateConfig.model_validate(data.model_dump(include=keys)), folder, following)
    with open_source(path, TASKS, data.task if data.file else None) as source:
        yield DataSet(data, source, make_split(source.ids, data.split.convention, data.split.fractions, data.seed))


def windows_of(
    config: RunConfig,
    sets: Sequence[DataSet],
    settings: StageConfig,
    dist: Dist,
    encoded: Sequence[Samples] = (),
    validations: Callable[[], Validations] = tuple,
) -> Windows:
    """What a stage is trained and validated on; `encoded` parts take the place of those for training."""
    train, valid = ([data.part(name) for data in sets] for name in ("train", "valid"))
    mix = config.mix if len(sets) > 1 else None
    shape = (settings.batch, config.context, settings.unroll, config.seed)
    cells = CELLS.get(dist.device.type, 0)
    return Windows(encoded or train, valid, *shape, ranks=dist, mix=mix, validations=validations, cells=cells)
