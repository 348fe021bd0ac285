"""Loads the simulator of a run, or one from a file; and the config that a run was begun with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ups.config import load as load_config
from ups.engine.ranks.dist import device_of
from ups.models import Part, Simulator
from ups.models.artifact import FILE_NAME
from ups.run.config import RunConfig, run_config
from ups.rundir import RunDir
from ups.stages import STAGES
from ups.types import ConfigError, DataError


def part_kinds() -> dict[str, type[Part]]:
    """The classes of all parts that a stage makes, by name, in the order in which they are built."""
    return {stage.makes: stage.part() for stage in STAGES.values()}


def config_of(run: RunDir, overrides: Mapping[str, str] | None = None) -> RunConfig:
    """The config of a run, as its folder keeps it."""
    return load_config(run_config(), run.config, overrides)


def artifact_of(path: str | Path) -> Path:
    """The file of a simulator: of a run folder, of a folder that holds one, or the path itself."""
    place = Path(path)
    if RunDir(place).config.is_file():
        return RunDir.at(place).artifact("simulator")
    return place / FILE_NAME if place.is_dir() else place


def load(path: str | Path, device: str = "cpu") -> Simulator:
    """The simulator of a run folder, or of an artifact by itself."""
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"a simulator is loaded from the path of its run or file, not from {path!r}.")
    place, on = Path(path), device_of(device)
    if RunDir(place).config.is_file():
        artifact = artifact_of(place)
        if artifact.exists() and not artifact.is_file():
            raise DataError(f"{artifact}: is no file, so it is no simulator; move it away and --resume the run.")
        if not artifact.is_file():
            raise DataError(
                f"{place}: has no simulator yet (artifacts/{artifact.name}), for its training has not finished; go on "
                "with `ups run` and --resume."
            )
        simulator = Simulator.load(artifact, on, part_kinds())
        run = RunDir.at(place)
        made, ours = simulator.provenance.get("config"), run.known()
        if made is not None and ours is not None and not run.was(str(made)):
            raise DataError(
                f"{artifact}: was trained with another config ({made}) than this run's ({ours}); put its own back, "
                "or --resume the run to write it again."
            )
        return simulator
    if place.is_dir() and not (place / FILE_NAME).is_file():
        raise DataError(f"{place}: is not a run folder (it has no config.yaml) and holds no simulator; check the path.")
    return Simulator.load(place, on, part_kinds())
