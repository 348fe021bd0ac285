"""`ups estimate`: what a run costs and how long it takes on a device, whether it fits, and the table that says so."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ups.engine.ranks.dist import device_of
from ups.engine.train import VALIDATION_SHARE, TrainConfig, affordable
from ups.engine.validation import validations_of
from ups.files import write_named
from ups.host_memory import resident
from ups.jobs.estimate.contention import BUSY, Contention
from ups.jobs.estimate.costs import Costs, StageCost, costs
from ups.jobs.estimate.generation_time import making_seconds
from ups.jobs.estimate.scaling import Scaling, scaling
from ups.jobs.estimate.timing import INTERVALS, Ceilings, Timed, ceilings, trial
from ups.models.frames_memory import free_memory
from ups.run.config import RunConfig
from ups.run.data.outlines import outlines
from ups.run.load import part_kinds
from ups.types import ConfigError, data_size, duration, short_number

PATIENCE = 15.0  # seconds a trial may take unasked
SPREAD = 1.5  # times the quickest steps that the slowest may take on a machine that is idle


@dataclass(frozen=True)
class StageTime:
    """A stage by the clock."""

    step: float  # seconds
    steps: int
    flops: float  # of all steps
    seconds: float  # of all steps and validations


@dataclass(frozen=True)
class Forecast:
    """All that is said of a run before it. Sizes in bytes, times in seconds."""

    name: str
    device: str  # in words
    costs: Costs
    times: Mapping[str, StageTime]  # empty where there is no such device to measure
    measured: bool  # by real steps, not from FLOPs and bytes
    evaluation: float | None
    taken: Mapping[str, Timed]  # the trial's own memory, where one was made
    free: int | None  # of the device's memory, now
    microbatch: int | None  # the largest that fits, where the config's does not; 0: not even one sample does
    price: float | None  # of an hour
    making: float = 0.0  # seconds for the data that the run makes itself
    busy: float = 0.0  # share of the time in which others had the processors while this was timed
    program: int = 0  # bytes of host memory that a process takes before it has a tensor
    processes: int = 1  # that share the memory
    scaling: Scaling | None = None  # what more devices would give, where that was asked
    uncounted: tuple[str, ...] = ()  # phases and exams that are not in the time

    @property
    def seconds(self) -> float | None:
        """Making the data, training and evaluation."""
        if self.evaluation is None:
            return None
        return self.making + sum(t.seconds for t in self.times.values()) + self.evaluation

    @property
    def fits(self) -> bool | None:
        """Whether the memory that is free suffices; None where there is no such device."""
        if self.free is None:
            return None
        return self.processes * (self.costs.needed + self.program) <= self.free

    @property
    def money(self) -> float | None:
        return None if self.price is None or self.seconds is None else self.price * self.seconds / 3600

    def facts(self) -> dict[str, Any]:
        derived = {"seconds": self.seconds, "money": self.money}
        return {**asdict(self), "costs": self.costs.facts(), **derived}

    def write(self, path: Path) -> None:
        write_named(path, json.dumps(self.facts(), indent=1, ensure_ascii=False) + "\n", "choose another --json")

    def rows(self) -> list[list[str]]:
        """A table with a column per stage, the header first."""
        stages = self.costs.stages
        rows = [["", *(s.name for s in stages)]]

        def row(title: str, values: list[str]) -> None:
            rows.append([title, *values])

        row("parameters", [short_number(self.costs.parameters[s.part]) for s in stages])
        sizes = (", ".join(map(str, dict.fromkeys((s.batch, *s.batches.values())))) for s in stages)
        row("batch (microbatch)", [f"{each} ({s.microbatch})" for each, s in zip(sizes, stages, strict=True)])
        row("FLOPs of a step", [short_number(s.work.flops) for s in stages])
        for part in dict.fromkeys(part for s in stages for part in s.memory):
            row(part, [data_size(s.memory.get(part, 0)) for s in stages])
        row("peak of a step", [data_size(sum(s.memory.values())) for s in stages])
        row("peak of a validation", [data_size(s.validation) for s in stages])
        whose = "from the GPU" if self.costs.device == "cuda" else "by the process"
        row(f"taken {whose} at most", [data_size(s.reserved) for s in stages])
        if self.costs.device == "cuda" and self.taken:
            row("  the trial's own peak", [data_size(self.taken[s.name].allocated) for s in stages])
        if self.times:
            row("time of a step", [duration(self.times[s.name].step) for s in stages])
            row("steps", [f"{self.times[s.name].steps:,}" for s in stages])
            row("FLOPs in all", [short_number(self.times[s.name].flops) for s in stages])
            row("time", [duration(self.times[s.name].seconds) for s in stages])
        return rows

    def lines(self) -> list[str]:
        """What the table does not say; the last line says whether it fits."""
        c = self.costs
        parts = ", ".join(f"{name} {short_number(n)}" for name, n in c.parameters.items() if "." in name)
        disk = ", ".join(f"{name} {data_size(n)}" for name, n in c.disk.items() if name != TOKENS)
        lines = [
            f"parameters   {short_number(c.parameters['total'])} in all: {parts}",
            f"evaluation   {data_size(c.evaluation)} at the peak",
            f"host memory  {data_size(c.resident)} of data kept in it",
            f"disk         {disk}; a cache of the tokens of all frames would be {data_size(c.disk[TOKENS])}",
        ]
        if self.seconds is not None and self.evaluation is not None:
            how = "real steps on random numbers" if self.measured else "FLOPs, bytes and what this device reaches"
            cost = "" if self.money is None else f", {self.money:.2f} at {self.price:g} an hour"
            made = f"{duration(self.making)} of it making the data, " if self.making else ""
            lines.append(
                f"time         {duration(self.seconds)}, {made}{duration(self.evaluation)} evaluation "
                f"(from {how}){cost}"
            )
            lines.append(f"             not counted: {', '.join(self.uncounted)}")
        notes = [f"note: {note}" for note in (*c.notes, *self._doubts())]
        return [*lines, *notes, *([self.scaling.sentence()] if self.scaling else []), self.verdict]

    def _doubts(self) -> list[str]:
        """A sentence where what was timed says little of an idle machine."""
        spread = max((t.spread for t in self.taken.values()), default=1.0)
        if self.busy <= BUSY and spread <= SPREAD:
            return []
        why = f"{self.busy:.0%} of the time its steps waited for a processor"
        why = why if self.busy > BUSY else f"the same steps took up to {spread:.1f} times as long"
        return [f"this machine is busy ({why}): the times are not to be trusted. Ask again when it is idle."]

    @property
    def verdict(self) -> str:
        """Whether it fits, and what would."""
        need = f"{data_size(self.costs.needed)} of GPU memory at the peak"
        if self.costs.device == "cpu":
            each = f" in each of {self.processes} processes" if self.processes > 1 else ""
            whole = data_size(self.processes * (self.costs.needed + self.program))
            tensors, program = data_size(self.costs.needed), data_size(self.program)
            need = f"{whole} of memory: {tensors} of tensors at the peak and about {program} of program{each}"
        if self.free is None:
            return f"needs {need}; whether it fits cannot be said here, where there is no {self.costs.device} device."
        if self.fits:
            return f"fits: {need}, {data_size(self.free)} are free on {self.device}."
        lacks = f"does not fit: {need}, and only {data_size(self.free)} are free on {self.device};"
        if self.microbatch:
            return f"{lacks} with train.microbatch {self.microbatch} it would."
        return (
            f"{lacks} not even with train.microbatch 1, so use a smaller model or grid, or train.activations recompute."
        )


TOKENS = "tokens of all frames"


def forecast(
    config: RunConfig,
    device: str | None = None,
    measure: bool = False,
    price: float | None = None,
    activity: Callable[[str], None] = lambda sentence: None,  # noqa: ARG005
    ranks: int | None = None,
) -> Forecast:
    """What `config` would cost on `device` (that of the config by default), and what up to `ranks` such devices would
    give. Nothing is made, trained or written; `activity` is told what is being worked out."""
    kind, here = _device(device or config.device)
    if price is not None and price < 0:
        raise ConfigError(f"--price is {price:g}; an hour costs at least nothing.")
    if ranks is not None and (ranks < 2 or here is None):
        why = f"there is no {kind} device here to time steps on" if here is None else "it asks for more than one"
        raise ConfigError(f"--ranks is {ranks}, but {why}; leave it out, or change it.")
    least = min(config.stage(name).least_batch for name in config.plan)
    if ranks is not None and ranks > least:
        raise ConfigError(f"--ranks is {ranks}, and so many cannot share a batch of {least}; ask for fewer.")
    activity(f"{config.name}: counting memory and FLOPs")
    bill = costs(config, kind)
    free = free_memory(here) if here is not None else None
    program, processes = (resident(), config.dist.ranks) if kind == "cpu" else (0, 1)
    room = math.inf if free is None else free / processes - program  # for the tensors of one process
    fits = bill.needed <= room
    if measure and (here is None or not fits):
        lacking = f"it needs {data_size(bill.needed)} and would not fit"
        why = f"there is no {kind} device here" if here is None else lacking
        raise ConfigError(f"--measure needs to run some steps, but {why}; leave it out.")
    largest = None if fits else _largest(config, kind, int(room), bill)
    known = Forecast(
        name=config.name,
        device=kind,
        costs=bill,
        times={},
        measured=False,
        evaluation=None,
        taken={},
        free=free,
        microbatch=largest,
        price=price,
        program=program,
        processes=processes,
    )
    return known if here is None else _timed(known, config, here, measure, activity, ranks)


def _timed(
    known: Forecast,
    config: RunConfig,
    here: torch.device,
    measure: bool,
    activity: Callable[[str], None],
    ranks: int | None,
) -> Forecast:
    """A forecast with the times on a device that is here."""
    bill = known.costs
    times: dict[str, StageTime] = {}
    taken: dict[str, Timed] = {}
    evaluation = None
    activity(f"{config.name}: timing this machine")
    contention = Contention()
    bf16 = any(config.stage(name).train.precision == "bf16" for name in config.plan)
    roof = ceilings(here, bf16)
    reckoned = {s.name: roof.seconds(s.work, s.captured) for s in bill.stages}
    steps = (2 * INTERVALS + 4) * len(config.data)
    if measure or (known.fits and steps * sum(reckoned.values()) < PATIENCE):
        activity(f"{config.name}: timing real steps of {' and '.join(config.plan)}")
        taken = trial(config, outlines(config), here, PATIENCE)
    for s in bill.stages:
        step = taken[s.name].seconds if taken else reckoned[s.name]
        slower = step / reckoned[s.name]
        times[s.name] = _by_the_clock(s, config.stage(s.name).train, step, slower, roof)
        evaluation = roof.seconds(bill.judging) * slower
    more = None
    if ranks is not None:
        stage = max(times, key=lambda name: times[name].seconds)
        activity(f"{config.name}: {stage} on up to {ranks} devices")
        more = scaling(config, bill, ranks, here, roof, bool(taken), PATIENCE / 2, stage)
    activity(f"{config.name}: timing the making of the data")
    making, busy = making_seconds(config.data), contention.share()
    return replace(
        known,
        device=torch.cuda.get_device_name(here) if here.type == "cuda" else known.device,
        times=times,
        measured=bool(taken),
        evaluation=evaluation,
        taken=taken,
        making=making,
        busy=busy,
        scaling=more,
        uncounted=uncounted(config),
    )


def uncounted(config: RunConfig) -> tuple[str, ...]:
    """What a run does beyond the training and the rollouts that are timed."""
    evaluation, kinds = config.evaluation, part_kinds()
    draws, judges = (any(getattr(kinds[name], what) for name in config.parts) for what in ("draws", "judges"))
    exams = {
        "start of the processes": True,
        "calibration": True,
        f"ensembles of {evaluation.ensemble} members": draws and bool(evaluation.ensemble),
        f"searches of {', '.join(map(str, evaluation.search))} draws": judges and bool(evaluation.search),
        f"baselines ({', '.join(evaluation.baselines)})": bool(evaluation.baselines),
        "finer grids": bool(evaluation.zero_shot),
        "unseen parameters": bool(evaluation.unseen),
        "drawing the report": True,
    }
    return tuple(name for name, is_done in exams.items() if is_done)


def _device(name: str) -> tuple[str, torch.device | None]:
    """Its kind, and the device itself where there is one here."""
    if name.startswith("cuda") and not torch.cuda.is_available():
        return "cuda", None
    device = device_of(name)
    return device.type, device


def _by_the_clock(stage: StageCost, train: TrainConfig, step: float, slower: float, roof: Ceilings) -> StageTime:
    """A stage's time, told from the seconds of a step; validations are as much slower than their ceilings as steps."""
    checking = roof.seconds(stage.checking) * slower
    within = math.inf if train.seconds is None else max(1, int(train.seconds / step))
    steps = int(within if train.steps is None else min(train.steps, within))
    training = train.seconds if train.steps is None and train.seconds is not None else steps * step
    if isinstance(train.validate_every, str):
        budget = training if train.steps is None else train.steps * step
        checks = affordable(budget / (1 - VALIDATION_SHARE), checking)
    else:
        checks = validations_of(train, steps)
    return StageTime(step, steps, float(steps * stage.work.flops), training + checks * checking)


def _largest(config: RunConfig, kind: str, free: int, estimated: Costs) -> int:
    """The largest microbatch whose run fits into `free` bytes; 0 if none does. `estimated` is the run as configured.

    Memory is assumed to grow linearly with the microbatch, and the answer is then checked."""
    most = max(s.microbatch for s in estimated.stages)
    least = costs(config, kind, 1, estimated).needed
    if least > free or most == 1:
        return 0
    size = max(1, min(most - 1, int(1 + (free - least) * (most - 1) / max(estimated.needed - least, 1))))
    while size > 1 and costs(config, kind, size, estimated).needed > free:
        size = max(1, int(size * 0.9))
    return size
