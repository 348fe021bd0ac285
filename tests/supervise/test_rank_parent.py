"""The parent of a rank begins whatever the others are doing in the same folder."""

from __future__ import annotations

from pathlib import Path

from ups.supervise.rank_parent import _forget_slot


def test_a_file_that_another_parent_moves_away_is_nobodys_slot(tmp_path: Path) -> None:
    for name in ("pid-0.new", "pid-1"):
        (tmp_path / name).symlink_to(tmp_path / "moved")  # listed, and gone when it is opened
    (tmp_path / "pid-2").write_text("77 2")
    (tmp_path / "exit-2.json").write_text("{}")
    (tmp_path / "pid-3").write_text("78 3")
    _forget_slot(str(tmp_path), "2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pid-0.new", "pid-1", "pid-3"]
