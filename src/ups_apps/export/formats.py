"""FORMATS: what `ups export` can write, one file of this folder and one line here a format."""

from __future__ import annotations

from ups.plugins import Table
from ups_apps.export.job import Writer

BUILT_IN: dict[str, Writer | str] = {"pt2": "ups_apps.export.pt2:write", "onnx": "ups_apps.export.onnx:write"}
FORMATS: Table[Writer] = Table("exports", BUILT_IN)
