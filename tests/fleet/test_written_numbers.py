"""Where commands write the numbers that a user asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ups.types import DataError
from ups_bench.numbers import write_numbers
from ups_fleet.doctor.findings import write as write_findings
from ups_fleet.fault_tests.table import write_json as write_cases

JSON: dict[str, Callable[[Path], None]] = {
    "bench": lambda path: write_numbers(path, {}, {}),
    "doctor": lambda path: write_findings(path, []),
    "faults": lambda path: write_cases(path, {}, [], 0.0),
}


@pytest.mark.parametrize("command", JSON)
def test_a_device_named_for_numbers_is_refused_in_one_sentence(command: str) -> None:
    device = Path("/dev/full")
    before = device.lstat()
    with pytest.raises(DataError, match=r"/dev/full: cannot be written \(it is a device, not a file\); choose another"):
        JSON[command](device)
    assert device.lstat().st_ino == before.st_ino
