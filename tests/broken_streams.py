"""The `ups` command with standard streams that are closed, full or without a reader, forked from the warm server."""

from __future__ import annotations

import gc
import io
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TextIO

# What stands at a descriptor: a file, a disk that is full, a pipe or terminal whose other end is closed, or nothing.
STREAMS = {
    "both to files": ("file", "file"),
    "output to a full disk": ("full", "file"),
    "output to a pipe nobody reads": ("pipe", "file"),
    "errors to a full disk": ("file", "full"),
    "both to a full disk": ("full", "full"),
    "both to a terminal that is gone": ("terminal", "terminal"),
    "both closed": ("closed", "closed"),
}
Case = tuple[Sequence[str], Mapping[str, str], tuple[str, str]]


def _point(number: int, kind: str, place: str) -> None:
    """Make a descriptor what `kind` says; a kind that is a path is opened."""
    if kind == "closed":
        os.close(number)
        return
    if kind == "file":
        handle = os.open(f"{place}.{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    elif kind == "pipe":
        reader, handle = os.pipe()
        os.close(reader)
    elif kind == "terminal":
        master, handle = os.openpty()
        os.close(master)
    else:
        # A terminal becomes that of its process only if it is opened for reading too.
        handle = os.open("/dev/full" if kind == "full" else kind, os.O_RDWR if "/pts/" in kind else os.O_WRONLY)
    os.dup2(handle, number)
    os.close(handle)


def _stream(number: int, kind: str) -> TextIO | None:
    """As an interpreter makes it at its start."""
    if kind == "closed":
        return None
    lines = number == 2 or kind == "terminal"
    return io.TextIOWrapper(io.BufferedWriter(io.FileIO(number, "w", closefd=False)), "utf-8", line_buffering=lines)


def _command(words: Sequence[str], env: Mapping[str, str], kinds: tuple[str, str], place: str) -> None:
    """All that the child does. It leaves as an interpreter does, without the second it takes to tear torch down."""
    gc.freeze()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()  # the first terminal that it opens is its own
    os.environ.update({"OMP_NUM_THREADS": "1", **env})
    import torch

    import ups.cli.app
    import ups.screen

    torch.set_num_threads(1)
    ups.screen.AT_FIRST = 600.0  # a slow machine says no more than a quick one
    for number, kind in enumerate(kinds, 1):
        _point(number, kind, place)
    sys.stdout, sys.stderr = (_stream(number, kind) for number, kind in enumerate(kinds, 1))  # type: ignore[assignment]
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]
    sys.argv, code = ["ups", *words], 0
    try:
        ups.cli.app.main()
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:  # noqa: BLE001
        code = 1
    for output in filter(None, (sys.stdout, sys.stderr)):
        try:
            output.flush()
        except (OSError, ValueError):
            code = 120 if output is sys.stdout else code
    os._exit(code)


def started(words: Sequence[str], kinds: tuple[str, str], place: Path, env: Mapping[str, str] = {}) -> BaseProcess:
    """The command as a process. What goes to files is in `place.1` and `place.2`; a kind may be the path of a device or
    of a pipe in /proc."""
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_command, args=(list(words), dict(env), kinds, str(place)))
    process.start()
    return process


def code_of(process: BaseProcess, seconds: float = 120) -> int:
    """Its exit code, negative for a signal; one that does not end is killed, and has -9."""
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()
    assert process.exitcode is not None
    return process.exitcode


def codes_of(cases: Sequence[Case], place: Path) -> list[int]:
    """The exit code of each case: words of the command, environment, what stands at descriptors 1 and 2; what goes to
    files is in `place/NUMBER.1` and `place/NUMBER.2`."""
    place.mkdir(exist_ok=True)
    return [
        code_of(started(words, kinds, place / str(number), env)) for number, (words, env, kinds) in enumerate(cases)
    ]
