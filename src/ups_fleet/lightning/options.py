"""What a config of `ups run` means to Lightning: the keywords of its Trainer, and what it cannot do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ups.config import load
from ups.run.config import RunConfig, run_config
from ups.stages import STAGES
from ups.types import ConfigError, check_known

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
