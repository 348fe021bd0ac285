"""Carries out a run under its supervisor: this process owns folder and verdict, others do the work."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ups.config import dump
from ups.engine.checkpoint.manifest import newest_whole
from ups.files import write_atomic
from ups.progress import OnProgress, Progress, Screen
from ups.run.config import RunConfig, run_config
from ups.run.data.datasets import fetch_data
from ups.run.disk_room import freeable, refused, say
from ups.run.judging.conclusion import Finish
from ups.run.phases import process_started
from ups.run.run import Run, finish_alone
from ups.run.start import ANEW, Start
from ups.rundir import RunDir
from ups.tensors import one_thread
from ups.types import ConfigError, UpsError
from ups.verdict import Ending, Verdict
from ups_fleet.keys import FleetConfig, fleet_keys
from ups_fleet.running.live_line import LiveLine, phase_of
from ups_fleet.supervise.job import RankJob
from ups_fleet.supervise.launchers import Launcher, launcher_of
from ups_fleet.supervise.network import answers, check_interface
from ups_fleet.supervise.supervisor import Supervisor
from ups_fleet.sync.copier import copied
from ups_fleet.tracking import TrackingConfig, TroubleWatch, mirrored

EVERY = 30.0  # seconds between two words on how far something is


def in_sentences(say: Callable[[str], None]) -> OnProgress:
    """Reports progress in sentences to `say`: notes at once, how far it is every `EVERY` seconds."""
    last: dict[str, float] = {}

    def report(progress: Progress) -> None:
        now = time.monotonic()
        if progress.note:
            say(f"{progress.name}: {progress.note}")
        elif now - last.setdefault(progress.name, now) >= EVERY and progress.done < progress.total:
            say(f"{progress.name}: {progress.amount}")
            last[progress.name] = now

    return report


@one_thread()
def supervise(
    settings: RunConfig,
    start: Start = ANEW,
    *,
    command: str,
    node: int = 0,
    rendezvous: str = "",
    say: Callable[[str], None] = say,
    launcher: Launcher | None = None,
    last: bool = False,
) -> Ending:
    """Run `settings` in processes of the module `command` until it has succeeded or truthfully failed: the ending."""
    config = fleet_keys(settings)
    d = config.dist
    start = replace(start, began=start.began or process_started())
    home = (Path(config.out) / config.name).resolve()
    live = LiveLine(lambda: phase_of(RunDir(home)))
    say = live.before(say)
    words = (sys.executable, "-m", command, str(home))
    least, talk = d.min_nodes or d.nodes, d.interface if d.nodes > 1 and d.interface else ""
    if talk:
        check_interface(talk)
    job = RankJob(words, d.ranks, d.nodes, least, node, rendezvous, {**d.environment(), **start.environment()}, talk)
    starter = launcher or _launcher(job, config)  # what cannot be started is refused before a folder is made
    try:
        if node:
            fetch_data(config.data, in_sentences(say))  # each machine for itself, unless they share the folder
            folder = join(config, node, rendezvous)
        else:
            screen = replace(Screen.silent(), say=say, following=in_sentences(say))
            folder = Run.open(config, screen, start).folder
    except UpsError as error:
        return refused(RunDir(home), error, say)
    place, tracking = folder.folder, TrackingConfig() if node else config.tracking
    with copied(place, None if node else config.sync, say), mirrored(place, tracking, say):
        return _carried_out(folder, config, job, starter, say, live, last)


def _carried_out(
    folder: RunDir,
    config: FleetConfig,
    job: RankJob,
    starter: Launcher,
    say: Callable[[str], None],
    live: LiveLine,
    last: bool,
) -> Ending:
    """How the run of a folder that this process holds ended."""
    try:
        if not job.node:
            write_atomic(folder.job, dump(config))
        verdict = Supervisor(
            job,
            folder.folder,
            config.limits,
            say,
            progress=lambda: progress(folder, config),
            launcher=starter,
            relay=_relaying(TroubleWatch(folder.folder, TrackingConfig() if job.node else config.tracking, say), live),
            advice=lambda: freeable(folder),
            last=last,
        ).supervise()
        folder.stay_complete(verdict.ending)
    except OSError as error:
        return refused(folder, error, say)
    finally:
        live.clear()
        folder.close()
    if verdict.ending in (Ending.USER, Ending.PAUSED):
        say(verdict.cause)
    elif verdict.ending == Ending.GATE_MISSED:
        rest = f"The run is complete: {folder.report}" if folder.report.exists() else "--resume writes its report"
        say(f"{verdict.ending.name}: {verdict.cause} {rest}.")
    elif verdict.ending != Ending.SUCCESS:
        say(f"{verdict.ending.name}: {verdict.cause}")
        if folder.verdict.exists():
            say(f"{folder.verdict} has the details; the logs of the ranks are in {folder.logs}.")
    return verdict.ending


def _launcher(job: RankJob, config: RunConfig) -> Launcher:
    """The launcher that the config names, or else the one that fits.

    Ranks of one machine are forked from this process, which has imported all they need; unless that could carry over
    what is not a rank's: a simulator to start from or a champion, somebody's capture of what is printed. Whether a
    copy would lack threads is seen at each start of the ranks, by the launcher.
    """
    name = config.dist.launcher or ""
    ours = sys.stdout is sys.__stdout__
    if not name and job.nodes == 1 and ours and config.start_from is None and config.champion is None:
        name = "forked"
    return launcher_of(job, name)


def join(config: FleetConfig, node: int, rendezvous: str) -> RunDir:
    """The folder that node 0 has opened: it is there, emptied or resumed, as soon as the rendezvous answers."""
    folder = RunDir(Path(config.out) / config.name)
    end = time.monotonic() + config.limits.start
    while not answers(rendezvous):
        if time.monotonic() > end:
            raise ConfigError(
                f"{rendezvous}: node 0 has not answered in {config.limits.start:.0f} s; start it with --node-rank 0, "
                "and check that this machine can reach it."
            )
        time.sleep(0.2)
    if folder.is_of(config):
        return folder
    cause = f"{folder.folder}: node {node} was started with another config than node 0; start all with the same."
    if folder.known() is None:
        cause = f"{folder.folder}: node {node} does not see the run's folder; put `out` where all nodes see it."
    with contextlib.suppress(OSError):  # so that the others do not wait for this node
        Verdict(Ending.USER, cause).write(folder.node_verdict(node))
    raise ConfigError(cause)


def progress(folder: RunDir, config: RunConfig) -> int:
    """Steps that are kept: those of the newest checkpoint of every stage, together; the ranks verify them."""
    checkpoints = [newest_whole(folder.checkpoints(name)) for name in config.plan]
    return sum(int(path.name.removeprefix("step-")) for path in checkpoints if isinstance(path, Path))


def _relaying(troubles: Callable[[], None], live: LiveLine) -> Callable[[bytes], None]:
    """Shows what rank 0 prints, between its lines what troubles a tracker, and where the run is while it is silent."""

    def relay(text: bytes) -> None:
        if not text:
            live.draw()
            return
        live.clear()
        with contextlib.suppress(OSError, ValueError):
            if sys.stdout is not None:  # it may have been closed before this process began
                sys.stdout.buffer.write(text)
                sys.stdout.buffer.flush()
        with contextlib.suppress(OSError):
            troubles()

    return relay


def on_ranks(config: RunConfig, screen: Screen, start: Start) -> tuple[RunDir, Finish]:
    """Through all phases: on the ranks that the config asks for, else on two; in this process on one core."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    folder = RunDir(Path(config.out) / config.name)
    if cores < 2 and config.dist.ranks < 2:
        return finish_alone(config, screen, start)
    # Not forked: this process has made data, and the threads that helped with it would be missing in its children.
    several = dataclasses.replace(config.dist, ranks=max(2, config.dist.ranks), launcher="processes")
    ranks = run_config().model_validate({**config.model_dump(), "dist": dataclasses.asdict(several)})
    since = replace(start, began=time.time())  # what came before is not the run's
    ending = supervise(ranks, since, command="ups_fleet.cli.worker")
    verdict = Verdict.read(folder.verdict)
    return folder, Finish(ending, verdict.cause if verdict is not None else "")
