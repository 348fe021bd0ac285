"""`ups export`: a trained simulator in formats that need no `ups`."""

from __future__ import annotations

import sys
from pathlib import Path

from ups.cli.places import Place
from ups.screen import waiting
from ups.wings import USE, Command


def export(run: Path, *, to: str, task: str | None = None, out: Place | None = None, overwrite: bool = False) -> None:
    """Write a trained simulator as a file that runs without `ups`; its path is the last line printed.

    `pt2` are programs of torch.export, which run with torch alone and give the same bits. `onnx` is a whole rollout as
    one graph; it is written only if onnxruntime agrees with torch to 1e-5. `html` is one file to send: it opens from a
    disk, without a network, and simulates in the browser. Each holds a card with tasks, trained ranges and licence, and
    what the export leaves out: ensembles, refinement, other grids. A task takes a minute or two for onnx and html.

    Parameters
    ----------
    run
        A run folder, or a simulator artifact.
    to
        pt2, onnx or html, or a format of an installed package.
    task
        Which task, where the simulator knows several; html holds all, unless one is named.
    out
        The file. `RUN-TASK.FORMAT` in this folder by default, `RUN.html` for html.
    overwrite
        Replace a file that is there.
    """

    def say(sentence: str) -> None:
        print(f"ups: {sentence}", file=sys.stderr)

    with waiting(f"exporting {run}"):
        from ups_apps.export.export import export_run

        path = export_run(run, to, task, out, overwrite, say)
    print(path)


COMMAND = Command("export", export, USE)
