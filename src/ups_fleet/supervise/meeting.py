"""The meeting point of several machines, in node 0's supervisor: brings nodes together and keeps their ranks' keys."""

from __future__ import annotations

import base64
import secrets
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ups.wire import Channel, accept, write_secret

STRANGERS = 64  # connections that have not proved themselves yet; the oldest of more is closed
TICK = 0.2
CLOSING = 5.0  # seconds for its threads to end
RETURN = 60.0  # seconds in which a member that was sent away is expected back


@dataclass(eq=False)
class NodeMember:
    """A node that has come, and the channel on which it is told what becomes of its group."""

    node: int
    ranks: int
    channel: Channel
    dismissed: bool = False


class Meeting:
    """Listens on one address, for those alone who know the secret that it has written to `secret`.

    Nodes `join` and wait; when all `nodes` are there, or `least` of them for `last_call` seconds, they become a group
    with a name, and each is told its first rank. Nobody is added to a group: a node that comes later has the group's
    members told that it is `over`, they end their ranks, join again, and a new group is made. A member that was cut
    off and comes back to a group that has been replaced is told the same, so there are never two groups at work.

    Ranks keep the few keys there by which process groups find each other (`ups.engine.ranks.meeting`).
    """

    def __init__(self, address: tuple[str, int], secret: Path, nodes: int, least: int, last_call: float) -> None:
        self._nodes, self._least, self._last_call = nodes, least, last_call
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._listener = socket.create_server(address, family=family, backlog=STRANGERS)
        self._secret = write_secret(secret)
        self._changed = threading.Condition()
        self._waiting: dict[int, NodeMember] = {}
        self._members: dict[int, NodeMember] = {}
        self._expected: dict[int, float] = {}  # members that were sent away, and until when nobody begins without them
        self._group = ""
        self._enough_since: float | None = None
        self._values: dict[str, bytes] = {}
        self._strangers: deque[socket.socket] = deque()  # in the order of their coming; a friend leaves it at once
        self._guests: set[socket.socket] = set()  # all connections
        self._open = True
        works = (self._listen, self._watch)
        self._threads = [threading.Thread(target=w, daemon=True, name=f"meeting {w.__name__}") for w in works]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End every conversation, and give the port back: another meeting may open there at once."""
        self._open = False
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits there: until then it has the port
        self._listener.close()
        for thread in self._threads:
            thread.join(CLOSING)
        for guest in list(self._guests):  # all that there will ever be
            with suppress(OSError):
                guest.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        while self._open:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._open:
                    time.sleep(TICK)  # no descriptor is left for it
                continue
            self._strangers.append(connection)
            self._guests.add(connection)
            if len(self._strangers) > STRANGERS:
                with suppress(IndexError, OSError):
                    self._strangers.popleft().shutdown(socket.SHUT_RDWR)  # its thread closes it
            threading.Thread(target=self._serve, args=(connection,), daemon=True, name="meeting guest").start()

    def _watch(self) -> None:
        while self._open:
            time.sleep(TICK)
            with self._changed:
                self._form_group()

    def _serve(self, connection: socket.socket) -> None:
        """One connection until it ends; what goes wrong on it is its own affair."""
        try:
            self._converse(connection)
        finally:
            self._guests.discard(connection)

    def _converse(self, connection: socket.socket) -> None:
        try:
            channel = accept(connection, self._secret)
        except (OSError, ValueError):
            connection.close()
            return
        finally:
            with suppress(ValueError):
                self._strangers.remove(connection)
        member: NodeMember | None = None
        with suppress(OSError, ValueError, KeyError, TypeError):
            while True:
                message = channel.receive()
                if message["op"] == "join":
                    member = self._join(NodeMember(int(message["node"]), int(message["ranks"]), channel))
                elif message["op"] == "present":
                    member = self._present(message["group"], NodeMember(int(message["node"]), 0, channel))
                else:
                    channel.send(self._answer(message))
        channel.close()
        if member is not None:
            self._forget(member)

    # Nodes.

    def _join(self, member: NodeMember) -> NodeMember:
        with self._changed:
            self._members.pop(member.node, None)
            self._expected.pop(member.node, None)
            self._waiting[member.node] = member
            for other in self._members.values():
                _dismiss(other)
            self._form_group()
        return member

    def _present(self, group: str, member: NodeMember) -> NodeMember:
        """A member whose connection was lost, and who is there again."""
        with self._changed:
            if group == self._group:
                self._members[member.node] = member
                if not self._waiting:
                    return member
            _dismiss(member)
        return member

    def _forget(self, member: NodeMember) -> None:
        with self._changed:
            for rows in (self._waiting, self._members):
                if rows.get(member.node) is member:
                    del rows[member.node]
                    if member.dismissed:
                        self._expected[member.node] = time.monotonic() + RETURN

    def _form_group(self) -> None:
        """Make a group if those who should be there are; nobody is at work in an old one, or on the way from it."""
        here = len(self._waiting)
        away = {node for node, end in self._expected.items() if time.monotonic() < end}
        enough = here >= self._least and not (self._members.keys() | away) - self._waiting.keys()
        self._enough_since = (self._enough_since or time.monotonic()) if enough else None
        patient = self._enough_since is not None and time.monotonic() - self._enough_since >= self._last_call
        if here == 0 or not (here == self._nodes or patient):
            return
        self._group, self._enough_since = secrets.token_hex(8), None
        self._values.clear()
        self._expected.clear()
        self._members, self._waiting = dict(sorted(self._waiting.items())), {}
        world, first = sum(member.ranks for member in self._members.values()), 0
        for member in self._members.values():
            with suppress(OSError):
                member.channel.send({"group": self._group, "first": first, "world": world, "nodes": here})
            first += member.ranks

    # Keys of ranks. A value travels as base64.

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        op, keys = message["op"], [f"{message['group']}/{key}" for key in message["keys"]]
        with self._changed:
            if op == "wait":
                end = time.monotonic() + float(message["seconds"])
                while not self._have(keys) and (left := end - time.monotonic()) > 0 and message["group"] == self._group:
                    self._changed.wait(min(left, 1.0))
            if message["group"] != self._group:
                return {"over": True}
            if op in ("wait", "check"):
                values = [_text(self._values[key]) for key in keys] if self._have(keys) else None
                return {"there": values is not None, "values": values if op == "wait" else None}
            key, value = keys[0], base64.b64decode(message.get("value", ""))
            if op == "set":
                self._values[key] = value
            elif op == "add":
                value = str(int(self._values.get(key, b"0")) + int(message["amount"])).encode()
                self._values[key] = value
            elif op == "compare":
                now = self._values.get(key)
                if now == base64.b64decode(message["expected"]) or (now is None and not message["expected"]):
                    self._values[key] = value
                value = self._values.get(key, base64.b64decode(message["expected"]))
            elif op == "delete":
                return {"deleted": self._values.pop(key, None) is not None}
            elif op == "count":
                return {"count": len(self._values)}
            else:
                raise ValueError(f"there is no '{op}'")
            self._changed.notify_all()
            return {"value": _text(value)}

    def _have(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)


def _dismiss(member: NodeMember) -> None:
    """Tell a member, once, that its group is over."""
    if not member.dismissed:
        member.dismissed = True
        with suppress(OSError):
            member.channel.send({"over": True})


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()
