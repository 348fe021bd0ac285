"""A redirect leads into the network of this machine only to the host that the user has named."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import Any

import pytest
from lying_server import LyingServer, serving

from ups.cli.app import main
from ups.types import DataError
from ups_fleet.fetch import http_file
from ups_fleet.fetch.fetch import plan
from ups_fleet.fetch.http_file import check_redirect, inward
from ups_fleet.fetch.patience import Patience

HASTY = Patience(tries=2, first=0.01, longest=0.05, stall=2.0)
OUTER = "93.184.215.14"
WORLD = {"outer.example": [OUTER], "inner.example": ["10.1.2.3"], "both.example": [OUTER, "169.254.169.254"]}
resolve = socket.getaddrinfo


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What names stand for; a connection to any of them arrives at loopback."""
    world = dict(WORLD)

    def looked_up(host: str, port: Any, *args: Any, **kwargs: Any) -> Any:
        if port is None and host in world:
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, 0)) for address in world[host]]
        return resolve("127.0.0.1" if host in world else host, port, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    return world


def fetched(url: str, folder: Path) -> bytes:
    return plan([url], folder, lambda _: None, patience=HASTY).fetch()[0].read_bytes()


@pytest.fixture
def liar() -> Any:
    with serving() as server:
        server.files["a.bin"] = b"data" * 1000
        yield server


INWARD = [
    *("127.0.0.1", "127.9.9.9", "localhost", "127.1", "2130706433", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1"),
    *("169.254.169.254", "100.64.0.1", "[::1]", "[fe80::1]", "[fd00::1]", "[::ffff:10.1.2.3]", "[::ffff:7f00:1]"),
    *("inner.example", "both.example"),
]


@pytest.mark.parametrize("host", INWARD)
def test_a_host_of_the_world_leads_nobody_inward(
    liar: LyingServer, names: dict[str, list[str]], host: str, tmp_path: Path
) -> None:
    assert names
    with serving() as inside:
        inside.files["a.bin"] = b"secret"
        liar.elsewhere = f"http://{host}:{inside.server_port}/fine/"
        with pytest.raises(DataError, match=r"redirects to .*, which is this machine or in its network") as refused:
            fetched(f"http://outer.example:{liar.server_port}/redirect/a.bin", tmp_path)
        assert not inside.seen, "not a byte was asked for"
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "a.bin").exists()


@pytest.mark.usefixtures("names")
@pytest.mark.parametrize("host", ["10.1.2.4", "127.0.0.1", "169.254.169.254"])
def test_nor_does_another_host_of_the_network(host: str) -> None:
    with pytest.raises(DataError, match="name that address itself"):
        check_redirect("http://inner.example/a", "inner.example", host)


@pytest.mark.usefixtures("names")
@pytest.mark.parametrize(("named", "host"), [("inner.example", "10.1.2.3"), ("10.1.2.3", "inner.example")])
def test_the_host_that_was_named_may_lead_to_itself_under_any_name(named: str, host: str) -> None:
    check_redirect("http://a/a", named, host)
    check_redirect("http://a/a", named, "outer.example")


def test_what_the_user_names_is_asked_for_and_may_lead_to_itself(liar: LyingServer, tmp_path: Path) -> None:
    with serving() as other:
        other.files["b.bin"] = b"more"
        assert fetched(f"{liar.url}/fine/a.bin", tmp_path) == b"data" * 1000
        liar.elsewhere = f"{other.url.replace('127.0.0.1', 'localhost')}/fine/"
        assert fetched(f"{liar.url}/redirect/b.bin", tmp_path) == b"more"


def test_a_name_that_means_another_address_when_it_is_connected_to_is_left(
    liar: LyingServer, names: dict[str, list[str]], tmp_path: Path
) -> None:
    """It stood for an address of the world when it was asked for; the connection arrives at loopback."""
    names["turned.example"] = [OUTER]
    with serving() as inside:
        inside.files["a.bin"] = b"secret"
        liar.elsewhere = f"http://turned.example:{inside.server_port}/fine/"
        with pytest.raises(DataError, match=r"redirects to turned.example \(127.0.0.1\)"):
            fetched(f"http://outer.example:{liar.server_port}/redirect/a.bin", tmp_path)
        assert not inside.seen


def test_through_a_proxy_it_is_the_proxy_that_is_arrived_at(
    liar: LyingServer, names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert names
    monkeypatch.setenv("http_proxy", liar.url)  # it answers for both hosts
    monkeypatch.delenv("no_proxy", raising=False)
    liar.elsewhere = "http://outer.example/fine/"
    with contextlib.suppress(DataError):
        fetched("http://elsewhere.example/redirect/a.bin", tmp_path)
    assert "http://outer.example/fine/a.bin" in [path for path, _ in liar.seen]


def test_the_command_says_it_in_one_sentence(
    liar: LyingServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    liar.elsewhere = "http://169.254.169.254/latest/"
    with pytest.raises(SystemExit) as ended:
        main(["data", "fetch", f"{liar.url}/redirect/a.bin", "--to", str(tmp_path)])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"ups: {liar.url}/redirect/a.bin: redirects to 169.254.169.254, which is this machine or in its network, and "
        "was not asked for; if you trust it, name that address itself."
    )


def test_addresses_that_all_the_world_shares_are_outward() -> None:
    assert [inward(a) for a in (OUTER, "2606:2800:21f::1", "8.8.8.8")] == ["", "", ""]
    assert {inward(a) for a in ("127.0.0.1", "::1", "127.8.8.8", "::ffff:127.0.0.1")} == {"loopback"}
    assert http_file.addresses_of("no.such.host.invalid") == []
