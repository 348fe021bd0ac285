"""Turns a config and the words of `ups launch` into a Job; refuses what cannot work before it is submitted."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ups.files import is_pattern
from ups.run.config import RunConfig
from ups.types import ConfigError, DataError
from ups_fleet.keys import fleet_keys
from ups_fleet.secrets import secret_in
from ups_fleet.submit.job import LaunchJob, Option
from ups_fleet.submit.records import new_key
from ups_fleet.sweep.axes import SweepPoint

ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # of data that are fetched, such as s3://bucket/file
# In an address: a password behind a user's name, or a token in the place of that name.
PASSWORD = re.compile(r"://(?:[^/\s:@]*:[^\s@]+|[^/\s:@]{16,})@")
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MARGIN = 30.0  # seconds beyond the grace of the ranks for the last word of their supervisor


@dataclass(frozen=True)
class LaunchRequest:
    """What was asked for on the command line, beside the config: None is left to the config."""

    nodes: int | None = None
    gpus: int | None = None
    ranks: int | None = None
    seconds: float | None = None
    options: Mapping[str, Option] = field(default_factory=dict)
    points: Sequence[SweepPoint] = ()
    folder: Path | None = None  # of a sweep
    variables: tuple[str, ...] = ()  # names of environment variables that the job needs


def job_of(settings: RunConfig, file: Path, flags: Mapping[str, str], request: LaunchRequest, place: Path) -> LaunchJob:
    """The job that runs `settings`, which were read from `file` and `flags`, from the directory `place`."""
    gpus = _gpus(settings, request)
    ranks = request.ranks or (gpus or settings.dist.ranks)
    own = {key: value for key, value in flags.items() if key not in ("dist.ranks", "dist.nodes")}
    nodes = request.nodes or settings.dist.nodes
    if gpus and settings.device == "auto":
        own["device"] = "cuda"  # a node without one says so, instead of training for weeks without
    if gpus and ranks * nodes > 1 and settings.dist.backend == "auto":
        own["dist.backend"] = "nccl"  # a node with fewer says so, instead of having ranks share one
    if request.points and request.folder is not None:
        own["out"] = str(request.folder)
    limits = fleet_keys(settings).limits
    return LaunchJob(
        key=new_key(settings.name),
        name=settings.name,
        config=Path(os.path.abspath(place / file)),
        folder=request.folder or Path(os.path.abspath(place / settings.out / settings.name)),
        place=place,
        flags=tuple(own.items()),
        nodes=nodes,
        ranks=ranks,
        gpus=gpus,
        seconds=request.seconds,
        grace=limits.grace + limits.teardown + MARGIN,
        interface=settings.dist.interface or "",
        inputs=(Path(os.path.abspath(place / file)), *inputs_of(settings, place)),
        variables=_variables(request.variables, os.environ),
        python=sys.executable,
        points=tuple((("name", point.name), *point.flags.items()) for point in request.points),
        options=request.options,
    )


def _variables(names: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Names of variables, each of which must be set here."""
    for name in names:
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise ConfigError("--secret takes the name of an environment variable alone, never its value.")
        if not environ.get(name):
            raise ConfigError(f"--secret {name}: it is not set here; `export {name}=…` first.")
    return tuple(dict.fromkeys(names))


def _gpus(settings: RunConfig, request: LaunchRequest) -> int:
    """Graphics processors of each node: as asked for, else one for each rank where the config names them."""
    if request.gpus is None:
        return (request.ranks or settings.dist.ranks) if settings.device.startswith("cuda") else 0
    if request.gpus and settings.device == "cpu":
        raise ConfigError(f"--gpus is {request.gpus}, and the config's device is cpu; change one of them.")
    if request.ranks is not None and request.gpus and request.ranks != request.gpus:
        raise ConfigError(f"--gpus {request.gpus} and --ranks {request.ranks}: each rank has a GPU; leave one out.")
    return request.gpus


def inputs_of(settings: RunConfig, place: Path) -> list[Path]:
    """Files and folders that the run reads; of a pattern the folder, and nothing of what is fetched or made."""
    names: list[str] = [name for name in (settings.start_from, settings.champion) if name]
    for data in settings.data.values():
        for files in (data.file, data.split.record, *data.split.files.values()):
            names += [files] if isinstance(files, str) else list(files or ())
    fixed = [_without_pattern(name, place) for name in names if not ADDRESS.match(name)]
    return [Path(os.path.abspath(place / name)) for name in dict.fromkeys(fixed)]


def _without_pattern(name: str, place: Path) -> str:
    while is_pattern(name, place):
        name = os.path.dirname(name) or "."
    return name


def check_inputs(job: LaunchJob) -> None:
    """A DataError for what is not here, on a machine that sees what the nodes see."""
    for path in job.inputs:
        if not path.exists():
            raise DataError(f"{path}: is not there, and the run needs it; correct the config, or bring the file.")


def check_secrets(text: str, environ: Mapping[str, str]) -> None:
    """A ConfigError where what would be submitted holds a password or a key."""
    if name := secret_in(text, environ):
        raise ConfigError(
            f"what would be submitted holds the value of {name}, and others may read it; leave it out of config and "
            "flags: the job takes it from its own environment."
        )
    if PASSWORD.search(text):
        raise ConfigError(
            "what would be submitted holds an address with a password (scheme://USER:PASSWORD@…) or a token, and "
            "others may read it; take the password out of config and flags, and give it in the environment."
        )


def seconds_of(text: str | None) -> float | None:
    """A time limit: 45s, 90m, 12h, 2d, HH:MM:SS or D-HH:MM:SS."""
    if text is None:
        return None
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip()):
        return float(match[1]) * UNITS[match[2]]
    if match := re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)", text.strip()):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    raise ConfigError(f"--time is '{text}', but must be a time with its unit: 45s, 90m, 12h, 2d or 1-12:00:00.")
