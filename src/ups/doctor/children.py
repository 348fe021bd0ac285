"""Work in child processes, where whatever it does (raise, crash, hang) is only something found: ranks, or one alone."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from ups.launch.evidence import tail
from ups.launch.job import NESTED
from ups.launch.launchers import free_port
from ups.launch.nanny import die_with_parent
from ups.verdict import Failure

# Imported once, by the server from which ranks are forked; FSDP2 alone takes seconds.
PRELOAD = ("__main__", "torch", "torch._dynamo", "torch.distributed.checkpoint", "ups.engine.sharded")
PRELOADED = [*PRELOAD, "ups.engine.loop", "ups.engine.vault", "ups.doctor.exercises", "ups.doctor.parts"]
SIGNALS = {
    signal.SIGSEGV: "a segmentation fault",
    signal.SIGBUS: "a bus error",
    signal.SIGABRT: "an abort",
    signal.SIGFPE: "a floating-point exception",
    signal.SIGILL: "an illegal instruction",
    signal.SIGKILL: "SIGKILL, perhaps for want of memory",
}


@dataclass(frozen=True)
class Result:
    """How one child ended. `code` is negative for a signal; `log` is the end of what it printed, stacks included."""

    value: Any = None
    code: int | None = None
    error: str = ""  # kind and sentence of the exception that ended it
    first_hand: bool = True  # the exception began here and is no echo of a peer's end
    trace: str = ""
    log: str = ""
    spoke: bool = True  # it said how it ended; a rank that leaves without a word has not done its work
    hung: bool = False
    seconds: float = 0.0

    @property
    def well(self) -> bool:
        return self.spoke and self.code == 0 and not self.error

    def ending(self) -> str:
        """In words: what went wrong."""
        if self.hung:
            return f"did not answer within {self.seconds:.0f} s"
        if self.error:
            return self.error
        if self.code is not None and self.code < 0:
            number = -self.code
            known = {int(s): words for s, words in SIGNALS.items()}
            return f"ended by {known.get(number, signal.Signals(number).name)}"
        return f"left with exit code {self.code} and without a word"


def run(
    function: Callable[..., Any],
    world: int,
    *args: Any,
    seconds: float,
    method: Literal["fork", "forkserver"] = "forkserver",
    env: Mapping[str, str] = {},
) -> list[Result]:
    """`function(*args)` in `world` processes; how each ended, by rank.

    `function` is at the top level of its module; arguments and results are pickled. Returns after `seconds` at the
    latest, and leaves no process behind. `forkserver`: ranks, forked from a server that has torch imported, that find
    what a launcher would tell them; `fork`: copies of this process, environment included.
    """
    context: Any = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(PRELOADED)
    folder = Path(tempfile.mkdtemp(prefix="ups-doctor-"))
    common: dict[str, str] = {}
    if method == "forkserver":
        common = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1"}
        common["MASTER_PORT"] = str(free_port())
    processes: list[BaseProcess] = []
    ends: list[Connection] = []
    try:
        for rank in range(world):
            ours, theirs = context.Pipe(duplex=False)
            own = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank), **env} if common else {}
            place = (str(folder / f"rank-{rank}.log"), seconds)
            child = context.Process(target=_child, args=(theirs, function, args, own, place), daemon=True)
            child.start()
            theirs.close()
            processes.append(child)
            ends.append(ours)
        said, late = _listen(ends, time.monotonic() + seconds)
        found = [_result(process, said.get(rank)) for rank, process in enumerate(processes)]
        return [
            replace(r, hung=rank in late, seconds=seconds, log=tail(folder / f"rank-{rank}.log", 1 << 20))
            for rank, r in enumerate(found)
        ]
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def warm() -> None:
    """Let the server that ranks are forked from begin its imports."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()


def _listen(ends: list[Connection], deadline: float) -> tuple[dict[int, bytes], set[int]]:
    """What each child sent, and those that had neither sent anything nor ended when the time was up.

    Once one has crashed, the others get a while.
    """
    said: dict[int, bytes] = {}
    left = list(ends)
    while left and (patience := deadline - time.monotonic()) > 0:
        for end in wait(left, patience):
            assert isinstance(end, Connection)
            left.remove(end)
            try:
                said[ends.index(end)] = end.recv_bytes()
            except (EOFError, OSError):
                deadline = min(deadline, time.monotonic() + 15)
    return said, {ends.index(end) for end in left}


def _result(process: BaseProcess, said: bytes | None) -> Result:
    process.join(5 if said is not None else 0.5)
    if process.is_alive():
        process.kill()
        process.join(10)
    return replace(pickle.loads(said), code=process.exitcode) if said else Result(code=process.exitcode, spoke=False)


def _child(
    end: Connection, function: Callable[..., Any], args: tuple[Any, ...], env: dict[str, str], place: tuple[str, float]
) -> None:
    """A rank's life: never returns."""
    die_with_parent(signal.SIGKILL, os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the doctor, who ends its children
    log, seconds = place
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    for name in NESTED if env else ():
        os.environ.pop(name, None)
    os.environ.update(env)
    errors = os.fdopen(os.dup(2), "w")
    faulthandler.enable(errors)
    faulthandler.dump_traceback_later(max(0.5, seconds - 1), file=errors)
    if env and "torch" in sys.modules:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        sys.modules["torch"].set_num_threads(max(1, cores // int(env["WORLD_SIZE"])))
    with _Telling(end) as telling:
        telling.value = function(*args)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(telling.code)  # teardown of a process group races with its objects, and no check is about that


class _Telling:
    """Sends what the work returned, or the exception that ended it."""

    def __init__(self, end: Connection) -> None:
        self.end, self.value, self.code = end, None, 0

    def __enter__(self) -> _Telling:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        result = Result(self.value)
        if error is not None:
            self.code = 1
            told = Failure.of(error, 0, 0, "")
            sentence = told.sentence if told.sentence.startswith(told.kind) else f"{told.kind}: {told.sentence}"
            result = Result(None, error=sentence, first_hand=told.first_hand, trace=told.traceback)
        with contextlib.suppress(OSError):
            self.end.send_bytes(pickle.dumps(result))
        return True


def first(results: list[Result]) -> tuple[int, Result] | None:
    """The rank that failed, and how: one that crashed or raised before one that only lost a peer or waited for it."""

    def order(row: tuple[int, Result]) -> int:
        _, result = row
        if result.error:
            return 1 if result.first_hand else 4
        return 3 if result.hung else 0 if (result.code or 0) < 0 else 2

    failed = [(rank, result) for rank, result in enumerate(results) if not result.well]
    return min(failed, key=order) if failed else None


def blamed(results: list[Result]) -> str:
    """Which rank failed, how, and in which line of code; empty where all is well."""
    found = first(results)
    if found is None:
        return ""
    rank, result = found
    who = f"rank {rank}: " if len(results) > 1 else ""
    return f"{who}{result.ending()}{_at(result.log) if not result.error else ''}"


def _at(log: str) -> str:
    """The innermost Python line of the stack that a fatal signal or the time limit left in the log."""
    lines = log.splitlines()
    starts = [i for i, line in enumerate(lines) if "most recent call first" in line]
    current = next((i for i in starts if lines[i].startswith("Current thread")), starts[-1] if starts else None)
    if current is None or current + 1 >= len(lines):
        return ""
    words = lines[current + 1].strip().removeprefix("File ").partition(" in ")
    return f", in {words[2]} ({words[0].rpartition('/')[2].replace(chr(34), '')})" if words[2] else ""
