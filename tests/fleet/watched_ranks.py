"""Ranks of `forked_functions`, as the doctor starts them: forked from the same server as those of `ranks`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ranks import ALL, free_port, join_group
from ups_fleet.supervise import forked_functions
from ups_fleet.supervise.forked_functions import Result, values

__all__ = ["Result", "free_port", "join_group", "run_ranks", "values"]


def run_ranks(
    function: Callable[..., Any], world: int, *args: Any, timeout: float = 150, env: Mapping[str, str] = {}
) -> list[Result]:
    """`function(*args)` in `world` processes with the environment that a launcher gives; their results by rank."""
    return forked_functions.run_ranks(
        function, world, *args, seconds=timeout, env={"OMP_NUM_THREADS": "1", **env}, preload=ALL
    )
