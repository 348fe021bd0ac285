"""What `ups export` refuses, and what every export says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from moving import moving

from ups.plugins import at
from ups.types import ConfigError
from ups_apps.export.card import export_card
from ups_apps.export.export import export_run
from ups_apps.export.formats import BUILT_IN, FORMATS


def test_the_card_says_ranges_grid_licence_and_what_is_left_out() -> None:
    simulator = moving("reacdiff1d", 16)
    card = export_card(simulator, simulator.tasks)
    (task,) = card["tasks"]
    assert task["shape"] == [16]
    assert task["periodic"] == [True]
    assert {p["name"]: [p["lo"], p["hi"]] for p in task["params"]} == {"nu": [0.5, 2.0], "rho": [0.5, 2.0]}
    assert task["fields"] == [{"name": "u", "range": [-2.0, 4.0]}]
    assert card["licence"]
    assert any("ensembles" in sentence for sentence in card["leaves_out"])


def test_a_wrong_format_task_or_place_is_refused_before_anything_is_traced(tmp_path: Path) -> None:
    file = moving("burgers1d", 16).save(tmp_path / "b.safetensors")
    with pytest.raises(ConfigError, match="did you mean 'onnx'"):
        export_run(file, "onx", None, None, False, print)
    with pytest.raises(ConfigError, match="was not trained on 'darcy2d'; it knows burgers1d"):
        export_run(file, "pt2", "darcy2d", None, False, print)
    with pytest.raises(ConfigError, match="is there already"):
        export_run(file, "pt2", None, file, False, print)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.safetensors"]


def test_every_row_of_the_table_is_a_format() -> None:
    assert set(FORMATS) == set(BUILT_IN), "html needs play, which is there"
    assert all(row == at(str(BUILT_IN[name])) for name, row in FORMATS.items())
