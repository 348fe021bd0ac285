"""A process that has computed in several threads: its copies lack them, so ranks are not made by copying it."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from watched_ranks import run_ranks, values

from ups.config import load
from ups.run.config import run_config
from ups.streams import alone
from ups.types import ConfigError
from ups.verdict import Ending
from ups_fleet.running import supervised
from ups_fleet.supervise.forked_functions import run_copy
from ups_fleet.supervise.job import NESTED, RankJob, RankStart, environment
from ups_fleet.supervise.launchers.forked import ForkLauncher
from ups_fleet.supervise.limits import Limits
from ups_fleet.supervise.start_dir import StartDir
from ups_fleet.supervise.supervisor import Supervisor

CELLS = 200 * 200  # more than torch gives to one thread
RANK = f"""
import sys
from pathlib import Path

import torch


def main(folder):
    torch.set_num_threads(2)
    (folder / "said").write_text(f"{{int(torch.ones({CELLS}).isnan().sum())}} of {CELLS}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
"""
BLAS = """
import os
import numpy as np
from ups.streams import alone

np.linalg.inv(np.random.default_rng(0).random((600, 600)))
print(len(os.listdir("/proc/self/task")) > 1, alone())
"""


def compute(threads: int = 0) -> int:
    """In so many threads, or those that this process has been told to use."""
    import torch

    if threads:
        torch.set_num_threads(threads)
    return int(torch.ones(CELLS).isnan().sum())


def alone_before_and_after() -> tuple[bool, bool]:
    before = alone()
    compute(2)
    return before, alone()


def test_a_process_may_fork_until_it_computes_in_threads_that_its_copy_would_lack() -> None:
    assert values(run_ranks(alone_before_and_after, 1)) == [(True, False)]


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="OpenBLAS has one thread on one core")
def test_threads_that_end_before_a_fork_forbid_none() -> None:
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", BLAS], check=True, capture_output=True, env=env, timeout=600)
    assert done.stdout.split() == [b"True", b"True"]


def copy_computes() -> list[Any]:
    process: Any = multiprocessing.current_process()
    process._config["daemon"] = False  # else it may have no children
    compute(2)
    return values([run_copy(compute, seconds=100)])


def test_a_copy_of_a_process_that_has_computed_in_threads_computes_in_one() -> None:
    assert values(run_ranks(copy_computes, 1)) == [[0]]


def launched(folder: Path, hooks: bool) -> str:
    """What a rank of the module `of_a_rank` says that is started by a process which has computed in threads."""
    compute(2)
    (folder / "of_a_rank.py").write_text(RANK)
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = str(folder)
    files, logs = StartDir(folder / "files"), folder / "logs"
    for made in (files.folder, logs):
        made.mkdir()
    job = RankJob((sys.executable, "-m", "of_a_rank", str(folder)))
    launcher = ForkLauncher(lambda: lambda: None) if hooks else ForkLauncher()
    try:
        launcher.start(RankStart(job, 1, files, logs, environment(job, 1, files, logs, folder, secrets.token_hex(8))))
    except ConfigError as error:
        return str(error)
    end = time.monotonic() + 120
    while launcher.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    launcher.kill()
    return (folder / "said").read_text() if (folder / "said").exists() else "it hangs"


def test_a_process_that_has_computed_in_threads_starts_its_ranks_afresh(tmp_path: Path) -> None:
    assert values(run_ranks(launched, 1, tmp_path, False)) == [f"0 of {CELLS}"]


def test_ranks_with_hooks_are_refused_where_their_copies_would_lack_threads(tmp_path: Path) -> None:
    [words] = values(run_ranks(launched, 1, tmp_path, True))
    assert words.startswith("this process has threads that a forked rank would lack")


def alone_when_ranks_begin(folder: Path) -> list[bool]:
    """Whether a supervisor of a run on masked data might fork, when it has opened them."""
    import torch

    torch.set_num_threads(2)
    seen = []

    def carried_out(home: Any, *_: Any) -> Ending:
        seen.append(alone())
        home.close()
        return Ending.SUCCESS

    names: Any = supervised
    names._carried_out = carried_out
    values = {"out": str(folder), "data.a.file": str(folder / "*.npz")}
    values |= {"data.a.task.name": "a", "data.a.task.dims": ["time", "x", "y"], "data.a.task.fields": {"u": ["u"]}}
    supervised.supervise(load(run_config(), None, values), command="ups")
    return [*seen, torch.get_num_threads() == 2]


def test_a_supervisor_that_has_opened_masked_data_may_fork_its_ranks(tmp_path: Path) -> None:
    field = np.random.default_rng(0).random((4, 200, 200), np.float32)
    field[:, :5] = np.nan
    for sample in range(3):
        np.savez(tmp_path / f"{sample}.npz", u=field)
    assert values(run_ranks(alone_when_ranks_begin, 1, tmp_path)) == [[True, True]]


STILL = """
import sys
import time
from pathlib import Path

from ups_fleet.supervise.rank_context import RankContext


def main(folder):
    copy = "torch" in sys.modules  # which the parent of all has imported
    hangs, step = (folder / "how").read_text().split()
    with RankContext() as seat:
        seat.pulse.beat("start", int(step))
        if copy or hangs == "always":
            time.sleep(1000)
        seat.pulse.beat("forward", 1)
        seat.succeed()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
"""
SHORT = {"still": 1.0, "start": 60.0, "first": 60.0, "phase": 60.0, "echo": 0.5, "teardown": 5.0, "attempts": 1}


def supervised_ranks(folder: Path, how: str) -> tuple[str, int, list[str]]:
    """How a run ended whose ranks hang as copies (`how`: once or always, and at which step), after how many starts, and
    what was said."""
    (folder / "still_copy.py").write_text(STILL)
    (folder / "how").write_text(how)
    for name in NESTED:
        os.environ.pop(name, None)
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = str(folder)
    said: list[str] = []
    job = RankJob((sys.executable, "-m", "still_copy", str(folder)))
    verdict = Supervisor(job, folder / "run", Limits(**SHORT), said.append, launcher=ForkLauncher()).supervise()
    return verdict.ending.name, len(verdict.attempts), said


@pytest.mark.parametrize(
    ("how", "ending", "starts"),
    [("once 0", "SUCCESS", 2), ("always 0", "NO_PROGRESS", 2), ("once 7", "NO_PROGRESS", 1)],
)
def test_copies_that_hang_before_their_first_step_are_begun_afresh_once(
    tmp_path: Path, how: str, ending: str, starts: int
) -> None:
    [seen] = values(run_ranks(supervised_ranks, 1, tmp_path, how))
    assert seen[:2] == (ending, starts)
    assert sum("begun afresh" in sentence for sentence in seen[2]) == starts - 1
