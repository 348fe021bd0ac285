"""What one request may ask of a service, and how many there may be."""

from __future__ import annotations

from dataclasses import dataclass

from ups.types import ConfigError, data_size


class OverdueError(ConfigError):
    """A request that took longer than the service gives to one."""


class BusyError(ConfigError):
    """A request for which the service has no room now."""


@dataclass(frozen=True)
class ServiceLimits:
    """Bounds of a service.

    Args:
        body: Bytes that a request may send.
        steps: Of a rollout.
        members: Of an ensemble.
        answer: Bytes of the frames of an answer.
        seconds: From the arrival of a request to its answer, or between two frames of a stream.
        waiting: Requests that may wait while others are computed; one more is told to come again.
        streams: Streams at the same time.
        batch: Samples of several requests that are computed together.
        arrival: Seconds in which a body must have come.
    """

    body: int = 64 << 20
    steps: int = 10_000
    members: int = 64
    answer: int = 512 << 20
    seconds: float = 60.0
    waiting: int = 64
    streams: int = 32
    batch: int = 32
    arrival: float = 20.0

    def check_size(self, task: str, steps: int, numbers: int, members: int) -> None:
        """A ConfigError where `steps` frames of so many `numbers` for each of the `members` are more than is given."""
        if steps > self.steps:
            raise ConfigError(f"{task}: {steps} steps are more than the {self.steps} of this service; ask for fewer.")
        if members > self.members:
            raise ConfigError(
                f"{task}: {members} members are more than the {self.members} of this service; ask for fewer."
            )
        if (size := 4 * steps * numbers * members) > self.answer:
            raise ConfigError(
                f"{task}: the frames would take {data_size(size)}, and this service gives {data_size(self.answer)}; "
                "ask for fewer steps, samples or members."
            )
