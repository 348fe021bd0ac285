"""The engine `vast`: a machine rented at Vast.ai for one job; it gives itself back, what it left is brought home."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ups.files import write_atomic
from ups.types import ConfigError, DataError
from ups_fleet.secrets import hiding
from ups_fleet.submit.job import LaunchJob, Status, ended
from ups_fleet.submit.records import LaunchRecord, file_of, record_with
from ups_fleet.submit.vast.client import Client, Machine, VastError
from ups_fleet.submit.vast.rent import (
    check_label,
    check_money,
    check_options,
    destroy_all,
    in_doubt,
    machines_of,
    offers,
    rented,
)
from ups_fleet.submit.vast.source import render

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


REST, LOOK = 60.0, 2.0  # seconds that a machine may take to stop (it is copied in any case), and between two looks
ENGINE = "vast"


def _say(sentence: str) -> None:
    print(f"ups: {sentence}", file=sys.stderr, flush=True)


class Vast:
    """Machines of Vast.ai. The identity of a job is the number of its machine."""

    def __init__(self, say: Callable[[str], None] = _say) -> None:
        self.client, self.say = Client(), say

    def check(self, job: LaunchJob) -> None:
        self.check_shape(job)
        if missing := [name for name in ("repo", "commit", "at", "config", "package") if name not in job.options]:
            raise ConfigError(f"where the code comes from is not said ({', '.join(missing)}).")

    def check_shape(self, job: LaunchJob) -> None:
        """A ConfigError for what no rented machine can do."""
        if job.nodes > 1:
            raise ConfigError(f"Vast rents single machines, not {job.nodes} nodes; ask for more --gpus, or use slurm.")
        if job.points:
            raise ConfigError("a sweep has no single machine; launch its runs one by one.")
        if job.gpus < 1:
            raise ConfigError("Vast rents machines with GPUs; say how many: --gpus 1.")
        if job.seconds is None:
            raise ConfigError("a rented machine needs an end; say after what time it is given back: --time 2h.")
        check_options(job.options)
        if not all(re.fullmatch(r"[A-Za-z_]\w*", name) for name in job.variables):
            raise ConfigError("--secret takes the name of an environment variable alone, never its value.")

    def render(self, job: LaunchJob) -> str:
        return render(job)

    def quote(self, job: LaunchJob) -> str:
        """Which machine would be rented now and what it costs; a ConfigError where key, money or machine is missing."""
        if job.variables:
            self._check_variables(job)
        candidates = offers(self.client, job)
        check_money(self.client, job, candidates[0])
        return candidates[0].sentence(job, len(candidates))

    def submit(self, job: LaunchJob, text: str) -> str:
        return str(rented(self.client, job, text, self.say).id)

    def find(self, key: str) -> str | None:
        if machines := machines_of(self.client, key):
            return str(machines[0].id)
        if in_doubt(key):
            remedy = "ask again in some minutes, or look at https://console.vast.ai/instances/"
            raise VastError(f"{key}: its launch failed, and whether a machine of it is left is not known; {remedy}.")
        return None

    def status(self, identity: str) -> Status:
        record, machine = self._job(identity)
        key = record.key
        if machine is None:
            return end_of(kept_log(key)) or Status("gone", "Vast has no such machine any more: it was given back.")
        cost = f"machine {machine.id} costs ${machine.price:.3f}/h"
        if machine.stopped:
            disk = f"its disk costs ${machine.disk_price * 24:.2f} a day until `ups launch reap`"
            status = end_of(keep_log(self.client, machine.id, key))
            return (
                Status(status.state, f"{status.sentence} It has stopped; {disk}.", status.code)
                if status
                else Status("stopped", f"it was stopped before its run ended; {disk}.")
            )
        if machine.state == "running":
            return Status("running", f"{cost}.")
        return Status("queued", f"{machine.state or 'no state'} {machine.message}; {cost}.".replace(" ;", ";"))

    def logs(self, identity: str) -> Iterator[str]:
        record, machine = self._job(identity)
        if machine is not None:
            yield keep_log(self.client, int(identity), record.key)
        elif file_of(record.key, ".log").exists():
            yield kept_log(record.key)
        else:
            raise DataError(f"{record.key}: its machine is gone, and left no log here; look into its `sync` store.")

    def stop(self, identity: str) -> None:
        record, machine = self._job(identity)
        if machine is not None:
            give_back(self.client, machine, record)

    def _job(self, identity: str) -> tuple[LaunchRecord, Machine | None]:
        """The job of this engine that has a machine, and the machine; a VastError where that is another's."""
        record, machine = record_with(ENGINE, identity), self.client.shown(int(identity))
        check_label(machine, record.key)
        return record, machine

    def _check_variables(self, job: LaunchJob) -> None:
        """A ConfigError for variables that the account does not give its machines."""
        if missing := sorted(set(job.variables) - self.client.variables()):
            remedy = f"give it to your machines once: `vastai create env-var {missing[0]} VALUE`"
            raise ConfigError(f"the run needs {', '.join(missing)}, which your account at Vast has not; {remedy}.")


def give_back(client: Client, machine: Machine, record: LaunchRecord, *, discard: bool = False) -> None:
    """Stop a machine, bring home what it has left, destroy it. What cannot be brought home stays on its disk, unless it
    is to be discarded: what a machine does now says nothing of what it did."""
    check_label(machine, record.key)
    rests = machine.stopped or _come_to_rest(client, machine.id)
    try:
        log = log_of(client, machine.id)
        store_log(log, record.key)
        bring_home(client, machine.id, record, log)
    except VastError as error:
        if not discard:
            disk = f"its disk (${machine.disk_price * 24:.2f} a day) is kept"
            state = f"is stopped, and {disk}" if rests else "still runs"
            raise VastError(
                f"{record.key}: {error} Machine {machine.id} {state}: mend that and run `ups launch reap`, or throw "
                "its files away with `ups launch reap --discard`."
            ) from None
    destroy_all(client, record.key, [machine.id])


def _come_to_rest(client: Client, id: int) -> bool:
    """Stop a machine and wait for it: its run saves, and its log gets its last line. Whether it has come to rest."""
    end = time.monotonic() + REST
    while True:
        try:
            client.stop(id)
            if (machine := client.shown(id)) is None or machine.stopped:
                return True
        except VastError as error:
            if error.key:
                raise
        if time.monotonic() > end:
            return False
        time.sleep(LOOK)
