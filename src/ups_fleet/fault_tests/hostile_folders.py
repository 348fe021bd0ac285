"""Hostile run folders: any file of a run replaced by code, a folder, nonsense or a link, before it is resumed."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ups_fleet.fault_tests.case import LAST, CaseDir, Disturbance, Draw, FaultCase, Recipe, Recipes, Strategy, case_of
from ups_fleet.fault_tests.damage import newest
from ups_fleet.fault_tests.strangers import bomb
from ups_fleet.supervise.fault_plan import Fault

OF_RUN = (
    *("config.yaml", "environment.json", "statistics.json", "data.json", "ledger.json", "verdict.json", "phases.json"),
    *(".job.yaml", ".success.json", ".reserve", ".hashes.json", ".lock", ".secret"),
    *("stages.json", "metrics.jsonl", "logs/stays-0.json", "csv/codec.csv"),
)
OF_CHECKPOINT = ("manifest.json", "facts.json", "own-0.json", "index.json", "largest")
CONTENTS = ("pickle", "folder", "list", "number", "nest", "link", "dangling", "pipe")


@dataclass(frozen=True)
class Replaced(Disturbance):
    """A file of the run (or `checkpoint/NAME` of its newest checkpoint) becomes something else while it is stopped."""

    file: str
    content: str

    def settings(self, place: CaseDir) -> dict[str, Any]:  # noqa: ARG002
        return {"tracking": ["csv"]} if self.file.startswith("csv/") else {}

    def path(self, place: CaseDir) -> Path:
        kind, _, name = self.file.rpartition("/")
        if kind != "checkpoint":
            return place.run.folder / self.file
        checkpoint = newest(place.run)
        assert checkpoint is not None, "a run that was stopped has a checkpoint"
        if name == "largest":
            return max((p for p in checkpoint.iterdir()), key=lambda p: p.stat().st_size)
        return checkpoint / name

    def meddle(self, place: CaseDir) -> None:
        path, outside = self.path(place), place.folder / "outside"
        (place.folder / "which").write_text(str(path))
        original = place.folder / "original"
        path.parent.mkdir(exist_ok=True)
        if path.exists():
            shutil.copy(path, original)
            path.unlink()
        if self.content == "folder":
            path.mkdir()
            (path / "inside").write_text("of somebody else")
        elif self.content == "pipe":
            os.mkfifo(path)
        elif self.content == "dangling":
            path.symlink_to(outside)
        elif self.content == "link":
            outside.write_bytes(original.read_bytes() if original.exists() else b"{}")
            path.symlink_to(outside)
            (place.folder / "before").write_bytes(outside.read_bytes())
        else:
            path.write_bytes(content_of(self.content, place.canary))

    def mend(self, place: CaseDir) -> None:
        path, original = Path((place.folder / "which").read_text()), place.folder / "original"
        if not path.parent.exists():  # a damaged checkpoint was set aside
            return
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        if original.exists():
            shutil.copy(original, path)

    def problems(self, place: CaseDir) -> list[str]:
        problems = ["code from a file of the run was executed"] if place.canary.exists() else []
        before, outside = place.folder / "before", place.folder / "outside"
        if before.exists() and (not outside.exists() or outside.read_bytes() != before.read_bytes()):
            problems.append(f"a file outside of the run was changed through {self.file}")
        if outside.exists() and not before.exists():
            problems.append(f"a file outside of the run was made through {self.file}")
        return problems


def content_of(kind: str, canary: Path) -> bytes:
    """Bytes that no run has written."""
    if kind == "pickle":
        return bomb(canary)
    return {"list": b"[1, 2, 3]\n", "number": b'{"format": ' + b"9" * 5000 + b"}\n", "nest": b"[" * 100_000}[kind]


def _replaced(file: str) -> Recipe:
    """Passed over or refused, with a sentence either way; with the file as it was, the same bits."""

    def recipe(d: Draw, world: int, strategy: Strategy) -> FaultCase:
        content = d.choice(CONTENTS)
        fault = Fault("term", d.randrange(world), "forward", d.randrange(5, LAST - 1))
        promise: dict[str, Any] = {"endings": ("PREEMPTED",), "refused": ("SUCCESS", "USER", "CORRUPT")}
        return case_of(
            "F25", f"{content} for {file}", world, strategy, fault, around=Replaced(file, content), **promise
        )

    return recipe


RECIPES: Recipes = {
    ("F25", file): _replaced(file) for file in (*OF_RUN, *(f"checkpoint/{name}" for name in OF_CHECKPOINT))
}
