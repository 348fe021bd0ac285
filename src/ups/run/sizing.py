"""Which size, batch, precision and learning rate the minutes have room for, by one rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ups.engine.train import Precision

# A network is as large as the minutes have room for *enough steps* of it, because an error falls with steps (as their
# power of -0.7, docs/trials.md) long before it falls with width. Enough is a constant of each size, so that with more
# minutes the size never shrinks, and the steps of a size only grow. The batch does not depend on the minutes: it is
# doubled as long as that costs little, for a batch twice as large that takes twice as long halves the steps.


@dataclass(frozen=True)
class SizeRule:
    """How a network of a named size is trained, and when it is taken."""

    rate: float  # the highest learning rate
    steps: int  # that the minutes must have room for
    bf16: bool = False  # where a GPU takes its steps sooner with it; smaller ones lose accuracy by it


RULES: dict[str, SizeRule] = {
    "tiny": SizeRule(rate=8e-3, steps=0),
    "small": SizeRule(rate=4e-3, steps=4_000),
    "base": SizeRule(rate=2e-3, steps=30_000, bf16=True),
    "large": SizeRule(rate=1e-3, steps=100_000, bf16=True),
}
FEW = 400  # steps, of which fewer are too few for any size
BATCHES = {"cpu": (8, 32), "cuda": (16, 64)}  # the batch to begin with, and the largest
FREE = 1.25  # times as long may a step take with a batch twice as large
PAYS = 1.25  # times as fast must a step be in bf16


@dataclass(frozen=True)
class Price:
    """What a step costs: seconds, and bytes of memory at the peak of a run."""

    seconds: float
    bytes: float


@dataclass(frozen=True)
class SizeChoice:
    """A size with its batch and precision, and what its steps cost."""

    size: str
    batch: int
    precision: Precision
    price: Price

    def steps(self, seconds: float) -> float:
        """How many steps so many seconds have room for."""
        return seconds / self.price.seconds


def choose(price: Callable[[str, int, Precision], Price], kind: str, seconds: float, room: float) -> SizeChoice:
    """The largest size that has its steps in `seconds` and its place in `room` bytes, on a `kind` of device.

    Args:
        price: What a step of a size costs, by batch and precision. Larger sizes are asked for only where they may do.
        kind: cpu or cuda.
        seconds: Of training.
        room: Bytes of memory. A tiny network with a batch of one is taken whether it has its place or not.
    """
    chosen: SizeChoice | None = None
    for size, rule in RULES.items():
        if chosen is not None and chosen.steps(seconds) < rule.steps:
            break  # and a larger size takes no more steps
        first = BATCHES[kind][0]
        precision = precision_of(size, kind)
        if precision == "bf16" and PAYS * price(size, first, "bf16").seconds > price(size, first, "fp32").seconds:
            precision = "fp32"
        here = _with_batch(price, kind, size, precision, room)
        if chosen is not None and (here.batch < first or here.steps(seconds) < rule.steps):
            break
        chosen = here
    assert chosen is not None
    return chosen


def _with_batch(
    price: Callable[[str, int, Precision], Price], kind: str, size: str, precision: Precision, room: float
) -> SizeChoice:
    """A size with the first batch, halved until it has its place, or doubled for as long as that costs little."""
    batch, most = BATCHES[kind]
    cost = price(size, batch, precision)
    while cost.bytes > room and batch > 1:
        batch //= 2
        cost = price(size, batch, precision)
    while cost.bytes <= room and 2 * batch <= most:
        more = price(size, 2 * batch, precision)
        if more.bytes > room or more.seconds > FREE * cost.seconds:
            break
        batch, cost = 2 * batch, more
    return SizeChoice(size, batch, precision, cost)


def precision_of(size: str, kind: str) -> Precision:
    """The precision in which a size is trained where its steps are no slower for it."""
    return "bf16" if kind == "cuda" and RULES[size].bf16 else "fp32"
