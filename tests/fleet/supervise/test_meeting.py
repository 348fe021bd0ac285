"""Where machines and ranks meet: nobody without the secret, nobody twice, never two groups at work."""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from watched_ranks import free_port, run_ranks, values

from ups.types import ConfigError
from ups.wire import HELLO, MAC, Channel, Untrusted, accept, connect, host_and_port, read_secret
from ups_fleet.supervise.launchers import nodes
from ups_fleet.supervise.launchers.nodes import Attendance
from ups_fleet.supervise.meeting import STRANGERS, Meeting
from ups_fleet.supervise.network import interface_of, is_private, listeners, local_address, loopback, port_taken

SECRET = b"s" * 32


class Point:
    """A meeting point, and nodes that come to it."""

    def __init__(
        self, folder: Path, nodes: int = 2, least: int = 2, last_call: float = 0.4, host: str = "127.0.0.1"
    ) -> None:
        self.address, self.secret = (host, free_port()), folder / ".secret"
        self.meeting = Meeting(self.address, self.secret, nodes, least, last_call)
        self.guests: list[Attendance] = []

    def come(self, node: int, ranks: int = 1, join: float = 20) -> Attendance:
        guest = Attendance(self.address, self.secret, node, ranks, join)
        guest.start()
        self.guests.append(guest)
        return guest

    def close(self) -> None:
        for guest in self.guests:
            guest.close()
        self.meeting.close()


@pytest.fixture
def points() -> Iterator[list[Point]]:
    made: list[Point] = []
    yield made
    for point in made:
        point.close()


def until(true: Any, limit: float = 120.0) -> None:
    end = time.monotonic() + limit
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def test_nodes_are_numbered_by_node_whoever_came_first(tmp_path: Path, points: list[Point]) -> None:
    points.append(point := Point(tmp_path))
    second, first = point.come(1, ranks=4), point.come(0, ranks=2)
    until(lambda: first.group and second.group)
    assert first.group == {"group": first.group["group"], "first": 0, "world": 6, "nodes": 2}
    assert second.group == {**first.group, "first": 2}


def test_enough_nodes_begin_after_the_last_call_and_a_late_one_has_all_meet_again(
    tmp_path: Path, points: list[Point]
) -> None:
    points.append(point := Point(tmp_path, nodes=2, least=1))
    early = point.come(0)
    until(lambda: early.group)
    assert (early.group["world"], early.over) == (1, False)
    late = point.come(1)
    until(lambda: early.over)
    time.sleep(1.0)
    assert not late.group, "while anybody works in the old group there is no new one"
    early.close()
    again = point.come(0)
    until(lambda: again.group and late.group)
    assert again.group["world"] == 2
    assert again.group["group"] == late.group["group"] != early.group["group"]


def test_a_node_that_comes_back_to_a_replaced_group_is_told_so(tmp_path: Path, points: list[Point]) -> None:
    points.append(point := Point(tmp_path, nodes=2, least=1, last_call=0.2))
    lost, other = point.come(1), point.come(0)
    until(lambda: lost.group and other.group)
    channel, lost._secret = lost._channel, tmp_path / "elsewhere"  # it can neither hear nor come back
    assert channel is not None
    channel.close()
    until(lambda: 1 not in point.meeting._members)
    other.close()
    again = point.come(0)
    until(lambda: again.group)
    assert not lost.over
    lost._secret = point.secret
    until(lambda: lost.over)


def test_a_cut_connection_alone_ends_no_group(tmp_path: Path, points: list[Point]) -> None:
    points.append(point := Point(tmp_path))
    nodes = [point.come(0), point.come(1)]
    until(lambda: all(node.group for node in nodes))
    channel = nodes[1]._channel
    assert channel is not None
    channel.close()
    until(lambda: nodes[1]._channel is not channel)
    time.sleep(0.5)
    assert not any(node.over for node in nodes)
    assert sorted(point.meeting._members) == [0, 1]


def test_who_does_not_come_in_time_learns_why(tmp_path: Path) -> None:
    guest = Attendance(("127.0.0.1", free_port()), tmp_path / ".secret", 1, 1, join=0.5)
    guest.run()
    assert "no group was made" in guest.late
    assert ".secret" in guest.late, "there is nobody who has written one"


def test_a_node_that_left_on_its_way_to_the_point_does_not_join(
    tmp_path: Path, points: list[Point], monkeypatch: pytest.MonkeyPatch
) -> None:
    points.append(point := Point(tmp_path, nodes=1, least=1))
    guest = Attendance(point.address, point.secret, 0, 1, join=5)

    def arrives_late(*words: Any) -> Channel:
        channel = connect(*words)
        guest.close()
        return channel

    monkeypatch.setattr(nodes, "connect", arrives_late)
    guest.run()
    assert guest.group == {}


