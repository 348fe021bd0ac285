"""Folders that say what is for training and what for testing are believed, however their files are named."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from ups.jobs.recipe.data_profile import holdings
from ups.progress import Progress
from ups.run.data.data_config import DataConfig
from ups.run.data.datasets import open_sets

TASK = "name: waves\ndims: [time, x]\nfields: {u: [u]}\n"
WAYS = {
    "folder": ["data"],
    "pattern": ["data/*/*.npz"],
    "deep pattern": ["data/**/*.npz"],
    "folders": ["data/*"],
    "list": [f"data/{part}/{part[0]}{i}.npz" for part in ("train", "valid", "test") for i in range(4)],
}


@pytest.mark.parametrize("way", WAYS)
def test_what_lies_in_the_folder_test_is_what_is_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("task.yaml").write_text(TASK)
    for k, part in enumerate(("train", "valid", "test")):
        (tmp_path / "data" / part).mkdir(parents=True)
        for i in range(4):
            wave = np.sin(2 * np.pi * (np.arange(16) / 16 - 0.1 * np.arange(5)[:, None] + 0.05 * (4 * k + i)))
            np.savez(tmp_path / "data" / part / f"{part[0]}{i}.npz", u=wave, x=np.arange(16) / 16)

    def silent(_: Progress) -> None:
        """Not shown."""

    data = DataConfig.model_validate({"file": WAYS[way], "task": "task.yaml"})
    with ExitStack() as stack:
        (waves,) = open_sets({"a": data}, tmp_path, silent, stack)
        for part in ("train", "valid", "test"):
            ids = [name.partition("/")[2] for name in waves.first.split.part(part)]
            assert [name[:2] for name in ids] == [f"{part[0]}{i}" for i in range(4)]
    if way != "pattern" and "*" not in str(WAYS[way]):
        (holding,) = holdings([Path(path) for path in WAYS[way]], "task.yaml")
        assert "split" not in holding.section("cpu")
