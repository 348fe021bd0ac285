"""`ups track`: sends trackers what they have missed of a run, or all of it."""

from __future__ import annotations

from pathlib import Path

from ups.screen import waiting
from ups.types import ConfigError


def track(run: Path, *, to: str | None = None, project: str | None = None, wait: float = 600.0) -> int:
    """Send the trackers of a run what they have missed, and how it ended; with --to, show an old run to further ones.

    A run feeds its trackers (`tracking` in its config) while it trains. What one missed because it was down, slow, full
    or without a login, or because everything was killed, is sent here. Nothing is sent twice.

    Parameters
    ----------
    run
        A run folder.
    to
        Trackers that are to show the run from now on, for example wandb,tensorboard.
    project
        The project (W&B) or experiment (MLflow) for it.
    wait
        Seconds after which it is given up for now.
    """
    from ups.rundir import RunDir
    from ups_fleet.tracking import deliver, show_to

    folder = RunDir.at(run).folder
    if to is not None or project is not None:
        names = tuple(name.strip() for name in (to or "").split(",") if name.strip())
        show_to(folder, names, project, print)
    with waiting(f"sending what trackers have missed of {folder}"):
        states = deliver(folder, wait, by_user=True)
    if not states:
        raise ConfigError(f"{run}: is shown nowhere beside its log, metrics.jsonl; name trackers with --to.")
    for state in states:
        print(state.sentence(folder))
    return 0 if all(state.whole for state in states) else 1
