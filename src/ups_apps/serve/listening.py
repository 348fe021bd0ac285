"""Listens until it is stopped: on this machine, or with a token beyond it."""

from __future__ import annotations

import contextlib
import secrets
import socket
from pathlib import Path

import uvicorn

from ups.types import ConfigError
from ups_apps.serve.guard import LOOPBACK, App, Guard
from ups_apps.serve.limits import ServiceLimits
from ups_apps.serve.meters import Meters

CONNECTIONS = 1000  # at the same time; more are told that there is no room


def token_of(host: str, file: Path | None) -> str | None:
    """The token that requests must bring: that of a file, or beyond loopback one that is made now."""
    if file is not None:
        try:
            token = file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{file}: the token cannot be read ({type(error).__name__}); check --token-file."
            ) from None
        if len(token) < 16 or not (token.isascii() and token.isprintable()) or " " in token:
            raise ConfigError(f"{file}: a token has at least 16 characters, without spaces; write another.")
        return token
    return None if host in LOOPBACK else secrets.token_urlsafe(24)


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 stands for any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        cause = error.strerror if isinstance(error, OSError) else "a port is a number up to 65535"
        raise ConfigError(f"nothing can listen on {host}:{port} ({cause}); choose another --host or --port.") from None
    return listener


def server_of(app: App, host: str, token: str | None, limits: ServiceLimits, meters: Meters) -> uvicorn.Server:
    """What answers requests that come to an address of `host`, guarded."""
    guard = Guard(app, token, meters, LOOPBACK if host in LOOPBACK else None)
    config = uvicorn.Config(
        guard,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="websockets-sansio",
        ws_max_size=limits.body,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=3,
    )
    return uvicorn.Server(config)


def address_of(listener: socket.socket) -> str:
    """Where a socket listens."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def listen(server: uvicorn.Server, listener: socket.socket) -> None:
    """Answer requests until Ctrl-C or SIGTERM."""
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
