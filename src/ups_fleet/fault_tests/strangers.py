"""Disturbances by others on the machine: strangers at a run's ports and in its folders; a second run in a container."""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401  (which nobody could import any more once it is nobody)
import json
import os
import shutil
import signal
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ups.parsing import read_json
from ups_fleet.fault_tests.case import CaseDir, Disturbance, FaultCase, Strategy, print_to, run_here
from ups_fleet.fault_tests.disturbances import beside, bomb
from ups_fleet.fault_tests.privileges import (
    NEW_MOUNTS,
    NEW_NETWORK,
    NEW_PIDS,
    become_nobody,
    mount_memory,
    mount_processes,
    unshare,
)
from ups_fleet.supervise.children import fork
from ups_fleet.supervise.job import RankStart
from ups_fleet.supervise.network import Listener, is_private, listeners
from ups_fleet.supervise.proc import alive, descendants

NEEDS = {"user": (), "nobody": ("root",), "network": ("root", "network namespaces")}
ROUNDS = 3  # attacks on each port
GREETINGS = struct.Struct("<I")
STORE = 0x3C85F7CE  # the number with which a client of torch's TCPStore begins


def messages(canary: Path) -> dict[str, list[bytes]]:
    """What strangers may send, by name: messages that are sent on one connection after the other.

    Args:
        canary: The file that is made if somebody executes what was sent.
    """
    code = bomb(canary)
    return {
        "garbage": [os.urandom(1 << 16), bytes(1 << 16), b"GET / HTTP/1.0\r\n\r\n"],
        "pickle": [code, struct.pack("<Q", len(code)) + code, struct.pack("!I", len(code)) + code],
        "gloo": [struct.pack("<Q", n) + bytes(136) for n in range(8)],
        "store": [GREETINGS.pack(STORE) + bytes([n]) + struct.pack("<Q", 2**40) for n in range(12)],
        "half open": [b""],
    }


@dataclass(frozen=True)
class Strangers(Disturbance):
    """A stranger connects to every port of the run while the ranks start and work, and sends something.

    A stranger who is another user also tries to read what the run keeps to itself.

    Args:
        who: `user`, another process of this user; `nobody`, that user; `network`, nobody in another network namespace.
        what: What is sent, one of `messages`.
        world: How many ranks the run has.
    """

    who: str
    what: str
    world: int

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        return NEEDS[self.who]

    def start(self, start: RankStart, place: CaseDir) -> None:
        if start.attempt == 1:
            place.notes.mkdir()
            supervisor = os.getpid()
            beside(place, lambda: self._besiege(start, place, supervisor))

    def _besiege(self, start: RankStart, place: CaseDir, supervisor: int) -> None:
        """Until the run ends, tell the stranger each address at which it listens, which only its owner can find."""
        seen: dict[Listener, int] = {}
        with (place.notes / "listeners").open("w", buffering=1) as file, self._stranger(start, place) as tell:
            while alive(supervisor):
                for listener in _all_listeners(supervisor):
                    if seen.setdefault(listener, 0) < ROUNDS:
                        seen[listener] += 1
                        file.write(json.dumps([listener.address, listener.port]) + "\n")
                        os.write(tell, f"{listener.address} {listener.port}\n".encode())
                os.write(tell, b"look\n")
                time.sleep(0.05)

    @contextlib.contextmanager
    def _stranger(self, start: RankStart, place: CaseDir) -> Iterator[int]:
        """Start the stranger; yields the end of a pipe through which it is told what to do, a line at a time: `ADDRESS
        PORT` to attack, or anything to look at secrets. It ends when this end is closed."""
        reading, writing = os.pipe()
        secrets = [start.files.folder, start.files.folder / "meeting", start.files.heartbeat(0), place.run.secret]

        def be_stranger() -> None:
            os.close(writing)
            with (place.notes / "deeds").open("w", buffering=1) as deeds:
                if self.who == "network":
                    unshare(NEW_NETWORK)
                if self.who != "user":
                    become_nobody()
                sent = messages(place.canary)[self.what]
                opened: list[socket.socket] = []  # stay open as long as the stranger lives
                for number, line in enumerate(os.fdopen(reading)):
                    address, _, port = line.strip().partition(" ")
                    if port:
                        _attack((address, int(port)), sent[number % len(sent)], opened, deeds)
                    if self.who != "user":
                        _look(secrets, deeds)

        process = fork(be_stranger)
        os.close(reading)
        try:
            yield writing
        except BrokenPipeError:
            (place.notes / "failure").write_text("the stranger has ended before the run")
        finally:
            os.close(writing)
            process.wait()

    def problems(self, place: CaseDir) -> list[str]:
        deeds, ports = _lines(place.notes / "deeds"), _lines(place.notes / "listeners")
        exposed = sorted({f"{address}:{port}" for address, port in ports if not is_private(address)})
        read = sorted({path for kind, path in deeds if kind == "read"})
        problems = [f"a stranger could read {path}" for path in read]
        problems += [f"the run listened on {address}, where others can reach it" for address in exposed]
        if place.canary.exists():
            problems.append("what a stranger sent was executed")
        reached = [address for kind, address in deeds if kind == "reached"]
        if self.who == "network" and reached:
            problems.append(f"a stranger in another network reached {reached[0]}")
        if self.world > 1 and not ports:
            problems.append("the lab saw no port of the run, so that nothing was tried")
        if (place.notes / "failure").exists():
            problems.append((place.notes / "failure").read_text())
        return problems


