"""The journal of a lab: writes a line for every finished case, and continues after the last one."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ups.files import sync, write_all
from ups.provenance import environment
from ups.types import ConfigError, DataError
from ups_fleet.fault_tests.case import CaseResult, FaultCase

NAME = "results.jsonl"


def code_version() -> str:
    """A short hash of this package's source: results of other code do not belong to the same table."""
    root, hashed = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        hashed.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return hashed.hexdigest()[:12]


def request_of(
    faults: int, seed: int, ranks: Sequence[int], strategies: Sequence[str], only: Sequence[str]
) -> dict[str, Any]:
    """What was asked for, and of which code."""
    words = {"ranks": list(ranks), "strategies": list(strategies), "only": list(only)}
    return {"faults": faults, "seed": seed, **words, "code": code_version()}


class FaultJournal:
    """The results of `request` in `folder`, one line each, durable before the next case is begun by its thread.

    The first line says what was asked for, and where. A line that a kill has cut is dropped. Held by one process.
    """

    def __init__(self, folder: Path, request: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / NAME
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            sentence = f"{folder}: another `ups faults` is at work there; wait for it or take another --out."
            raise ConfigError(sentence) from None
        head, self.rows = read(self.path)
        if not head:
            head = {"request": dict(request), "environment": environment()}
            os.ftruncate(self._file, 0)
            self._append(head)
            sync(folder)
        elif head["request"] != dict(request):
            os.close(self._file)
            pairs = {name: (head["request"].get(name), value) for name, value in request.items()}
            differing = ", ".join(f"{name}: {old} → {new}" for name, (old, new) in pairs.items() if old != new)
            sentence = f"{folder}: holds results of another request ({differing}); take another --out for this one."
            raise ConfigError(sentence)
        else:
            os.ftruncate(self._file, _whole(self.path))
        self.head = head

    def add(self, number: int, result: CaseResult) -> None:
        """The result of a case, for good. Threads may call it."""
        self._append({"number": number, **asdict(result)})
        self.rows[number] = result

    def close(self) -> None:
        os.close(self._file)

    def _append(self, values: Mapping[str, Any]) -> None:
        """A whole line or nothing: half of one would spoil the line that comes after it."""
        size = os.fstat(self._file).st_size
        try:
            write_all(self._file, memoryview((json.dumps(values, ensure_ascii=False, default=str) + "\n").encode()))
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, size)
            raise


def read(path: Path) -> tuple[dict[str, Any], dict[int, CaseResult]]:
    """The first line of a journal and the results by number; a last line without its end was never written."""
    lines = path.read_bytes()[: _whole(path)].splitlines()
    if not lines:
        return {}, {}
    try:
        head, *values = [json.loads(line) for line in lines]
        rows = {row.pop("number"): CaseResult(**row) for row in values}
        if not {"request", "environment"} <= head.keys():
            raise ValueError("it does not say what was asked for")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{path}: is no journal of `ups faults` ({error}); take another --out.") from None
    return head, rows


def _whole(path: Path) -> int:
    """Bytes up to the end of the last whole line."""
    return path.read_bytes().rfind(b"\n") + 1


def skipped(case: FaultCase, reason: str) -> CaseResult:
    """The result of a case that this machine cannot run."""
    return dataclasses.replace(CaseResult(case.facts()), skipped=reason)
