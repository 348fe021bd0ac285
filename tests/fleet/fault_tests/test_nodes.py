"""Two machines: network namespaces on a bridge of their own, a node killed, a link cut; the run goes on or says why."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fault_tests.home import ENV, command, saved, simulator

from ups.verdict import Ending

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="network namespaces need root and `ip`"),
]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Hosts:
    """Two hosts that see each other over one cable and nothing else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = [f"ups{os.getpid()}{letter}" for letter in "ab"]
        self.meet = "10.77.0.1:29777"
        self.started: list[subprocess.Popen[str]] = []

    def connect(self) -> None:
        a, b = self.names
        for name in (a, b):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("link", "add", "cable", "netns", a, "type", "veth", "peer", "name", "cable", "netns", b)
        for last, name in enumerate((a, b), 1):
            ip("-n", name, "addr", "add", f"10.77.0.{last}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")

    def start(self, node: int, *words: str) -> subprocess.Popen[str]:
        own = ["--ranks", "1", "--nodes", "2", "--node-rank", str(node), "--rendezvous", self.meet, *words]
        log = (self.folder / f"node-{node}.log").open("a")
        whole = ["ip", "netns", "exec", self.names[node], *command(self.folder, 600, 50, *own)]
        self.started.append(subprocess.Popen(whole, stdout=log, stderr=log, text=True, env=ENV))
        return self.started[-1]

    def kill(self, node: int) -> None:
        """As if its power had failed."""
        told = subprocess.run(["ip", "netns", "pids", self.names[node]], capture_output=True, text=True, check=True)
        for pid in map(int, told.stdout.split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def cut(self, up: bool) -> None:
        ip("-n", self.names[1], "link", "set", "cable", "up" if up else "down")

    def close(self) -> None:
        for node in (0, 1):
            with contextlib.suppress(subprocess.CalledProcessError):
                self.kill(node)
        for process in self.started:
            process.wait()
        for name in self.names:
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("netns", "del", name)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    found = Hosts(tmp_path)
    try:
        found.connect()
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What two ranks of one machine make of it."""
    folder = tmp_path_factory.mktemp("plain")
    words = command(folder, 600, 50, "--ranks", "2")
    subprocess.run(words, check=True, capture_output=True, timeout=600, env=ENV)
    return simulator(folder)


def until(true: Callable[[], object], limit: float = 120.0) -> None:
    end = time.monotonic() + limit
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)


def test_two_machines_make_what_one_makes(hosts: Hosts, artifact: bytes) -> None:
    nodes = [hosts.start(node) for node in (1, 0)]  # also if the first comes last
    assert [node.wait(timeout=600) for node in nodes] == [0, 0]
    assert simulator(hosts.folder) == artifact


def test_a_machine_that_dies_and_comes_back_is_let_in_again(hosts: Hosts, artifact: bytes) -> None:
    first = hosts.start(0)
    hosts.start(1)
    until(saved(hosts.folder, 100).exists)
    hosts.kill(1)
    time.sleep(2)
    second = hosts.start(1)
    assert [first.wait(timeout=600), second.wait(timeout=600)] == [0, 0]
    assert simulator(hosts.folder) == artifact
    assert len(json.loads((hosts.folder / "run" / "verdict.json").read_text())["attempts"]) > 1


def test_the_first_machine_may_die_and_go_on_too(hosts: Hosts, artifact: bytes) -> None:
    hosts.start(0)
    second = hosts.start(1)
    until(saved(hosts.folder, 100).exists)
    hosts.kill(0)
    time.sleep(2)
    first = hosts.start(0, "--resume")
    assert first.wait(timeout=600) == 0
    assert second.wait(timeout=600) == 0
    assert simulator(hosts.folder) == artifact


def test_a_cable_that_was_out_for_a_while_ends_in_the_same_bits(hosts: Hosts, artifact: bytes) -> None:
    first, second = hosts.start(0), hosts.start(1)
    until(saved(hosts.folder, 100).exists)
    hosts.cut(up=False)
    time.sleep(15)
    hosts.cut(up=True)
    codes = [first.wait(timeout=600), second.wait(timeout=600)]
    assert codes == [0, 0]
    assert simulator(hosts.folder) == artifact


def test_a_machine_with_another_config_is_named_and_ends_the_run(hosts: Hosts) -> None:
    first, second = hosts.start(0), hosts.start(1, "--seed", "7")
    assert [second.wait(timeout=600), first.wait(timeout=600)] == [Ending.USER, Ending.USER]
    assert "another config than node 0" in (hosts.folder / "node-1.log").read_text()
    assert "another config than node 0" in json.loads((hosts.folder / "run" / "verdict.json").read_text())["cause"]
