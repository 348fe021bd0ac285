"""Brings the log and the run's folder of a rented machine home before it is destroyed."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from ups.files import write_atomic
from ups_fleet.submit.ended import ended
from ups_fleet.submit.job import Status
from ups_fleet.submit.records import LaunchRecord, file_of
from ups_fleet.submit.vast.client import Client, VastError
from ups_fleet.tracking.secrets import hiding

LINES = 100_000
# What the start script says last.
ENDED = re.compile(r"^ups launch: ended with code (\d+), left (\d+) files$", re.MULTILINE)
BEGUN = "ups launch: the run begins"
UNKNOWN = -1
FOLDER = "/root/ups/runs"


def keep_log(client: Client, id: int, key: str) -> str:
    """The log of a machine, asked for now and kept beside the record of its job; one that was longer stays."""
    return store_log(log_of(client, id), key)


def log_of(client: Client, id: int) -> str:
    """What a machine has printed, without the keys and passwords that this environment knows."""
    return hiding(os.environ)(client.logs(id, LINES).encode()).decode(errors="replace")


def store_log(text: str, key: str) -> str:
    """Keep a log beside the record of its job, and return it; one that was longer stays."""
    path = file_of(key, ".log")
    before = kept_log(key)
    if len(text) < len(before):
        return before
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomic(path, text)
    return text


def kept_log(key: str) -> str:
    """The log as it was kept; empty where none was."""
    try:
        return file_of(key, ".log").read_text(errors="replace")
    except OSError:
        return ""


def end_of(log: str) -> Status | None:
    """How a run ended, as its machine has said; None where it has not."""
    return ended(int(matches[-1][0])) if (matches := ENDED.findall(log)) else None


def files_left(log: str) -> int:
    """How many files a machine has left, as its log says last; UNKNOWN where a log is empty, is cut, or goes on."""
    matches = list(ENDED.finditer(log))
    return int(matches[-1][2]) if matches and BEGUN not in log[matches[-1].end() :] else UNKNOWN


def bring_home(client: Client, id: int, record: LaunchRecord, log: str) -> None:
    """Copy the run's folder of a stopped machine to where it would lie here; a VastError where not all came. Only a log
    that counts 0 files says that there is nothing to copy."""
    files = files_left(log)
    if files == 0:
        return
    target = Path(record.folder)
    try:
        _copy(client, id, record, target, files)
    except OSError as error:
        raise VastError(f"{target}: cannot be written ({error.strerror}).") from None


def _copy(client: Client, id: int, record: LaunchRecord, target: Path, files: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as draft:
        client.copy(id, f"{FOLDER}/", Path(draft) / "runs")
        run = _run_in(Path(draft) / "runs", target.name)
        came = sum(path.is_file() for path in (Path(draft) / "runs").rglob("*"))
        if came < files or not run.is_dir():
            count = f"{came} of {files}" if files > 0 else "none"
            raise VastError(f"{count} files of {record.key} were copied from machine {id} by rsync.")
        if target.exists():
            raise VastError(f"{target}: is there already; move it away, and the run of machine {id} is put there.")
        run.rename(target)


def _run_in(folder: Path, name: str) -> Path:
    """The folder of a run: of that name, or the only one there, where its name is not known here."""
    folders = [path for path in folder.glob("*") if path.is_dir()]
    return folders[0] if len(folders) == 1 else folder / name