def test_a_point_that_is_closed_ends_every_conversation_and_gives_its_port_back(
    tmp_path: Path, points: list[Point]
) -> None:
    points.append(point := Point(tmp_path))
    channel = connect(point.address, read_secret(point.secret))
    stranger = socket.create_connection(point.address, timeout=30)
    point.meeting.close()
    assert not port_taken(f"127.0.0.1:{point.address[1]}")
    with pytest.raises(ConnectionError):
        channel.wait()
    stranger.settimeout(5)
    with suppress(ConnectionError):
        while stranger.recv(1000):
            pass
    stranger.close()


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
def test_ranks_meet_at_an_ipv6_address(tmp_path: Path, points: list[Point]) -> None:
    from ups.engine.ranks.meeting import meeting

    points.append(point := Point(tmp_path, nodes=1, least=1, host="::1"))
    node, place = point.come(0), f"[::1]:{point.address[1]}"
    until(lambda: node.group)
    about = {"UPS_MEET": f"tcp:{place}", "UPS_SECRET": str(point.secret), "UPS_GROUP": node.group["group"]}
    store = meeting(1, about)
    store.set("key", "value")
    assert store.get("key") == b"value"
    assert port_taken(place)
    assert local_address(place) == "::1"
    assert interface_of("::1") == interface_of("127.0.0.1") == loopback()


def test_without_the_secret_nobody_gets_a_word_in(tmp_path: Path, points: list[Point]) -> None:
    points.append(point := Point(tmp_path))
    assert stat.S_IMODE(point.secret.stat().st_mode) == 0o600
    with pytest.raises(ConnectionError):
        connect(point.address, SECRET).ask({"op": "join", "node": 0, "ranks": 1}, 5)
    for rubbish in (b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096), b"\0" * 96):
        with socket.create_connection(point.address, timeout=30) as stranger:
            with suppress(OSError):  # it may hang up before all is said
                stranger.sendall(rubbish)
                stranger.shutdown(socket.SHUT_WR)
            with suppress(ConnectionError):
                answer = b"".join(iter(lambda: stranger.recv(4096), b""))
                assert len(answer) <= len(HELLO) + MAC, "a greeting and a riddle, nothing else"


def test_a_crowd_that_says_nothing_keeps_nobody_out(tmp_path: Path, points: list[Point]) -> None:
    points.append(point := Point(tmp_path))
    crowd = [socket.create_connection(point.address, timeout=30) for _ in range(STRANGERS + 40)]
    nodes = [point.come(0), point.come(1)]
    until(lambda: all(node.group for node in nodes))
    crowd += [socket.create_connection(point.address, timeout=30) for _ in range(STRANGERS)]
    channel = connect(point.address, read_secret(point.secret))
    assert channel.ask({"op": "check", "group": nodes[0].group["group"], "keys": ["a"]}, 5)["there"] is False
    channel.close()
    for stranger in crowd:
        stranger.close()


def test_a_false_meeting_point_is_not_believed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def impostor() -> None:
            connection, _ = server.accept()
            with suppress(ConnectionError):
                accept(connection, b"another secret")
            connection.close()

        thread = threading.Thread(target=impostor)
        thread.start()
        with pytest.raises(ConnectionError):
            connect(("127.0.0.1", server.getsockname()[1]), SECRET)
        thread.join()


def test_who_drips_a_byte_now_and_then_is_left_as_soon_as_who_says_nothing(
    tmp_path: Path, points: list[Point], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ups.wire.PATIENCE", 0.5)
    points.append(point := Point(tmp_path))
    over = threading.Event()

    def drip(onto: socket.socket, word: bytes) -> None:
        for at in range(1200):
            if over.wait(0.1):
                return
            onto.sendall(word[at % len(word) :][:1])

    stranger = socket.create_connection(point.address, timeout=30)
    with pytest.raises(OSError, match=r"reset|pipe"):
        drip(stranger, b"x")
    stranger.close()
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=drip, args=(theirs, HELLO))
    thread.start()
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: ours)
    with pytest.raises(TimeoutError):
        connect(point.address, SECRET, patience=0.5)
    assert thread.is_alive(), "more would have come"
    over.set()
    thread.join()
    theirs.close()


def test_what_a_rank_has_said_opens_nothing_when_it_is_said_again(tmp_path: Path, points: list[Point]) -> None:
    points.append(point := Point(tmp_path, nodes=1, least=1))
    node = point.come(0)
    until(lambda: node.group)
    said: list[bytes] = []

    class Recorded(socket.socket):
        def sendall(self, data: Any, *flags: int) -> None:
            said.append(bytes(data))
            super().sendall(data, *flags)

    with Recorded() as link:
        link.connect(point.address)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket, "create_connection", lambda *_, **__: link)
            channel = connect(point.address, read_secret(point.secret))
        about = {"group": node.group["group"], "keys": ["n"]}
        assert channel.ask({"op": "add", **about, "amount": 1}, 5) == {"value": "MQ=="}
        with socket.create_connection(point.address, timeout=30) as stranger, suppress(ConnectionError):
            stranger.sendall(b"".join(said))
            answer = b"".join(iter(lambda: stranger.recv(4096), b""))
            assert len(answer) <= len(HELLO) + MAC
        assert channel.ask({"op": "wait", **about, "seconds": 0}, 5)["values"] == ["MQ=="], "it was added once"