def _all_listeners(supervisor: int) -> list[Listener]:
    """Where the supervisor and all its descendants listen."""
    rows = []
    for pid in (supervisor, *descendants(supervisor)):
        with contextlib.suppress(OSError):
            rows += listeners(pid)
    return rows


def _attack(address: tuple[str, int], message: bytes, opened: list[socket.socket], deeds: Any) -> None:
    """Connect, send, and keep the connection in `opened`; `deeds` gets a line if something answered."""
    with contextlib.suppress(OSError):
        connection = socket.create_connection(address, timeout=0.5)
        deeds.write(json.dumps(["reached", f"{address[0]}:{address[1]}"]) + "\n")
        opened.append(connection)
        connection.sendall(message)


def _look(paths: list[Path], deeds: Any) -> None:
    """Try to read what is none of a stranger's business; `deeds` gets a line for each that could be read."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.listdir(path) if path.is_dir() else path.read_bytes()
            deeds.write(json.dumps(["read", str(path)]) + "\n")


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


WAIT = 120.0  # seconds that the first run waits for the second one to end


@dataclass(frozen=True)
class Container(Disturbance):
    """A second `ups run` of the same config, in another container, begins and ends while the first is at work.

    The container has process numbers of its own and shares /dev/shm with the first run.

    Args:
        world: How many ranks the second run has.
        strategy: How its model is divided among them.
        same_path: Whether its run folder, which is another one, has the path of the first.
        seconds: After how long its container is killed; 0 lets the run end by itself.
    """

    needs: ClassVar[tuple[str, ...]] = ("mount namespaces", "process namespaces")
    world: int
    strategy: Strategy
    same_path: bool
    seconds: float

    def start(self, start: RankStart, place: CaseDir) -> None:
        if start.attempt == 1:
            place.notes.mkdir()
            supervisor = os.getpid()
            beside(place, lambda: self._contain(place, supervisor))

    def at(self, point: str, rank: int) -> None:
        """The first run does not end before the second."""
        if point == "judgement" and rank == 0:
            note, end = run_here().folder.parent / "notes" / "ended.json", time.monotonic() + WAIT
            while not note.exists() and time.monotonic() < end:
                time.sleep(0.02)

    def _contain(self, place: CaseDir, supervisor: int) -> None:
        """Start the container, and write down how it ended."""
        unshare(NEW_PIDS)  # of what it starts from now on
        process = fork(lambda: self._second(place))
        end = time.monotonic() + (self.seconds or WAIT)
        while (code := process.poll()) is None and time.monotonic() < end and alive(supervisor):
            time.sleep(0.02)
        if code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)  # it is number 1 there: the whole container goes with it
            code = process.wait()
        draft = place.notes / "ended"
        draft.write_text(json.dumps({"code": code}))
        draft.rename(place.notes / "ended.json")

    def _second(self, place: CaseDir) -> None:
        from ups_fleet.fault_tests.command import be_command, configured  # imports torch, which a table does not need

        unshare(NEW_MOUNTS)
        mount_processes()
        home = CaseDir(place.folder if self.same_path else place.folder / "second", place.data)
        home.folder.mkdir(exist_ok=True)
        if self.same_path:
            mount_memory(home.run.folder, "64m")
        case = FaultCase("F21", "second", self.world, self.strategy, around=_Printing())
        config = configured(case, home, self.world, 10.0)
        process = fork(lambda: be_command(config, home, resume=False, case=case, parent=1))
        code = process.wait()
        with contextlib.suppress(OSError):
            shutil.copy(home.run.artifact("simulator"), place.notes / "simulator")
        raise SystemExit(code)

    def problems(self, place: CaseDir) -> list[str]:
        code = read_json(place.notes / "ended.json").get("code")
        if self.seconds:
            return [] if code is not None else ["the second run was never started"]
        ours, theirs = place.run.artifact("simulator"), place.notes / "simulator"
        if code != 0:
            return [f"the second run ended with {code}"]
        return [] if ours.read_bytes() == theirs.read_bytes() else ["the second run made another simulator"]


@dataclass(frozen=True)
class _Printing(Disturbance):
    """The second run prints to a file of its own."""

    def streams(self, place: CaseDir) -> None:
        print_to(place.folder / "second.log")
