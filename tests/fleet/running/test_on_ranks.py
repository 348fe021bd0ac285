"""The demo under a supervisor."""

from __future__ import annotations

from pathlib import Path

import pytest

from ups.config import load
from ups.progress import Screen
from ups.run.config import run_config
from ups.run.start import Start
from ups.verdict import Ending
from ups_fleet.running.supervised import on_ranks


@pytest.mark.parametrize(("ranks", "cores", "started"), [(1, 2, 2), (3, 2, 3), (3, 1, 3), (1, 1, None)])
def test_the_demo_is_run_on_the_ranks_of_its_config(
    ranks: int, cores: int, started: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[int | None] = []
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(
        "ups_fleet.running.supervised.supervise",
        lambda config, *_, **__: (starts.append(config.dist.ranks), Ending.SUCCESS)[1],
    )
    monkeypatch.setattr(
        "ups_fleet.running.supervised.finish_alone", lambda config, *_, **__: (config, starts.append(None))
    )
    config = load(run_config(), None, {"out": str(tmp_path), "dist.ranks": ranks})
    on_ranks(config, Screen.silent(), start=Start(overwrite=True, before=("data", 0.0)))
    assert starts == [started]
