"""The engine `local`: a job in the background of this machine, or in front of it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from ups.lazy_imports import torch
from ups.types import ConfigError, DataError, counted
from ups.wire import host_and_port
from ups_fleet.submit.job import LaunchJob, Status, ended
from ups_fleet.submit.records import file_of, jobs_folder, keep_text
from ups_fleet.submit.shell import begun_or_resumed, checks, quoted, within_seconds
from ups_fleet.supervise.children import log_of, start
from ups_fleet.supervise.job import refuse_nesting
from ups_fleet.supervise.network import check_interface, local_address, port_taken
from ups_fleet.supervise.proc import end_all, is_mine, owned, stat_of

VARIABLE = "UPS_JOB"  # by which all processes of a job are found, whoever their parent became
CODE = "UPS_JOB_CODE"  # the file in which its script leaves the exit code
GRACE = "UPS_JOB_GRACE"  # seconds that they have for their last checkpoint
LOOK = 0.1
LONGEST = 3600.0  # seconds that a job is waited for

SCRIPT = """\
#!/bin/sh
# ups launch local: {name}
{ending}{checks}
{resume}
{command}
"""
# The code is left for `ups launch status`, whatever the script ends with.
ENDING = """\
trap 'echo "$?" > "${code}"' EXIT
"""
# A request to stop is passed on; a signal ends `wait` before its time.
BACKGROUND = """\
trap 'kill -TERM "$child"' TERM HUP INT
{command} "$@" &
child=$!
wait "$child"
code=$?
while kill -0 "$child" 2>/dev/null; do
    wait "$child"
    code=$?
done
exit "$code"\
"""


class Local:
    """Processes of this machine, in a session of their own. The identity of a job is its key."""

    def check(self, job: LaunchJob) -> None:
        check_here(job)

    def render(self, job: LaunchJob) -> str:
        words = job.words()
        if job.nodes > 1:
            words += [f"--node-rank={job.options['node_rank']}", f"--rendezvous={job.options['rendezvous']}"]
        command = f"{within_seconds(job)} {quoted(words)}".strip()
        front = bool(job.options.get("front"))
        return SCRIPT.format(
            name=job.name,
            ending="" if front else ENDING.format(code=CODE),
            checks=checks(job.inputs, job.place),
            resume=begun_or_resumed(job.folder),
            command=f'exec {command} "$@"' if front else BACKGROUND.format(command=command),
        )

    def submit(self, job: LaunchJob, text: str) -> str:
        script = keep_text(job.key, text)
        own = {VARIABLE: job.key, GRACE: str(job.grace), CODE: str(file_of(job.key, ".code"))}
        with log_of(file_of(job.key, ".log")) as log:
            start(["sh", str(script)], log, env={**os.environ, **own})
        return job.key

    def find(self, key: str) -> str | None:
        return key if self._processes(key) or file_of(key, ".log").exists() else None

    def status(self, identity: str) -> Status:
        if pids := self._processes(identity):
            return Status("running", f"at work in {counted(len(pids), 'process')} of this machine.")
        try:
            code = int(file_of(identity, ".code").read_text())
        except (OSError, ValueError):
            return Status("gone", "it has no process on this machine, and has left no exit code: it was killed.")
        return ended(code)

    def logs(self, identity: str) -> Iterator[str]:
        try:
            yield file_of(identity, ".log").read_text(errors="replace")
        except OSError:
            raise DataError(f"{identity}: has left no log in {jobs_folder()}.") from None

    def stop(self, identity: str) -> None:
        patience = max(map(_patience, _mine(identity).values()), default=0.0)
        for pid in self._leaders(identity):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        end = time.monotonic() + patience
        while time.monotonic() < end and self._processes(identity):
            time.sleep(LOOK)
        if left := end_all(lambda: self._processes(identity)):
            raise DataError(f"{identity}: processes {left} would not end; they wait for a disk or a device.")

    def _processes(self, key: str) -> list[int]:
        return sorted(_mine(key))

    def _leaders(self, key: str) -> list[int]:
        """The processes of a job that no other of them has started."""
        pids = set(self._processes(key))
        return [pid for pid in pids if (fields := stat_of(pid)) and int(fields[1]) not in pids]


def _mine(key: str) -> dict[int, dict[str, str]]:
    """This user's processes of a job: anybody may put its key into an environment."""
    return {pid: own for pid, own in owned(VARIABLE, key).items() if is_mine(Path(f"/proc/{pid}"))}


def _patience(own: Mapping[str, str]) -> float:
    """Seconds that a process may take to save, as its environment says."""
    try:
        return min(max(float(own.get(GRACE, "0")), 0.0), LONGEST)
    except ValueError:
        return 0.0


def check_here(job: LaunchJob) -> None:
    """A ConfigError for the first thing that is not here."""
    refuse_nesting()
    if job.gpus:
        _check_gpus(job.gpus)
    if job.nodes == 1:
        return
    node, rendezvous = int(job.options.get("node_rank", 0)), str(job.options.get("rendezvous", ""))
    if not 0 <= node < job.nodes:
        raise ConfigError(f"--node-rank is {node}, but nodes are counted from 0 to {job.nodes - 1}.")
    host, _ = host_and_port(rendezvous)
    if job.interface:
        check_interface(job.interface)
    if node == 0 and port_taken(rendezvous):
        raise ConfigError(f"{rendezvous}: somebody listens there already; choose another port, the same on all nodes.")
    if not local_address(rendezvous):
        raise ConfigError(f"{rendezvous}: this machine knows no way to {host}; give an address that all nodes reach.")


def _check_gpus(count: int) -> None:
    """What torch sees, as the ranks will."""
    there = int(torch.cuda.device_count())
    if there < count:
        lacks = "no GPU" if there == 0 else counted(there, "GPU")
        wanted = f"{counted(count, 'GPU')} {'is' if count == 1 else 'are'} wanted"
        raise ConfigError(f"{wanted}, and torch sees {lacks} here; ask for fewer, or try `ups doctor`.")
