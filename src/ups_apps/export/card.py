"""The card of an export: what is in it, what its numbers mean, what it was trained on, and what it leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ups.models import Simulator
from ups.types import TaskSpec
from ups.version import __version__

LICENCE = (
    "The program that this was made with is Apache-2.0. The weights were learnt from the data that are named here; "
    "whoever trained them says what may be done with them."
)
LEFT_OUT = (
    "ensembles: an export gives the one most likely answer, and draws nothing",
    "refinement of steady solutions to a tolerance, searches and estimates of the error",
    "other grids than the one of training, and values between its cells",
    "remarks on what lies outside the trained ranges: see `ranges`",
)


def export_card(simulator: Simulator, tasks: Sequence[TaskSpec], **more: Any) -> dict[str, Any]:
    """The card of a simulator for an export of these tasks, with its licence and what it leaves out."""
    chosen = [task.name for task in tasks]
    card = simulator.card()
    rows = [row for row in card.pop("tasks") if row["name"] in chosen]
    return {
        "made_by": f"ups {__version__}",
        **card,
        "licence": LICENCE,
        "leaves_out": list(LEFT_OUT),
        "tasks": rows,
        **more,
    }
