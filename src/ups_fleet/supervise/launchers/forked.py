"""A launcher that forks its ranks from this process, which has imported everything: a start takes milliseconds."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from ups.streams import alone
from ups.types import ConfigError
from ups_fleet.supervise import rank_parent
from ups_fleet.supervise.children import Child, fork, leave
from ups_fleet.supervise.job import RankStart
from ups_fleet.supervise.launchers.launcher import ProcessLauncher


class ForkLauncher(ProcessLauncher):
    """Ranks of a command `python -m MODULE FOLDER`, without the start of an interpreter: `MODULE.main(FOLDER)`. Any
    other command is executed.

    Everything else is as under other launchers: a parent per rank, sessions, logs, exit records. `before` is called at
    every start of the ranks; `hooks` in every rank, before its work, and returns what is called after it.

    Where this process has threads that its copies would lack (`streams.alone`), the ranks are processes of their own,
    as under `processes`: a lock that such a thread holds would stay closed in a copy for ever, and a copy of OpenMP
    waits for threads that are not there. Hooks need copies, so with hooks that is refused.
    """

    def __init__(
        self,
        hooks: Callable[[], Callable[[], None]] | None = None,
        before: Callable[[RankStart], None] = lambda start: None,  # noqa: ARG005
    ) -> None:
        super().__init__()
        self._hooks = hooks
        self._before = before
        self._copies = self._may_copy = True

    def start(self, start: RankStart) -> None:
        self._before(start)
        self._copies = self._may_copy and alone()
        if self._hooks is not None and not self._copies:
            raise ConfigError(
                "this process has threads that a forked rank would lack, and ranks with hooks are forked; compute in a "
                "process of its own before."
            )
        super().start(start)

    def afresh(self) -> bool:
        self._may_copy = self._hooks is not None
        return self._copies and not self._may_copy

    def child(self, command: tuple[str, ...], env: Mapping[str, str], log: BinaryIO) -> Child:
        if not self._copies:
            return super().child(command, env, log)
        return fork(lambda: self._be_parent(list(command), env, log.fileno()))

    def _be_parent(self, command: list[str], env: Mapping[str, str], log: int) -> None:
        os.setsid()
        default_signals()
        os.environ.clear()
        os.environ.update(env)
        os.dup2(log, 1)
        os.dup2(log, 2)
        close_inherited()
        raise SystemExit(rank_parent.rank(command, self._be_rank))

    def _be_rank(self, command: list[str], parent: int, log: str) -> None:
        if command[1] != "-m":
            rank_parent.execute(command, parent, log)

        def work() -> None:
            rank_parent.settle(parent, log)
            after = self._hooks() if self._hooks is not None else lambda: None
            importlib.import_module(command[2]).main(*map(Path, command[3:]))
            if sys.stdout:
                sys.stdout.flush()
            after()

        leave(work)


def default_signals() -> None:
    """Forget the signal handlers of the supervisor that this process is a copy of."""
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def close_inherited() -> None:
    """Point every file that the parent has open, above all its lock, to /dev/null; the numbers stay taken."""
    null = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != null:
            with contextlib.suppress(OSError):
                os.fstat(int(name))
                os.dup2(null, int(name))
