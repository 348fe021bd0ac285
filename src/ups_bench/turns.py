"""Timing several works in turn, so that whatever slows the machine slows them all; ratios with their spread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Work = Callable[[], Any]


def timed(work: Work) -> float:
    """Seconds that some work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def finished(work: Work, device: torch.device) -> Work:
    """Some work together with waiting for the device to have done it."""

    def run() -> None:
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return run


def repeated(step: Work, times: int) -> Work:
    """A block of steps, timed as one: on a GPU the host runs ahead within it, as it does in a training."""

    def run() -> None:
        for _ in range(times):
            step()

    return run


def in_turn(
    turns: Sequence[tuple[str, Work | None]],
    rounds: int,
    device: torch.device,
    meet: Callable[[], None] = lambda: None,
    block: int = 1,
) -> dict[str, list[float]]:
    """Seconds of each work by name, one for each of so many rounds in turn, after a round to warm up.

    A turn without work is another rank's; all ranks `meet` before each. Of a `block` of several in every turn the first
    one, which finds the memory as others left it, does not count.
    """
    times: dict[str, list[float]] = {name: [] for name, _ in turns}
    for number in range(rounds + 1):
        for name, work in turns if number % 2 else turns[::-1]:
            meet()
            if work is not None:
                seconds = [timed(finished(work, device)) for _ in range(block)]
                times[name] += seconds[block > 1 :] if number else []
    return times


@dataclass(frozen=True)
class TurnSpread:
    """The median of what was seen, the least and the most."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> TurnSpread:
        return cls(statistics.median(values), min(values), max(values))


def over(ours: Sequence[float], theirs: Sequence[float]) -> TurnSpread:
    """Ratio of two works that were timed in turn, round by round: what slows a whole round cancels."""
    return TurnSpread.of([a / b for a, b in zip(ours, theirs, strict=True)])
