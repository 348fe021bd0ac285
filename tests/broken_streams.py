"""The `ups` command with standard streams that are closed, full or without a reader, forked from one warm process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

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

SERVER = """
import gc, io, json, os, sys, torch
import ups.screen
import ups.cli, ups.cli.worker, ups.jobs.inspect, ups.jobs.import_data, ups.jobs.forecast, ups.run.supervised

def point(number, kind, place):
    if kind == "file":
        handle = os.open(f"{place}.{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    elif kind == "full":
        handle = os.open("/dev/full", os.O_WRONLY)
    elif kind == "pipe":
        reader, handle = os.pipe()
        os.close(reader)
    elif kind == "terminal":
        master, handle = os.openpty()
        os.close(master)
    else:
        return os.close(number)
    os.dup2(handle, number)
    os.close(handle)

def stream(number, kind):
    # as an interpreter makes it at its start
    if kind == "closed":
        return None
    lines = number == 2 or kind == "terminal"
    return io.TextIOWrapper(io.BufferedWriter(io.FileIO(number, "w", closefd=False)), "utf-8", line_buffering=lines)

def leave():
    # as an interpreter ends, without the second it takes to tear torch down
    try:
        ups.cli.main()
    except SystemExit as end:
        code = end.code or 0
    except BaseException as error:
        code = 1
    for output in filter(None, (sys.stdout, sys.stderr)):
        try:
            output.flush()
        except (OSError, ValueError):
            code = 120 if output is sys.stdout else code
    os._exit(code)

ups.screen.AT_FIRST = 600.0  # a slow machine says no more than a quick one
gc.freeze()
place, cases = sys.argv[1], json.load(sys.stdin)
codes = []
for count, (words, env, kinds) in enumerate(cases):
    pid = os.fork()
    if pid == 0:
        os.environ.update(env)
        for number, kind in enumerate(kinds, 1):
            point(number, kind, f"{place}/{count}")
        sys.stdout = sys.__stdout__ = stream(1, kinds[0])
        sys.stderr = sys.__stderr__ = stream(2, kinds[1])
        sys.argv = ["ups", *words]
        leave()
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
os.write(1, json.dumps(codes).encode())
"""

Case = tuple[Sequence[str], Mapping[str, str], tuple[str, str]]


def codes_of(cases: Sequence[Case], place: Path) -> list[int]:
    """The exit code of each case: words of the command, environment, what stands at descriptors 1 and 2.

    What goes to files is in `place/NUMBER.1` and `place/NUMBER.2`. Children leave as an interpreter does, with its
    last flush.
    """
    place.mkdir(exist_ok=True)
    answer = subprocess.run(
        [sys.executable, "-c", SERVER, str(place)],
        input=json.dumps(cases).encode(),
        check=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    codes: list[int] = json.loads(answer.stdout)
    return codes
