"""Runs a function in forked processes and returns how each ended: well, with an exception, by a signal, or hung."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import importlib.util
import inspect
import multiprocessing
import os
import pickle
import select
import signal
import sys
import tempfile
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ups.parsing import threads_wanted
from ups.verdict import Failure
from ups_fleet.supervise.job import NESTED
from ups_fleet.supervise.log_tail import LONG, innermost_line, log_tail, size_of
from ups_fleet.supervise.network import private_meeting
from ups_fleet.supervise.rank_parent import die_with_parent
from ups_fleet.supervise.start_dir import StartDir

# What the server from which ranks are forked imports, once for all: FSDP2's first step alone imports for seconds.
PRELOAD = (
    "__main__",
    "torch",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "ups.engine.ranks.sharded",
    "ups.models",
)
WRITE_STACKS = signal.SIGQUIT  # has a child write its stacks to its log, also while it holds the interpreter
SIGNALS = {
    signal.SIGSEGV: "a segmentation fault",
    signal.SIGBUS: "a bus error",
    signal.SIGABRT: "an abort",
    signal.SIGFPE: "a floating-point exception",
    signal.SIGILL: "an illegal instruction",
    signal.SIGKILL: "SIGKILL, perhaps for want of memory",
}
# The traceback of a rank that sent no result.
NO_ANSWER = "the rank said nothing: it crashed, hung or left without returning"


@dataclass(frozen=True)
class Result:
    """How one child ended.

    Args:
        value: What the function returned.
        exitcode: That of its process, negative for a signal; -9 where it was killed at the time limit.
        traceback: That of the exception that ended it.
        error: Kind and sentence of that exception.
        first_hand: The exception began here and is no echo of a peer's end.
        log: The end of what it printed, stacks included.
        answered: It sent how it ended; a rank that leaves without an answer has not done its work.
        hung: It had neither answered nor ended at the time limit.
        seconds: The time limit.
    """

    value: Any = None
    exitcode: int | None = None
    traceback: str = ""
    error: str = ""
    first_hand: bool = True
    log: str = ""
    answered: bool = True
    hung: bool = False
    seconds: float = 0.0

    @property
    def well(self) -> bool:
        return self.answered and self.exitcode == 0 and not self.error

    def ending(self) -> str:
        """What went wrong, in words."""
        if self.hung:
            return f"did not answer within {self.seconds:.0f} s"
        if self.error:
            return self.error
        if self.exitcode is not None and self.exitcode < 0:
            number = -self.exitcode
            known = {int(s): words for s, words in SIGNALS.items()}
            return f"ended by {known.get(number, signal.Signals(number).name)}"
        return f"left with exit code {self.exitcode} and without a word"


class CaughtExit(contextlib.AbstractContextManager["CaughtExit"]):
    """A context that catches every exception of its block, and says which exit code (`code`) and `result` it makes."""

    def __init__(self) -> None:
        self.code, self.result = 0, Result()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: Any) -> bool:
        if error is not None:
            code = error.code if isinstance(error, SystemExit) else 1
            self.code = code if isinstance(code, int) else 0 if code is None else 1
        if error is not None and self.code:
            record = Failure.of(error, 0, 0, "")
            words = record.sentence if record.sentence.startswith(record.kind) else f"{record.kind}: {record.sentence}"
            self.result = Result(traceback=record.traceback, error=words, first_hand=record.first_hand)
        return True


@dataclass(frozen=True)
class FunctionName:
    """A function by its module and name, for a parent that does not want to import the module."""

    module: str
    name: str


class Call:
    """A function and its arguments, to be called in a child.

    Pickled, the function is named by its module and file, so that one of a module that cannot be imported by its name
    (a test's) is found too; if that fails, it is the child's failure.
    """

    def __init__(self, function: Callable[..., Any] | FunctionName, args: tuple[Any, ...]) -> None:
        self.function, self.args = function, args

    def __reduce__(self) -> tuple[Any, ...]:
        if isinstance(self.function, FunctionName):
            where = (self.function.module, "", self.function.name)
        else:
            file = str(Path(inspect.getfile(self.function)).resolve())
            where = (self.function.__module__, file, self.function.__qualname__)
        return functools.partial, (_call, *where, pickle.dumps(self.args))

    def __call__(self) -> Any:
        assert not isinstance(self.function, FunctionName), "a copy of this process has the function itself"
        return self.function(*self.args)


def _call(module: str, file: str, name: str, args: bytes) -> Any:
    function: Any = _module(module, file)
    for part in name.split("."):
        function = getattr(function, part)
    return function(*pickle.loads(args))


def run_ranks(
    function: Callable[..., Any] | FunctionName,
    world: int,
    *args: Any,
    seconds: float,
    env: Mapping[str, str] = {},
    preload: Sequence[str] = (),
) -> list[Result]:
    """Call `function(*args)` in `world` ranks with the variables that a launcher would set, forked from a server that
    has imported torch. Leaves no process behind.

    Args:
        function: At the top level of its module.
        world: How many ranks.
        args: Arguments; they and results are pickled.
        seconds: When those that have not answered are killed.
        env: Further variables of ranks.
        preload: Further modules that the server imports, if this is its first start.

    Returns:
        How each rank ended, in their order.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOAD, *preload])
    with tempfile.TemporaryDirectory(prefix="ups-ranks-", ignore_cleanup_errors=True) as folder:
        common = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), **private_meeting(StartDir(Path(folder)))}
        environs = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank), **env} for rank in range(world)]
        return _ended(context, Call(function, args), environs, seconds, Path(folder))


