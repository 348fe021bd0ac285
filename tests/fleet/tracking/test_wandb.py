"""W&B online, against a server that remembers: what it holds is the truth, and nothing is sent twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from shown_runs import ID, end, labels, log, made_up
from wandb_server import serving

from ups.verdict import Ending
from ups_fleet.tracking import deliver

KEY = "0123456789abcdef0123456789abcdef01234567"


def test_an_online_run_is_one_run_after_a_resume_and_no_key_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="needs the `wandb` extra")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    with serving() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        run = made_up(tmp_path / "run", ["wandb"], **labels())
        log(run, range(1, 6))
        assert deliver(run.folder, 60.0)[0].whole
        assert server.exits == [137]
        log(run, range(4, 8), factor=10.0)  # resumed from a checkpoint of step 3
        end(run, Ending.SUCCESS)
        assert deliver(run.folder, 60.0)[0].whole
        rows = run.metrics.read_text().count("\n")
        assert [row["_step"] for row in server.rows.values()] == list(range(rows))
        assert server.rows[rows - 1]["codec/step"] == 7
        assert server.rows[rows - 1]["codec/loss"] == 70.0
        assert (server.names, server.exits, server.summary["ending"]) == ({ID}, [137, 0], "SUCCESS")
        assert [server.run[key] for key in ("groupName", "jobType", "project")] == ["sweep-3", "train", "burgers"]
        assert server.artifacts == ["report", "model"]
        assert b"the report" in next(data for name, data in server.files.items() if name.endswith(".html"))
    files = [path for path in run.folder.rglob("*") if not path.is_dir()]
    assert not any(path.is_symlink() for path in files), "a run's folder has no links"
    assert not any(KEY.encode() in path.read_bytes() for path in files)
