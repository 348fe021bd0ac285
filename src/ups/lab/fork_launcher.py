"""A launcher that forks its ranks from this process, where all is imported: a start takes milliseconds."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from ups.supervise import rank_parent
from ups.supervise.forked import Ended
from ups.supervise.job import Start
from ups.supervise.launchers import Child, Processes


class Forked(Processes):
    """Ranks of a command `python -m MODULE FOLDER`, without the start of an interpreter: `MODULE.main(FOLDER)`.

    Everything else is as under other launchers: a nanny per rank, sessions, logs, exit records. `before` is called at
    every start of the ranks; `seams` in every rank, before its work, and gives what is called after it. This process
    must have no other thread: a lock that one holds would stay closed in the ranks for ever.
    """

    def __init__(
        self,
        seams: Callable[[], Callable[[], None]] = lambda: lambda: None,
        before: Callable[[Start], None] = lambda start: None,  # noqa: ARG005
    ) -> None:
        super().__init__()
        self._seams = seams
        self._before = before

    def start(self, start: Start) -> None:
        self._before(start)
        super().start(start)

    def _child(self, command: tuple[str, ...], env: Mapping[str, str], log: BinaryIO) -> Child:
        sys.stdout.flush()
        sys.stderr.flush()
        gc.freeze()  # a collection in the child would copy every page it looks at
        pid = os.fork()
        if pid == 0:
            self._be_nanny(list(command), env, log.fileno())
        gc.unfreeze()
        return _Process(pid)

    def _be_nanny(self, command: list[str], env: Mapping[str, str], log: int) -> None:
        with Ended() as ended:
            os.setsid()
            for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            os.environ.clear()
            os.environ.update(env)
            os.dup2(log, 1)
            os.dup2(log, 2)
            let_go()
            raise SystemExit(nanny.rank(command, self._be_rank))
        if ended.code == 1:
            os.write(2, ended.told.traceback.encode())
        os._exit(ended.code)

    def _be_rank(self, command: list[str], parent: int, log: str) -> None:
        with Ended() as ended:
            nanny.settle(parent, log)
            after = self._seams()
            importlib.import_module(command[2]).main(*map(Path, command[3:]))
        with contextlib.suppress(OSError, ValueError):
            if ended.code == 1:
                print(ended.told.traceback, file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
        if not ended.code:
            after()
        os._exit(ended.code)


def let_go() -> None:
    """Leave what the parent holds open, above all its lock; the numbers stay taken, so that nobody closes another's."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != nothing:
            with contextlib.suppress(OSError):
                os.fstat(int(name))
                os.dup2(nothing, int(name))


class _Process:
    """A child of this process, as subprocess would show it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        code = self._wait(0)
        assert code is not None
        return code

    def _wait(self, how: int) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, how)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code
