"""Whether this machine has what a job on it asks for: processors, GPUs, an interface, an address to meet at."""

from __future__ import annotations

from ups.submit.job import Job


def check_here(job: Job) -> None:
    """A ConfigError for the first thing that is not here."""
