"""The engine `sky`: a SkyPilot task file, handed to the `sky` command."""

from __future__ import annotations

from collections.abc import Iterator

from ups.submit.job import Job, Status
from ups.types import ConfigError


class Sky:
    """Clusters that SkyPilot rents. The identity of a job is the name of its cluster."""

    def check(self, job: Job) -> None:
        raise ConfigError(f"{job.name}: this engine is not there yet.")

    def render(self, job: Job) -> str:
        return job.name

    def submit(self, job: Job, text: str) -> str:
        raise ConfigError(f"{job.name}: {text}")

    def find(self, key: str) -> str | None:
        raise ConfigError(key)

    def status(self, identity: str) -> Status:
        raise ConfigError(identity)

    def logs(self, identity: str) -> Iterator[str]:
        raise ConfigError(identity)

    def stop(self, identity: str) -> None:
        raise ConfigError(identity)
