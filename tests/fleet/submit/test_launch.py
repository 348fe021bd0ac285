"""`ups launch`: what it prints, submits and refuses; a mistake is one sentence before anything is begun."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from ups.cli.app import main
from ups.config import load
from ups.run.config import run_config
from ups.types import ConfigError
from ups_fleet.submit.plan import LaunchRequest, inputs_of, job_of, seconds_of
from ups_fleet.submit.records import all_records

FAKE = Path(__file__).with_name("fake_ups.py")
TINY = """
name: tiny
data: {{a: {{{data}}}}}
model: {{codec: {{dim: 4}}, operator: {{width: 8, depth: 1, heads: 1}}}}
codec: {{batch: 4, train: {{steps: 1}}}}
operator: {{batch: 4, train: {{steps: 1}}}}
"""
MADE = "task: advection1d, samples: 8, resolution: 16"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UPS_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY.format(data=MADE))
    return tmp_path


def ups(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["launch", *words])
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


def test_a_dry_run_prints_what_would_be_submitted_and_what_it_would_take(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outlook = SimpleNamespace(seconds=7200.0, money=4.0, device="cpu", verdict="fits")
    monkeypatch.setattr("ups.jobs.estimate.estimate.forecast", lambda *_, **__: outlook)
    words = ("slurm", "tiny.yaml", "--nodes", "2", "--time", "1h", "--price", "2", "--dry-run", "--operator.batch", "8")
    code, out, err = ups(capsys, *words)
    assert code == 0
    assert out.startswith("#!/bin/bash\n#SBATCH --job-name=ups-tiny-")
    assert "--operator.batch=8" in out
    assert "estimate: 2 h on cpu" in err
    assert "estimate: 8.00 at 2 an hour and machine" in err
    assert "longer than --time (60 min)" in err
    assert all_records() == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("local",), "no config was named"),
        (("local", "none.yaml"), "there is no such config file"),
        (("local", "tiny.yaml", "--time", "60"), "a time with its unit"),
        (("local", "tiny.yaml", "--gpus", "1", "--device", "cpu"), "device is cpu"),
        (("local", "tiny.yaml", "--gpus", "4096", "--device", "cuda"), "4096 ranks cannot be had"),
        (("local", "tiny.yaml", "--gpus", "2", "--ranks", "3"), "each rank has a GPU"),
        (("local", "tiny.yaml", "--nodes", "0"), "--nodes is 0, but must be at least 1"),
        (("local", "tiny.yaml", "--nodes", "2"), "give --rendezvous HOST:PORT"),
        (("local", "tiny.yaml", "--nodes", "8"), "batch is 4, which 8 ranks cannot share"),
        (("local", "tiny.yaml", "--dist.backend", "nccl", "--device", "cpu"), "nccl, which needs GPUs"),
        (("local", "tiny.yaml", "--start_from", "gone"), "gone: is not there, and the run needs it"),
        (("slurm", "tiny.yaml", "--time", "1m"), "of which the last checkpoint may take"),
        (("slurm", "tiny.yaml", "--over", "operator.train.lr=log:1..2"), "a range, which a grid cannot go through"),
        (("sky", "tiny.yaml", "--secret", "NOT_SET_HERE"), "it is not set here"),
        (("sky", "tiny.yaml", "--secret", "A=B"), "the name of an environment variable alone"),
        (("status", "nothing"), "no such job was submitted from here"),
        (("stop",), "all that were launched here are over"),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_is_begun(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], sentence: str
) -> None:
    code, out, err = ups(capsys, *words)
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.strip().count("\n") == 0
    assert all_records() == []


def test_a_file_that_is_not_there_is_refused_unless_only_the_nodes_see_it(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ups_fleet.cli.launch._outlook", lambda *_: [])
    (place / "tiny.yaml").write_text(TINY.format(data="file: data/a.hdf5, task: advection1d"))
    code, _, err = ups(capsys, "slurm", "tiny.yaml", "--dry-run")
    assert code == 2
    assert f"{place}/data/a.hdf5: is not there" in err
    code, out, _ = ups(capsys, "slurm", "tiny.yaml", "--dry-run", "--elsewhere")
    assert code == 0
    assert f"[ -e {place}/data/a.hdf5 ] || lacks {place}/data/a.hdf5" in out


def test_what_a_run_reads_is_known_and_what_it_fetches_or_makes_is_left_out(place: Path) -> None:
    files = "[a.hdf5, 'more/*Nu*.hdf5', 's3://bucket/b.hdf5', 'pdebench:advection1d/beta0.4', /abs/c.h5]"
    (place / "tiny.yaml").write_text(TINY.format(data=f"file: {files}, task: advection1d"))
    settings = load(run_config(), place / "tiny.yaml")
    assert inputs_of(settings, place) == [place / "a.hdf5", place / "more", Path("/abs/c.h5")]


def test_gpus_that_are_asked_for_are_used_or_refused_and_never_shared_in_silence(place: Path) -> None:
    settings = load(run_config(), place / "tiny.yaml")
    job = job_of(settings, Path("tiny.yaml"), {}, LaunchRequest(gpus=4), place)
    assert (job.gpus, job.ranks) == (4, 4)
    assert dict(job.flags) == {"device": "cuda", "dist.backend": "nccl"}
    alone = job_of(settings, Path("tiny.yaml"), {}, LaunchRequest(gpus=1), place)
    assert dict(alone.flags) == {"device": "cuda"}
    assert job_of(settings, Path("tiny.yaml"), {}, LaunchRequest(ranks=2), place).gpus == 0


def test_times_have_a_unit() -> None:
    assert [seconds_of(text) for text in ("45s", "90m", "1.5h", "2d", "1-00:00:01", "12:00:00", None)] == [
        *(45, 5400, 5400, 172800, 86401, 43200),
        None,
    ]
    for text in ("60", "1w", "h", "-5m", "1:00"):
        with pytest.raises(ConfigError, match="a time with its unit"):
            seconds_of(text)


def test_a_job_is_launched_asked_after_and_stopped_by_its_name(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(FAKE))
    (place / "tiny.yaml").write_text(f"# wait {place / 'runs' / 'tiny'}\n{TINY.format(data=MADE)}")
    code, out, _ = ups(capsys, "local", "tiny.yaml")
    assert code == 0
    key = out.split()[-1]
    record = json.loads((place / "state" / "jobs" / f"{key}.json").read_text())
    assert (record["engine"], record["identity"], record["folder"]) == ("local", key, str(place / "runs" / "tiny"))
    end = time.monotonic() + 120
    while not (place / "runs" / "tiny" / "waits-0").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    assert " running " in ups(capsys, "status")[1]
    assert "fake run" in ups(capsys, "logs")[1]
    assert f"{key}: stopped: PREEMPTED" in ups(capsys, "stop", "tiny")[1]
    assert " stopped " in ups(capsys, "status", key)[1]
