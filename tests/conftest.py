"""All tests of a worker fork their processes from one server: the first to start it says what it has imported."""

from __future__ import annotations

import pytest

from ranks import warm_up


@pytest.fixture(scope="session", autouse=True)
def server() -> None:
    warm_up()
