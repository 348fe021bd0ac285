"""The supervisor: owns a job from outside its ranks; starts them, watches them, restarts them, and tells the truth."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from ups.launch import evidence
from ups.launch.attempt import Asked, Attempt
from ups.launch.job import Job, Start, environment, new_token, refuse_nesting
from ups.launch.launchers import Launcher, Processes, Torchrun, port_taken
from ups.launch.limits import Limits
from ups.launch.worker import LEDGER, SUCCESS, write_ledger
from ups.types import ConfigError
from ups.verdict import Ending, Verdict, classify, now, read_json

RESERVE = ".reserve"
PAUSE = 0.25  # seconds before ranks are started again; doubled for each attempt in vain
STOPS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)


class Supervisor:
    """Runs `job` in the run folder `home` until it has succeeded or can truthfully be said to have failed.

    `progress()` is the step of the newest verified checkpoint: attempts that do not raise it are counted, and too
    many in a row end the run. `launcher` is torchrun for several ranks and a plain process for one. `relay` gets what
    rank 0 prints. To be called from the main thread: ranks die with the thread that started them, and requests to
    stop (SIGTERM, SIGUSR1, SIGINT, SIGHUP) arrive there.
    """

    def __init__(
        self,
        job: Job,
        home: Path,
        limits: Limits | None = None,
        say: Callable[[str], None] = print,
        *,
        progress: Callable[[], int] = lambda: 0,
        launcher: Launcher | None = None,
        relay: Callable[[bytes], None] | None = None,
    ) -> None:
        refuse_nesting()
        self.job = job
        self.home = home.resolve()
        self.limits = limits or Limits()
        self.launcher = launcher or (Processes() if job.alone else Torchrun(join=min(self.limits.start, 300)))
        self._tell = say
        self._progress = progress
        self._relay = relay
        self._asked = Asked([])
        self._token = new_token()
        self._attempts: list[dict[str, Any]] = []
        self._stale = 0
        self._reached = 0
        self._lost_since: float | None = None

    def supervise(self) -> Verdict:
        """The verdict, which is also written to verdict.json; its `ending` is the exit code of the command."""
        written = self.home / "verdict.json"
        before = written.read_bytes() if written.exists() else b""
        with self._listening():
            self._prepare(written)
            runtime = Path(tempfile.mkdtemp(prefix=f"ups-{os.getpid()}-", dir=_memory()))
            try:
                verdict = self._until_the_end(runtime)
            finally:
                evidence.sweep(self._token)
                shutil.rmtree(runtime, ignore_errors=True)
            verdict = replace(verdict, time=now(), attempts=tuple(self._attempts))
            return self._publish(verdict, written, before)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ask the ranks to make a checkpoint and leave; a second Ctrl-C does not wait."""
        self._asked.ask(number)

    def _until_the_end(self, runtime: Path) -> Verdict:
        number = self._next_number()
        while True:
            before = self._step()
            began = time.monotonic()
            try:
                verdict, detection = self._attempt(runtime, number)
            except OSError as error:  # the disk or the process table is full
                kind = classify(error)
                verdict = Verdict(kind.ending, f"the ranks could not be started: {error}", kind=type(error).__name__)
                detection = None
            after = self._step()
            if self.job.nodes > 1:
                verdict = self._compare(verdict, number)
            self._note(number, verdict, before, after, time.monotonic() - began, detection)
            final = self._decide(verdict, before, after)
            if final is not None:
                return final
            self._say(f"attempt {number} ended: {verdict.cause} Starting again from step {after}.")
            time.sleep(min(PAUSE * 2**self._stale, 5.0))
            number += 1

    def _step(self) -> int:
        """How far the run can be resumed from; what was known before, where the disk does not answer."""
        with contextlib.suppress(OSError):
            self._reached = self._progress()
        return self._reached

    def _attempt(self, runtime: Path, number: int) -> tuple[Verdict, float | None]:
        start = self._begin(runtime, number)
        success = self.home / SUCCESS
        attempt = Attempt(
            start, success, self.launcher, self.limits, self._asked, self._say, self._relay, self._given_up
        )
        verdict = attempt.run()
        if verdict.ending in (Ending.CRASH, Ending.RANK_DIED) and self._full():
            cause = f"{self.home}: its disk is full; free some space and --resume. {verdict.cause}"
            verdict = replace(verdict, ending=Ending.STORAGE, cause=cause, transient=False)
        return verdict, attempt.detection

    def _full(self) -> bool:
        """Whether there is no room left for even a line: then every other failure is only its shadow."""
        with contextlib.suppress(OSError):
            return shutil.disk_usage(self.home).free < 4096
        return False

    def _compare(self, verdict: Verdict, number: int) -> Verdict:
        """Tell the other nodes how this attempt ended here; where that was only an echo, hear who was first."""
        logs = self.home / "logs" / f"attempt-{number}"
        if not verdict.echo:
            with contextlib.suppress(OSError):
                verdict.write(logs / f"verdict-{self.job.node}.json")
            return verdict
        end = time.monotonic() + self.limits.echo
        while True:
            told = [found for path in logs.glob("verdict-*.json") if (found := Verdict.read(path)) is not None]
            if told:
                return replace(told[0], echo=True, transient=True)
            if time.monotonic() > end:
                return verdict
            time.sleep(0.1)

    def _decide(self, verdict: Verdict, before: int, after: int) -> Verdict | None:
        """The last word, or None to start again."""
        if self._asked or not verdict.restarts:
            return verdict
        elsewhere = verdict.echo and self.job.nodes > 1
        if after > before:
            self._stale, self._lost_since = 0, None
        if verdict.ending == Ending.OOM:
            left = self._halve(verdict)
            if left is not None:  # a smaller microbatch is another attempt, and there are only so many of them
                return verdict if left == 0 else None
        if elsewhere:
            return self._without_others(verdict)
        self._stale += after <= before
        if self._stale < self.limits.attempts:
            return None
        return replace(
            verdict,
            ending=Ending.NO_PROGRESS,
            cause=f"{self._stale} attempts in a row ended without a newer checkpoint than step {after}; "
            f"the last one as {verdict.ending.name}: {verdict.cause}",
            facts={**verdict.facts, "underlying": verdict.ending.name},
        )

    def _halve(self, verdict: Verdict) -> int | None:
        """Tell the next attempt to take half as many samples at once; 0: no half is left; None: nobody knows."""
        size = verdict.microbatch or int(read_json(self.home / LEDGER).get("microbatch") or 0)
        if not size:
            return None
        if size > 1 and self.job.node == 0:
            try:
                write_ledger(self.home, size // 2)
            except OSError as error:
                self._say(f"{self.home / LEDGER}: could not be written ({error.strerror}).")
                return None
        return size // 2

    def _without_others(self, verdict: Verdict) -> Verdict | None:
        """Another node's fault uses up none of this one's attempts, only patience."""
        given_up = self._given_up()
        if given_up is not None:
            return given_up
        self._lost_since = self._lost_since or time.monotonic()
        if time.monotonic() - self._lost_since < self.limits.rejoin:
            return None
        cause = f"the other nodes did not come back within {self.limits.rejoin:.0f} s: {verdict.cause}"
        return replace(verdict, ending=Ending.RANK_DIED, cause=cause, transient=False)

    def _given_up(self) -> Verdict | None:
        """What another node said when it left for good, where too few are left without it."""
        if self.job.nodes == 1:
            return None
        ours = self.home / f".node-{self.job.node}.json"
        gone = [Verdict.read(path) for path in sorted(self.home.glob(".node-*.json")) if path != ours]
        if not gone or self.job.nodes - len(gone) >= (self.job.least or self.job.nodes):
            return None
        return next((replace(v, echo=False) for v in gone if v is not None), None)

    def _prepare(self, written: Path) -> None:
        """A clean start: nothing of an earlier life of this run is left to be mistaken for this one's."""
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / f".node-{self.job.node}.json").unlink(missing_ok=True)
        if self.job.node == 0:
            (self.home / SUCCESS).unlink(missing_ok=True)
            written.unlink(missing_ok=True)
        self._clear_orphans()
        if self.job.nodes > 1 and self.job.node == 0 and port_taken(self.job.rendezvous):
            raise ConfigError(f"{self.job.rendezvous}: the port is in use here; choose another for --rendezvous.")
        with contextlib.suppress(OSError):  # on a full disk the verdict takes this place
            (self.home / RESERVE).write_bytes(bytes(64 * 1024))
        for old in _memory().glob("ups-*-*"):
            owner = old.name.split("-")[1]
            if owner.isdigit() and not evidence.state_of(int(owner)) and old.owner() == _user():
                shutil.rmtree(old, ignore_errors=True)

    def _clear_orphans(self) -> None:
        """Ranks of this run whose supervisor is gone are ended; a living supervisor is not to be disturbed."""
        for pid, env in evidence.owned("UPS_HOME", str(self.home)).items():
            owner = int(env.get("UPS_SUPERVISOR", "0"))
            if owner != os.getpid() and evidence.state_of(owner) not in ("", "Z"):
                if self.job.nodes > 1:
                    continue
                raise ConfigError(f"{self.home}: process {owner} is running it; wait for it, or stop it.")
            self._say(f"process {pid} was left over from an earlier start of this run and has been ended.")
            evidence.sweep(env.get("UPS_TOKEN", ""))

    def _begin(self, runtime: Path, number: int) -> Start:
        folder, logs = runtime / f"attempt-{number}", self.home / "logs" / f"attempt-{number}"
        folder.mkdir()
        logs.mkdir(parents=True, exist_ok=True)
        env = environment(self.job, number, folder, logs, self.home, self._token)
        return Start(self.job, number, folder, logs, env)

    def _next_number(self) -> int:
        """Attempts are counted over the life of a run, so that no log is ever written twice."""
        known = list((self.home / "logs").glob("attempt-*"))
        if self.job.nodes > 1:  # nodes start together and number alike: what another has just made is ours too
            known = [path for path in known if (path / f"launcher-{self.job.node}.log").exists()]
        numbers = [path.name.removeprefix("attempt-") for path in known]
        return max((int(n) for n in numbers if n.isdigit()), default=0) + 1

    def _note(
        self, number: int, verdict: Verdict, before: int, after: int, seconds: float, detection: float | None
    ) -> None:
        long = ("attempts", "traceback", "where")
        entry = {key: value for key, value in verdict.to_dict().items() if key not in long}
        entry.update(attempt=number, from_step=before, to_step=after, seconds=round(seconds, 3))
        entry["detection"] = None if detection is None else round(detection, 3)
        self._attempts.append(entry)

    def _publish(self, verdict: Verdict, written: Path, before: bytes) -> Verdict:
        """Node 0 writes the verdict; the others end with the same one."""
        (self.home / RESERVE).unlink(missing_ok=True)
        ours = written if self.job.node == 0 else self.home / f".node-{self.job.node}.json"
        try:
            if self.job.node != 0:
                if verdict.ending not in (Ending.SUCCESS, Ending.PREEMPTED, Ending.INTERRUPTED):
                    verdict.write(ours)
                return self._the_first(written, before) or verdict
            verdict.write(written)
        except OSError as error:
            self._say(f"{ours}: the verdict could not be written ({error.strerror}); it was: {verdict.cause}")
            if verdict.ending == Ending.SUCCESS:
                return replace(verdict, ending=Ending.STORAGE, cause=f"{written}: {error.strerror}; free some space.")
        return verdict

    def _the_first(self, written: Path, before: bytes) -> Verdict | None:
        end = time.monotonic() + self.limits.teardown
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                if written.read_bytes() != before:
                    return Verdict.read(written)
            time.sleep(0.1)
        return None

    def _say(self, text: str) -> None:
        """To whoever listens; a closed terminal does not end a run."""
        with contextlib.suppress(OSError, ValueError):
            self._tell(text)

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def hear(number: int, _frame: FrameType | None) -> None:
            self._asked.ask(number)

        old = {number: signal.signal(number, hear) for number in STOPS}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)


def _memory() -> Path:
    """Where heartbeats live: in memory, where a full or slow disk cannot stop them."""
    shm = Path("/dev/shm")
    return shm if os.access(shm, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name
