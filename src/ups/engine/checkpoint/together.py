"""Joins the ranks of a save: each learns the results of all, and one failure is a failure of all."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from ups.engine.checkpoint.manifest import DamageError
from ups.engine.ranks.exchange import gather_json

T = TypeVar("T")


class SavingRanks:
    """The ranks that keep checkpoints together. `group` is a gloo group that nothing else uses, None for one process;
    its timeout bounds every wait for another rank."""

    def __init__(self, rank: int, world: int, group: dist.ProcessGroup | None) -> None:
        if (group is None) != (world == 1):
            raise ValueError("a group is needed by several ranks, and only by them")
        self.rank, self.world, self.group = rank, world, group

    def all(self, work: Callable[[], T]) -> list[T]:
        """Every rank's result of `work`, by rank, which must be JSON; where it failed on any, the same error on all."""
        return self._outcomes(work)

    def own(self, work: Callable[[], T]) -> T:
        """This rank's result, which may be anything; where `work` failed on any rank, the same error on all."""
        results: list[T] = []
        self._outcomes(lambda: results.append(work()))
        return results[0]

    def _outcomes(self, work: Callable[[], Any]) -> list[Any]:
        result, failure = None, None
        try:
            result = work()
        except (OSError, RuntimeError, ValueError) as error:
            failure = plain(error)
        mine = {"result": result, "failure": failure and [failure.errno, failure.strerror]}
        try:
            outcomes = gather_json(mine, self.group)
        except (RuntimeError, ValueError) as error:  # it timed out, or another rank is gone
            raise OSError(errno.ECONNABORTED, f"the ranks lost each other ({line(error)})") from error
        failures = {rank: OSError(*outcome["failure"]) for rank, outcome in enumerate(outcomes) if outcome["failure"]}
        if failures:
            raise joined(failures, self.world)
        return [outcome["result"] for outcome in outcomes]


def plain(error: OSError | RuntimeError | ValueError) -> OSError:
    """Any failure as an OSError that says it in a line."""
    if isinstance(error, OSError) and error.strerror:
        where = f": {Path(error.filename).name}" if error.filename else ""
        return OSError(error.errno, error.strerror + where)
    return OSError(errno.EBADMSG if isinstance(error, DamageError) else errno.EIO, line(error))


def joined(failures: Mapping[int, OSError], world: int) -> OSError:
    """The failures of several ranks as one."""
    first = next(iter(failures.values()))
    lines = [f"rank {rank}: {failure.strerror}" for rank, failure in failures.items()]
    alike = len(failures) == world and len({failure.strerror for failure in failures.values()}) == 1
    return OSError(first.errno, first.strerror if alike else "; ".join(lines))


def line(error: BaseException) -> str:
    """The first line of what an error says."""
    return next(iter(str(error).splitlines()), type(error).__name__)
