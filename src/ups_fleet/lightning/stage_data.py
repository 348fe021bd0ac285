"""StageData: the windows of a stage as a LightningDataModule; what of a config Lightning can carry out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, IterableDataset

from ups.config import load
from ups.data.windows import Windows
from ups.engine.ranks.dist import Dist
from ups.engine.state import TrainingState
from ups.models import Simulator
from ups.progress import Screen
from ups.run.check import check
from ups.run.config import RunConfig, run_config
from ups.run.data.datasets import DataSet, aligned, open_sets
from ups.run.disk_room import say
from ups.run.load import load as load_simulator
from ups.run.order import validations_of, windows_of
from ups.stages import STAGES
from ups.tensors import Window
from ups.types import ConfigError, check_known
from ups_fleet.running.supervised import in_sentences

VALIDATIONS = 10  # of a training, where its config leaves it open


def configured(config: RunConfig | str | Path, stage: str) -> RunConfig:
    """The config of a run, read where a file is named; ConfigError for what Lightning does not train as `ups run`."""
    settings = config if isinstance(config, RunConfig) else load(run_config(), Path(config))
    check_known("stage", (stage,), settings.plan)
    kind, train = STAGES[stage], settings.stage(stage).train
    if train.steps is None or train.seconds is not None:
        raise ConfigError(f"{stage}.train has a budget of seconds, and Lightning counts steps; give train.steps alone.")
    if settings.start_from is None and kind.needs:
        raise ConfigError(
            f"stage {stage} needs the part '{kind.needs[0]}'; name as start_from the run or the simulator that has it."
        )
    return settings


def trainer_options(config: RunConfig | str | Path, stage: str, **changes: Any) -> dict[str, Any]:
    """Keywords for `lightning.Trainer` that train as `ups run` would; `changes` come on top."""
    settings = configured(config, stage)
    train, dist = settings.stage(stage).train, settings.dist
    cpu = settings.device == "cpu" or (settings.device == "auto" and not torch.cuda.is_available())
    if dist.strategy == "fsdp" and cpu:
        raise ConfigError("dist.strategy is fsdp, which Lightning has on GPUs alone; use ddp here, or `ups run`.")
    if train.precision == "tf32":
        raise ConfigError(
            "precision is tf32, which Lightning leaves to its user: set it to fp32, and call "
            "torch.set_float32_matmul_precision('high') before training."
        )
    every, steps = train.validate_every, int(train.steps or 0)
    if isinstance(every, str):
        every = 1 / VALIDATIONS
    interval = every if isinstance(every, int) else int(every * steps)
    options = {
        "max_steps": steps,
        "max_epochs": -1,
        "accelerator": "cpu" if cpu else "gpu",
        "devices": dist.ranks,
        "num_nodes": dist.nodes,
        "strategy": _strategy(settings),
        "precision": "bf16-mixed" if train.precision == "bf16" else "32-true",
        "val_check_interval": max(1, interval or steps),
        "check_val_every_n_epoch": None,
        "num_sanity_val_steps": -1 if train.validate_first else 0,
        "log_every_n_steps": train.log_every,
        "use_distributed_sampler": False,
    }
    return {**options, **changes}


def _strategy(config: RunConfig) -> Any:
    if config.dist.strategy == "fsdp":
        from lightning.pytorch.strategies import FSDPStrategy

        return FSDPStrategy(use_orig_params=True, state_dict_type="full")
    # Not every loss touches every parameter: that of another task may not be part of this batch.
    return "auto" if config.dist.world == 1 else "ddp_find_unused_parameters_true"


class Batch:
    """A window that Lightning hands on as it is: its FSDP would convert the tensors of a dataclass, and refuses a
    frozen one."""

    def __init__(self, window: Window) -> None:
        self.window = window


class Stream(IterableDataset[Batch]):
    """Windows, made when they are asked for."""

    def __init__(self, make: Callable[[], Iterable[Window]]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Batch]:
        return map(Batch, self.make())


class StageData(LightningDataModule):
    """The windows on which `ups run` would train and validate a stage, each rank its share; made first where no file
    holds them, in `folder`."""

    def __init__(self, config: RunConfig | str | Path, stage: str, folder: str | Path | None = None) -> None:
        super().__init__()
        self.config, self.name = configured(config, stage), stage
        home = Path(self.config.out) / f"{self.config.name}-data"
        self.folder = Path(folder) if folder is not None else home
        self.state = TrainingState()  # holds the validations, by which some mixes go
        self.sets: list[DataSet] = []
        self.parent: Simulator | None = None
        self._opened = ExitStack()

    def prepare_data(self) -> None:
        check(self.config)
        with ExitStack() as stack:
            open_sets(self.config.data, self.folder, in_sentences(say), stack)

    def setup(self, stage: str) -> None:  # noqa: ARG002
        if self.sets:
            return
        config = self.config
        silent, simulator = Screen.silent().following, config.model.simulator
        self.sets = open_sets(config.data, self.folder, silent, self._opened, simulator=simulator)
        if config.start_from is not None:
            self.parent = load_simulator(config.start_from)
            self.sets = aligned(self.sets, self.parent.codec.tasks)

    def windows(self) -> Windows:
        """The windows of this rank."""
        config, trainer = self.config, self.trainer
        sets = [data for data in self.sets if STAGES[self.name].learns(data.task)]
        dist = Dist(trainer.global_rank, trainer.world_size, trainer.strategy.root_device)
        validations = validations_of(self.state, [data.task.name for data in sets], config.mix, 2)
        return windows_of(config, sets, config.stage(self.name), dist, validations=validations)

    def train_dataloader(self) -> Any:
        """Batch n is a pure function of n: a training that goes on begins with the batch of its step."""
        windows, steps = self.windows(), self.config.stage(self.name).train.steps or 0
        first = self.trainer.global_step
        return DataLoader(Stream(lambda: map(windows.batch, range(first, steps))), batch_size=None)

    def val_dataloader(self) -> Any:
        windows = self.windows()
        return DataLoader(Stream(lambda: windows.validation(self.trainer.global_step)), batch_size=None)

    def teardown(self, stage: str) -> None:  # noqa: ARG002
        self._opened.close()
        self.sets = []
