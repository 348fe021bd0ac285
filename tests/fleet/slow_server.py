"""A server on loopback that takes a request and then hangs, or sends a byte every now and then."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator

SIZE = 1_000_000
HEAD = b'HTTP/1.1 200 OK\r\nContent-Length: %d\r\nETag: "1"\r\n' % SIZE
PIECE = b'HTTP/1.1 206 Partial Content\r\nContent-Length: %d\r\nContent-Range: bytes %d-%d/%d\r\nETag: "1"\r\n\r\n'
WHERE = "silent", "headers", "status", "body", "drip-headers", "drip-status", "drip-body", "drip-chunks", "leads-on"


class SlowServer:
    """Where it hangs is what it is asked for: `/WHERE/a.bin`; a drip is a byte every `every` seconds."""

    def __init__(self, every: float) -> None:
        self.every, self.over, self.asked = every, threading.Event(), 0
        self.door = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self.door.getsockname()[1]}"
        self.open: list[socket.socket] = []

    def answer(self) -> None:
        while not self.over.is_set():
            with contextlib.suppress(OSError):
                way, _ = self.door.accept()
                self.open.append(way)
                threading.Thread(target=self._serve, args=(way,), daemon=True).start()

    def _serve(self, way: socket.socket) -> None:
        with contextlib.suppress(OSError, IndexError, UnicodeDecodeError):
            request = way.recv(65536)
            self.asked += 1
            how = request.split()[1].decode().split("/")[1]
            match = re.search(rb"bytes=(\d+)-(\d+)", request)
            first, last = (int(match[1]), int(match[2])) if match else (0, SIZE - 1)
            piece = PIECE % (last + 1 - first, first, last, SIZE)
            if how in ("body", "drip-body"):
                way.sendall(piece + b"x")
            elif how in ("headers", "drip-headers"):
                way.sendall(HEAD)
            elif how == "status":
                way.sendall(b"HTTP/1.1 20")
            elif how == "drip-chunks":
                way.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            elif how == "leads-on":
                self.over.wait(2 * self.every)
                way.sendall(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: /leads-on/%d\r\n\r\n" % self.asked)
                way.close()
            while how.startswith("drip") and not self.over.wait(self.every):
                way.sendall(b"0")


@contextlib.contextmanager
def dawdling(every: float = 0.02) -> Iterator[SlowServer]:
    server = SlowServer(every)
    threading.Thread(target=server.answer, daemon=True).start()
    try:
        yield server
    finally:
        server.over.set()
        for one in (server.door, *server.open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
