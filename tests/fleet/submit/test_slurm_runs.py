"""Real runs on a real SLURM of two nodes: disturbed or not, they end with the same bits; nothing is left running."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file
from slurm_cluster import Cluster, cluster, lacking

from ups.verdict import Ending, Verdict

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(bool(lacking()), reason=lacking() or "SLURM is there"),
]
CONFIG = """
name: {name}
out: {folder}
data: {{a: {{task: advection1d, scheme: accurate, samples: 8, resolution: 16, device: cpu, reduce: {{time: 50}}}}}}
model: {{codec: {{dim: 4}}, operator: {{width: 8, depth: 1, heads: 1}}}}
codec: {{batch: 4, train: {{steps: 20}}}}
operator: {{batch: 4, train: {{steps: 500, checkpoint_steps: 50}}}}
limits: {{grace: 20, teardown: 10}}
device: cpu
"""


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("slurm") / "cluster", kill_wait=30, grace=30) as it:
        yield it
    assert it.processes() == []


@pytest.fixture(autouse=True)
def empty(two_nodes: Cluster) -> Iterator[None]:
    yield
    two_nodes.cancel_all(120)


def ask(nodes: Cluster, folder: Path, *words: str) -> str:
    """What `ups launch` prints."""
    environ = {**nodes.environ, "UPS_STATE": str(folder / "state"), "OMP_NUM_THREADS": "1"}
    words = (sys.executable, "-m", "ups", "launch", *words)
    done = subprocess.run(words, env=environ, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def launch(nodes: Cluster, folder: Path, name: str, *more: str) -> str:
    (folder / f"{name}.yaml").write_text(CONFIG.format(name=name, folder=folder))
    return ask(nodes, folder, "slurm", f"{name}.yaml", "--nodes", "2", *more).split()[-1]


def number(folder: Path, key: str) -> str:
    """The number that SLURM gave a job."""
    return str(json.loads((folder / "state" / "jobs" / f"{key}.json").read_text())["identity"])


def state(nodes: Cluster, folder: Path, key: str) -> str:
    """SLURM's word for it."""
    text = nodes.ask("scontrol", "show", "job", "--oneliner", number(folder, key))
    return text.partition("JobState=")[2].split()[0]


def over(nodes: Cluster, folder: Path, key: str) -> bool:
    return state(nodes, folder, key) in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


def wait(holds: Callable[[], object], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.2)


def reached(run: Path) -> int:
    """The step of the operator's newest checkpoint."""
    steps = (run / "checkpoints" / "operator").glob("step-*")
    return max((int(path.name.removeprefix("step-")) for path in steps if path.name[5:].isdecimal()), default=0)


def same_bits(run: Path, other: Path) -> bool:
    one, two = (load_file(folder / "artifacts" / "simulator.safetensors") for folder in (run, other))
    return one.keys() == two.keys() and all(one[name].equal(two[name]) for name in one)


def ending_of(run: Path) -> Ending | None:
    verdict = Verdict.read(run / "verdict.json")
    return None if verdict is None else verdict.ending


def test_a_run_that_is_preempted_reaches_its_limit_and_loses_a_node_ends_with_the_bits_of_one_that_did_not(
    two_nodes: Cluster, tmp_path: Path
) -> None:
    plain = launch(two_nodes, tmp_path, "plain")
    key = launch(two_nodes, tmp_path, "disturbed", "--time", "20m")  # it waits for the other
    run = tmp_path / "disturbed"

    def take_away() -> None:
        two_nodes.take_away("n2")
        two_nodes.ask("scontrol", "update", "nodename=n2", "state=down", "reason=gone")

    urgent = ("sbatch", "--partition=high", "--nodes=2", "--output=/dev/null", "--wrap=sleep 1")
    disturbances: tuple[Callable[[], object], ...] = (
        lambda: two_nodes.ask(*urgent),
        # What SLURM sends before the limit, at a time of our choice: its own clock goes by the minute.
        lambda: two_nodes.ask("scancel", "--signal=USR1", number(tmp_path, key)),
        take_away,
    )
    step = 0
    for disturb in disturbances:
        wait(lambda: reached(run) > step, 600)  # noqa: B023
        disturb()
        wait(lambda: state(two_nodes, tmp_path, key) == "PENDING", 120)
        step = reached(run)
    assert ending_of(tmp_path / "plain") == Ending.SUCCESS
    two_nodes.bring_back("n2")
    wait(lambda: over(two_nodes, tmp_path, key), 600)
    assert ending_of(run) == Ending.SUCCESS
    status = ask(two_nodes, tmp_path, "status")
    assert status.count(" done ") == 2
    assert all(one in status for one in (plain, key))
    assert same_bits(run, tmp_path / "plain")
    assert ask(two_nodes, tmp_path, "logs", key).count("on 2 ranks.") == 8, "four lives on two nodes"
    wait(lambda: two_nodes.processes() == [], 60)


def test_a_stopped_run_has_saved_and_nothing_is_left(two_nodes: Cluster, tmp_path: Path) -> None:
    key = launch(two_nodes, tmp_path, "stopped")
    wait(lambda: reached(tmp_path / "stopped"), 600)
    ask(two_nodes, tmp_path, "stop", key)
    wait(lambda: over(two_nodes, tmp_path, key) and two_nodes.processes() == [], 120)
    assert ending_of(tmp_path / "stopped") == Ending.PREEMPTED
    assert " stopped " in ask(two_nodes, tmp_path, "status", key)


def test_a_run_that_fails_is_a_failed_job_with_the_same_code(
    two_nodes: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = json.dumps([{"rank": 1, "phase": "forward", "step": 0, "kind": "error"}])
    monkeypatch.setenv("UPS_FAULTS", fault)
    key = launch(two_nodes, tmp_path, "failing")
    wait(lambda: over(two_nodes, tmp_path, key), 600)
    assert ending_of(tmp_path / "failing") == Ending.CRASH
    assert "CRASH: it has ended with code 1" in ask(two_nodes, tmp_path, "status", key)
