"""What was submitted from this machine, a file per job; engines are asked how each is, for no record is believed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from ups.files import write_atomic
from ups.parsing import read_json
from ups.run_files import VERDICT
from ups.types import ConfigError, DataError, UpsError
from ups.verdict import Verdict, now
from ups_fleet.secrets import hiding
from ups_fleet.submit import ENGINES
from ups_fleet.submit.job import Engine, LaunchJob, Status
from ups_fleet.submit.shell import NotSubmittedError

KEY = re.compile(r"[\w.-]{1,200}")
LONGEST = 100  # characters of a run's name in a key


@dataclass(frozen=True)
class LaunchRecord:
    """A job that was, or perhaps was, submitted: `identity` is empty until the engine has given it one."""

    key: str
    engine: str
    name: str
    config: str
    folder: str
    nodes: int
    gpus: int
    time: str
    identity: str = ""

    @classmethod
    def of(cls, job: LaunchJob, engine: str) -> LaunchRecord:
        return cls(job.key, engine, job.name, str(job.config), str(job.folder), job.nodes, job.gpus, now())


def jobs_folder() -> Path:
    """Where records lie: $UPS_STATE/jobs, or that of the user's state folder."""
    if state := os.environ.get("UPS_STATE"):
        return Path(state).absolute() / "jobs"
    home = Path(os.environ.get("HOME") or "~").expanduser() / ".local" / "state"
    return Path(os.environ.get("XDG_STATE_HOME") or home).absolute() / "ups" / "jobs"


def new_key(name: str) -> str:
    """A key that no other job has, and that is a file's name however long that of the run is."""
    return f"{name[:LONGEST]}-{secrets.token_hex(4)}"


def file_of(key: str, suffix: str = ".json") -> Path:
    """The file of a job that ends so: its record, its text, its log, its exit code."""
    return jobs_folder() / f"{key}{suffix}"


def note(record: LaunchRecord) -> None:
    """Write a record down, for this user alone."""
    _write(file_of(record.key), json.dumps(asdict(record), indent=2, ensure_ascii=False) + "\n")


def keep_text(key: str, text: str) -> Path:
    """The text of a job in a file beside its record, as it is handed over."""
    path = file_of(key, ".sh")
    _write(path, text)
    return path


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(path, text)
        path.chmod(0o600)
    except OSError as error:
        raise DataError(
            f"{path}: the record of the job cannot be written ({error.strerror}); set UPS_STATE to a folder of yours."
        ) from error


def all_records() -> list[LaunchRecord]:
    """Every record there is, the oldest first; a file that holds none is passed over."""
    records = (_read(path) for path in sorted(jobs_folder().glob("*.json")))
    return sorted((record for record in records if record is not None), key=lambda record: (record.time, record.key))


def record_of(job: str) -> LaunchRecord:
    """The record of a job by its key, its engine's identity, or the name of its run where that is the only one."""
    records = all_records()
    for field in ("key", "identity", "name"):
        matches = [record for record in records if getattr(record, field) == job]
        if len(matches) > 1:
            named = ", ".join(record.key for record in matches)
            raise ConfigError(f"'{job}' may be any of {named}; name one of them.")
        if matches:
            return matches[0]
    raise ConfigError(f"'{job}': no such job was submitted from here; `ups launch status` lists all of them.")


def record_with(engine: str, identity: str) -> LaunchRecord:
    """The record of the job to which an engine gave this identity."""
    for record in all_records():
        if (record.engine, record.identity) == (engine, identity):
            return record
    raise ConfigError(f"'{identity}': no such job was launched on {engine} from here.")


def with_identity(record: LaunchRecord, identity: str) -> LaunchRecord:
    """The record of a job whose identity is known now; written down where the disk takes it, for a job that runs is
    found by its key as well."""
    known = replace(record, identity=identity)
    with contextlib.suppress(DataError):
        note(known)
    return known


def _read(path: Path) -> LaunchRecord | None:
    values: dict[str, Any] = read_json(path)
    kinds = {field.name: int if field.name in ("nodes", "gpus") else str for field in fields(LaunchRecord)}
    if values.keys() != kinds.keys() or not all(isinstance(values[name], kind) for name, kind in kinds.items()):
        return None
    return LaunchRecord(**values) if KEY.fullmatch(values["key"]) and path.name == f"{values['key']}.json" else None


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
