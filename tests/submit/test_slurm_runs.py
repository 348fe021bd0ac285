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
    pytest.mark.timeout(900),
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


@pytest.fixture(scope="module")
def undisturbed(two_nodes: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    key = launch(two_nodes, folder, "plain")
    wait(lambda: over(two_nodes, folder, key), 240)
    assert " done " in ask(two_nodes, folder, "status", key)
    assert "ups: " in ask(two_nodes, folder, "logs", key)
    return folder / "plain"


def ask(nodes: Cluster, folder: Path, *words: str) -> str:
    """What `ups launch` prints."""
    environ = {**nodes.environ, "UPS_STATE": str(folder / "state"), "OMP_NUM_THREADS": "1"}
    words = (sys.executable, "-m", "ups", "launch", *words)
    done = subprocess.run(words, env=environ, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
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


def trains(run: Path) -> bool:
    """Whether the operator has been trained for a while."""
    return any((run / "checkpoints" / "operator").glob("step-*"))


def same_bits(run: Path, other: Path) -> bool:
    one, two = (load_file(folder / "artifacts" / "simulator.safetensors") for folder in (run, other))
    return one.keys() == two.keys() and all(one[name].equal(two[name]) for name in one)


def ends_as_if_nothing_had_been(nodes: Cluster, folder: Path, key: str, name: str, undisturbed: Path) -> None:
    wait(lambda: over(nodes, folder, key), 300)
    verdict = Verdict.read(folder / name / "verdict.json")
    assert verdict is not None
    assert verdict.ending == Ending.SUCCESS
    assert " done " in ask(nodes, folder, "status", key)
    assert same_bits(folder / name, undisturbed)
    wait(lambda: nodes.processes() == [], 30)


def test_a_preempted_run_goes_on_to_the_same_bits(two_nodes: Cluster, undisturbed: Path, tmp_path: Path) -> None:
    key = launch(two_nodes, tmp_path, "preempted")
    wait(lambda: trains(tmp_path / "preempted"), 120)
    two_nodes.ask("sbatch", "--partition=high", "--nodes=2", "--output=/dev/null", "--wrap=sleep 1")
    wait(lambda: state(two_nodes, tmp_path, key) == "PENDING", 90)
    ends_as_if_nothing_had_been(two_nodes, tmp_path, key, "preempted", undisturbed)


def test_a_run_that_loses_a_node_goes_on_to_the_same_bits(
    two_nodes: Cluster, undisturbed: Path, tmp_path: Path
) -> None:
    key = launch(two_nodes, tmp_path, "bereft")
    wait(lambda: trains(tmp_path / "bereft"), 120)
    two_nodes.take_away("n2")
    two_nodes.ask("scontrol", "update", "nodename=n2", "state=down", "reason=gone")
    wait(lambda: state(two_nodes, tmp_path, key) == "PENDING", 90)
    two_nodes.start_node("n2")
    two_nodes.ask("scontrol", "update", "nodename=n2", "state=resume")
    ends_as_if_nothing_had_been(two_nodes, tmp_path, key, "bereft", undisturbed)


def test_a_run_whose_time_is_over_goes_on_to_the_same_bits(
    two_nodes: Cluster, undisturbed: Path, tmp_path: Path
) -> None:
    key = launch(two_nodes, tmp_path, "limited", "--time", "20m")
    wait(lambda: trains(tmp_path / "limited"), 120)
    # The signal that SLURM sends before the limit, at a time of our choice: its own clock goes by the minute.
    two_nodes.ask("scancel", "--signal=USR1", number(tmp_path, key))
    wait(lambda: state(two_nodes, tmp_path, key) == "PENDING", 90)
    ends_as_if_nothing_had_been(two_nodes, tmp_path, key, "limited", undisturbed)


def test_a_stopped_run_has_saved_and_nothing_is_left(two_nodes: Cluster, tmp_path: Path) -> None:
    key = launch(two_nodes, tmp_path, "stopped")
    wait(lambda: trains(tmp_path / "stopped"), 120)
    ask(two_nodes, tmp_path, "stop", key)
    wait(lambda: over(two_nodes, tmp_path, key), 60)
    wait(lambda: two_nodes.processes() == [], 60)
    verdict = Verdict.read(tmp_path / "stopped" / "verdict.json")
    assert verdict is not None
    assert verdict.ending == Ending.PREEMPTED


def test_a_run_with_a_mistake_is_a_failed_job_that_says_it(two_nodes: Cluster, tmp_path: Path) -> None:
    key = launch(two_nodes, tmp_path, "mistaken", "--operator.batch", "1")
    wait(lambda: over(two_nodes, tmp_path, key), 120)
    assert " failed " in ask(two_nodes, tmp_path, "status", key)
