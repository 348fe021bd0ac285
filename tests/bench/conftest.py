"""Rows of the table, and those beyond it, for the tests of what is made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ups_bench.rows import PUBLISHED, ROWS, BenchRow, beyond, rows_in

HOME = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def table() -> dict[str, BenchRow]:
    return rows_in(HOME / ROWS, HOME / PUBLISHED)


@pytest.fixture(scope="session")
def further() -> dict[str, BenchRow]:
    return beyond(HOME)
