"""One start of the ranks, watched until it ends: exits, records and heartbeats become a verdict."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ups.files import write_atomic
from ups.heartbeat import Beat, read
from ups.host_memory import available
from ups.parsing import read_json
from ups.verdict import AS_ASKED, Ending, Failure, Verdict, read_failures
from ups_fleet.supervise.causes import STOP_SIGNALS, MemoryWatch, as_stopped, first_cause, leaves, signal_name
from ups_fleet.supervise.job import RankStart
from ups_fleet.supervise.launchers.launcher import Exit, Launcher
from ups_fleet.supervise.limits import Limits, Silence, Stays
from ups_fleet.supervise.log_tail import LogRelay, log_tail, tail
from ups_fleet.supervise.network import answers
from ups_fleet.supervise.proc import RankGroups, alive, sweep
from ups_fleet.supervise.rank_states import RankState, keep_evidence, rank_states, rows, table, with_stacks
from ups_fleet.supervise.stillness import Stillness
from ups_fleet.supervise.stop_requests import StopRequests

TICK = 0.1
ASK = 1.0  # seconds between two questions whether node 0 is there


class RankWatch:
    """Starts the ranks, looks at them ten times a second, and ends with every process dead and a verdict.

    It ends when all ranks are gone, when a failure was seen and the others had time to say what they saw, when a rank
    is over its time limit, when a request to stop was not followed in time, or when `given_up` gives a verdict.
    `alive` is called all the while.
    """

    def __init__(
        self,
        start: RankStart,
        success: Path,
        launcher: Launcher,
        limits: Limits,
        stops: StopRequests,
        say: Callable[[str], None],
        relay: Callable[[bytes], None] | None,
        given_up: Callable[[], Verdict | None],
        stays: Stays | None = None,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self._start, self._success, self._launcher, self._limits = start, success, launcher, limits
        self._stops, self._say, self._given_up, self._alive = stops, say, given_up, alive
        self._relay = LogRelay(start.logs / "rank-0.log", relay)
        self._stays = stays or Stays()
        self._silence = Silence(limits, whole=start.job.nodes == 1, stays=self._stays)
        self._stillness = Stillness(limits, whole=start.job.nodes == 1, slack=self._stays.slack)
        self._still: dict[int, str] = {}  # ranks that do nothing; a parent that has begun none has its number below 0
        self._pids: dict[int, int] = {}
        self._exits: dict[int, Exit] = {}
        self._beats: dict[int, Beat] = {}
        self._records: list[Failure] = []
        self._signalled: set[int] = set()
        self._told: set[int] = set()  # ranks that wait for a disk
        self._noticed: float | None = None
        self._missing: dict[int, float] = {}
        self._memory_low = False
        self._looks = 0
        self._groups = RankGroups(start.env["UPS_TOKEN"])
        self._memory = MemoryWatch()
        self.detection: float | None = None

    def run(self) -> Verdict:
        """Start the ranks; how that ended."""
        groups = self._groups
        try:
            self._launcher.start(self._start)
            groups.begin()
            outcome = self._follow(time.monotonic())
            self._look()
            verdict = self._conclude(outcome)
        finally:
            groups.kill()
            self._launcher.kill()
            left = sweep(self._start.env["UPS_TOKEN"])
            self._relay.show()
            self._stays.save()
        if left:
            self._say(f"processes {left} do not go even when killed; they wait for a disk or a driver.")
        with contextlib.suppress(OSError):  # evidence is worth a try, not a second failure
            keep_evidence(self._start.files, self._start.logs)
        return verdict

    def _follow(self, began: float) -> str:
        """Watch until there is nothing more to wait for; the name of the end."""
        done_since = over_since = None
        while True:
            over = self._launcher.poll() is not None
            self._look()
            self._relay.show()
            self._alive()
            now = time.monotonic()
            over_since = (over_since or now) if over else None
            # A rank whose parent was killed is noticed a little later than the others.
            ended = over_since is not None and (now - over_since > 1.0 or not self._pids.keys() - self._exits.keys())
            if self._success.exists():
                done_since = done_since or now
                if ended or now - done_since > self._limits.teardown:
                    return "success"
            elif self._failed() and not self._launcher.regrouping:
                self._notice(now)
                assert self._noticed is not None
                if ended or len(self._exits) == self._start.job.ranks or now - self._noticed > self._limits.echo:
                    return "failed"
            else:
                self._noticed = None  # what was seen has been explained by a request to stop, or by a regrouping
                if end := self._other_end(ended, now, began):
                    return end
            self._tell_to_stop()
            time.sleep(TICK)

    def _other_end(self, ended: bool, now: float, began: float) -> str:
        """The name of an end that is neither a success nor a failure of a rank; empty to go on."""
        if ended:
            waits = self._start.job.nodes > 1 and self._pids and all(e.code == 0 for e in self._exits.values())
            self._noticed = now
            if not waits:
                return "ended"
            return "" if self._wait_for_success() else "ended"
        present = self._pids.keys() - self._exits.keys()
        if self._launcher.regrouping and not self._stops and not present:
            return "regroup"
        if self._stops and (self._stops.now or not self._pids or now - self._stops.since > self._limits.grace):
            return "stopped"
        if (since := self._stopped_elsewhere()) is not None and now - since > self._limits.grace:
            return "stopped"
        if not self._pids and (self._given_up() is not None or now - began > self._limits.start):
            return "nobody"
        if self._silence.overdue(present, self._beats):
            return "overdue"
        complete = len(self._pids) >= self._start.job.ranks
        self._still = self._stillness.overdue(self._watched(), self._beats, complete)
        return "overdue" if self._still else ""

    def _wait_for_success(self) -> bool:
        """Whether there is more to come once all ranks of this node have left without an error. Rank 0 may live on
        another node: it judges and reports alone, and is waited for as long as node 0 answers. A shared folder may be
        slow to show what it wrote."""
        job, limits = self._start.job, self._limits
        asked_at = time.monotonic()
        last, end = asked_at + limits.judge, asked_at + limits.teardown
        while (now := time.monotonic()) < end and not self._stops and self._given_up() is None:
            os.listdir(self._success.parent)  # makes a network file system look again
            if self._success.exists() or self._launcher.regrouping:
                return True
            if job.node and now < last and now - asked_at > ASK:
                asked_at, end = now, now + limits.teardown if answers(job.rendezvous) else end
            self._alive()
            self._relay.show()
            time.sleep(TICK)
        return False

    def _look(self) -> None:
        """Read all that is known of the ranks. Exits first: what a rank wrote before it left is then seen too."""
        self._exits = self._launcher.exits()
        self._pids = self._launcher.pids()
        files = self._start.files
        ranks = self._pids.keys() | self._exits.keys()
        beats = {rank: read(files.heartbeat(rank)) for rank in ranks}
        self._beats = {rank: beat for rank, beat in beats.items() if beat is not None}
        self._memory.look(self._pids.values())
        self._find_missing()
        self._records = read_failures(files.failures())
        self._silence.look(ranks, self._beats)
        self._stillness.look(self._watched(), self._beats)
        self._tell_of_disks()
        self._looks += 1
        if self._looks % 5 == 0:
            self._groups.cover()
        if self._looks % 600 == 0:
            self._stays.save()
        if self._memory_low or self._looks % 10:
            return
        free, total = available()
        if total and free < 0.03 * total:
            self._memory_low = True
            self._say(f"memory is nearly full: {free / 2**30:.2f} of {total / 2**30:.2f} GiB are left to this job.")

    def _watched(self) -> dict[int, int]:
        """The processes that ought to do something: ranks, and parents that have begun none yet."""
        pids = {rank: pid for rank, pid in self._pids.items() if rank not in self._exits}
        if len(self._pids) < self._start.job.ranks:
            pids.update({-root: root for root in self._groups.childless(self._pids.values())})
        return pids

    def _tell_of_disks(self) -> None:
        """A rank that waits for a disk which works is only spoken of, once."""
        for rank, seconds in self._stillness.at_disk.items():
            if seconds > self._limits.still and rank not in self._told:
                self._told.add(rank)
                phase = self._beats[rank].phase if rank in self._beats else "start"
                self._say(f"rank {rank} has waited {seconds:.0f} s in {phase} for a disk or the network, which work.")

    def _find_missing(self) -> None:
        """A rank whose parent was killed is gone too, and nobody has written its exit."""
        now = time.monotonic()
        for rank, pid in self._pids.items():
            if rank in self._exits or alive(pid):
                self._missing.pop(pid, None)
                continue
            since = self._missing.setdefault(pid, now)
            if now - since > 0.5:
                left = rank in self._beats and self._beats[rank].done
                self._exits[rank] = Exit(rank, 0 if left else -signal.SIGKILL, since)

    def _failed(self) -> bool:
        """Whether something has happened from which the ranks cannot go on."""
        gone = [e for rank, e in self._exits.items() if not leaves(e, self._beats.get(rank))]
        # Killed by a request to stop that did not come from here: the others cannot go on without it.
        stopped = [e for e in self._exits.values() if e.code in STOP_SIGNALS and not self._stops]
        return bool(self._records or gone or stopped)

    def _notice(self, now: float) -> None:
        if self._noticed is None:
            self._noticed = now
            clocks = [e.clock for e in self._exits.values()] + [r.clock for r in self._records]
            self.detection = max(0.0, now - min(clocks))

    def _stopped_elsewhere(self) -> float | None:
        """When the first rank left on somebody else's request: the others cannot go on without it, and may not know."""
        stopped = (Ending.PREEMPTED, Ending.INTERRUPTED)
        return min((e.clock for e in self._exits.values() if e.code in stopped), default=None)

    def _tell_to_stop(self) -> None:
        """SIGTERM to every rank, once, if they are to stop; directly, since a launcher adds habits of its own."""
        if not self._stops and self._stopped_elsewhere() is None:
            return
        for rank, pid in self._pids.items():
            if pid not in self._signalled and rank not in self._exits:
                self._signalled.add(pid)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGTERM)

    def _conclude(self, outcome: str) -> Verdict:
        """The verdict, with the evidence; the ranks still exist."""
        if outcome == "success":
            return self._succeeded()
        if outcome == "regroup":
            return Verdict(Ending.RANK_DIED, "the ranks made room for another node to join.", echo=True)
        if parents := [-key for key in self._still if key < 0]:
            return Verdict(Ending.HANG, f"process {parents[0]}, which was to start a rank, is stopped.", phase="start")
        if outcome == "nobody" or (not self._pids and not self._exits):
            return self._nobody(outcome)
        if outcome in ("ended", "failed") and not self._stops and (verdict := self._launcher_died()):
            return verdict
        ranks = self._pids.keys() | self._exits.keys()
        states = rank_states(ranks, self._pids, self._beats, self._silence.silent)
        states = [replace(s, state="") if s.rank in self._exits else s for s in states]
        echoes = bool(self._records) and not any(r.first_hand for r in self._records)
        if outcome == "overdue" or echoes:
            states = with_stacks(states, self._start.files)
        exits = {
            rank: replace(e, tail=log_tail(self._start.logs / f"rank-{rank}.log")) for rank, e in self._exits.items()
        }
        short = {
            rank: cause for rank, end in exits.items() if (cause := self._memory.cause(end, self._pids.get(rank, 0)))
        }
        verdict = first_cause(self._records, exits, self._beats, states, outcome == "overdue", short, self._still)
        if outcome == "overdue":
            self.detection = next((s.silent for s in states if s.rank == verdict.rank), None)
            stopped = any(s.stopped for s in states if s.rank == verdict.rank)
            self._stays.note(verdict.phase or "", self.detection or 0.0, hang=bool(self._still) and not stopped)
        verdict = replace(verdict, facts={"where": rows(states)})
        self._keep_table(states, show=not self._stops and verdict.ending != Ending.USER)
        return self._as_stopped(verdict, outcome == "stopped") if self._stops else verdict

    def _keep_table(self, states: list[RankState], show: bool) -> None:
        text = table(states)
        stacks = "".join(f"\n\nrank {s.rank}:\n{s.stack or '(no answer)'}" for s in states if s.state)
        with contextlib.suppress(OSError):
            write_atomic(self._start.files.where(self._start.job.node), text + stacks + "\n")
        if show:
            self._say(text)

    def _succeeded(self) -> Verdict:
        """What happens after the mark of success cannot take it back."""
        late = [f"rank {e.rank} ended with code {e.code}" for e in self._exits.values() if e.code]
        late += [f"rank {rank} did not leave" for rank in sorted(self._pids.keys() - self._exits.keys())]
        mark = read_json(self._success)
        ending = next((e for e in AS_ASKED if e.name == mark.get("verdict")), Ending.SUCCESS)
        cause = str(mark.get("cause") or "done.")
        if late and self._launcher.poll() != 0:
            cause = f"{cause.removesuffix('.')}; in teardown {', '.join(late)}."
        step = max((b.step for b in self._beats.values()), default=None)
        return Verdict(ending, cause, step=step, facts=mark.get("facts", {}))

    def _nobody(self, outcome: str) -> Verdict:
        """No rank has ever begun."""
        if self._stops:
            return self._as_stopped(Verdict(Ending.PREEMPTED, "before any rank had begun"), True)
        given_up = self._given_up()
        if given_up is not None:
            return given_up
        text = self._launcher_log()
        last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it said nothing")
        code = self._launcher.poll()
        how = f"in {self._limits.start:.0f} s" if outcome == "nobody" else f"before the launcher ended with code {code}"
        return Verdict(
            Ending.CRASH, f"no rank began {how}: {last}", traceback=text, transient=True, echo=self._start.job.nodes > 1
        )

    def _launcher_died(self) -> Verdict | None:
        """A launcher that was killed takes its ranks along; one that lost the parent of a rank ends the other ranks."""
        code = self._launcher.poll()
        begun, wanted = len(self._pids), self._start.job.ranks
        if code and not self._launcher.exits():
            how = signal_name(-code) if code < 0 else f"code {code}"
            cause = f"the launcher ended with {how} and took its ranks with it."
        elif code and begun < wanted and not self._records and not self._start.job.nodes > 1 and not self._one_failed():
            cause = f"only {begun} of {wanted} ranks began before the launcher ended with code {code}."
        else:
            return None
        return Verdict(Ending.RANK_DIED, cause, traceback=self._launcher_log())

    def _one_failed(self) -> bool:
        """Whether a rank ended other than by being stopped: then that is why the others never began."""
        return any(e.code not in (*STOP_SIGNALS, Ending.SUCCESS, Ending.PREEMPTED) for e in self._exits.values())

    def _launcher_log(self) -> str:
        return tail(self._start.logs / f"launcher-{self._start.job.node}.log")

    def _as_stopped(self, verdict: Verdict, killed: bool) -> Verdict:
        step = max((beat.step for beat in self._beats.values()), default=0)
        late = sorted(self._pids.keys() - self._exits.keys()) if killed else []
        after = "a second Ctrl-C" if self._stops.now else f"{self._limits.grace:.0f} s"
        return as_stopped(verdict, signal.Signals(self._stops.signals[0]), step, late, after)
