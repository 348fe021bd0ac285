"""Vast's client and a server of ours, shared by the tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from vast_client import forked_client
from vast_server import KEY, Vast, serving


@pytest.fixture(scope="session")
def vast_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with forked_client(tmp_path_factory.mktemp("vast-client")) as program:
        yield program


@pytest.fixture
def vast(vast_client: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Vast]:
    """A server with three offers; the client is pointed at it, and nobody waits long."""
    state = Vast(tmp_path / "vast")
    with serving(state):
        for name, value in {"UPS_VASTAI": str(vast_client), "VAST_URL": state.url, "VAST_API_KEY": KEY}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("UPS_STATE", str(tmp_path / "state"))
        for name, seconds in {"LOOK": 0.05, "START": 30.0, "GONE": 60.0}.items():
            monkeypatch.setattr(f"ups_fleet.submit.vast.rent.{name}", seconds)
        yield state