@pytest.mark.parametrize("attack", ["changed", "repeated", "too long"])
def test_a_message_that_somebody_on_the_way_touched_is_refused(attack: str) -> None:
    ours, theirs = socket.socketpair()
    sender, receiver = Channel(ours, SECRET, b"client", b"server"), Channel(theirs, SECRET, b"server", b"client")
    sender.send({"op": "set", "keys": ["a"]})
    assert receiver.receive()["op"] == "set"
    sender.send({"op": "set", "keys": ["b"]})
    frame = theirs.recv(4096)
    way, end = socket.socketpair()
    victim = Channel(end, SECRET, b"server", b"client")
    victim._received = 1
    if attack == "changed":
        way.sendall(frame.replace(b'"b"', b'"c"'))
    elif attack == "repeated":
        way.sendall(frame + frame)
        assert victim.receive()["keys"] == ["b"]
    else:
        way.sendall(b"\xff\xff\xff\x7f" + frame)
    with pytest.raises(Untrusted):
        victim.receive()
    for one in (ours, theirs, way, end):
        one.close()


def test_the_point_listens_on_the_named_address_alone(tmp_path: Path, points: list[Point]) -> None:
    points.append(point := Point(tmp_path))
    found = [row for row in listeners() if row.port == point.address[1]]
    assert [(row.address, is_private(row.address)) for row in found] == [("127.0.0.1", True)]
    assert port_taken(f"127.0.0.1:{point.address[1]}")
    with socket.create_server(("", 0)) as wide:
        port = wide.getsockname()[1]
        assert [is_private(row.address) for row in listeners() if row.port == port] == [False]


@pytest.mark.parametrize("text", ["here", "here:", ":29400", "here:port", "here:70000", ""])
def test_a_place_that_is_no_host_and_port_is_a_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match="give --rendezvous HOST:PORT of node 0"):
        host_and_port(text)


def test_an_address_of_another_machine_and_a_name_of_loopback_are_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host_and_port("[::1]:29400") == ("::1", 29400)
    with pytest.raises(ConfigError, match="node 0 cannot listen there"):
        port_taken("198.51.100.7:29400")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [(0, 0, 0, "", ("127.0.1.1", 0))])
    with pytest.raises(ConfigError, match="where no other can reach it; give the address"):
        port_taken("node0:29400")


def exchange(port: int, secret: str) -> tuple[list[float], list[tuple[str, int]]]:
    """In a rank: a whole process group over the meeting point, and where this process listens."""
    import torch
    import torch.distributed as dist

    from ups.engine.ranks.dist import Dist
    from ups.engine.ranks.dist_config import DistConfig

    os.environ.update(UPS_MEET=f"tcp:127.0.0.1:{port}", UPS_SECRET=secret)
    with Dist.start("cpu", DistConfig(ranks=2, strategy="fsdp", timeout=30, vote_timeout=30)) as ranks:
        total = torch.full((3,), 1.0 + ranks.rank)
        dist.all_reduce(total)
        assert ranks.gather({"rank": ranks.rank}) == [{"rank": 0}, {"rank": 1}]
        return total.tolist(), [(row.address, row.port) for row in listeners()]


def test_ranks_find_each_other_over_the_point_and_listen_on_loopback_alone(tmp_path: Path, points: list[Point]) -> None:
    points.append(point := Point(tmp_path, nodes=1, least=1))
    node = point.come(0, ranks=2)
    until(lambda: node.group)
    group = {"UPS_GROUP": node.group["group"]}
    for total, places in values(run_ranks(exchange, 2, point.address[1], str(point.secret), env=group)):
        assert total == [3.0, 3.0, 3.0]
        assert places
        assert {address for address, _ in places} == {"127.0.0.1"}


def test_keys_of_another_group_are_out_of_reach(tmp_path: Path, points: list[Point]) -> None:
    points.append(point := Point(tmp_path, nodes=1, least=1))
    node = point.come(0)
    until(lambda: node.group)
    channel = connect(point.address, read_secret(point.secret))
    now, old = node.group["group"], "0" * 16
    assert channel.ask({"op": "set", "group": now, "keys": ["a"], "value": "eA=="}, 5) == {"value": "eA=="}
    assert channel.ask({"op": "check", "group": now, "keys": ["a"]}, 5)["there"]
    for op in ("check", "set", "wait"):  # ranks of an old group that come late wait for nothing
        about = {"op": op, "group": old, "keys": ["a"], "value": "eA==", "seconds": 60}
        assert channel.ask(about, 5) == {"over": True}
    assert channel.ask({"op": "add", "group": now, "keys": ["n"], "amount": 5}, 5) == {"value": "NQ=="}
    assert not channel.ask({"op": "wait", "group": now, "keys": ["b"], "seconds": 0.1}, 5)["there"]
    channel.close()
