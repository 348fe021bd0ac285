"""Connects the ranks of a job to a common store: a file of their user, node 0's meeting point, or torchrun's."""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ups.types import ConfigError
from ups.wire import Channel, connect, host_and_port, read_secret

PATIENCE = timedelta(seconds=300)
_launchers: dict[str, Any] = {}
_kept: list[object] = []  # torch holds a store's C++ half alone; its methods are in the other one
KNOCKING = 60.0  # seconds to get a word in with node 0
MARGIN = 10.0  # seconds beyond the wait itself until an answer is missing


def meeting(world: int, environ: Mapping[str, str] = os.environ) -> dist.Store:  # type: ignore[name-defined]
    """The store that the launcher named in UPS_MEET: `file:PATH` or `tcp:HOST:PORT` with UPS_SECRET and UPS_GROUP."""
    kind, _, place = environ.get("UPS_MEET", "").partition(":")
    if kind == "file":
        return dist.FileStore(place, world)  # type: ignore[attr-defined]
    if kind == "tcp":
        store = MeetingStore(host_and_port(place), Path(environ["UPS_SECRET"]), environ["UPS_GROUP"])
        _kept.append(store)
        return store
    if environ.get("MASTER_ADDR") and environ.get("MASTER_PORT"):
        return dist.PrefixStore("ranks", launcher_store(environ))  # type: ignore[attr-defined]
    raise ConfigError(
        f"WORLD_SIZE is {world}, but neither UPS_MEET nor MASTER_ADDR and MASTER_PORT say where ranks meet; start with "
        "`ups run` or torchrun."
    )


def launcher_store(environ: Mapping[str, str] = os.environ) -> dist.Store:  # type: ignore[name-defined]
    """The store of torchrun, or of whatever sets its variables; of this start of the ranks alone, and made once."""
    if "launcher" not in _launchers:
        store, _, _ = next(dist.rendezvous("env://", timeout=PATIENCE))  # type: ignore[attr-defined]
        start = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        _launchers["launcher"] = dist.PrefixStore(f"ups-{start}", store)  # type: ignore[attr-defined]
    return _launchers["launcher"]


class MeetingStore(dist.Store):  # type: ignore[name-defined,misc]
    """The keys of one group of ranks, kept by node 0. Each thread has a connection: a wait holds up nobody else."""

    def __init__(self, address: tuple[str, int], secret: Path, group: str) -> None:
        super().__init__()
        self._address, self._secret, self._group = address, secret, group
        self._patience = PATIENCE
        self._own = threading.local()

    def set(self, key: str, value: str | bytes) -> None:
        self._ask("set", key, value=_text(value))

    def get(self, key: str) -> bytes:
        return self._waited([key], self._patience)[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return self._waited(list(keys), self._patience)

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def add(self, key: str, amount: int) -> int:
        return int(base64.b64decode(self._ask("add", key, amount=amount)["value"]))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        answer = self._ask("compare", key, expected=_text(expected), value=_text(desired))
        return base64.b64decode(answer["value"])

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._ask("check", *keys)["there"])

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self._waited(list(keys), timeout or self._patience)

    def delete_key(self, key: str) -> bool:
        return bool(self._ask("delete", key)["deleted"])

    def num_keys(self) -> int:
        return int(self._ask("count", "")["count"])

    def set_timeout(self, timeout: timedelta) -> None:
        self._patience = timeout

    @property
    def timeout(self) -> timedelta:
        return self._patience

    def _waited(self, keys: list[str], patience: timedelta) -> list[bytes]:
        seconds = patience.total_seconds()
        answer = self._ask("wait", *keys, seconds=seconds, within=seconds + MARGIN)
        if not answer["there"]:
            raise dist.DistStoreError(f"Timed out waiting {seconds:.0f} s for {', '.join(keys)}")
        return [base64.b64decode(value) for value in answer["values"]]

    def _ask(self, op: str, *keys: str, within: float = 60.0, **more: Any) -> dict[str, Any]:
        try:
            answer = self._channel().ask({"op": op, "group": self._group, "keys": list(keys), **more}, within)
        except (OSError, ValueError) as error:
            self._own.channel = None
            raise dist.DistNetworkError(f"Connection closed by peer: node 0's meeting point ({error})") from None
        if answer.get("over"):
            raise dist.DistStoreError("Connection closed by peer: this group of ranks has been replaced by another")
        return answer

    def _channel(self) -> Channel:
        channel: Channel | None = getattr(self._own, "channel", None)
        end, pause = time.monotonic() + KNOCKING, 0.05
        while channel is None:
            try:
                channel = self._own.channel = connect(self._address, read_secret(self._secret))
            except (OSError, ValueError):  # strangers crowd the door, or the secret is being replaced
                if time.monotonic() > end:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, 1.0)
        return channel


def _text(value: str | bytes) -> str:
    return base64.b64encode(value.encode() if isinstance(value, str) else bytes(value)).decode()
