"""Keys and passwords of the environment, of ~/.netrc and of addresses are in nothing that a run or a launch leaves."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from broken_streams import STREAMS, codes_of
from planted_secrets import PLANTED, VALUES, leaks
from ups.cli.app import main
from ups.types import ConfigError
from ups_fleet.submit.plan import check_secrets

FAKE = Path(__file__).with_name("fake_ups.py")
TINY = """
name: tiny
out: {out}
data: {{a: {{task: advection1d, scheme: accurate, samples: 8, resolution: 16, device: cpu, reduce: {{time: 50}}}}}}
model: {{codec: {{dim: 4}}, operator: {{width: 8, depth: 1, heads: 1}}}}
codec: {{batch: 4, train: {{steps: 1}}}}
operator: {{batch: 4, train: {{steps: 1}}}}
device: cpu
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password planted-5-netrc\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("UPS_STATE", str(tmp_path / "left" / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "left").mkdir()
    (tmp_path / "tiny.yaml").write_text(TINY.format(out=tmp_path / "left"))
    return tmp_path


def ups(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(words))
    return int(end.value.code or 0)


@pytest.mark.slow  # tests/test_streams.py looks at the folders of its runs, with every default run of the tests
@pytest.mark.parametrize("failing", [False, True])
def test_nothing_that_a_run_leaves_holds_a_secret(place: Path, failing: bool) -> None:
    fault = json.dumps([{"rank": 0, "phase": "forward", "step": 0, "kind": "error"}])
    case = (["run", str(place / "tiny.yaml")], {"UPS_FAULTS": fault} if failing else {}, STREAMS["both to files"])
    assert codes_of([case], place / "left" / "printed") == [1 if failing else 0]
    assert (place / "left" / "tiny" / "verdict.json").exists()
    assert list(leaks(place / "left")) == []


@pytest.mark.parametrize("engine", ["local", "slurm", "sky"])
def test_nothing_that_would_be_submitted_holds_a_secret(
    place: Path, engine: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ups_fleet.cli.launch._outlook", lambda *_: [])
    more = ["--secret", "WANDB_API_KEY"] if engine == "sky" else []
    assert ups("launch", engine, "tiny.yaml", *more, "--dry-run") == 0
    (place / "left" / "printed").write_text("".join(capsys.readouterr()))
    assert "ups run" in (place / "left" / "printed").read_text()
    assert list(leaks(place / "left")) == []
    assert ups("launch", engine, "tiny.yaml", "--second_copy", "/disk/planted-2-hf-token-4711", "--dry-run") == 2
    out, err = capsys.readouterr()
    assert "holds the value of HF_TOKEN" in err
    assert not any(value in out + err for value in VALUES)


def test_nothing_that_a_launched_job_leaves_holds_a_secret_and_its_log_is_shown_without(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job has all of them in its environment; what it prints of them itself is blotted out where it is shown."""
    monkeypatch.setattr(sys, "executable", str(FAKE))
    (place / "tiny.yaml").write_text(f"# end {place / 'left' / 'run'} 0\n{TINY.format(out=place / 'left')}")
    monkeypatch.setenv("FAKE_PRINTS", "HF_TOKEN")
    assert ups("launch", "local", "tiny.yaml") == 0
    key = capsys.readouterr().out.split()[-1]
    end = time.monotonic() + 120
    while not (place / "left" / "state" / "jobs" / f"{key}.code").exists() and time.monotonic() < end:
        time.sleep(0.05)
    log = place / "left" / "state" / "jobs" / f"{key}.log"
    assert PLANTED["HF_TOKEN"] in log.read_text(), "it was in its environment"
    assert ups("launch", "logs", key) == 0
    assert "HF_TOKEN is ***" in capsys.readouterr().out
    assert os.stat(log).st_mode & 0o077 == 0, "for this user alone"
    log.unlink()
    assert list(leaks(place / "left")) == []


def test_an_address_with_a_password_is_refused_and_words_that_are_none_are_not() -> None:
    with pytest.raises(ConfigError, match="an address with a password"):
        check_secrets("fetch https://me:pass@host/a", {})
    with pytest.raises(ConfigError, match="the value of A_KEY"):
        check_secrets("word abcd%2Fefgh", {"A_KEY": "abcd/efgh"})
    check_secrets("--cache.use=false", {"TOKENIZERS_PARALLELISM": "false"})
