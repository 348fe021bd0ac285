"""By which of its files a run's folder is known: everyone asks the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from ups.data import open_source
from ups.physics import TASKS
from ups.run_files import is_run
from ups.types import DataError
from ups_fleet.run_folders.state import state_of


@pytest.mark.parametrize(
    ("names", "run"),
    [
        (("config.yaml", "environment.json"), True),
        (("config.yaml", ".lock"), True),  # killed as it was made
        (("environment.json", "verdict.json"), True),  # somebody took its config away
        (("config.yaml",), False),
        (("environment.json", "a.npz"), False),
        (("config.yaml", "logs", "a.npz"), False),  # a solver's own
        ((".lock", "verdict.json"), False),
    ],
)
def test_a_run_is_known_by_what_it_began_with_and_one_more_of_its_files(
    tmp_path: Path, names: tuple[str, ...], run: bool
) -> None:
    for name in names:
        (tmp_path / name).write_text("{}")
    assert is_run(names) is run
    assert (state_of(tmp_path).word not in ("empty", "foreign")) is run
    with pytest.raises(DataError) as error:
        open_source(tmp_path, TASKS)
    assert ("is a run folder" in str(error.value)) is run


def test_what_is_gone_of_a_run_is_said(tmp_path: Path) -> None:
    (tmp_path / "verdict.json").write_text("{}")
    gone = "holds files and is no run folder (its config.yaml and environment.json are gone)."
    assert state_of(tmp_path).sentence == gone
