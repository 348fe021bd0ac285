"""What `ups` says by itself: what lies in this folder, what this machine has, and what to do next."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterator
from pathlib import Path

from ups.data.readers import READERS
from ups.host_memory import available
from ups.parsing import parse_yaml, read_text
from ups.presence import look
from ups.rundir import RunDir
from ups.types import UpsError, counted
from ups.verdict import FINISHED, Ending

DRIVER = Path("/proc/driver/nvidia/gpus")
RUNS = Path("runs")
MOST = 1000  # names of a folder that are looked at
NOTHING = "nothing of ours yet"


def first_look(folder: Path, known: Collection[str]) -> list[str]:
    """The lines of `ups` without a command.

    Args:
        folder: where the command was given.
        known: names of the commands there are; no other is proposed.
    """
    runs, data, configs = _runs(folder), _data(folder), _configs(folder)
    there = {"data file": len(data), "config": len(configs), "run": len(runs)}
    words = ", ".join(counted(number, what) for what, number in there.items() if number) or NOTHING
    steps = [*_of_runs(runs, data, known), *_of_configs(configs, runs), *_of_data(data, configs)]
    steps = [step for step in steps or _from_nothing() if step[0].split()[1] in known][:6]
    width = max(len(command) for command, _ in steps)
    return [
        "ups turns trajectories of a physical system into a fast neural simulator.",
        f"This machine: {_machine()}.  This folder: {words}.",
        "",
        *(f"  {command:{width}}  {does}" for command, does in steps),
        "",
        "Every command: `ups --help`. One of them: `ups COMMAND --help`.",
    ]


def _machine() -> str:
    cores, (_, memory) = len(os.sched_getaffinity(0)), available()
    return f"{counted(cores, 'processor')}, {memory / 2**30:.0f} GiB of memory, {_gpus()}"


def _gpus() -> str:
    """The GPUs that the driver knows; torch would take seconds to say it."""
    models = [
        model.group(1).strip()
        for path in sorted(DRIVER.glob("*/information"))
        if (model := re.search(r"^Model:(.*)$", path.read_text(), re.M))
    ]
    return f"{len(models)} x {models[0]}" if models else "no NVIDIA GPU"


def _names(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(path for path, _ in zip(folder.iterdir(), range(MOST), strict=False))
    except OSError:  # no folder, or none that may be read
        return


def _data(folder: Path) -> list[Path]:
    suffixes = {suffix for reader in READERS.values() for suffix in reader.suffixes}
    return [path for path in _names(folder) if path.suffix.lower() in suffixes]


def _configs(folder: Path) -> list[Path]:
    """The files of a folder that may be configs of runs: YAML that names data."""
    return [path for path in _names(folder) if path.suffix in (".yaml", ".yml") and _names_data(path)]


def _names_data(path: Path) -> bool:
    try:
        content = parse_yaml(read_text(path))
    except (OSError, ValueError, UpsError):
        return False
    return isinstance(content, dict) and "data" in content


def _runs(folder: Path) -> list[RunDir]:
    """The runs of a folder's `runs`, the newest first."""
    runs = [RunDir(path) for path in _names(folder / RUNS)]
    runs = [run for run in runs if run.config.is_file() and run.environment.is_file()]
    return sorted(runs, key=lambda run: run.environment.stat().st_mtime, reverse=True)


def _of_runs(runs: list[RunDir], data: list[Path], known: Collection[str]) -> list[tuple[str, str]]:
    """What can be done with runs: use the newest that has ended well, follow or go on with the newest other."""
    steps: list[tuple[str, str]] = []
    ended = [(run, _ended(run)) for run in runs]
    if other := [run for run, ending in ended if ending not in FINISHED][:1]:
        name = shlex.quote(str(RUNS / other[0].folder.name))
        if _running(other[0]):
            steps.append((f"ups watch {name}", "follow this run, which is going on"))
        else:
            steps.append((f"ups run {name}/config.yaml --resume", "go on with this run, which has not ended"))
    if done := [run for run, ending in ended if ending in FINISHED][:1]:
        name = shlex.quote(str(RUNS / done[0].folder.name))
        steps.append(
            (f"ups show {name}", f"the errors of this simulator ({done[0].report.name} beside it has pictures)")
        )
        if "play" in known:
            steps.append((f"ups play {name}", "play with it in a browser"))
        file = shlex.quote(data[0].name) if data else "FILE"
        steps.append((f"ups rollout {name} --input {file} --steps 50 --out next.h5", "continue the states of a file"))
    return steps


def _ended(run: RunDir) -> Ending | None:
    try:
        return run.ended()
    except (OSError, ValueError, UpsError):
        return None


def _running(run: RunDir) -> bool:
    try:
        return look(run.lock).held
    except OSError:
        return False


def _of_configs(configs: list[Path], runs: list[RunDir]) -> list[tuple[str, str]]:
    if not configs or runs:
        return []
    name = shlex.quote(configs[0].name)
    return [
        (f"ups estimate {name}", "what that run will take of memory and time"),
        (f"ups run {name}", "train and judge a simulator"),
    ]


def _of_data(data: list[Path], configs: list[Path]) -> list[tuple[str, str]]:
    if not data or configs:
        return []
    name = shlex.quote(data[0].name)
    return [
        (f"ups data info {name}", "what is in this file"),
        (f"ups init {name} --out my.yaml", "write a config for data like these; then `ups run my.yaml`"),
    ]


def _from_nothing() -> list[tuple[str, str]]:
    return [
        ("ups demo", "from nothing to a simulator and its page, in minutes"),
        ("ups init FILES --out my.yaml", "a config for data of yours; then `ups run my.yaml`"),
        ("ups data tasks", "the equations that data can be made of"),
        ("ups doctor", "whether this machine can train"),
    ]
