"""Estimates what more devices would give a run: computing time, communication, and whether it pays."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import nn

from ups.engine.ranks.dist_config import DistConfig
from ups.engine.units import units_of
from ups.jobs.estimate.costs import Costs, StageCost, costs
from ups.jobs.estimate.timing import Ceilings, timed_stage
from ups.run.check import new_simulator
from ups.run.config import RunConfig
from ups.run.data.outlines import outlines
from ups.types import data_size, duration

VOTE = 2e-4  # seconds of a vote of two processes of one machine, seen on several
PAYS = 1.2  # times as fast, below which another device is better spent on another run


@dataclass(frozen=True)
class Link:
    """What devices are joined by: what a rank sends in a second when it reduces, and the delay of a message."""

    name: str
    bytes: float
    delay: float


LINKS = (
    Link("NVLink", 350e9, 2e-5),
    Link("100 Gbit/s Ethernet", 11e9, 5e-5),
    Link("10 Gbit/s Ethernet", 1.1e9, 1e-4),
)


@dataclass(frozen=True)
class Traffic:
    """What a rank says in one step."""

    bytes: float = 0.0  # that it sends
    messages: int = 0  # one after the other
    votes: int = 0

    def seconds(self, link: Link, ranks: int) -> float:
        """How long a step waits for it, none of it hidden behind computing."""
        votes = self.votes * (VOTE + (ranks - 1) * link.delay)
        return self.bytes / link.bytes + self.messages * link.delay + votes


@dataclass(frozen=True)
class Scaled:
    """One stage on so many ranks, each with a device of its own."""

    ranks: int
    share: int  # samples of the batch that each has
    step: float  # seconds that each computes for its share
    whole: float  # seconds that each would compute for a whole batch
    talk: Traffic
    memory: int  # bytes on each device

    def times(self, one: Scaled, link: Link) -> float:
        """How many times as fast as on one device, the batch being shared out."""
        return one.step / (self.step + self.talk.seconds(link, self.ranks))

    def times_the_samples(self, one: Scaled, link: Link) -> float:
        """How many times as many samples a second, each rank having as large a batch as the one had."""
        return self.ranks * one.step / (self.whole + self.talk.seconds(link, self.ranks))


@dataclass(frozen=True)
class Scaling:
    """A stage on one device, and on more."""

    stage: str
    rows: tuple[Scaled, ...]  # the first is one device
    links: tuple[Link, ...] = LINKS

    def table(self) -> list[list[str]]:
        head = ["devices", "samples each", "memory each", "a step computes", "each sends"]
        one = self.rows[0]
        rows = [[*head, *(link.name for link in self.links)]]
        for row in self.rows:
            speeds = [
                f"{row.times(one, link):.2f} ({row.times_the_samples(one, link):.2f})" if row.ranks > 1 else "1 (1)"
                for link in self.links
            ]
            facts = [str(row.ranks), str(row.share), data_size(row.memory), duration(row.step)]
            rows.append([*facts, data_size(row.talk.bytes) if row.talk.bytes else "–", *speeds])
        return rows

    def sentence(self) -> str:
        """Whether a second device pays, over the best of the links."""
        one, two, link = self.rows[0], self.rows[1], self.links[0]
        shared, larger = two.times(one, link), two.times_the_samples(one, link)
        count = "a second device" if two.ranks == 2 else f"{two.ranks} devices"
        if shared >= PAYS:
            return f"{count} would pay: {self.stage} would take its steps {shared:.2f} times as fast ({link.name})."
        if larger >= PAYS:
            return (
                f"{count} would pay with a larger batch alone: {shared:.2f} times the steps of {self.stage} at this "
                f"batch, {larger:.2f} times the samples at {two.ranks} times the batch ({link.name})."
            )
        return (
            f"{count} would not pay: {shared:.2f} times the steps of {self.stage}, {larger:.2f} times the samples at "
            f"{two.ranks} times the batch ({link.name}); use it for another run (`ups sweep --jobs 2`)."
        )


def counts_up_to(most: int) -> list[int]:
    """1, 2, 4 … and the last itself."""
    return sorted({2**i for i in range(most.bit_length()) if 2**i <= most} | {1, most})


def bytes_of_weights(module: nn.Module, ranks: DistConfig, precision: str) -> tuple[int, int]:
    """Bytes of the trained weights, and of what they are gathered as."""
    whole, blocks = (
        sum(p.numel() * p.element_size() for part in parts for p in part.parameters() if p.requires_grad)
        for parts in ([module], units_of(module))
    )
    return whole, whole - blocks // 2 if ranks.rounds(precision) else whole


def talk_of(ranks: DistConfig, numbers: int, units: int, microbatches: int, gathered: int | None = None) -> Traffic:
    """What a rank says in a step that trains `numbers` bytes of weights in so many units: by rings, as NCCL and gloo
    do it. `gathered`: bytes of the weights as they are gathered, where they are rounded for it."""
    world = ranks.world
    if world == 1:
        return Traffic()
    if ranks.strategy == "ddp":
        return Traffic(2 * (world - 1) / world * numbers, 2 * (world - 1), 1)
    shards = ranks.shard or world
    copies, collectives = world // shards, (2 * microbatches + 1) * (units + 1)
    there = 2 * microbatches * (numbers if gathered is None else gathered)
    sent = (there + numbers) * (shards - 1) / shards + 2 * (copies - 1) / copies * numbers / shards
    votes = 1 + (collectives if ranks.gate == "always" else 0)
    return Traffic(sent, collectives * (shards - 1) + (units + 1) * 2 * (copies - 1), votes)


def scaling(
    config: RunConfig,
    bill: Costs,
    most: int,
    device: torch.device,
    roof: Ceilings,
    measured: bool,
    seconds: float,
    stage: str,
) -> Scaling:
    """What up to `most` devices like this one would give `stage`; `measured` by real steps of `seconds` at most each,
    else from FLOPs and bytes. The run is `config`, and `bill` its costs."""
    settings = config.stage(stage)
    with torch.device("meta"):
        module = config.stages[stage](new_simulator(config, outlines(config)), settings).module
    units = len(units_of(module))
    numbers, gathered = bytes_of_weights(module, config.dist, settings.train.precision)

    def compute(dist: DistConfig, cost: StageCost, ranks: int) -> float:
        """Seconds of a step of one of `dist`, given what one of so many ranks has of a batch."""
        if measured:
            return timed_stage(config.model_copy(update={"dist": dist}), stage, device, seconds, ranks).seconds
        share = -(-settings.batch // ranks) / -(-settings.batch // dist.world)
        return roof.seconds(cost.work, cost.captured) * share

    rows: list[Scaled] = []
    whole = None  # seconds of a whole batch on one of many
    for count in counts_up_to(most):
        dist = dataclasses.replace(config.dist, ranks=count, nodes=1, shard=_shard(config.dist, count))
        here = config.model_copy(update={"dist": dist})
        known = bill if count == config.dist.world else costs(here, device.type, None, bill)
        cost = next(s for s in known.stages if s.name == stage)
        share = -(-settings.batch // count)
        step = compute(dist, cost, count)
        if count > 1 and whole is None:
            whole = compute(dist, cost, 1)
        talk = talk_of(dist, numbers, units, max(1, -(-share // cost.microbatch)), gathered)
        rows.append(Scaled(count, share, step, step if whole is None else whole, talk, cost.reserved))
    return Scaling(stage, tuple(rows))


def _shard(dist: DistConfig, ranks: int) -> int | None:
    """The config's shard where so many ranks can be cut by it."""
    return dist.shard if dist.shard is not None and ranks % dist.shard == 0 else None
