"""Chooses the task and the windows of each training step: a pure function of seed, step and rank."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from ups.types import Array, ConfigError, DataError

# Steps in which weighted tasks come as often as their weights say; the weights are rounded to a whole number of these.
CYCLE = 4096
# Steps from a validation to the first that is drawn by its errors: windows built ahead are never drawn anew.
LEAD = 64
ROUNDS = 8
CHUNK = 1 << 18
# By error, no task counts for less or more than this part of the geometric mean.
LEAST, MOST = 0.1, 10.0

Validations = Sequence[tuple[int, Mapping[str, float]]]


def _no_validations() -> Validations:
    """No validation yet."""
    return ()


@dataclass(frozen=True)
class Mix:
    """How often the tasks of a run are drawn; one task per step, the same on every rank."""

    policy: Literal["uniform", "proportional", "temperature", "weights", "error"] = "uniform"
    """uniform: in turns; proportional: by the number of windows n; temperature: by n^(1/T); weights: as given; error:
    in proportion to the last validation errors."""
    temperature: float = 2.0
    """T of policy temperature: 1 is proportional, a large T uniform."""
    weights: dict[str, float] = field(default_factory=dict)
    """Weights of policy weights, by task; 0 leaves a task out."""

    def __post_init__(self) -> None:
        if not self.temperature > 0 or not math.isfinite(self.temperature):
            raise ConfigError(f"mix.temperature is {self.temperature:g}, but must be above 0.")
        if bool(self.weights) != (self.policy == "weights"):
            given = "are given" if self.weights else "are missing"
            raise ConfigError(f"mix.policy is {self.policy} and mix.weights {given}; change one of them.")
        for name, value in self.weights.items():
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"mix.weights.{name} is {value:g}, but a weight is a number of at least 0.")
        if self.weights and not sum(self.weights.values()) > 0:
            raise ConfigError("mix.weights sum to zero, so no task would be drawn; give one of them a weight above 0.")

    def numbers(self, names: Sequence[str], counts: Sequence[int]) -> list[float]:
        """A weight per task, before any validation."""
        if self.policy == "weights":
            for name in self.weights:
                if name not in names:
                    raise ConfigError(f"mix.weights names {name}, which no data set holds; they hold {list(names)}.")
            for name in names:
                if name not in self.weights:
                    raise ConfigError(f"mix.weights has no number for {name}; give it one, 0 to leave it out.")
            return [float(self.weights[name]) for name in names]
        power = {"proportional": 1.0, "temperature": 1 / self.temperature}.get(self.policy, 0.0)
        return [float(n) ** power for n in counts]


class Pick(NamedTuple):
    """A step's task, by its place among the tasks, and how many steps drew it before."""

    task: int
    turn: int


@dataclass(frozen=True)
class _Period:
    """Steps from `first` on, drawn by fixed weights; `turns` is what each task had been drawn before, and `shares` the
    part of all steps that the weights ask for, before they are rounded to slots."""

    first: int
    slots: tuple[int, ...]
    turns: tuple[int, ...]
    shares: tuple[float, ...]


