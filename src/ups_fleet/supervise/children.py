"""Child processes: programs that are asked, programs that are started, and copies of this process; all begin here."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NoReturn, Protocol

from ups_fleet.supervise.forked_functions import CaughtExit

Program = subprocess.Popen[bytes]
Ended = subprocess.CompletedProcess[str]


class UnansweredError(Exception):
    """A program has not answered in time."""


class Child(Protocol):
    """A process that was started, in a session of its own."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...  # its exit code, negative for a signal; None while it is there
    def wait(self) -> int: ...


def ask(words: Sequence[str], seconds: float, *, text: str = "", env: Mapping[str, str] | None = None) -> Ended:
    """How a program ended that was given `text` to read, and what it has printed; OSError where it cannot be started,
    UnansweredError where it takes longer than `seconds`. What is no text is shown as far as it can be."""
    try:
        return subprocess.run(
            words, env=env, input=text, capture_output=True, text=True, errors="replace", timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise UnansweredError(f"no answer within {seconds:.0f} s") from None


def start(
    words: Sequence[str],
    output: int | IO[bytes] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    fed: bool = False,
) -> Program:
    """Start a program in a session of its own, so that no Ctrl-C reaches it but from here. All it prints goes to
    `output`, or nowhere; `fed`: its standard input is a pipe from here, which ends with this process."""
    nothing, where = subprocess.DEVNULL, subprocess.DEVNULL if output is None else output
    stdin = subprocess.PIPE if fed else nothing
    return subprocess.Popen(words, env=env, stdin=stdin, stdout=where, stderr=where, start_new_session=True)


class ForkedProcess:
    """A copy of this process."""

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


def fork(work: Callable[[], None]) -> ForkedProcess:
    """A copy of this process that does `work` and ends as a process of its own would."""
    for stream in filter(None, (sys.stdout, sys.stderr)):  # either may have been closed before this process began
        stream.flush()
    gc.freeze()  # a collection in the child would copy every page it looks at
    pid = os.fork()
    if pid == 0:
        leave(work)
    gc.unfreeze()
    return ForkedProcess(pid)


def leave(work: Callable[[], None]) -> NoReturn:
    """Do `work` and exit with its code; an exception goes to stderr."""
    with CaughtExit() as caught:
        work()
    with contextlib.suppress(OSError, ValueError):
        if caught.code == 1:
            print(caught.result.traceback, file=sys.stderr)
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    os._exit(caught.code)


def end_session(child: Child) -> None:
    """SIGKILL to a child and all of its session's first group, where they are still there; it is waited for."""
    for kill in (os.killpg, os.kill):  # one that was only just started may have no session yet
        if kill is os.killpg or child.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(child.pid, signal.SIGKILL)
    child.wait()


def finish(program: Program, wait: float) -> None:
    """End the input of a program that is fed, and wait for it; it is ended where that takes longer, or is interrupted.
    Its own children must die with it."""
    assert program.stdin is not None
    try:
        program.stdin.close()
        program.wait(wait)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        pass
    finally:
        program.kill()
        program.wait()


def log_of(path: Path) -> IO[bytes]:
    """A file to which what a child prints is added; this user alone may read it."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab")
