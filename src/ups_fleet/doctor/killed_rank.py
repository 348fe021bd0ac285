"""Kills a rank under the real supervisor: `… supervise FOLDER RANKS` watches ranks, `… rank` is one."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ups.verdict import Verdict
from ups_fleet.supervise.job import NESTED, RankJob
from ups_fleet.supervise.launchers import launcher_of
from ups_fleet.supervise.limits import Limits
from ups_fleet.supervise.seat import RankContext
from ups_fleet.supervise.supervisor import Supervisor

STEPS, KILLED_AT = 20, 5  # steps of a rank, and the one at which the last rank is killed, in the first start


def supervise(folder: Path, ranks: int, launcher: str = "") -> Verdict:
    """Let the supervisor of runs, and a launcher, watch ranks of which the last is killed once."""
    job = RankJob((sys.executable, "-m", "ups_fleet.doctor.killed_rank", "rank"), ranks)
    limits = Limits(start=60, phase=20, first=20, echo=1, teardown=5)
    return Supervisor(job, folder, limits, say=lambda _: None, launcher=launcher_of(job, launcher)).supervise()


def problem(verdict: Mapping[str, Any], ranks: int) -> str:
    """What is wrong with the verdict on that, in words; empty if the killed rank was named and started again."""
    attempts, victim = verdict["attempts"], ranks - 1
    first = attempts[0] if attempts else verdict
    if first["verdict"] != "RANK_DIED" or first["rank"] != victim:
        return f"rank {victim} was killed, and the supervisor said: {first['cause']}"
    if verdict["verdict"] != "SUCCESS" or len(attempts) != 2:
        return f"rank {victim} was noticed, but not replaced: {verdict['cause']}"
    return ""


def rank() -> None:
    """Beat as a rank that trains would; needs no torch."""
    with RankContext() as seat:
        world = int(os.environ["WORLD_SIZE"])
        for step in range(STEPS):
            seat.pulse.beat("forward", step)
            time.sleep(0.01)
            if step == KILLED_AT and seat.attempt == 1:
                if seat.rank == world - 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                seat.pulse.beat("vote", step)
                time.sleep(60)  # like one that waits for its peer; the supervisor ends it
        seat.succeed()


def main(role: Path | str, *words: Path | str) -> None:
    """What the command line asks for."""
    if str(role) == "supervise":
        for name in NESTED:
            os.environ.pop(name, None)
        print(json.dumps(supervise(Path(words[0]), int(str(words[1]))).to_dict(), default=str))
    else:
        rank()


if __name__ == "__main__":
    main(*sys.argv[1:])
