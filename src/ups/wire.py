"""Messages between processes that have proved to each other that they know one secret: JSON, never pickles."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from ups.types import ConfigError

HELLO = b"ups-meeting-1\n"
NONCE = MAC = 32
LENGTH = struct.Struct("<I")
COUNT = struct.Struct("<Q")
LARGEST = 1 << 24  # bytes of a message
PATIENCE = 10.0  # seconds for the other side to prove itself
SHORTEST = 1e-3  # seconds that a socket waits: 0 would be not at all
# A peer whose machine is gone says nothing; the kernel asks after 5 s of silence and gives up 15 s later.
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 5}


def host_and_port(place: str) -> tuple[str, int]:
    """HOST:PORT in its two parts, also with an IPv6 address in brackets."""
    host, _, port = place.rpartition(":")
    if not (host and port.isdecimal() and int(port) < 65536):
        raise ConfigError(f"nodes need a place to meet; give --rendezvous HOST:PORT of node 0, not '{place}'.")
    return host.strip("[]"), int(port)


class Untrusted(ConnectionError):  # noqa: N818  (what the other side is)
    """The other side does not know the secret, or what arrived is not what it sent."""


class Channel:
    """A connection whose two ends have proved themselves. Every message carries a proof of its content and its place
    in the order, so nobody on the way can change, add or repeat one; they are not secret. `send` from any thread,
    `receive` from one."""

    def __init__(self, connection: socket.socket, key: bytes, ours: bytes, theirs: bytes) -> None:
        self._socket, self._key, self._ours, self._theirs = connection, key, ours, theirs
        self._sent = self._received = 0
        self._sending = threading.Lock()

    def send(self, message: Mapping[str, Any]) -> None:
        content = json.dumps(message).encode()
        if len(content) > LARGEST:
            raise ValueError(f"a message of {len(content)} bytes is longer than {LARGEST}")
        with self._sending:
            proof = self._proof(self._ours, self._sent, content)
            self._sent += 1
            self._socket.sendall(LENGTH.pack(len(content)) + proof + content)

    def receive(self, end: float | None = None) -> dict[str, Any]:
        """The next message, by `end` on the monotonic clock; ConnectionError where the other side has gone."""
        (length,) = LENGTH.unpack(_exactly(self._socket, LENGTH.size, end))
        if length > LARGEST:
            raise Untrusted("a message longer than any")
        proof, content = _exactly(self._socket, MAC, end), _exactly(self._socket, length, end)
        if not hmac.compare_digest(proof, self._proof(self._theirs, self._received, content)):
            raise Untrusted("a message whose proof is wrong")
        self._received += 1
        message = json.loads(content)
        if not isinstance(message, dict):
            raise Untrusted("a message that is no object")
        return message

    def ask(self, message: Mapping[str, Any], seconds: float | None = None) -> dict[str, Any]:
        """Send, and receive the answer; TimeoutError after `seconds`."""
        end = None if seconds is None else time.monotonic() + seconds
        self._socket.settimeout(seconds)
        self.send(message)
        return self.receive(end)

    def wait(self) -> dict[str, Any]:
        """The next message, however long it takes."""
        self._socket.settimeout(None)
        return self.receive()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _proof(self, side: bytes, count: int, content: bytes) -> bytes:
        return _mac(self._key, side, COUNT.pack(count), content)


def connect(address: tuple[str, int], secret: bytes, patience: float = PATIENCE) -> Channel:
    """A channel to whoever listens at `address`, if they know the secret."""
    with ExitStack() as failing:
        end = time.monotonic() + patience
        connection = socket.create_connection(address, timeout=patience)
        failing.callback(connection.close)
        if _exactly(connection, len(HELLO), end) != HELLO:
            raise Untrusted(f"{address[0]}:{address[1]} is no meeting point of ups")
        theirs, ours = _exactly(connection, NONCE, end), secrets.token_bytes(NONCE)
        connection.sendall(ours + _mac(secret, b"client", theirs, ours))
        if not hmac.compare_digest(_exactly(connection, MAC, end), _mac(secret, b"server", theirs, ours)):
            raise Untrusted(f"{address[0]}:{address[1]} does not know the secret of this run")
        failing.pop_all()
    return _proved(connection, _mac(secret, b"session", theirs, ours), b"client", b"server")


def accept(connection: socket.socket, secret: bytes) -> Channel:
    """A channel to whoever has connected, if they know the secret: `connect` from the side that listens."""
    end = time.monotonic() + PATIENCE
    connection.settimeout(PATIENCE)
    ours = secrets.token_bytes(NONCE)
    connection.sendall(HELLO + ours)
    theirs, proof = _exactly(connection, NONCE, end), _exactly(connection, MAC, end)
    if not hmac.compare_digest(proof, _mac(secret, b"client", ours, theirs)):
        raise Untrusted("somebody who does not know the secret")
    connection.sendall(_mac(secret, b"server", ours, theirs))
    return _proved(connection, _mac(secret, b"session", ours, theirs), b"server", b"client")


def write_secret(path: Path) -> bytes:
    """A new secret in a file that only its owner may read."""
    secret = secrets.token_bytes(32)
    beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(handle, secret.hex().encode())
        os.fsync(handle)
    finally:
        os.close(handle)
    beside.replace(path)
    return secret


def read_secret(path: Path) -> bytes:
    """The secret in a file; OSError or ValueError where there is none."""
    secret = bytes.fromhex(path.read_text())
    if len(secret) < 16:
        raise ValueError(f"{path} holds no secret")
    return secret


def _proved(connection: socket.socket, key: bytes, ours: bytes, theirs: bytes) -> Channel:
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return Channel(connection, key, ours, theirs)


def _mac(key: bytes, *parts: bytes) -> bytes:
    """A proof of all parts; each with its length, so that none can be taken for the end of another."""
    content = b"".join(LENGTH.pack(len(part)) + part for part in parts)
    return hmac.new(key, content, hashlib.sha256).digest()


def _exactly(connection: socket.socket, count: int, end: float | None = None) -> bytes:
    """`count` bytes; TimeoutError where they are not all here by `end`, however they drip in."""
    content = bytearray()
    while len(content) < count:
        if end is not None:
            connection.settimeout(max(end - time.monotonic(), SHORTEST))
        part = connection.recv(min(count - len(content), 1 << 20))
        if not part:
            raise ConnectionResetError("the other side has closed the connection")
        content += part
        if end is not None and time.monotonic() > end:
            raise TimeoutError("the other side says too little in too long a time")
    return bytes(content)
