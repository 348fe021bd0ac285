"""Finds recorded jobs and asks their engines how they are; the record alone is never believed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ups.run_files import VERDICT
from ups.types import ConfigError, DataError, UpsError
from ups.verdict import Verdict
from ups_fleet.secrets import hiding
from ups_fleet.submit import ENGINES
from ups_fleet.submit.commands import NotSubmittedError
from ups_fleet.submit.job import Engine, Status
from ups_fleet.submit.records import LaunchRecord, all_records, file_of, record_of, with_identity


def identified(record: LaunchRecord) -> LaunchRecord:
    """The record with the engine's identity, which the engine is asked for where it was never written down."""
    if record.identity:
        return record
    if (identity := _engine(record).find(record.key)) is None:
        return record
    return with_identity(record, identity)


def forget_if_unknown(record: LaunchRecord, error: UpsError) -> None:
    """Remove the record of a job that the engine has refused with an error and says it does not have; otherwise it
    stays."""
    with contextlib.suppress(UpsError):
        if isinstance(error, NotSubmittedError) or _engine(record).find(record.key) is None:
            file_of(record.key).unlink(missing_ok=True)


def status_of(record: LaunchRecord) -> tuple[LaunchRecord, Status]:
    """What the engine says of a job now; of one it has forgotten, what its run has left."""
    try:
        known = identified(record)
        if not known.identity:
            sentence = (
                "perhaps submitted: whoever launched it was killed meanwhile, and the engine knows of no such job."
            )
            return known, Status("gone", sentence)
        now = _engine(record).status(known.identity)
    except UpsError as error:
        return record, Status("unknown", str(error))
    verdict = Verdict.read(Path(record.folder) / VERDICT) if now.state == "gone" else None
    if verdict is not None:
        now = Status(now.state, f"{now.sentence} Its run ended as {verdict.ending.name}.", int(verdict.ending))
    return known, now


def only(job: str | None) -> LaunchRecord:
    """The job that is meant: by name, or the one that is not over."""
    if job is not None:
        return record_of(job)
    going = [record for record in all_records() if not status_of(record)[1].over]
    if len(going) == 1:
        return going[0]
    named = f"{', '.join(record.key for record in going)} are not" if going else "all that were launched here are"
    raise ConfigError(f"name a job: {named} over.")


def logs_of(record: LaunchRecord) -> Iterator[str]:
    """What a job has printed, without the keys and passwords that this environment knows."""
    hide = hiding(os.environ)
    known = _submitted(record)
    for piece in _engine(record).logs(known.identity):
        yield hide(piece.encode(errors="surrogateescape")).decode(errors="replace")


def stopped(record: LaunchRecord) -> Status:
    """End a job, and ask how it is."""
    known = _submitted(record)
    engine = _engine(record)
    if not (now := engine.status(known.identity)).over:
        engine.stop(known.identity)
        now = engine.status(known.identity)
    return now


def _submitted(record: LaunchRecord) -> LaunchRecord:
    known = identified(record)
    if not known.identity:
        raise DataError(f"{record.key}: the engine {record.engine} knows of no such job, so nothing of it runs.")
    return known


def _engine(record: LaunchRecord) -> Engine:
    if record.engine not in ENGINES:
        raise ConfigError(f"{record.key}: was launched on '{record.engine}', which this version does not know.")
    return ENGINES[record.engine]()
