"""TRACKERS: where the numbers of a run go while it trains; `jsonl` always, the others as mirrors of it on request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from ups.tracking.csv import Csv
from ups.tracking.jsonl import Jsonl
from ups.tracking.tensorboard import TensorBoard
from ups.tracking.tracker import Tracker
from ups.types import check_known

__all__ = ["TRACKERS", "Tracker", "open_trackers", "require"]

TRACKERS: dict[str, type[Tracker]] = {"jsonl": Jsonl, "csv": Csv, "tensorboard": TensorBoard}


def require(names: Iterable[str]) -> None:
    """Refuse unknown names, and say in one sentence what to install where a tracker needs a package."""
    names = tuple(names)
    check_known("tracker", names, TRACKERS)
    for name in names:
        TRACKERS[name].require()


def open_trackers(names: Iterable[str], folder: Path, say: Callable[[str], None]) -> list[Tracker]:
    """The log that is always on and the mirrors named, for the run in `folder`; whoever opens them closes them."""
    return [TRACKERS[name](folder, say) for name in dict.fromkeys(("jsonl", *names))]
