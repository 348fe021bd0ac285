"""A sweep of fake runs as a process of its own: `sweep_process.py FOLDER TEMPLATE KIND…`, one point for each kind."""

from __future__ import annotations

import sys
from pathlib import Path

from ups_fleet.sweep.axes import SweepPoint
from ups_fleet.sweep.sweep import Listed, Slot, Sweep

FAKE = Path(__file__).with_name("fake_run.py")


def fake_sweep(folder: Path, template: Path, kinds: list[str], slots: int = 2) -> Sweep:
    """Points named by their number and kind; each becomes a copy of the run in `template`."""
    points = [SweepPoint(f"{number}-{kind}", (("kind", kind),)) for number, kind in enumerate(kinds)]

    def command(point: SweepPoint, slot: Slot, data_from: Path | None) -> list[str]:  # noqa: ARG001
        return [sys.executable, "-S", str(FAKE), str(folder / point.name), point.name.split("-")[1], str(template)]

    places = [Slot("", (("OMP_NUM_THREADS", "3"),))] * slots
    return Sweep(folder, Listed(points), places, command, lambda sentence: print(sentence, flush=True), tick=0.05)


if __name__ == "__main__":
    stopped = fake_sweep(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]).carry_out()
    sys.exit(0 if stopped is None else 128 + stopped)
