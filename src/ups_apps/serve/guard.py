"""Who may speak to a service: the names by which it is called, pages of its own, whoever knows its token."""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from ups_apps.serve.meters import Meters

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
OPEN = frozenset({"/", "/health"})  # what says nothing of a simulator
SUBPROTOCOL = "ups.token."  # how a browser, which sets no headers of a WebSocket, sends the token


class Guard:
    """Stands before an app. On loopback it answers to names of this machine alone, so that no page of the world reaches
    it by a name of its own; nowhere to pages of other origins; beyond loopback only with the token."""

    def __init__(self, app: App, token: str | None, meters: Meters, hosts: Collection[str] | None = LOOPBACK) -> None:
        self.app, self.token, self.meters, self.hosts = app, token, meters, hosts

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Hand a request on, or refuse it."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        began, status = time.monotonic(), [0]

        async def counted(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.close", "websocket.accept"):
                status[0] = status[0] or int(message.get("status", message.get("code", 101)))
            await send(message)

        refused = self._refused(scope)
        try:
            if refused is None:
                await self.app(scope, receive, counted)
            elif scope["type"] == "websocket":
                await receive()
                await counted({"type": "websocket.close", "code": 1008, "reason": refused[1]})
            else:
                await _plain(counted, *refused)
        finally:
            path = getattr(scope.get("route"), "path", "other")
            self.meters.add("ups_requests_total", 1, f'{{path="{path}",status="{status[0]}"}}')
            if scope["type"] == "http":
                self.meters.took(time.monotonic() - began)

    def _refused(self, scope: Message) -> tuple[int, str] | None:
        """The status and the sentence of a refusal; None where there is none."""
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host, origin = headers.get("host", ""), headers.get("origin")
        try:
            named, other = urlsplit(f"//{host}").hostname, urlsplit(origin or "").netloc
        except ValueError:
            return 400, "the host or the origin is no address."
        if self.hosts is not None and named not in self.hosts:
            return 421, "this service answers to names of this machine alone, such as 127.0.0.1."
        if origin is not None and other != host:
            return 403, "pages of other origins may not ask this service."
        if self.token is None or scope["path"] in OPEN or hmac.compare_digest(_token(headers), self.token.encode()):
            return None
        return 401, "this service wants its token: send the header `Authorization: Bearer TOKEN`."


def _token(headers: dict[str, str]) -> bytes:
    """The token that came, or nothing."""
    kind, _, word = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return word.strip().encode("latin-1")
    offered = [word.strip() for word in headers.get("sec-websocket-protocol", "").split(",")]
    return next((word.removeprefix(SUBPROTOCOL) for word in offered if word.startswith(SUBPROTOCOL)), "").encode(
        "latin-1"
    )


async def _plain(send: Send, status: int, sentence: str) -> None:
    """An answer of one sentence."""
    headers = [(b"content-type", b"application/json")] + [(b"www-authenticate", b"Bearer")] * (status == 401)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"error": sentence}).encode()})