class Sampler:
    """Step n draws one task and its next `batch` windows, or as many as `batches` says of that task.

    Where several entries have the name of one task (its data on several grids), they share its part of the steps by
    their windows.

    The windows of a task come in an endless sequence of epochs, each a permutation keyed by (seed, task, epoch) that is
    computed place by place and never laid out: any step costs the same, whatever its number and however many windows
    there are. A task with fewer windows than a batch repeats them within it, an epoch after the other. Weighted tasks
    are spread evenly over each `CYCLE` of steps and shuffled within it.

    `validations` gives (step, error by task) of every validation so far; it matters to the policy `error` alone, from
    `LEAD` steps after the validation on. Given that, every answer is a pure function of its arguments.
    """

    def __init__(
        self,
        names: Sequence[str],
        counts: Sequence[int],
        batch: int,
        mix: Mix | None = None,
        seed: int = 0,
        validations: Callable[[], Validations] = _no_validations,
        batches: Mapping[str, int] | None = None,
    ) -> None:
        self.tasks, self.names = tuple(names), _labels(names)
        self.counts, self.seed = tuple(counts), seed
        self.sizes = tuple((batches or {}).get(name, batch) for name in names)  # windows in a step of each task
        self.mix, self.validations = mix or Mix(), validations
        for name, count in zip(names, counts, strict=True):
            if count < 1:
                raise DataError(f"{name} has no windows to draw; give its split more samples or more frames.")
        if not names:
            raise DataError("there is no task to draw; add a data set.")
        weights = self._shared(dict.fromkeys(names, 1.0)) if self._even else self._shared(self._mixed())
        even = self._even and len(set(weights)) == 1
        slots = (1,) * len(names) if even else _apportion(weights)
        self._periods = [_Period(0, slots, (0,) * len(names), _shares(weights))]
        self._order = functools.lru_cache(4)(self._cycle)
        self._keys = functools.lru_cache(256)(lambda task, epoch: _words(f"{seed}/{self.names[task]}/{epoch}", ROUNDS))

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which is told of no validation: there the order is not asked for."""
        state = {name: value for name, value in self.__dict__.items() if name not in ("_order", "_keys")}
        return {**state, "validations": _no_validations}

    @property
    def _even(self) -> bool:
        return self.mix.policy in ("uniform", "error")

    def _mixed(self) -> dict[str, float]:
        """The weight of each task, by its windows on all grids."""
        windows = dict.fromkeys(self.tasks, 0)
        for name, count in zip(self.tasks, self.counts, strict=True):
            windows[name] += count
        return dict(zip(windows, self.mix.numbers(list(windows), list(windows.values())), strict=True))

    def _shared(self, weights: Mapping[str, float]) -> list[float]:
        """The weight of each entry: that of its task, shared by windows among the task's entries."""
        pairs = list(zip(self.tasks, self.counts, strict=True))
        totals = {name: sum(n for task, n in pairs if task == name) for name in weights}
        return [weights[name] if totals[name] == n else weights[name] * n / totals[name] for name, n in pairs]

    def draw(self, step: int) -> Pick:
        """The task of a step, and its turn."""
        period = self._period(step)
        cycle, place = divmod(step - period.first, sum(period.slots))
        task, turn = (int(x) for x in self._laid(period.slots, cycle)[place])
        return Pick(task, period.turns[task] + cycle * period.slots[task] + turn)

    def turns(self, step: int) -> tuple[int, ...]:
        """How many of the steps before `step` drew each task."""
        period = self._period(step)
        return self._turns(period, step)

    def wanted_shares(self, step: int) -> tuple[float, ...]:
        """The share of the steps before `step` that the mix asks for of each task; of `error`, the mean over them."""
        self._period(step)
        known, step = self._periods, max(step, 1)
        ends = [*(period.first for period in known[1:]), step]
        spans = [max(0, min(end, step) - s.first) for s, end in zip(known, ends, strict=True)]
        columns = zip(*(period.shares for period in known), strict=True)
        return tuple(math.fsum(n * x for n, x in zip(spans, column, strict=True)) / sum(spans) for column in columns)

    def indices(self, step: int, rank: int = 0, world: int = 1) -> tuple[int, Array]:
        """The task of a step, and the windows of it that `rank` takes: `(b,)` of 0 … count − 1.

        The shares of all ranks, one after the other, are what one process would take.
        """
        task, turn = self.draw(step)
        size = self.sizes[task]
        first, last = (turn * size + size * r // world for r in (rank, rank + 1))
        return task, self.sequence(task, first, last)

    def place(self, step: int, rank: int = 0, world: int = 1) -> int:
        """Where the share of `rank` begins in the endless sequence of the step's task."""
        task, turn = self.draw(step)
        return turn * self.sizes[task] + self.sizes[task] * rank // world

    def sequence(self, task: int, first: int, last: int) -> Array:
        """Windows `first` … `last` − 1 of a task's endless sequence of epochs."""
        if first >= last:
            return np.zeros(0, np.int64)
        count = self.counts[task]
        epochs, places = np.divmod(np.arange(first, last), count)
        keys = np.array([self._keys(task, epoch) for epoch in range(int(epochs[0]), int(epochs[-1]) + 1)], np.uint64)
        return permuted(places, count, keys[0] if len(keys) == 1 else keys[epochs - epochs[0]].T)

    def epochs(self, step: int) -> tuple[int, ...]:
        """Whole epochs of each task that the steps before `step` have drawn."""
        return tuple(t * b // n for t, b, n in zip(self.turns(step), self.sizes, self.counts, strict=True))

    def digest(self, task: int, epoch: int) -> str:
        """SHA-256 of the windows of one epoch in the order they are drawn, as little-endian 64-bit numbers."""
        hashed, count = hashlib.sha256(), self.counts[task]
        for first in range(0, count, CHUNK):
            places = (epoch * count + first, epoch * count + min(first + CHUNK, count))
            hashed.update(self.sequence(task, *places).astype("<i8").tobytes())
        return hashed.hexdigest()

    def facts(self, steps: int = 256) -> dict[str, Any]:
        """What must be the same on all ranks: what there is to draw, and a digest of all that the first steps draw."""
        picks = [self.draw(step) for step in range(steps)]
        # The turns of a task follow each other: all its windows at once, which takes a tenth of the time.
        ends = {pick.task: pick.turn + 1 for pick in picks}
        windows = {task: self.sequence(task, 0, end * self.sizes[task]).astype("<i8") for task, end in ends.items()}
        hashed = hashlib.sha256()
        for task, turn in picks:
            drawn = windows[task][turn * self.sizes[task] : (turn + 1) * self.sizes[task]]
            hashed.update(task.to_bytes(8, "little") + drawn.tobytes())
        counts, sizes = (dict(zip(self.names, each, strict=True)) for each in (self.counts, self.sizes))
        return {"windows": counts, "batch": sizes, "mix": self.mix, "order": hashed.hexdigest()}

    def _period(self, step: int) -> _Period:
        """The period a step lies in, after taking in the validations since the last call."""
        known = self._periods
        if self.mix.policy == "error":
            known = list(known)  # several threads ask, and each may take in the same
            for at, errors in self.validations()[len(known) - 1 :]:
                tasks = list(dict.fromkeys(self.tasks))
                by_error = _by_error([errors.get(name, math.nan) for name in tasks])
                weights = self._shared(dict(zip(tasks, by_error, strict=True)))
                first = max(at + LEAD, known[-1].first)
                known.append(_Period(first, _apportion(weights), self._turns(known[-1], first), _shares(weights)))
            self._periods = known
        return next(period for period in reversed(known) if period.first <= step)

    def _turns(self, period: _Period, step: int) -> tuple[int, ...]:
        cycle, place = divmod(step - period.first, sum(period.slots))
        part = np.bincount(self._laid(period.slots, cycle)[:place, 0], minlength=len(period.slots))
        return tuple(t + cycle * n + int(p) for t, n, p in zip(period.turns, period.slots, part, strict=True))

    def _laid(self, slots: tuple[int, ...], cycle: int) -> Array:
        """The order of a cycle; where tasks take turns they all are alike."""
        return self._order(slots, cycle if max(slots) > 1 else 0)

    def _cycle(self, slots: tuple[int, ...], cycle: int) -> Array:
        """`(sum of slots, 2)`: task and its turn within the cycle; the j-th of n slots lies in the j-th n-th of it."""
        tasks = np.repeat(np.arange(len(slots)), slots)
        turns = np.concatenate([np.arange(n) for n in slots])
        if max(slots) == 1:
            return np.stack((tasks, turns), 1)
        keys = np.array(_words(f"{self.seed}/mix/{cycle}", 1), np.uint64)
        jitter = (mixed(np.arange(len(tasks), dtype=np.uint64), keys[0]) >> np.uint64(11)).astype(np.float64) / 2**53
        order = np.argsort((turns + jitter) / np.array(slots)[tasks], kind="stable")
        return np.stack((tasks, turns), 1)[order]


def permuted(places: Array, count: int, keys: Sequence[int] | Array) -> Array:
    """Where a permutation of 0 … count − 1 sends `places`, `(n,)` int64, without laying it out; `keys`: `(rounds,)`
    for all places, or `(rounds, n)`, of each place its own.

    A Feistel network over a rectangle of at least `count` cells, walked on until it lands on one that counts; the
    rectangle is at most one row too large, so that hardly any place is walked twice.
    """
    height = math.isqrt(count - 1) + 1
    width = -(-count // height)
    cells, keys = places.astype(np.uint64), np.asarray(keys, np.uint64)
    todo = np.arange(len(cells))
    while len(todo):
        left, right = np.divmod(cells[todo], np.uint64(width))
        for i, key in enumerate(keys if keys.ndim == 1 else keys[:, todo]):
            if i % 2 == 0:
                left = (left + mixed(right, key) % np.uint64(height)) % np.uint64(height)
            else:
                right = (right + mixed(left, key) % np.uint64(width)) % np.uint64(width)
        cells[todo] = left * np.uint64(width) + right
        todo = todo[cells[todo] >= count]
    return cells.astype(np.int64)


def mixed(x: Array, key: np.uint64 | Array) -> Array:
    """64 well-mixed bits of each number and the key, or a key each (the finaliser of splitmix64); wraps by design."""
    x = (x + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + key
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def _labels(names: Sequence[str]) -> tuple[str, ...]:
    """The names, numbered from the second of the same name on."""
    seen: dict[str, int] = {}
    labels = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        labels.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return tuple(labels)


def _words(text: str, count: int) -> tuple[int, ...]:
    """`count` 64-bit numbers that follow from a text."""
    raw = hashlib.blake2b(text.encode(), digest_size=8 * count).digest()
    return tuple(int.from_bytes(raw[8 * i : 8 * i + 8], "little") for i in range(count))


def _apportion(weights: Sequence[float]) -> tuple[int, ...]:
    """Slots of a cycle in proportion to the weights, by largest remainder; a weight above 0 gets at least one."""
    total = math.fsum(weights)
    # Rounded, so that no last bit of a power decides: it may differ between machines.
    wanted = [round(w / total * CYCLE, 6) for w in weights]
    slots = [max(1, int(n)) if w > 0 else 0 for n, w in zip(wanted, weights, strict=True)]
    while (missing := CYCLE - sum(slots)) != 0:
        step = 1 if missing > 0 else -1
        free = [i for i, n in enumerate(slots) if n > (0 if step > 0 else 1)]
        best = max(free, key=lambda i: (step * (wanted[i] - slots[i]), -i))
        slots[best] += step
    return tuple(slots)


def _shares(weights: Sequence[float]) -> tuple[float, ...]:
    """Weights that sum to one."""
    total = math.fsum(weights)
    return tuple(weight / total for weight in weights)


def _by_error(errors: Sequence[float]) -> list[float]:
    """Weights in proportion to errors, within `LEAST` and `MOST` of their geometric mean; a lost task counts most."""
    fine = [math.log(e) for e in errors if math.isfinite(e) and e > 0]
    if not fine:
        return [1.0] * len(errors)
    middle = math.exp(math.fsum(fine) / len(fine))
    return [min(max(e / middle, LEAST), MOST) if math.isfinite(e) else MOST for e in errors]