def run_copy(function: Callable[..., Any], *args: Any, seconds: float) -> Result:
    """Call `function(*args)` in a copy of this process, environment included, which computes in one thread; how it
    ended. One that has not answered within `seconds` is killed."""
    with tempfile.TemporaryDirectory(prefix="ups-copy-", ignore_cleanup_errors=True) as folder:
        [result] = _ended(multiprocessing.get_context("fork"), Call(function, args), [{}], seconds, Path(folder))
    return result


def _ended(context: Any, call: Call, environs: Sequence[dict[str, str]], seconds: float, folder: Path) -> list[Result]:
    """How a child for each of these environments ended; their logs lie in `folder`."""
    logs = [folder / f"rank-{rank}.log" for rank in range(len(environs))]
    processes: list[BaseProcess] = []
    pipes: list[Connection] = []
    try:
        for log, environ in zip(logs, environs, strict=True):
            ours, theirs = context.Pipe(duplex=False)
            child = context.Process(target=_child, args=(theirs, call, environ, str(log)), daemon=True)
            child.start()
            theirs.close()
            processes.append(child)
            pipes.append(ours)
        answers, late = _listen(pipes, seconds)
        for pipe in pipes:
            pipe.close()  # rank 0, which waits for this, may leave
        _ask_for_stacks({rank: processes[rank] for rank in late}, logs)
        results = [_result(process, answers.get(rank), rank in late) for rank, process in enumerate(processes)]
        return [
            replace(r, hung=rank in late, seconds=seconds, log=log_tail(logs[rank], LONG))
            for rank, r in enumerate(results)
        ]
    finally:  # also where the caller is interrupted
        for process in processes:
            if process.is_alive():
                process.kill()


def warm(preload: Sequence[str] = ()) -> None:
    """Start the server that ranks are forked from, so that its imports are done when `run_ranks` needs it."""
    multiprocessing.get_context("forkserver").set_forkserver_preload([*PRELOAD, *preload])
    forkserver.ensure_running()


def values(results: list[Result]) -> list[Any]:
    """The results' values; fails with the traceback of the first rank that did not end well."""
    for rank, r in enumerate(results):
        assert r.well, f"rank {rank} ended with {r.exitcode}:\n{r.traceback}\n{r.log[-8000:]}"
    return [result.value for result in results]


def _listen(pipes: list[Connection], seconds: float) -> tuple[dict[int, bytes], set[int]]:
    """The answers by rank, and the ranks that had neither answered nor ended when the time was up.

    Once one has left without an answer, the others get only a quarter of `seconds` more, or 15 s.
    """
    deadline = time.monotonic() + seconds
    answers: dict[int, bytes] = {}
    open_pipes = list(pipes)
    while open_pipes and (patience := deadline - time.monotonic()) > 0:
        for pipe in wait(open_pipes, patience):
            assert isinstance(pipe, Connection)
            open_pipes.remove(pipe)
            try:
                answers[pipes.index(pipe)] = pipe.recv_bytes()
            except (EOFError, OSError):
                deadline = min(deadline, time.monotonic() + max(15, seconds / 4))
    return answers, {pipes.index(pipe) for pipe in open_pipes}


