"""A sweep: its points carried out side by side as `ups run`, each under its own supervisor, until all have ended."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from ups.eval.intervals import number
from ups.presence import SignsOfLife, hold, release
from ups.run.journal import read_journal
from ups.rundir import RunDir
from ups.types import ConfigError, DataError, counted
from ups_fleet.run_folders.evidence import LivingProcesses
from ups_fleet.run_folders.state import COMPLETE, RunState, state_of
from ups_fleet.running.live_line import LiveLine, phase_of
from ups_fleet.supervise.children import Program, start
from ups_fleet.supervise.stop_requests import StopRequests
from ups_fleet.sweep.axes import SweepPoint


class Queue(Protocol):
    """Gives points one by one, and is told how each ended."""

    @property
    def total(self) -> int:
        """Runs there will be in all."""
        ...

    def next(self) -> SweepPoint | None:
        """The next point; None where there is none, or none before others have ended."""
        ...

    def done(self, point: SweepPoint, state: RunState) -> None:
        """A point is finished, failed, or was finished before."""
        ...


class Listed:
    """Points that are known from the start, in their order."""

    def __init__(self, points: Sequence[SweepPoint]) -> None:
        self.points, self.place = points, 0

    @property
    def total(self) -> int:
        return len(self.points)

    def next(self) -> SweepPoint | None:
        if self.place == len(self.points):
            return None
        self.place += 1
        return self.points[self.place - 1]

    def done(self, point: SweepPoint, state: RunState) -> None:
        """Nothing depends on how one ended."""


THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Slot:
    """A place for one run at a time: its device (empty: the config's own) and the variables of its process."""

    device: str
    variables: tuple[tuple[str, str], ...] = ()


def slots_of(devices: Sequence[str], jobs: int | None, device: str, gpus: int) -> list[Slot]:
    """The places of a sweep. `device` is what the config asks for, `gpus` how many there are on this machine.

    On GPUs, one run each. CPU runs side by side share the cores, unless the environment says how many threads to use.
    """
    for name in devices:
        if re.fullmatch(r"cpu|cuda(:\d+)?", name) is None:
            raise ConfigError(f"--devices: '{name}' is no device; write cpu, cuda or cuda:N, with commas between.")
        if name != "cpu" and int(name.partition(":")[2] or 0) >= gpus:
            raise ConfigError(f"--devices: there is no {name} here; this machine has {gpus or 'no'} CUDA devices.")
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs is {jobs}, but at least 1 run goes on at a time.")
    named = list(devices) or _own(device, gpus, jobs)
    real = [name for name in named if name.startswith("cuda")]
    if len(set(real)) < len(real):
        raise ConfigError(f"--devices names {max(real, key=real.count)} twice; one run goes on each device at a time.")
    if real and jobs is not None and jobs > len(named):
        raise ConfigError(
            f"--jobs is {jobs}, but {counted(len(named), 'device')} can take one run each; name more, or lower it."
        )
    count = jobs or len(named)
    chosen = [named[i % len(named)] for i in range(count)]
    on_cpu = sum(name == "cpu" for name in chosen) or (count if not real else 0)
    threads = max(1, len(os.sched_getaffinity(0)) // max(1, on_cpu))
    shared = () if THREADS in os.environ else ((THREADS, str(threads)),)
    return [Slot(name, () if name.startswith("cuda") else shared) for name in chosen]


def _own(device: str, gpus: int, jobs: int | None) -> list[str]:
    """The devices where none are named: those of the config."""
    if device != "auto":
        return [device]
    return [f"cuda:{number}" for number in range(min(gpus, jobs or 1))] if gpus else ["cpu"]


TICK = 0.2
EVERY = 30.0  # seconds between two lines on how far the runs are
PATIENCE = 150.0  # seconds for runs to save after a request to stop: a little more than they give their ranks
RESUMES = 2  # times that a run is resumed which something kills
CONSOLE = ".console"  # what the runs print


@dataclass
class SweptRun:
    """A run under way."""

    point: SweepPoint
    slot: Slot
    process: Program


@dataclass
class Sweep:
    """Carries out the points of a queue in `folder`, one in each slot at a time.

    `command(point, slot, data_from)` are the words of `ups run` for a point. What has ended well is not repeated, what
    was begun or killed is resumed, what lives already is waited for: two processes never write one run. `changed()` is
    called whenever a run has ended, `begun(point)` before one is looked at. `shared`: all runs make the same data, so
    the first makes them for all, and the others begin when they are there.
    """

    folder: Path
    queue: Queue
    slots: Sequence[Slot]
    command: Callable[[SweepPoint, Slot, Path | None], list[str]]
    say: Callable[[str], None]
    changed: Callable[[], None] = lambda: None
    begun: Callable[[SweepPoint], object] = lambda point: None  # noqa: ARG005
    shared: bool = False
    children: list[SweptRun] = field(default_factory=list)
    ended: dict[str, RunState] = field(default_factory=dict)
    waiting: list[SweepPoint] = field(default_factory=list)  # for a process that writes them already
    starts: Counter[str] = field(default_factory=Counter)  # of each run
    tick: float = TICK

    def __post_init__(self) -> None:
        self.stops = StopRequests()
        self.maker: SweepPoint | None = None  # the run that makes the data of all
        self.held: SweepPoint | None = None  # the next to begin, when they are there
        self.reported = time.monotonic()
        self.live = LiveLine(self._phases)
        self.say = self.live.before(self.say)

    def carry_out(self) -> int | None:
        """Run all of it; the signal that ended it before its time, None where none did."""
        lock, alive = _held(self.folder), SignsOfLife(self.folder / ".lock")
        try:
            with self.stops.listening():
                while not self.stops and self._go_on():
                    alive()
                    time.sleep(self.tick)
                self._stop()
        finally:
            self.live.clear()
            for child in self.children:
                _kill(child.process)
            alive.close()
            release(lock)
        return self.stops.signals[0] if self.stops else None

    def _go_on(self) -> bool:
        """One look at everything; whether anything is left to do."""
        for child in [child for child in self.children if child.process.poll() is not None]:
            self.children.remove(child)
            self._left(child.point, killed=child.process.returncode < 0)
        self._start_waiting()
        while len(self.children) < len(self.slots) and (point := self._next()) is not None:
            self._begin(point)
        if time.monotonic() - self.reported > EVERY:
            self._progress()
        self.live.draw()
        return bool(self.children or self.waiting)

    def _next(self) -> SweepPoint | None:
        """The next point of the queue, once it can begin."""
        point, self.held = self.held, None
        if point is None and (point := self.queue.next()) is not None:
            self.begun(point)
        if not self.shared or point is None or self._made(point):
            return point
        self.held = point
        return None

    def _made(self, point: SweepPoint) -> bool:
        """Whether the data of all runs are there, or this point is the one to make them."""
        if self.maker is None:
            self.maker = point
            self.say(f"{point.name} makes the data for all; the others begin when they are there.")
        if self.maker is point or self.maker.name in self.ended:
            return True
        rows = read_journal(RunDir(self.folder / self.maker.name).journal)
        return any((row.get("phase"), row.get("event")) == ("data", "end") for row in rows)

    def _begin(self, point: SweepPoint) -> None:
        """Start a point, unless it is finished, or lives already."""
        state = state_of(self.folder / point.name)
        if state.word in COMPLETE:
            self._end(point, before=True)
        elif state.word in ("running", "unclear") and (state.word == "running" or state.host):
            self.say(f"{point.name}: another process runs it; it is waited for ({state.sentence})")
            self.waiting.append(point)
        elif self.starts[point.name] > RESUMES:
            self._end(point)
        else:
            self._start(point)

    def _left(self, point: SweepPoint, killed: bool) -> None:
        """The process of a run has ended: the run too, or it was killed and goes on."""
        word = state_of(self.folder / point.name).word
        if word in ("running", "dead") or (killed and word == "empty"):  # its ranks may be there for a moment
            self._begin(point)
        else:
            self._end(point)

    def _start(self, point: SweepPoint) -> None:
        taken = [child.slot for child in self.children]
        free = list(self.slots)
        for slot in taken:
            free.remove(slot)
        slot = free[0]
        source = self.folder / self.maker.name if self.maker is not None and self.maker is not point else None
        words = self.command(point, slot, source)
        known = RunDir(self.folder / point.name).known() is not None
        words += ["--resume"] if known else []
        log = self.folder / CONSOLE / f"{point.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        where = f" on {slot.device}" if slot.device else ""
        with log.open("ab") as output:
            tied = [sys.executable, "-m", "ups_fleet.sweep.child", str(os.getpid()), *words]
            process = start(tied, output, env={**os.environ, **dict(slot.variables)})
        self.children.append(SweptRun(point, slot, process))
        self.starts[point.name] += 1
        self.say(f"{point.name}: {'resumed' if known else 'started'}{where} ({self._count()}).")

    def _start_waiting(self) -> None:
        """Points that another process ran, once it has left them."""
        if not self.waiting or len(self.children) >= len(self.slots):
            return
        processes = LivingProcesses()
        for point in list(self.waiting):
            state = state_of(self.folder / point.name, processes)
            if state.word != "running" and len(self.children) < len(self.slots):
                self.waiting.remove(point)
                self._begin(point)

    def _end(self, point: SweepPoint, before: bool = False) -> None:
        state = state_of(self.folder / point.name)
        if state.word in ("empty", "unreadable", "foreign"):
            state = _never_begun(state, self.folder / CONSOLE / f"{point.name}.log")
        self.ended[point.name] = state
        self.queue.done(point, state)
        if before:
            return
        known = state.validation
        words = [f"validation {known.measure} {number(known.value)}"] if known is not None else []
        words += [f"test nRMSE {task} {e.words}" for task, e in state.errors.items()]
        self.say(f"{point.name}: {'; '.join(words) or state.sentence} ({self._count()})")
        self.changed()

    def _stop(self) -> None:
        """Have the runs save and leave, after a request to stop."""
        if not self.stops or not self.children:
            return
        self.say(f"stopping {counted(len(self.children), 'run')}, saving first; the same command goes on.")
        for child in self.children:
            with contextlib.suppress(ProcessLookupError):
                child.process.terminate()
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and not self.stops.now:
            if all(child.process.poll() is not None for child in self.children):
                break
            time.sleep(self.tick)
        for child in self.children:
            _kill(child.process)
            self.ended[child.point.name] = state_of(self.folder / child.point.name)
        self.children = []
        self.changed()

    def _count(self) -> str:
        return f"{len(self.ended)} of {self.queue.total} done"

    def _phases(self) -> str:
        return ", ".join(
            f"{child.point.name}: {phase_of(RunDir(self.folder / child.point.name))}" for child in self.children
        )

    def _progress(self) -> None:
        self.reported = time.monotonic()
        processes = LivingProcesses()
        for name in (child.point.name for child in self.children):
            state = state_of(self.folder / name, processes)
            self.say(f"{name}: {state.sentence if state.word == 'running' else 'starting.'}")


def command_of(config: Path, folder: Path, flags: Callable[[SweepPoint], dict[str, str]]) -> Callable[..., list[str]]:
    """The words that run a point."""

    def words(point: SweepPoint, slot: Slot, data_from: Path | None) -> list[str]:
        given = {**flags(point), "out": str(folder), "name": point.name}
        given |= {"device": slot.device} if slot.device else {}
        given |= {"data_from": str(data_from)} if data_from else {}
        return [sys.executable, "-m", "ups", "run", str(config), *(f"--{key}={value}" for key, value in given.items())]

    return words


def _held(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return hold(folder / ".lock", "sweep")
    except OSError as error:
        raise DataError(f"{folder}: cannot be used for a sweep ({error.strerror}); choose another --out.") from None


def _kill(process: Program) -> None:
    """End a run that has not left by itself; its ranks go with it."""
    if process.poll() is None:
        process.kill()
    process.wait()


def _never_begun(state: RunState, log: Path) -> RunState:
    """The state of a run that left no folder: failed, for the reason in the last line of its console."""
    try:
        lines = log.read_bytes()[-4000:].decode(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    sentence = lines[-1].removeprefix("ups: ") if lines else "it never began, and said nothing."
    return replace(state, word="failed", sentence=sentence)
