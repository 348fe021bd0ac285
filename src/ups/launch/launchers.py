"""Launchers: what starts the processes of a job and knows which of them are there and which are gone."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Protocol

from ups.launch.causes import Exit
from ups.launch.job import Job, Start, nanny
from ups.types import ConfigError
from ups.verdict import read_json

SIOCGIFADDR = 0x8915


class Launcher(Protocol):
    """One start at a time: `start`, then `poll` until it is not None, or `kill`. Ranks are known by number."""

    def start(self, start: Start) -> None: ...

    def poll(self) -> int | None:
        """None while anything runs; then 0 if all was well and another number if not."""
        ...

    def pids(self) -> dict[int, int]:
        """The processes of the ranks that have begun, by rank."""
        ...

    def exits(self) -> dict[int, Exit]:
        """The ranks that are gone, by rank."""
        ...

    def kill(self) -> None:
        """SIGKILL to what it started, which takes the ranks with it."""
        ...


class Child(Protocol):
    """What is asked of a started process."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self) -> int: ...


class Processes:
    """Ranks as plain processes of this one; for a single rank, and for ranks that need no launcher's rendezvous."""

    def __init__(self) -> None:
        self._ranks: list[Child] = []
        self._gone: dict[int, float] = {}
        self._folder = Path()

    def start(self, start: Start) -> None:
        self._folder = start.folder
        self._gone.clear()
        world = start.job.ranks
        env = {**start.env, "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1"}
        env["MASTER_PORT"] = str(free_port())
        with (start.logs / "launcher.log").open("ab") as log:
            self._ranks = []  # one by one: what has been started is ended even where the next one cannot be
            for rank in range(world):
                seat = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                self._ranks.append(self._child(start.job.command, {**env, **seat}, log))

    def _child(self, command: tuple[str, ...], env: Mapping[str, str], log: BinaryIO) -> Child:
        """A nanny in a session of its own, with a rank that runs `command`."""
        return subprocess.Popen(
            nanny("rank", command), env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )

    def poll(self) -> int | None:
        codes = [rank.poll() for rank in self._ranks]
        if any(code is None for code in codes):
            return None
        return max((code or 0 for code in codes), key=abs, default=0)

    def pids(self) -> dict[int, int]:
        return read_pids(self._folder)

    def exits(self) -> dict[int, Exit]:
        found = read_exits(self._folder)
        for rank, nanny_ in enumerate(self._ranks):  # one that was killed could not write, and took its rank with it
            if rank not in found and (code := nanny_.poll()) is not None:
                clock = self._gone.setdefault(rank, time.monotonic())
                found[rank] = read_exits(self._folder).get(rank, Exit(rank, code, clock))
        return found

    def kill(self) -> None:
        for rank in self._ranks:  # each takes its rank with it
            if rank.poll() is None:
                kill_group(rank.pid)
            rank.wait()


class Torchrun:
    """Ranks under torchrun: it brings the nodes together and hands each rank its number, and that is all it decides.

    It does not restart (what may be restarted is the supervisor's to say), it does not detect a hang, its exit code
    is 1 for everything, and its ranks would survive it: the nannies see to that.
    """

    def __init__(self, last_call: float = 15, join: float = 300) -> None:
        self._last_call = last_call
        self._join = join
        self._agent: subprocess.Popen[bytes] | None = None
        self._folder = Path()

    def start(self, start: Start) -> None:
        self._folder = start.folder
        words = (
            sys.executable,
            "-m",
            "torch.distributed.run",
            *self.words(start.job),
            *nanny("rank", start.job.command),
        )
        with (start.logs / f"launcher-{start.job.node}.log").open("ab") as log:
            self._agent = subprocess.Popen(
                nanny("launcher", words),
                env={**_network(start.job), **start.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def words(self, job: Job) -> tuple[str, ...]:
        """torchrun's own arguments."""
        if job.nodes == 1:
            meet: tuple[str, ...] = ("--nnodes", "1", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1")
            conf = "is_host=true"
        else:
            least = job.least or job.nodes
            meet = ("--nnodes", f"{least}:{job.nodes}", "--rdzv-endpoint", job.rendezvous)
            conf = f"is_host={'true' if job.node == 0 else 'false'}"
            if address := local_address(job.rendezvous):
                meet = (*meet, "--local-addr", address)
        return (
            *meet,
            *("--rdzv-backend", "c10d", "--rdzv-id", job.name, "--nproc-per-node", str(job.ranks)),
            *("--rdzv-conf", f"{conf},join_timeout={self._join:.0f},last_call_timeout={self._last_call:.0f}"),
            *("--max-restarts", "0", "--monitor-interval", "0.1", "--no-python"),
        )

    def poll(self) -> int | None:
        return self._agent.poll() if self._agent else 0

    def pids(self) -> dict[int, int]:
        return read_pids(self._folder)

    def exits(self) -> dict[int, Exit]:
        return read_exits(self._folder)

    def kill(self) -> None:
        if self._agent is None:
            return
        if self._agent.poll() is None:
            kill_group(self._agent.pid)
        self._agent.wait()


def _network(job: Job) -> dict[str, str]:
    """Ranks of several nodes talk over the interface that leads to the rendezvous, whatever a host's name says."""
    name = interface_of(local_address(job.rendezvous)) if job.nodes > 1 else ""
    return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name} if name else {}


def read_pids(folder: Path) -> dict[int, int]:
    """What the nannies wrote: the process of each rank that has begun."""
    found = {}
    for path in folder.glob("pid-*"):
        try:
            found[int(path.name.removeprefix("pid-"))] = int(path.read_text().partition(" ")[0])
        except (OSError, ValueError):
            continue  # being replaced
    return found


def read_exits(folder: Path) -> dict[int, Exit]:
    """What the nannies wrote: how each rank ended."""
    found = [read_json(path) for path in folder.glob("exit-*.json")]
    return {e["rank"]: Exit(e["rank"], e["code"], e["clock"], e["pid"]) for e in found if e}


def kill_group(pid: int) -> None:
    """SIGKILL to a session's first process and its group, where it still exists."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def free_port() -> int:
    """A port nobody uses, chosen by the kernel."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def port_taken(rendezvous: str) -> bool:
    """Whether somebody on this machine already listens where node 0 is to be met."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", int(rendezvous.rpartition(":")[2])))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def answers(rendezvous: str) -> bool:
    """Whether somebody listens there."""
    host, _, port = rendezvous.rpartition(":")
    if not (host and port.isdigit()):
        raise ConfigError(f"nodes need a place to meet; give --rendezvous HOST:PORT of node 0, not '{rendezvous}'.")
    try:
        with socket.create_connection((host, int(port)), timeout=2):
            return True
    except OSError:
        return False


def interface_of(address: str) -> str:
    """The name of the network interface that has an IPv4 address; empty where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(asked, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # it has no address
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return ""


def local_address(rendezvous: str) -> str:
    """This machine's address as seen on the way to the rendezvous; empty where there is no way."""
    host, _, port = rendezvous.rpartition(":")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, int(port)))  # sends nothing: it only asks the routing table
            return str(probe.getsockname()[0])
    except OSError:
        return ""
