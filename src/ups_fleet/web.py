"""HTTP requests that end: bytes come at a pace, from the first connection to the last of an answer, or it is left."""

from __future__ import annotations

import http.client
import io
import math
import socket
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

Result = TypeVar("Result")
Arrived = Callable[[http.client.HTTPConnection], None]


class StalledError(TimeoutError):
    """Too little came in `seconds`."""

    def __init__(self, count: int, seconds: float) -> None:
        super().__init__(f"{f'only {count} bytes' if count else 'nothing'} came in {seconds:.3g} s")
        self.seconds = seconds


class FetchPace:
    """How long is waited until `least` more bytes have come: `seconds` in all, for names, connections, redirects,
    headers and what follows, however little comes how often. What is done between two waits does not count. Without
    `least` all of it must come in these seconds."""

    def __init__(self, seconds: float, least: float = math.inf) -> None:
        self.seconds, self.least = seconds, least
        self._waited, self._bytes = 0.0, 0

    def left(self) -> float:
        """Seconds; a StalledError where there are none."""
        if self._waited >= self.seconds:
            raise StalledError(self._bytes, self.seconds)
        return self.seconds - self._waited

    def wait(self, act: Callable[[], Result]) -> Result:
        """What `act` gives, while its time counts."""
        began = time.monotonic()
        try:
            return act()
        except TimeoutError:
            raise StalledError(self._bytes, self.seconds) from None
        finally:
            self._waited += time.monotonic() - began

    def came(self, count: int) -> None:
        """Count bytes that have come."""
        self._bytes += count
        if self._bytes >= self.least:
            self._waited, self._bytes = 0.0, 0


class WebRequest(urllib.request.Request):
    """A request at a pace; `arrived` looks at its connection when that stands."""

    def __init__(self, url: str, pace: FetchPace, arrived: Arrived | None = None, **kwargs: Any) -> None:
        super().__init__(url, **kwargs)
        self.pace, self.arrived = pace, arrived


class _Incoming(io.RawIOBase):
    """What comes through a socket, read at a pace."""

    def __init__(self, raw: io.RawIOBase, channel: socket.socket, pace: FetchPace) -> None:
        self._raw, self._channel, self._pace = raw, channel, pace

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._channel.settimeout(self._pace.left())
        count = self._pace.wait(lambda: self._raw.readinto(buffer))
        self._pace.came(count or 0)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Answer(http.client.HTTPResponse):
    """An answer that is read at a pace."""

    def __init__(self, sock: socket.socket, *args: Any, pace: FetchPace, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_Incoming(self.fp.detach(), sock, pace))


class _Plain(http.client.HTTPConnection):
    """A connection for one request. Each address of its host has the same share of the time."""

    def __init__(self, *args: Any, request: WebRequest, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._request = request
        self.response_class = partial(_Answer, pace=request.pace)  # type: ignore[assignment]

    def connect(self) -> None:
        pace = self._request.pace
        addresses = pace.wait(lambda: addresses_of(self.host))
        self.timeout = pace.left() / max(1, len(addresses))
        pace.wait(super().connect)
        if self._request.arrived is not None:
            self._request.arrived(self)


class _Secure(_Plain, http.client.HTTPSConnection):
    """A `_Plain` connection over TLS."""


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        assert isinstance(req, WebRequest)
        return self.do_open(partial(_Plain, request=req), req)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        assert isinstance(req, WebRequest)
        return self.do_open(partial(_Secure, request=req), req)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Whoever follows a redirect must know what may not be sent on, and where it may lead."""

    def redirect_request(self, *_: Any) -> None:
        return None


def opener() -> urllib.request.OpenerDirector:
    """Opens a `WebRequest`. A redirect is an HTTPError like any other answer that is not what was asked for."""
    return urllib.request.build_opener(_NoRedirects, _Http, _Https)


def addresses_of(host: str) -> list[str]:
    """What the name of a host, or a number in any form, stands for; nothing where it is not known here."""
    try:
        return sorted({str(row[4][0]) for row in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})
    except (OSError, UnicodeError):
        return []
