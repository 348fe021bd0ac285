"""Cases of a second run, in its own namespaces, that shares memory files, or even the path, with the first."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ups.parsing import read_json
from ups_fleet.fault_tests.case import CaseDir, Disturbance, Draw, FaultCase, Recipe, Recipes, Strategy, case_of
from ups_fleet.fault_tests.command import be_command, configured
from ups_fleet.fault_tests.disturbances import beside
from ups_fleet.fault_tests.privileges import NEW_MOUNTS, NEW_PIDS, mount_memory, mount_processes, unshare
from ups_fleet.supervise.job import RankStart
from ups_fleet.supervise.launchers.forked import fork
from ups_fleet.supervise.proc import alive

WAIT = 120.0  # seconds that the first run waits for the second one to end


@dataclass(frozen=True)
class Container(Disturbance):
    """A second `ups run` of the same config begins and ends, in another container, while the first is at work.

    Its processes have numbers of their own, and it sees the same /dev/shm. `same_path`: its run folder has the path of
    the first one and is another. `seconds`: after which its container is killed; 0: it comes to its end.
    """

    needs: ClassVar[tuple[str, ...]] = ("mount namespaces", "process namespaces")
    world: int
    strategy: Strategy
    same_path: bool
    seconds: float

    def start(self, start: RankStart, place: CaseDir) -> None:
        if start.attempt == 1:
            place.notes.mkdir()
            supervisor = os.getpid()
            beside(place, lambda: self._contain(place, supervisor))

    def at(self, point: str, rank: int) -> None:
        """The first run does not end before the second."""
        if point == "judgement" and rank == 0:
            note, end = Path(os.environ["UPS_HOME"]).parent / "notes" / "ended.json", time.monotonic() + WAIT
            while not note.exists() and time.monotonic() < end:
                time.sleep(0.02)

    def _contain(self, place: CaseDir, supervisor: int) -> None:
        """Start the container, and write down how it ended."""
        unshare(NEW_PIDS)  # of what it starts from now on
        process = fork(lambda: self._second(place))
        end = time.monotonic() + (self.seconds or WAIT)
        while (code := process.poll()) is None and time.monotonic() < end and alive(supervisor):
            time.sleep(0.02)
        if code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)  # it is number 1 there: the whole container goes with it
            code = process.wait()
        draft = place.notes / "ended"
        draft.write_text(json.dumps({"code": code}))
        draft.rename(place.notes / "ended.json")

    def _second(self, place: CaseDir) -> None:
        unshare(NEW_MOUNTS)
        mount_processes()
        home = CaseDir(place.folder if self.same_path else place.folder / "second", place.data)
        home.folder.mkdir(exist_ok=True)
        if self.same_path:
            mount_memory(home.run.folder, "64m")
        case = FaultCase("F21", "second", self.world, self.strategy, around=_Printing())
        config = configured(case, home, self.world, 10.0)
        process = fork(lambda: be_command(config, home, resume=False, case=case, parent=1))
        code = process.wait()
        with contextlib.suppress(OSError):
            shutil.copy(home.run.artifact("simulator"), place.notes / "simulator")
        raise SystemExit(code)

    def problems(self, place: CaseDir) -> list[str]:
        code = read_json(place.notes / "ended.json").get("code")
        if self.seconds:
            return [] if code is not None else ["the second run was never started"]
        ours, theirs = place.run.artifact("simulator"), place.notes / "simulator"
        if code != 0:
            return [f"the second run ended with {code}"]
        return [] if ours.read_bytes() == theirs.read_bytes() else ["the second run made another simulator"]


@dataclass(frozen=True)
class _Printing(Disturbance):
    """The second run prints to a file of its own."""

    def streams(self, place: CaseDir) -> None:
        output = os.open(place.folder / "second.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)


def _beside(same_path: bool, killed: bool) -> Recipe:
    """The first run is not disturbed, and the second one does what it would alone."""

    def recipe(d: Draw, world: int, strategy: Strategy) -> FaultCase:
        around = Container(world, strategy, same_path, round(d.uniform(0.5, 2.0), 2) if killed else 0.0)
        name = f"container{', same path' if same_path else ''}{', killed' if killed else ''}"
        promise: dict[str, Any] = {"around": around, "starts": 1}
        promise["changes"] = {"limits.judge": 2 * WAIT, "limits.still": 2 * WAIT}  # its last act is to wait
        return case_of("F21", name, world, strategy, **promise)

    return recipe


RECIPES: Recipes = {
    ("F21", f"{'path' if path else 'processes'}{' killed' if killed else ''}"): _beside(path, killed)
    for path in (False, True)
    for killed in (False, True)
}
