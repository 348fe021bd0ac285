"""What each engine submits, word for word: a pure function of the job. UPS_SNAPSHOTS=write writes the files anew."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ups.types import ConfigError
from ups_fleet.submit import ENGINES
from ups_fleet.submit.job import LaunchJob

SNAPSHOTS = Path(__file__).with_name("snapshots")
PLACE = Path("/home/me/my work")
JOB = LaunchJob(
    key="flow-0a1b2c3d",
    name="flow",
    config=PLACE / "flow.yaml",
    folder=PLACE / "runs" / "flow",
    place=PLACE,
    flags=(("operator.train.lr", "1e-3"), ("data.a.params", "{nu: [0.1, 0.2]}")),
    inputs=(PLACE / "flow.yaml", PLACE / "it's data.hdf5"),
    python="/opt/python",
)
POINTS = ((("name", "lr-1"), ("operator.train.lr", "1")), (("name", "lr-2"), ("operator.train.lr", "2")))
CODE = {"repo": "https://example.org/flow.git", "commit": "c0ffee" * 6 + "cafe", "at": ".", "config": "flow.yaml"}
RENTED = {**CODE, "package": ".", "data": "pdebench:advection1d/beta0.4", "store": "s3://bucket/runs"}
NODES = {"node_rank": 1, "rendezvous": "10.0.0.1:29400"}
JOBS = {
    "local": JOB,
    "local-front": replace(JOB, options={"front": True}, seconds=3600.0),
    "local-nodes": replace(JOB, nodes=2, ranks=4, gpus=4, options=NODES),
    "slurm": replace(JOB, seconds=5400.0),
    "slurm-nodes": replace(JOB, nodes=2, ranks=8, gpus=8, options={"partition": "gpu", "account": "a1", "cpus": 64}),
    "slurm-sweep": replace(JOB, points=POINTS, folder=PLACE / "runs" / "flow-sweep"),
    "sky": replace(JOB, seconds=7200.0, variables=("WANDB_API_KEY",)),
    "vast": replace(JOB, gpus=2, ranks=2, seconds=7200.0, options=RENTED),
    "sky-nodes": replace(JOB, nodes=2, ranks=8, gpus=8, options={"gpu": "H100", "spot": True, "shared": "/mnt/runs"}),
}


@pytest.mark.parametrize("name", JOBS)
def test_what_is_submitted_is_what_it_was(name: str) -> None:
    text = ENGINES[name.partition("-")[0]]().render(JOBS[name])
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("UPS_SNAPSHOTS") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", [name for name in JOBS if not name.startswith("sky")])
def test_every_script_is_one_that_a_shell_can_read(name: str) -> None:
    text = (SNAPSHOTS / f"{name}.txt").read_text()
    shell = text.partition("\n")[0].removeprefix("#!/bin/")
    subprocess.run([shell, "-n"], input=text, text=True, check=True)
    if "UPS_END" in text:  # what each node runs
        inner = text.partition("<<'UPS_END' || true\n")[2].partition("\nUPS_END\n")[0]
        subprocess.run(["bash", "-n"], input=inner, text=True, check=True)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_word_with_a_line_break_enters_no_script(engine: str) -> None:
    job = replace(JOB, flags=(("name", "a\nrm -rf /"),), options={**NODES, **RENTED}, seconds=60.0)
    with pytest.raises(ConfigError, match="line break"):
        ENGINES[engine]().render(job)


def test_no_word_of_a_job_is_read_as_anything_else_by_the_shell(tmp_path: Path) -> None:
    """The command line arrives as it was, whatever stands in it."""
    words = ["$(touch pwned)", "`id`", "a b", "'", '"', "$HOME", "*", ";", "UPS_END", "é", "--", "\\"]
    show = tmp_path / "show me"
    show.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done\n')
    show.chmod(0o755)
    flags = tuple((f"k{i}", word) for i, word in enumerate(words))
    job = replace(JOB, place=tmp_path, config=tmp_path / "c", inputs=(), flags=flags, python=str(show))
    job = replace(job, options={"front": True}, folder=tmp_path / "none")
    text = ENGINES["local"]().render(job)
    printed = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line for line in printed if line.startswith("--k")] == [f"--k{i}={word}" for i, word in enumerate(words)]
    assert not (tmp_path / "pwned").exists()
