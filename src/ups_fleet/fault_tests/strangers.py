"""Strangers: processes of others that connect to every port of a run, send anything, and look into its folders."""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401  (which nobody could import any more once it is nobody)
import json
import os
import pickle
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ups_fleet.fault_tests.case import CaseDir, Disturbance, Draw, FaultCase, Recipe, Recipes, Strategy, case_of
from ups_fleet.fault_tests.disturbances import beside
from ups_fleet.fault_tests.privileges import NEW_NETWORK, become_nobody, unshare
from ups_fleet.supervise.job import RankStart
from ups_fleet.supervise.launchers.forked import fork
from ups_fleet.supervise.network import Listener, is_private, listeners
from ups_fleet.supervise.proc import alive, descendants

NEEDS = {"user": (), "nobody": ("root",), "network": ("root", "network namespaces")}
ROUNDS = 3  # attacks on each port
GREETINGS = struct.Struct("<I")  # torch's stores begin with a number of four bytes
STORE = 0x3C85F7CE


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{self.path}'",)


def bomb(path: Path) -> bytes:
    """A pickle that makes a file when somebody loads it."""
    return pickle.dumps(Bomb(path))


def messages(canary: Path) -> dict[str, list[bytes]]:
    """What strangers send, by name: each a list of what is sent on one connection after the other."""
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
    """While the ranks start and work, `who` connects to where any of their processes listens, and sends `what`.

    `who`: another process of this `user`, `nobody`, or nobody in another `network` namespace. Whoever is not this user
    also tries to read what the run keeps to itself.
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
        """Find where they listen, as only the owner can, and have the stranger told."""
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
        """A pipe to the stranger, who is gone when its other end is closed."""
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
    """Connect, send, and stay."""
    with contextlib.suppress(OSError):
        connection = socket.create_connection(address, timeout=0.5)
        deeds.write(json.dumps(["reached", f"{address[0]}:{address[1]}"]) + "\n")
        opened.append(connection)
        connection.sendall(message)


def _look(paths: list[Path], deeds: Any) -> None:
    """Try to read what is none of a stranger's business."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.listdir(path) if path.is_dir() else path.read_bytes()
            deeds.write(json.dumps(["read", str(path)]) + "\n")


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _besieged(who: str) -> Recipe:
    """Whatever strangers do: the same bits, or at most an honest restart."""

    def recipe(d: Draw, world: int, strategy: Strategy) -> FaultCase:
        what = d.choice(sorted(messages(Path())))
        around = Strangers(who, what, world)
        return case_of("F19", f"{what} from {who}", world, strategy, around=around)

    return recipe


RECIPES: Recipes = {("F19", who): _besieged(who) for who in NEEDS}
