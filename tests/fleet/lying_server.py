"""A server on loopback that serves bytes, and misbehaves as the address asks it to."""
# ruff: noqa: ARG002  (behaviours are called alike)

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections import Counter
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler
from urllib.parse import unquote, urlsplit

from loopback import LoopbackServer, answering


class LyingServer(LoopbackServer):
    """Files by name; `/BEHAVIOUR/NAME` is the file with that behaviour. `seen` are the requests, with their headers."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.tags: dict[str, str] = {}
        self.count: Counter[str] = Counter()
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.sent = 0
        self.elsewhere = ""  # where `/redirect/` leads
        self.slow = 0.0
        self.lock = threading.Lock()


def serving() -> AbstractContextManager[LyingServer]:
    return answering(LyingServer())


class _Handler(BaseHTTPRequestHandler):
    server: LyingServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""

    def do_GET(self) -> None:
        self.close_connection = True
        server, path = self.server, urlsplit(self.path).path
        how, _, name = path.lstrip("/").partition("/")
        name = unquote(name.rpartition("/")[2])
        with server.lock:
            server.count[how] += 1
            turn = server.count[how]
            server.seen.append((self.path, dict(self.headers)))
        if getattr(self, f"_{how}", None) is not None and getattr(self, f"_{how}")(turn, name):
            return
        self._serve(how, name, turn)

    # Behaviours that answer by themselves, and say so.
    def _busy(self, turn: int, name: str) -> bool:
        """503 to the first two requests for each range, the first of them with Retry-After."""
        key = f"busy {self.headers.get('Range')}"
        with self.server.lock:
            self.server.count[key] += 1
            times = self.server.count[key]
        return times <= 2 and self._status(503, {"Retry-After": "0.1"} if times == 1 else {})

    def _down(self, turn: int, name: str) -> bool:
        return self._status(503, {"Retry-After": "7200"} if name == "later.bin" else {})

    def _denied(self, turn: int, name: str) -> bool:
        return self._status(403, {})

    def _absent(self, turn: int, name: str) -> bool:
        return self._status(404, {})

    def _redirect(self, turn: int, name: str) -> bool:
        return self._status(302, {"Location": f"{self.server.elsewhere}{name}"})

    def _circle(self, turn: int, name: str) -> bool:
        return self._status(302, {"Location": self.path})

    def _page(self, turn: int, name: str) -> bool:
        body = b"<!DOCTYPE html><html><body>Please log in</body></html>"
        kind = "application/octet-stream" if name == "sly.bin" else "text/html"
        return self._status(200, {"Content-Type": kind}, body)

    def _hang(self, turn: int, name: str) -> bool:
        if self.headers.get("Range") == "bytes=0-0" or turn > 4:
            return False
        content = self.server.files[name]
        self.send_response(206)
        start, end = self._range(len(content)) or (0, len(content))
        self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
        self.send_header("Content-Length", str(end - start))
        self.send_header("ETag", f'"{self.server.tags.get(name, "1")}"')
        self.end_headers()
        self.wfile.write(content[start : start + 10])
        self.wfile.flush()
        time.sleep(1.0)
        return True

    def _packed(self, turn: int, name: str) -> bool:
        return self._status(200, {"Content-Encoding": "gzip"}, b"not unpacked")

    def _nothing(self, turn: int, name: str) -> bool:
        return self._status(200, {}, b"")

    def _growing(self, turn: int, name: str) -> bool:
        """Neither ranges nor tags, and longer from the second request on."""
        content = self.server.files[name]
        return self._status(200, {}, content[: len(content) // 2] if turn == 1 else content)

    def _query(self, turn: int, name: str) -> bool:
        """Content of one length that the query chooses, without a tag."""
        return self._status(200, {}, hashlib.sha256(urlsplit(self.path).query.encode()).digest())

    def _boundless(self, turn: int, name: str) -> bool:
        self.send_response(200)
        self.send_header("Content-Length", "9" * 5000)
        self.end_headers()
        return True

    def _endless(self, turn: int, name: str) -> bool:
        """No length, and the connection is closed at some point."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.server.files[name][:1000])
        return True

    def _status(self, status: int, headers: dict[str, str], body: bytes = b"") -> bool:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)
        return True

    def _range(self, size: int) -> tuple[int, int] | None:
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        return (int(match[1]), min(int(match[2]) + 1, size)) if match else None

    def _serve(self, how: str, name: str, turn: int) -> None:
        server = self.server
        content = server.files[name]
        tag = f'"{server.tags.get(name, "1")}"'
        if how == "changing" and turn > 3:  # another version from the third request on, and ever the same since
            content, tag = content[::-1], '"2"'
        if how == "restless":  # never twice the same
            tag = f'"{turn}"'
        span = None if how in ("rangeless", "chunked", "boasting") else self._range(len(content))
        if span and how != "tagless" and self.headers.get("If-Range") not in (None, tag):
            span = None
        body = content[span[0] : span[1]] if span else content
        self.send_response(206 if span else 200)
        if span:
            last = span[0] if how == "misnamed" else span[1] - 1
            self.send_header("Content-Range", f"bytes {span[0]}-{last}/{len(content)}")
        if how != "tagless":
            self.send_header("ETag", tag)
        if how == "named":
            self.send_header("Content-Disposition", 'attachment; filename="../../../escaped.bin"')
        if how == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(len(body) + (1000 if how == "boasting" else 0)))
        self.end_headers()
        self._send(how, turn, body)

    def _send(self, how: str, turn: int, body: bytes) -> None:
        if how == "cut" and turn % 2 == 0:
            body = body[: len(body) // 2]
        if how == "corrupt" or (how == "flaky" and turn == 2):
            body = bytes(255 - byte for byte in body)
        for start in range(0, len(body), 1 << 15):
            block = body[start : start + (1 << 15)]
            with self.server.lock:
                self.server.sent += len(block)
            if self.server.slow:
                time.sleep(self.server.slow)
            self.wfile.write(b"%x\r\n%s\r\n" % (len(block), block) if how == "chunked" else block)
        if how == "chunked":
            self.wfile.write(b"0\r\n\r\n" if turn % 3 else b"")
