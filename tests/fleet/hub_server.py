"""A server on loopback that answers the client of the Hub as the Hub does, and misbehaves as a data set is called."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler
from urllib.parse import unquote, urlsplit

from loopback import LoopbackServer, answering

TOKEN = "hf_planted-hub-token"
LARGE = 1 << 20  # bytes above which a file is not kept in git itself
# What the Hub says of repositories that a login may not see, or has not been let into.
REFUSALS = {"private": (401, "RepoNotFound"), "gated": (403, "GatedRepo"), "missing": (404, "RepoNotFound")}


class HubServer(LoopbackServer):
    """Data sets `me/BEHAVIOUR`, each with the same files. `cut`, `short`: the first answers are, and `short` says it is
    all. `ignores`: ranges are not known. `busy`: the first answers are 503. `private` is open to TOKEN alone."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.count: Counter[str] = Counter()
        self.seen: list[tuple[str, str]] = []


def serving_hub() -> AbstractContextManager[HubServer]:
    return answering(HubServer())


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.seen.append((self.command, self.path))
        match = re.fullmatch(r"(?:/api)?/datasets/me/(\w+)(?:/(\w+)/main)?(?:/(.*))?", path)
        if match is None:
            return self._answer(404, b"{}", {})
        how, what, name = match[1], match[2] or "", match[3] or ""
        closed = how in REFUSALS and (how != "gated" or what == "resolve")  # what is in a gated one, anybody may see
        if closed and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            status, code = REFUSALS[how]
            return self._answer(status, b'{"error": "no"}', {"X-Error-Code": code, "X-Error-Message": "no"})
        if what == "resolve":
            return self._content(how, self.server.files[name])
        if what == "tree":
            rows = [self._row(path) for path in self.server.files if path.startswith(name)]
            return self._answer(200, json.dumps(rows).encode(), {})
        return self._answer(200, json.dumps({"id": f"me/{how}", "sha": "1" * 40, "siblings": []}).encode(), {})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        names = re.findall(r"[\w/.-]+", unquote(self.rfile.read(length).decode()))
        rows = [self._row(path) for path in self.server.files if path in names]
        self._answer(200, json.dumps(rows).encode(), {})

    def _row(self, path: str) -> dict[str, object]:
        """As the Hub describes a file: a large one has a SHA-256, and what is in git is a pointer to it."""
        content = self.server.files[path]
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        row: dict[str, object] = {"type": "file", "path": path, "size": len(content), "oid": blob}
        if len(content) > LARGE:
            digest = hashlib.sha256(content).hexdigest()
            row |= {"oid": "2" * 40, "lfs": {"oid": digest, "size": len(content), "pointerSize": 134}}
        return row

    def _content(self, how: str, content: bytes) -> None:
        self.server.count[how] += 1
        turn = self.server.count[how]
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if how == "busy" and turn <= 2:
            return self._answer(503, b"busy", {"Retry-After": "0"})
        if match is None or how == "ignores":
            return self._answer(200, content, {})
        first, last = int(match[1]), min(int(match[2]), len(content) - 1)
        body = content[first : last + 1]
        more = {"Content-Range": f"bytes {first}-{last}/{len(content)}"}
        if how == "cut" and turn <= 2:
            return self._answer(206, body, more, sent=len(body) // 2)
        if how == "short" and turn <= 2:
            return self._answer(206, body[: len(body) // 2], more)
        return self._answer(206, body, more)

    def _answer(self, status: int, body: bytes, more: dict[str, str], sent: int | None = None) -> None:
        self.close_connection = True
        self.send_response(status)
        fixed = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
        for name, value in {**fixed, **more}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:sent])
