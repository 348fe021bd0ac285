"""Real ranks for tests: one thread each, all forked from one server that has imported whatever any test needs."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from ups.doctor.rank_checks import PRELOAD
from ups.lab.lab import NEEDED
from ups.supervise.forked_functions import Result, run, values, warm

__all__ = ["Result", "free_port", "join_group", "run_ranks", "values", "warm_up"]

ALL = ("pytest", *PRELOAD, *NEEDED, "blank_pictures")


def run_ranks(
    function: Callable[..., Any], world: int, *args: Any, timeout: float = 150, env: Mapping[str, str] = {}
) -> list[Result]:
    """`function(*args)` in `world` processes with the environment that a launcher gives; their results by rank."""
    return run(function, world, *args, seconds=timeout, env={"OMP_NUM_THREADS": "1", **env}, preload=ALL)


def join_group(seconds: float = 30) -> None:
    """In a rank: the process group of all, over gloo."""
    import torch.distributed as dist

    from ups.engine.ranks.meeting import meeting

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    limit = timedelta(seconds=seconds)
    dist.init_process_group("gloo", store=meeting(world), rank=rank, world_size=world, timeout=limit)


def free_port() -> int:
    """A port nobody uses, below those that the kernel gives to whoever asks for any: nobody gets it meanwhile."""
    while True:
        port = random.SystemRandom().randrange(15_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def warm_up() -> None:
    """Start that server, where it does not run: the first to start it says what it imports."""
    warm(ALL)
