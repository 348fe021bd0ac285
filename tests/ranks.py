"""Real ranks for tests: those of the fault lab, with pytest in their server."""

from __future__ import annotations

import functools

from ups.lab.ranks import PRELOAD, Result, free_port, values
from ups.lab.ranks import run_ranks as _run_ranks

__all__ = ["Result", "free_port", "run_ranks", "values"]

run_ranks = functools.partial(_run_ranks, preload=(*PRELOAD, "pytest"))
