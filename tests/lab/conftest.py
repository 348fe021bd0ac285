"""Ranks of all tests come from one server."""

from __future__ import annotations

import pytest

from ranks import warm_up


@pytest.fixture(scope="session", autouse=True)
def server() -> None:
    warm_up()
