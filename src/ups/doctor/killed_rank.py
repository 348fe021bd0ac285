"""A killed rank under the real supervisor and launcher: `… supervise FOLDER RANKS` watches, `… rank` is a rank."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from ups.supervise.job import NESTED, Job
from ups.supervise.limits import Limits
from ups.supervise.supervisor import Supervisor
from ups.supervise.seat import Seat

STEPS, LAST = 20, 5  # steps of a rank's life, and the one at which the last rank is killed, the first time


def supervise(folder: Path, ranks: int) -> None:
    """Let the supervisor of runs watch ranks of which one is killed once; what it found, as JSON."""
    for name in NESTED:
        os.environ.pop(name, None)
    job = Job((sys.executable, "-m", "ups.doctor.killed_rank", "rank"), ranks, name="doctor")
    limits = Limits(start=60, phase=20, first=20, echo=1, teardown=5)
    verdict = Supervisor(job, folder, limits, say=lambda _: None).supervise()
    print(json.dumps(verdict.to_dict(), default=str))


def rank() -> None:
    """Beats as a rank that trains would; needs no torch."""
    with Seat() as seat:
        world = int(os.environ["WORLD_SIZE"])
        for step in range(STEPS):
            seat.pulse.beat("forward", step)
            time.sleep(0.01)
            if step == LAST and seat.attempt == 1:
                if seat.rank == world - 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                seat.pulse.beat("vote", step)
                time.sleep(60)  # as one that waits for its peer; the supervisor ends it
        seat.succeed()


if __name__ == "__main__":
    if sys.argv[1] == "supervise":
        supervise(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        rank()
