"""Names of files in a run's folder, for those too who know no other path of it, and by which of them it is known."""

from __future__ import annotations

from collections.abc import Collection

CONFIG = "config.yaml"
JOB = ".job.yaml"
ENVIRONMENT = "environment.json"
LOCK = ".lock"
VERDICT = "verdict.json"
REPORT = "report.html"
RESULTS = "results.json"
TRAJECTORIES = "trajectories.json"


def is_run(names: Collection[str]) -> bool:
    """Whether files of these names lie in a run's folder: what it was begun with, and beside that another file that
    runs leave, even where one was killed as it was made. A config alone may be anyone's."""
    begun = {CONFIG, ENVIRONMENT}.intersection(names)
    return bool(begun) and len(begun | {LOCK, VERDICT}.intersection(names)) > 1
