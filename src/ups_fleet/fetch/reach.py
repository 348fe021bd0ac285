"""Where a redirect may lead: into the network of this machine only to the host that the user has named."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Any

from ups.types import DataError

Arrived = Callable[[http.client.HTTPConnection], None]


def inward(address: str) -> str:
    """An address that only this machine or its network has, written alike for one host; empty for one of the world.
    Loopback is one host, whatever its number."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    ip = getattr(ip, "ipv4_mapped", None) or ip
    if ip.is_loopback:
        return "loopback"
    return str(ip) if ip.is_multicast or not ip.is_global else ""


def addresses_of(host: str) -> list[str]:
    """What the name of a host, or a number in any form, stands for; nothing where it is not known here."""
    try:
        return sorted({str(row[4][0]) for row in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})
    except (OSError, UnicodeError):
        return []


def check_redirect(place: str, named: str, host: str, address: str = "") -> None:
    """DataError where a redirect of `place` leads inward, to a `host` (at this `address`, if it is known already) that
    is another than the one that the user has `named`."""
    for one in [address] if address else addresses_of(host):
        if (inside := inward(one)) and inside not in map(inward, addresses_of(named)):
            where = host if host == one else f"{host} ({one})"
            raise DataError(
                f"{place}: redirects to {where}, which is this machine or in its network, and was not asked for; if "
                "you trust it, name that address itself."
            )


class _Plain(http.client.HTTPConnection):
    """A connection that says when it stands."""

    def __init__(self, *args: Any, arrived: Arrived, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._arrived = arrived

    def connect(self) -> None:
        super().connect()
        self._arrived(self)


class _Secure(_Plain, http.client.HTTPSConnection):
    """The same over TLS."""


class Request(urllib.request.Request):
    """A request whose connection is looked at when it stands: a name may mean another address than a moment ago."""

    arrived: Arrived = staticmethod(lambda connection: None)  # noqa: ARG005


class Plain(urllib.request.HTTPHandler):
    """http by connections that say when they stand."""

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        assert isinstance(req, Request)
        return self.do_open(partial(_Plain, arrived=req.arrived), req)


class Secure(urllib.request.HTTPSHandler):
    """https by such connections."""

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        assert isinstance(req, Request)
        return self.do_open(partial(_Secure, arrived=req.arrived), req)
