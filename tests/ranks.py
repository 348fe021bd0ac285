"""Real ranks for tests: one thread each, all forked from one server that has imported whatever any test needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ups.doctor.rank_checks import PRELOAD
from ups.lab.lab import NEEDED
from ups.supervise.forked_functions import Result, run, values, warm
from ups.supervise.network import free_port

__all__ = ["Result", "free_port", "run_ranks", "values", "warm_up"]

ALL = ("pytest", *PRELOAD, *NEEDED)


def run_ranks(
    function: Callable[..., Any], world: int, *args: Any, timeout: float = 60, env: Mapping[str, str] = {}
) -> list[Result]:
    """`function(*args)` in `world` processes with the environment torchrun would give; their results by rank."""
    return run(function, world, *args, seconds=timeout, env={"OMP_NUM_THREADS": "1", **env}, preload=ALL)


def warm_up() -> None:
    """Start that server, where it does not run: the first to start it says what it imports."""
    warm(ALL)
