"""Job: the command of a rank, how many ranks there are, where they meet, and their environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ups.types import ConfigError, counted
from ups_fleet.supervise.start_dir import StartDir

NESTED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "TORCHELASTIC_RUN_ID")


@dataclass(frozen=True)
class RankJob:
    """`ranks` processes of `command` on this node, of `nodes` nodes of which `least` must be there.

    `node` is this one's number; node 0 writes the verdict and holds the rendezvous, which all reach as `rendezvous`
    (HOST:PORT). A job of one node needs none: its ranks meet through a private file. `interface`: on which ranks of
    several nodes talk; the one that leads to the rendezvous where it is empty.
    """

    command: tuple[str, ...]
    ranks: int = 1
    nodes: int = 1
    least: int = 0
    node: int = 0
    rendezvous: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    interface: str = ""

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.nodes < 1:
            raise ConfigError(f"{self.ranks} ranks on {self.nodes} nodes cannot be started; ask for at least one each.")
        if not 0 <= self.least <= self.nodes:
            raise ConfigError(f"at least {self.least} of {counted(self.nodes, 'node')} cannot be met; ask for fewer.")
        if not 0 <= self.node < self.nodes:
            raise ConfigError(f"node {self.node} is not one of {self.nodes}; they are counted from 0.")
        if self.nodes > 1 and not self.rendezvous.rpartition(":")[2].isdecimal():
            raise ConfigError(f"{self.nodes} nodes need a place to meet; give --rendezvous HOST:PORT of node 0.")


@dataclass(frozen=True)
class RankStart:
    """One start of a job's ranks on this node: `files` for what they write while they run, `logs` for their output.

    `join`: seconds that nodes wait for each other.
    """

    job: RankJob
    attempt: int
    files: StartDir
    logs: Path
    env: Mapping[str, str]
    join: float = 300


def refuse_nesting(environ: Mapping[str, str] | None = None) -> None:
    """A launcher inside a launcher makes two worlds that look like one; variables left behind do the same."""
    variables = {name: value for name in NESTED if (value := (os.environ if environ is None else environ).get(name))}
    if variables:
        named = ", ".join(f"{name}={value}" for name, value in variables.items())
        raise ConfigError(
            f"the environment says {named}, so another launcher has started this process or has left this behind; "
            f"ups starts its ranks itself: run it without torchrun, with --here as one of its ranks, or "
            f"`unset {' '.join(variables)}`."
        )


def environment(job: RankJob, attempt: int, files: StartDir, logs: Path, home: Path, token: str) -> dict[str, str]:
    """The environment of every rank: who watches it, where its heartbeat goes, how many threads are its share.

    `home` is the run's folder. A value that is already set wins.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    defaults = {
        "OMP_NUM_THREADS": str(max(1, cores // job.ranks)),
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_FR_DUMP_TEMP_FILE": str(files.folder / "flight-"),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }
    ours = {
        "PYTHONFAULTHANDLER": "1",
        "PYTHONUNBUFFERED": "1",
        "UPS_RUN": str(files.folder),
        "UPS_LOGS": str(logs),
        "UPS_HOME": str(home),
        "UPS_ATTEMPT": str(attempt),
        "UPS_SUPERVISOR": str(os.getpid()),
        "UPS_PARENT": str(os.getpid()),
        "UPS_TOKEN": token,
    }
    return {**defaults, **os.environ, **job.env, **ours}


def debugging(device: str) -> dict[str, str]:
    """Variables that make torch say more: logs of groups and collectives, C++ stacks, errors where they happen.

    TORCH_DISTRIBUTED_DEBUG is INFO: DETAIL crashes gloo. On a GPU every kernel is waited for, so that an error names
    its own line; that is slow. A value that is already set wins.
    """
    variables = {
        "TORCH_DISTRIBUTED_DEBUG": "INFO",
        "TORCH_CPP_LOG_LEVEL": "INFO",
        "TORCH_SHOW_CPP_STACKTRACES": "1",
        "TORCH_FR_BUFFER_SIZE": "20000",
    }
    if device != "cpu":
        variables |= {"CUDA_LAUNCH_BLOCKING": "1", "NCCL_DEBUG": "INFO", "TORCH_NCCL_DESYNC_DEBUG": "1"}
    return {name: value for name, value in variables.items() if name not in os.environ}


def parent_command(command: tuple[str, ...]) -> list[str]:
    """The command line that runs a rank's `command` under `rank_parent.py`."""
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name("rank_parent.py")), *command]
