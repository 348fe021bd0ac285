"""A server that hangs or sends a byte now and then is given up soon, by all that speak HTTP."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from slow_server import WHERE, SlowServer, dawdling

from still_clock import StillClock
from ups.cli.app import main
from ups.types import DataError
from ups_fleet import web
from ups_fleet.fetch import stores
from ups_fleet.fetch.fetch import plan
from ups_fleet.fetch.patience import Patience, TransientError, UnreachableError, within
from ups_fleet.submit.vast import client
from ups_fleet.tracking import mlflow
from ups_fleet.web import FetchPace, StalledError, WebRequest, opener

HASTY = Patience(tries=8, first=0.01, longest=0.05, stall=0.4, silence=1.0)


@pytest.fixture
def slow() -> Iterator[SlowServer]:
    with dawdling() as server:
        yield server


@pytest.mark.parametrize("how", WHERE)
def test_a_fetch_gives_a_server_up_that_hangs_or_drips(slow: SlowServer, how: str, tmp_path: Path) -> None:
    """Two tries of 0.4 seconds, for a third could make it more than 1."""
    began = time.monotonic()
    with pytest.raises(UnreachableError, match=r"could not be fetched \((only \d+ bytes|nothing) came in 0.4 s\)"):
        plan([f"{slow.url}/{how}/a.bin"], tmp_path, lambda _: None, patience=HASTY).fetch()
    assert time.monotonic() - began < 100
    assert not (tmp_path / "a.bin").exists()


def test_a_fetch_gives_a_server_up_that_says_nothing_of_tls(slow: SlowServer, tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match=r"nothing came in 0.4 s"):
        plan([f"{slow.url.replace('http:', 'https:')}/silent/a.bin"], tmp_path, lambda _: None, patience=HASTY)


def test_a_fetch_gives_a_host_up_that_takes_no_connection(tmp_path: Path) -> None:
    """As where packets are dropped: nobody accepts, and the queue of those who wait is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as door:
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(door.getsockname())
        with pytest.raises(UnreachableError, match=r"nothing came in 0.4 s"):
            plan([f"http://127.0.0.1:{door.getsockname()[1]}/a.bin"], tmp_path, lambda _: None, patience=HASTY)
        for one in waiting:
            one.close()


@pytest.mark.parametrize("luck", [0.0, 1.0])
def test_by_default_two_minutes_suffice(luck: float) -> None:
    patience, stop = Patience(draw=lambda: luck), threading.Event()
    stop.wait = lambda seconds: pauses.append(seconds) and False  # type: ignore[method-assign,assignment,func-returns-value]
    pauses: list[float] = []
    tries = 0
    with contextlib.suppress(TransientError):
        for tries in range(1, 10):
            patience.wait(tries, TransientError("nothing"), stop, tries * patience.stall)
    assert tries == 2
    assert tries * patience.stall + sum(pauses) < 120


def test_what_comes_at_a_pace_is_read_to_its_end_however_long_that_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "time", time := StillClock())
    pace = FetchPace(0.5, least=10)
    for _ in range(5):
        pace.wait(lambda: time.sleep(0.15))
        pace.came(11)
    assert pace.left() == 0.5
    time.sleep(0.6)
    assert pace.left() == 0.5, "what a reader does in between is no waiting"
    pace.came(9)
    pace.wait(lambda: time.sleep(0.51))
    with pytest.raises(StalledError, match=r"only 9 bytes came in 0.5 s"):
        pace.left()


@pytest.mark.parametrize("how", ["silent", "status", "drip-status", "drip-headers"])
def test_a_request_of_ours_ends_in_the_time_that_it_is_given(slow: SlowServer, how: str) -> None:
    began = time.monotonic()
    with pytest.raises(OSError, match=r"came in 0.3 s"):
        opener().open(WebRequest(f"{slow.url}/{how}/x", FetchPace(0.3)))
    assert time.monotonic() - began < 100


def test_a_server_of_tracking_and_one_of_machines_are_given_up_too(
    slow: SlowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow, "ANSWER", 0.3)
    monkeypatch.setattr(client, "CLOCK", 0.3)
    monkeypatch.setattr(client, "PAUSE", 0.01)
    monkeypatch.setenv("VAST_URL", f"{slow.url}/drip-status")
    said: list[str] = []
    mlflow._require_login(f"{slow.url}/drip-status", said.append)
    assert "does not answer" in said[0]
    with pytest.raises(client.VastError, match="does not say what time it is"):
        client.Client().now()
    assert client.TRIES * 30 + client.PATIENCE < 240
    assert client.PATIENCE < 120


def test_a_store_whose_client_would_wait_for_ever_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")
    store, content = fsspec.filesystem("memory"), random.Random(0).randbytes(3 << 20)
    store.pipe("/slow/a.bin", content)
    monkeypatch.setattr(stores, "ANSWER", 0.3)
    over = threading.Event()
    truly = type(store).cat_file

    def hangs(self: object, path: str, start: int | None = None, end: int | None = None) -> bytes:
        if start:
            over.wait(200)
        return bytes(truly(self, path, start, end))

    monkeypatch.setattr(type(store), "cat_file", hangs)
    began = time.monotonic()
    with pytest.raises(UnreachableError, match=r"nothing was heard for 0.3 s"):
        plan(["memory://slow/a.bin"], tmp_path, lambda _: None, patience=HASTY).fetch()
    assert time.monotonic() - began < 100
    over.set()
    monkeypatch.undo()
    assert plan(["memory://slow/a.bin"], tmp_path, lambda _: None).fetch()[0].read_bytes() == content


def test_what_is_done_within_its_time_gives_what_it_gives_and_raises_what_it_raises() -> None:
    assert within(100.0, lambda: 7) == 7
    with pytest.raises(DataError, match="no"):
        within(100.0, lambda: (_ for _ in ()).throw(DataError("no")))
    with pytest.raises(TransientError, match=r"nothing was heard for 0.05 s"):
        within(0.05, lambda: time.sleep(1))


def test_the_command_says_it_in_one_sentence(
    slow: SlowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ups_fleet.fetch.fetch.Patience", lambda: HASTY)
    with pytest.raises(SystemExit) as ended:
        main(["data", "fetch", f"{slow.url}/drip-status/a.bin", "--to", str(tmp_path)])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.splitlines()[-1].startswith(f"ups: {slow.url}/drip-status/a.bin: could not be fetched (only ")
    assert "Traceback" not in said