def _ask_for_stacks(late: Mapping[int, BaseProcess], logs: Sequence[Path]) -> None:
    """Have those that did not answer write their stacks to their logs, and wait a second at most for it."""
    sizes = {rank: size_of(logs[rank]) for rank in late}
    for process in late.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid or 0, WRITE_STACKS)
    end = time.monotonic() + (1.0 if late else 0.0)
    while time.monotonic() < end and any(size_of(logs[rank]) == sizes[rank] for rank in late):
        time.sleep(0.02)


def _result(process: BaseProcess, answer: bytes | None, late: bool) -> Result:
    process.join(0 if late else 5)
    if process.is_alive():
        process.kill()
        process.join(10)
    if not answer:
        return Result(exitcode=process.exitcode, traceback=NO_ANSWER, answered=False)
    result: Result = pickle.loads(answer)
    return replace(result, exitcode=process.exitcode)


def _child(pipe: Connection, call: Callable[[], Any], env: dict[str, str], log: str) -> None:
    """All that a child does. Never returns, and leaves as a process of its own would."""
    gc.freeze()  # a collection would look at, and so copy, every page of what the parent has imported
    die_with_parent(signal.SIGKILL, os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    errors = os.fdopen(os.dup(2), "w")
    faulthandler.enable(errors)
    faulthandler.register(WRITE_STACKS, errors, all_threads=True)
    if env:
        for name in NESTED:
            os.environ.pop(name, None)
        os.environ.update(env)
        share_cores(env)
    elif "torch" in sys.modules:  # a copy lacks the threads with which its parent may have computed
        sys.modules["torch"].set_num_threads(1)
    value = None
    with CaughtExit() as caught:
        value = call()
    code, result = caught.code, replace(caught.result, value=value)
    with contextlib.suppress(OSError):
        try:
            pipe.send_bytes(pickle.dumps(result))
        except (pickle.PicklingError, TypeError, AttributeError, RuntimeError) as error:
            words = f"the value does not pickle: {error}"
            pipe.send_bytes(pickle.dumps(replace(result, value=None, error=words, traceback=words)))
            code = code or 1
    if env.get("RANK") == "0":
        _linger(pipe)
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)  # teardown of a process group races with its objects, and nobody asked for it


def _linger(pipe: Connection) -> None:
    """Rank 0 holds the store through which the others may still be meeting: it leaves when all have answered."""
    waiting = select.poll()
    waiting.register(pipe.fileno(), select.POLLERR | select.POLLHUP)  # the parent has closed its end
    waiting.poll(60_000)


def share_cores(env: Mapping[str, str]) -> None:
    """Set torch's threads to OMP_NUM_THREADS, which torch read before the fork, or to this rank's share of cores."""
    if "torch" in sys.modules:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        share = threads_wanted(env.get("OMP_NUM_THREADS", "")) or max(1, cores // int(env.get("LOCAL_WORLD_SIZE", "1")))
        sys.modules["torch"].set_num_threads(share)


def _module(name: str, file: str) -> types.ModuleType:
    """A module by its name if it is one of ours, else by its file; pickle needs its parents in sys.modules too."""
    if name not in sys.modules and name.partition(".")[0] in ("ups", "ups_fleet", "ups_bench"):
        importlib.import_module(name)
    if name not in sys.modules:
        for end in (at for at, letter in enumerate(name) if letter == "."):
            sys.modules.setdefault(name[:end], types.ModuleType(name[:end]))
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def first_failure(results: list[Result]) -> tuple[int, Result] | None:
    """The rank to blame and its result; None where all ended well. A rank that crashed or raised goes before one that
    only lost a peer or waited for it."""

    def order(row: tuple[int, Result]) -> int:
        _, result = row
        if result.error:
            return 1 if result.first_hand else 4
        return 3 if result.hung else 0 if (result.exitcode or 0) < 0 else 2

    failed = [(rank, result) for rank, result in enumerate(results) if not result.well]
    return min(failed, key=order) if failed else None


def failure_of(results: list[Result]) -> str:
    """Which rank failed, how, and in which line of code, in words; empty where all is well."""
    failure = first_failure(results)
    if failure is None:
        return ""
    rank, result = failure
    who = f"rank {rank}: " if len(results) > 1 else ""
    return f"{who}{result.ending()}{innermost_line(result.log) if not result.error else ''}"
