"""The supervisor: starts the ranks of a job, watches them from outside, restarts them, and writes the verdict."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ups.files import holder
from ups.presence import SignsOfLife
from ups.rundir import RunDir, RunPlace
from ups.shortage import remedy
from ups.types import ConfigError, counted
from ups.verdict import AS_ASKED, Ending, StorageError, Verdict, classify, now, with_remedy
from ups_fleet.supervise.job import RankJob, RankStart, environment, refuse_nesting
from ups_fleet.supervise.launchers import Launcher, launcher_of
from ups_fleet.supervise.limits import Limits, Stays
from ups_fleet.supervise.network import port_taken
from ups_fleet.supervise.proc import end_all, is_mine, of_run, seen_by, sweep
from ups_fleet.supervise.rank_context import microbatch_of, write_microbatch
from ups_fleet.supervise.start_dir import StartDir
from ups_fleet.supervise.stop_requests import StopRequests
from ups_fleet.supervise.watch import RankWatch

RESERVE = 64 * 1024  # bytes
PAUSE = 0.25  # seconds before ranks are started again; doubled for each attempt in vain


class Supervisor:
    """Runs `job` in the run folder `home` until it has succeeded or has failed for good.

    `progress()` is the step of the newest verified checkpoint: starts of the ranks that do not raise it are counted,
    and too many in a row end the run. `launcher`: what `launcher_of` chooses for the job, by default. `relay` gets
    what rank 0 prints, and no bytes at looks without news. `advice()` says what could be deleted where the disk is
    full. To be called from the main thread: ranks die with the thread that started them, and requests to stop (SIGTERM,
    SIGUSR1, SIGINT, SIGHUP) arrive there. `last`: the process ends with the verdict, and a signal that comes after it
    changes nothing.
    """

    def __init__(
        self,
        job: RankJob,
        home: Path,
        limits: Limits | None = None,
        say: Callable[[str], None] = print,
        *,
        progress: Callable[[], int] = lambda: 0,
        launcher: Launcher | None = None,
        relay: Callable[[bytes], None] | None = None,
        advice: Callable[[], str] = str,
        last: bool = False,
    ) -> None:
        refuse_nesting()
        self.job, self.run, self.limits = job, RunDir(home.resolve()), limits or Limits()
        self.launcher = launcher or launcher_of(job)
        self._print, self._progress, self._relay, self._advice, self._last = say, progress, relay, advice, last
        self._stops = StopRequests()
        self._stays = Stays(self.run.stays(job.node), job.ranks)
        self._token = secrets.token_hex(8)  # by which its processes are found again, whoever their parent became
        self._attempts: list[dict[str, Any]] = []
        self._stale = 0  # starts in a row without a newer checkpoint
        self._reached = 0
        self._lost_since: float | None = None

    def supervise(self) -> Verdict:
        """The verdict, which is also written to verdict.json; its `ending` is the exit code of the command."""
        before = self.run.verdict.read_bytes() if self.run.verdict.exists() else b""
        with self._stops.listening(to_the_end=self._last), contextlib.closing(self.launcher):
            self._prepare()
            place = RunPlace(self.run.folder)
            try:
                verdict = self._until_the_end()
            finally:
                sweep(self._token)
            verdict = replace(verdict, time=now(), attempts=tuple(self._attempts))
            if verdict.ending == Ending.STORAGE:
                verdict = replace(verdict, cause=with_remedy(verdict.cause, self._advice()))
            try:
                place.require()
            except StorageError as error:  # what lies there now is not this run's to write to
                return replace(verdict, ending=Ending.STORAGE, cause=str(error))
            return self._publish(verdict, before)

    def _until_the_end(self) -> Verdict:
        number = self._next_number()
        while True:
            before = self._step()
            began = time.monotonic()
            try:
                verdict, detection = self._one_start(number)
            except OSError as error:  # the disk or the process table is full
                kind = classify(error)
                cause, detection = f"the ranks could not be started: {error}", None
                verdict = Verdict(kind.ending, cause, kind=type(error).__name__, transient=kind.transient)
            # Nobody goes on from a success, and to verify checkpoints means to read all of them.
            after = before if verdict.ending in AS_ASKED else self._step()
            if self.job.nodes > 1:
                verdict = self._compare(verdict, number)
            self._note(number, verdict, before, after, time.monotonic() - began, detection)
            final = self._decide(verdict, before, after)
            if final is not None:
                return final
            start = f"with the {counted(after, 'step')} kept of all stages" if after else "from the beginning"
            self._say(f"attempt {number} ended: {verdict.cause} Starting again {start}.")
            time.sleep(min(PAUSE * 2**self._stale, 5.0))
            number += 1

    def _step(self) -> int:
        """How far the run can be resumed from; what was known before, where the disk does not answer."""
        with contextlib.suppress(OSError):
            self._reached = self._progress()
        return self._reached

    def _one_start(self, number: int) -> tuple[Verdict, float | None]:
        """How a start of the ranks ended, and after how many seconds a failure was noticed."""
        files, alive = StartDir.create(number), SignsOfLife(self.run.lock if self.job.node == 0 else None)
        try:
            watch = RankWatch(
                self._start(files, number),
                self.run.success,
                self.launcher,
                self.limits,
                self._stops,
                self._say,
                self._relay,
                self._given_up,
                self._stays,
                alive,
            )
            verdict = watch.run()
        finally:
            alive.close()
            with contextlib.suppress(OSError):
                files.remove()
        if verdict.ending in (Ending.CRASH, Ending.RANK_DIED) and (refusal := self._refusal()):
            cause = f"{self.run.folder}: {refusal} and --resume. {verdict.cause}"
            verdict = replace(verdict, ending=Ending.STORAGE, cause=cause, transient=False)
        return verdict, watch.detection

    def _refusal(self) -> str:
        """Why the disk takes not even a line, and what to do: then every other failure is only its shadow."""
        with contextlib.suppress(OSError):
            if shutil.disk_usage(self.run.folder).free < 4096:
                return "its disk is full; free some space"
            if os.statvfs(self.run.folder).f_flag & os.ST_RDONLY:
                return "its disk is read-only; mount it again"
        return ""

    def _compare(self, verdict: Verdict, number: int) -> Verdict:
        """Tell the other nodes how this start ended here; if only by an echo, take the verdict of another node."""
        logs = self.run.attempt_logs(number)
        if not verdict.echo:
            with contextlib.suppress(OSError):
                verdict.write(logs / f"verdict-{self.job.node}.json")
            return verdict
        end = time.monotonic() + self.limits.echo
        while True:
            others = [other for path in logs.glob("verdict-*.json") if (other := Verdict.read(path)) is not None]
            if others:
                return replace(others[0], echo=True, transient=True)
            if time.monotonic() > end:
                return verdict
            time.sleep(0.1)

    def _decide(self, verdict: Verdict, before: int, after: int) -> Verdict | None:
        """The verdict to end with, or None to start again."""
        if self._stops or not verdict.restarts:
            return verdict
        elsewhere = verdict.echo and self.job.nodes > 1
        if after > before:
            self._stale, self._lost_since = 0, None
        if verdict.ending == Ending.OOM:
            left = self._halve(verdict)
            if left is not None:  # a smaller microbatch is another attempt, and there are only so many of them
                return _without_memory(verdict) if left == 0 else None
        if elsewhere:
            return self._without_others(verdict)
        self._stale += after <= before
        if verdict.ending == Ending.HANG and not verdict.step and self.launcher.afresh():
            self._say("no rank had taken a step. Ranks were copies of this process; from now on they are begun afresh.")
            return None
        if self._stale < self.limits.attempts:
            return None
        if verdict.ending == Ending.OOM:
            return _without_memory(verdict)
        return replace(
            verdict,
            ending=Ending.NO_PROGRESS,
            cause=f"{counted(self._stale, 'attempt')} in a row ended without a newer checkpoint than step {after}; "
            f"the last one as {verdict.ending.name}: {verdict.cause}",
            facts={**verdict.facts, "underlying": verdict.ending.name},
        )

    def _halve(self, verdict: Verdict) -> int | None:
        """Half the microbatch for the next start; 0: no half is left; None: the microbatch is not known."""
        size = min((n for n in (verdict.microbatch, microbatch_of(self.run)) if n), default=0)
        if not size:
            return None
        if size > 1 and self.job.node == 0:
            try:
                write_microbatch(self.run, size // 2)
            except OSError as error:
                self._say(f"{self.run.ledger}: could not be written ({error.strerror}).")
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
        """The verdict of a node that left for good, if too few are left without it."""
        if self.job.nodes == 1:
            return None
        ours = self.run.node_verdict(self.job.node)
        gone = [Verdict.read(path) for path in self.run.node_verdicts() if path != ours]
        if not gone or self.job.nodes - len(gone) >= (self.job.least or self.job.nodes):
            return None
        return next((replace(v, echo=False) for v in gone if v is not None), None)

    def _prepare(self) -> None:
        """Remove what an earlier supervisor of this run left and could be mistaken for this one's."""
        self.run.folder.mkdir(parents=True, exist_ok=True)
        self._clear_orphans()
        self.run.node_verdict(self.job.node).unlink(missing_ok=True)
        if self.job.node == 0:
            self.run.success.unlink(missing_ok=True)
            self.run.verdict.unlink(missing_ok=True)
        if self.job.nodes > 1 and self.job.node == 0 and port_taken(self.job.rendezvous):
            raise ConfigError(f"{self.job.rendezvous}: the port is in use here; choose another for --rendezvous.")
        self._reserve()
        StartDir.sweep()

    def _reserve(self) -> None:
        """Room that the verdict takes on a full disk: of this supervisor, or, where there is none then, of the next."""
        with contextlib.suppress(OSError):
            if not self.run.reserve.exists() or self.run.reserve.stat().st_blocks * 512 < RESERVE:
                self.run.reserve.write_bytes(bytes(RESERVE))

    def _clear_orphans(self) -> None:
        """Ranks of this run whose supervisor is gone are ended; a living supervisor is not to be disturbed."""
        folder = self.run.folder
        for pid, variables in of_run(folder).items():
            owner = _supervisor_of(pid, variables)
            if owner is None:
                self._say(f"process {pid} was left over from an earlier start of this run and has been ended.")
            elif self.job.nodes == 1:
                who = f"process {owner}" if owner else f"the supervisor of process {pid}, in another container,"
                raise ConfigError(f"{folder}: {who} is running it; wait for it, or stop it.")
        end_all(lambda: [pid for pid, env in of_run(folder).items() if _supervisor_of(pid, env) is None])

    def _start(self, files: StartDir, number: int) -> RankStart:
        logs = self.run.attempt_logs(number)
        logs.mkdir(parents=True, exist_ok=True)
        env = environment(self.job, number, files, logs, self.run.folder, self._token)
        return RankStart(self.job, number, files, logs, env, join=min(self.limits.start, 300))

    def _next_number(self) -> int:
        """Starts are counted over the life of a run, so that no log is ever written twice."""
        attempts = self.run.attempts()
        if self.job.nodes > 1:  # nodes start together and number alike: what another has just made is ours too
            log = f"launcher-{self.job.node}.log"
            attempts = {number: logs for number, logs in attempts.items() if (logs / log).exists()}
        return max(attempts, default=0) + 1

    def _note(
        self, number: int, verdict: Verdict, before: int, after: int, seconds: float, detection: float | None
    ) -> None:
        long = ("attempts", "traceback", "where")
        entry = {key: value for key, value in verdict.to_dict().items() if key not in long}
        entry.update(attempt=number, from_step=before, to_step=after, seconds=round(seconds, 3))
        entry["detection"] = None if detection is None else round(detection, 3)
        self._attempts.append(entry)

    def _publish(self, verdict: Verdict, before: bytes) -> Verdict:
        """Node 0 writes the verdict; the others end with the same one."""
        with contextlib.suppress(OSError):  # the disk may have been mounted read-only
            self.run.reserve.unlink(missing_ok=True)
            if verdict.ending == Ending.STORAGE and self.job.node == 0:
                self.run.job.unlink(missing_ok=True)  # where there was no reserve, the verdict takes this place
        ours = self.run.verdict if self.job.node == 0 else self.run.node_verdict(self.job.node)
        try:
            if self.job.node != 0:
                if verdict.ending not in AS_ASKED | {Ending.PREEMPTED, Ending.INTERRUPTED}:
                    verdict.write(ours)
                return self._verdict_of_first_node(before) or verdict
            verdict.write(self.run.verdict)
            if verdict.ending not in AS_ASKED:
                self._reserve()
        except OSError as error:
            self._say(f"{ours}: the verdict could not be written ({error.strerror}); it was: {verdict.cause}")
            if verdict.ending in AS_ASKED:
                cause = with_remedy(f"{self.run.verdict}: {error.strerror}.", "")
                return replace(verdict, ending=Ending.STORAGE, cause=cause)
        return verdict

    def _verdict_of_first_node(self, before: bytes) -> Verdict | None:
        """What node 0 writes in time; `before` is what stood there when this supervisor began."""
        end = time.monotonic() + self.limits.teardown
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                if self.run.verdict.read_bytes() != before:
                    return Verdict.read(self.run.verdict)
            time.sleep(0.1)
        return None

    def _say(self, text: str) -> None:
        """Print a line; a closed terminal does not end a run."""
        with contextlib.suppress(OSError, ValueError):
            self._print(text)


def _supervisor_of(pid: int, variables: Mapping[str, str]) -> int | None:
    """Who watches a rank: the process that holds the folder of its start; None if nobody does, 0 if out of sight.

    A folder that is another user's proves nothing: its name may have been free since the supervisor ended.
    """
    start = StartDir(seen_by(pid, variables["UPS_RUN"]))
    return holder(start.lock) if is_mine(start.folder) else None


def _without_memory(verdict: Verdict) -> Verdict:
    """The last word on a run for which there is too little memory: what to do."""
    advice = remedy(verdict.memory)
    return verdict if advice in verdict.cause else replace(verdict, cause=f"{verdict.cause.rstrip('.')}; {advice}")
