"""Real processes in milliseconds: forked from a server that has torch and ups imported already."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib.util
import inspect
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import time
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

# What FSDP2 imports at its first step takes seconds, and is shared by all ranks of all tests.
PRELOAD = ("torch", "torch._dynamo", "torch.distributed.checkpoint", "ups.engine.sharded", "ups.models")

PDEATHSIG = 1  # prctl: the signal a process gets when its parent dies; the server dies with whoever started it


@dataclass(frozen=True)
class Result:
    """How one rank ended. `exitcode` is negative for a signal; a rank killed at the time limit has -9."""

    value: Any = None
    exitcode: int | None = None
    traceback: str = ""


def run_ranks(
    function: Callable[..., Any],
    world: int,
    *args: Any,
    timeout: float = 60,
    env: Mapping[str, str] = {},
    preload: Sequence[str] = PRELOAD,
) -> list[Result]:
    """`function(*args)` in `world` processes with the environment torchrun would give; their results by rank.

    `function` is at the top level of its module; arguments and results are pickled. Whatever a rank does (raise, exit,
    crash, hang), this returns by `timeout` seconds, and no process is left.
    """
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*preload])
    task = pickle.dumps((_home(function), function.__qualname__, pickle.dumps(args)))
    common = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    common |= {"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": str(world)}
    processes: list[BaseProcess] = []
    ends: list[Connection] = []
    try:
        for rank in range(world):
            ours, theirs = context.Pipe(duplex=False)
            settings = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank), **env}
            process = context.Process(target=_rank, args=(theirs, task, settings, list(sys.path)), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            ends.append(ours)
        said = _listen(ends, time.monotonic() + timeout)
        return [_result(process, said.get(rank)) for rank, process in enumerate(processes)]
    finally:  # also where the test itself is interrupted
        for process in processes:
            if process.is_alive():
                process.kill()


def values(results: list[Result]) -> list[Any]:
    """The results' values; fails with the traceback of the first rank that did not end well."""
    for rank, result in enumerate(results):
        assert result.exitcode == 0, f"rank {rank} ended with {result.exitcode}:\n{result.traceback}"
    return [result.value for result in results]


def free_port() -> int:
    """A port nobody uses, chosen by the kernel."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _home(function: Callable[..., Any]) -> tuple[str, str]:
    """Name and file of the function's module: pytest's modules cannot be imported by name elsewhere."""
    return function.__module__, str(Path(inspect.getfile(function)).resolve())


def _listen(ends: list[Connection], deadline: float) -> dict[int, bytes]:
    """What each rank sent before its pipe closed or the time was up."""
    said: dict[int, bytes] = {}
    open_ends = list(ends)
    while open_ends and (left := deadline - time.monotonic()) > 0:
        for end in wait(open_ends, left):
            open_ends.remove(end)  # type: ignore[arg-type]
            with contextlib.suppress(EOFError, OSError):
                said[ends.index(end)] = end.recv_bytes()  # type: ignore[arg-type,union-attr]
    return said


def _result(process: BaseProcess, said: bytes | None) -> Result:
    process.join(5 if said is not None else 0.5)
    if process.is_alive():
        process.kill()
        process.join(10)
    code = process.exitcode
    if said is None:
        return Result(None, code, "the rank said nothing: it crashed, hung or left without returning")
    value, trace = pickle.loads(said)
    return Result(value, code, trace)


class Ended:
    """As a context: how a block ended, as the exit code and the traceback of a process; nothing leaves it."""

    def __init__(self) -> None:
        self.code, self.trace = 0, ""

    def __enter__(self) -> Ended:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: Any) -> bool:
        if error is not None:
            left = error.code if isinstance(error, SystemExit) else 1
            self.code = left if isinstance(left, int) else 0 if left is None else 1
            self.trace = "".join(traceback.format_exception(error))
        return True


def _rank(end: Connection, task: bytes, env: dict[str, str], path: list[str]) -> None:
    """The body of a rank: never returns, and leaves as a process of its own would."""
    ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL)
    os.environ.update(env)
    for name in ("TORCHELASTIC_RUN_ID", "PYTEST_CURRENT_TEST"):
        os.environ.pop(name, None)
    sys.path[:] = path
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    faulthandler.enable()
    import torch

    torch.set_num_threads(1)
    value = None
    with Ended() as ended:
        (module, path_of_it), name, arguments = pickle.loads(task)
        value = _find(module, path_of_it, name)(*pickle.loads(arguments))
    code, trace = ended.code, ended.trace
    with contextlib.suppress(OSError):
        try:
            end.send_bytes(pickle.dumps((value, trace)))
        except (pickle.PicklingError, TypeError, AttributeError, RuntimeError) as error:
            end.send_bytes(pickle.dumps((None, f"{trace}\nthe value does not pickle: {error}")))
            code = code or 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # teardown of a process group races with its objects, and no test is about that


def _find(module: str, path: str, name: str) -> Callable[..., Any]:
    if module not in sys.modules and module.startswith("ups."):
        importlib.import_module(module)
    if module not in sys.modules:
        for end in (at for at, letter in enumerate(module) if letter == "."):  # pickle looks for the parents too
            sys.modules.setdefault(module[:end], types.ModuleType(module[:end]))
        spec = importlib.util.spec_from_file_location(module, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])
    found: Any = sys.modules[module]
    for part in name.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]
