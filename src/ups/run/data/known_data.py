"""Shares between the runs of a folder the statistics of data that one of them has read and measured."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ups.config import dump
from ups.data.checksums import untouched
from ups.data.readers import READERS
from ups.data.readers.arrays import ArrayStore
from ups.data.source import Source
from ups.files import has_its_sum, sum_of, write_atomic
from ups.parsing import read_json
from ups.provenance import code
from ups.run.data.data_identity import Identity
from ups.run.data.datasets import DataSet

MOST = 256  # data sets that are remembered, the latest

Values = dict[str, Any]


class KnownData:
    """The statistics of data sets whose every part was read and found finite, in a file that the runs of one folder
    share. A row is of all that decides it: what the files hold and how they are called, how they are reduced and split,
    and the code that read them. Who cannot read or write the file reads the data instead."""

    def __init__(self, file: Path, identity: Identity) -> None:
        self.file, self.identity = file, identity

    def get(self, data: DataSet) -> Values | None:
        """The statistics of a data set, as `keep` was given them; None where nobody has read just these data."""
        row = read_json(self.file).get(self._key(data))
        values = row.get("values") if isinstance(row, dict) and has_its_sum(row) else None
        return values if isinstance(values, dict) else None

    def keep(self, statistics: Mapping[str, Values], sets: Mapping[str, DataSet]) -> None:
        """Remember the statistics of data sets, by the name of their task."""
        rows = read_json(self.file)
        keyed = {self._key(data): {"values": statistics[name]} for name, data in sets.items()}
        fresh = {key: {**row, "sum": sum_of(row)} for key, row in keyed.items() if key}
        if any(rows.get(key) != row for key, row in fresh.items()):
            latest = list({**{k: v for k, v in rows.items() if k not in fresh}, **fresh}.items())[-MOST:]
            with contextlib.suppress(OSError):  # it would only have saved time
                write_atomic(self.file, json.dumps(dict(latest), indent=1))

    def _key(self, data: DataSet) -> str:
        """A digest of all that the statistics of a data set depend on; empty where that is not certain: a reader of
        somebody else's may have changed, and a large file is known by samples of it, and while it is being touched its
        times do not tell whether it has changed since."""
        if not all(map(_ours, (reader.open for reader in READERS.values()))):
            return ""
        if not all(_read_by_us(entry.source) for entry in data.entries):
            return ""
        digests = self.identity.by_path()
        files = [path for entry in data.entries for path in entry.source.files()]
        records = [Path(entry.config.split.record) for entry in data.entries if entry.config.split.record is not None]
        rows: list[Any] = []
        for path in (*files, *records):
            if path not in digests:
                return ""
            stamp = untouched(path) if "sampled" in digests[path] else []
            if stamp is None:
                return ""
            rows.append([self.identity.name_of(path), dict(digests[path]), stamp])
        config = [dump(entry.config) for entry in data.entries]
        depends = [rows, config, repr(data.task), _code()]
        return hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()


def _read_by_us(source: Source | ArrayStore) -> bool:
    """Whether only classes of this package read a source."""
    values = [each for value in vars(source).values() for each in (value if isinstance(value, tuple) else (value,))]
    inside = (each for each in values if isinstance(each, Source | ArrayStore))
    return _ours(type(source)) and all(map(_read_by_us, inside))


def _ours(thing: object) -> bool:
    return str(getattr(thing, "__module__", "")).partition(".")[0] == __name__.partition(".")[0]


@functools.cache
def _code() -> str:
    return json.dumps(code())
