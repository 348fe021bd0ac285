"""Vast's own client, imported once and forked for each command: the same program without 1.5 s of imports."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# Run by the client's own Python: each connection brings words, an environment and three streams.
SERVER = r"""
import json, os, socket, sys
import vastai.cli.main as entry
from vastai.cli.commands import instances, offers, machines, teams, keys, endpoints, billing, storage, auth, misc
from vastai.cli.commands import deployments, metrics, benchmarks, price_increase, repl, update, uninstall
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen(16)
while True:
    connection, _ = listener.accept()
    if os.fork():
        connection.close()
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    break
            except ChildProcessError:
                break
        continue
    message, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    request = json.loads(message)
    worker = os.fork()
    if worker == 0:
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        sys.argv = ["vastai", *request["words"]]
        code = 1
        try:
            entry.main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    connection.sendall(str(status).encode())
    os._exit(0)
"""
PROGRAM = """#!{python} -IS
import json, os, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect({address!r})
words = ["--url", os.environ["VAST_URL"], *sys.argv[1:]]
request = {{"words": words, "environment": dict(os.environ), "folder": os.getcwd()}}
socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
sys.exit(int(connection.recv(16) or b"1"))
"""


def installed() -> str:
    """The client's program; skips where there is none."""
    name = os.environ.get("UPS_VASTAI") or shutil.which("vastai") or str(Path(sys.executable).with_name("vastai"))
    if not shutil.which(name):
        pytest.skip("Vast's client is not installed (`make .venv/bin/vastai`)")
    return name


@contextmanager
def forked_client(folder: Path) -> Iterator[Path]:
    """A program that behaves as `vastai` does, quickly."""
    python = Path(installed()).resolve().read_text().splitlines()[0].removeprefix("#!")
    address, program = folder / "client", folder / "vastai"
    home = {"HOME": str(folder), "PATH": os.environ["PATH"], "VAST_URL": "http://127.0.0.1:9"}
    server = subprocess.Popen([python, "-c", SERVER, str(address)], env={**home, "VASTAI_NO_UPDATE_CHECK": "1"})
    program.write_text(PROGRAM.format(python=sys.executable, address=str(address)))
    program.chmod(0o755)
    try:
        end = time.monotonic() + 120
        while not address.exists() and time.monotonic() < end:
            assert server.poll() is None, "the client cannot be imported"
            time.sleep(0.05)
        yield program
    finally:
        server.kill()
        server.wait()
