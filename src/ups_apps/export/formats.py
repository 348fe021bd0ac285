"""FORMATS: what `ups export` can write, one file of this folder and one line here a format."""

from __future__ import annotations

from ups.plugins import Table, is_there
from ups_apps.export.job import ExportFormat

BUILT_IN: dict[str, ExportFormat | str] = {
    "pt2": "ups_apps.export.pt2:FORMAT",
    "onnx": "ups_apps.export.onnx:FORMAT",
    "html": "ups_apps.export.html:FORMAT",
}
# Of formats that are made with another app, which may have been deleted.
WITH = {"html": "ups_apps.play.starts"}
THERE = {name: row for name, row in BUILT_IN.items() if is_there(WITH.get(name, __name__))}
FORMATS: Table[ExportFormat] = Table("exports", THERE)
