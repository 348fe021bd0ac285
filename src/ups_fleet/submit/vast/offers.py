"""Chooses which machine to rent: turns the needs of a job into a query, and lists the offers by price."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ups.types import ConfigError
from ups_fleet.submit.job import LaunchJob, Option
from ups_fleet.submit.vast.client import Client

MOST = 20  # offers that are looked at
RELIABILITY, DOWNLOAD, CUDA = 0.95, 100, 12.6  # Vast's score; Mbit/s; what the pinned torch is built for
DISK = 40.0  # GB
DAY = 86400.0
GPU, IMAGE = re.compile(r"\w[\w .-]*"), re.compile(r"\w[\w./:@-]*")


@dataclass(frozen=True)
class Offer:
    """A machine for rent, with its price an hour."""

    id: int
    gpus: int
    gpu: str
    price: float
    place: str

    @classmethod
    def of(cls, row: dict[str, Any]) -> Offer:
        gpus, gpu = int(row.get("num_gpus") or 0), str(row.get("gpu_name") or "?")
        return cls(int(row["id"]), gpus, gpu, float(row["dph_total"]), str(row.get("geolocation") or "?"))

    def most(self, job: LaunchJob) -> float:
        """What it can cost until the lease is over."""
        return self.price * (job.seconds or 0.0) / 3600

    def sentence(self, job: LaunchJob, others: int) -> str:
        """Why this one, and what it costs."""
        hours = (job.seconds or 0.0) / 3600
        price = f"${self.price:.3f}/h, at most ${self.most(job):.2f} within the lease of {hours:.3g} h"
        return f"offer {self.id}: {self.gpus} x {self.gpu} in {self.place}, {price}; the cheapest of {others}."


def check_options(options: Mapping[str, Option]) -> None:
    """A ConfigError for a number or a name that no query can hold."""
    for name in ("max_price", "gpu_ram", "disk"):
        if not 0 < float(options.get(name, 1.0)) < float("inf"):
            raise ConfigError(f"--{name.replace('_', '-')} is {options[name]}, but must be a number above 0.")
    for name, pattern in (("gpu", GPU), ("image", IMAGE)):
        if name in options and not pattern.fullmatch(str(options[name])):
            raise ConfigError(f"--{name} is '{options[name]}', which is no name of one.")


def query(job: LaunchJob) -> str:
    """The needs of a job in the words of `vastai search offers`."""
    options, days = job.options, (job.seconds or 0.0) / DAY
    terms = [
        f"num_gpus={job.gpus}",
        f"reliability>={RELIABILITY}",
        f"inet_down>={DOWNLOAD}",
        f"cuda_max_good>={CUDA}",
        f"disk_space>={disk(job):g}",
        f"duration>={days:.4f}",  # it must not be taken away before the lease is over
    ]
    if "gpu" in options:
        terms.append(f"gpu_name={str(options['gpu']).replace(' ', '_')}")
    if "gpu_ram" in options:
        terms.append(f"gpu_ram>={options['gpu_ram']}")
    if "max_price" in options:
        terms.append(f"dph_total<={options['max_price']}")
    return " ".join(terms)


def disk(job: LaunchJob) -> float:
    """GB of disk that are rented."""
    return float(job.options.get("disk", DISK))


def offers(client: Client, job: LaunchJob) -> list[Offer]:
    """What can be rented for a job, the cheapest first; a ConfigError where there is nothing."""
    rows = [Offer.of(row) for row in client.offers(query(job), disk(job), MOST) if row.get("dph_total")]
    limit = float(job.options.get("max_price", float("inf")))
    fitting = sorted((row for row in rows if row.price <= limit and row.gpus == job.gpus), key=lambda row: row.price)
    if not fitting:
        raise ConfigError(f"Vast has no machine for this job now (`{query(job)}`); ask for less, or pay more.")
    return fitting


def check_money(client: Client, job: LaunchJob, offer: Offer) -> None:
    """A ConfigError where the account cannot pay the lease."""
    credit = client.user().get("credit")
    if isinstance(credit, int | float) and credit < offer.most(job):
        need = f"the lease can cost ${offer.most(job):.2f}"
        raise ConfigError(f"the account at Vast has ${credit:.2f}, and {need}; add credit, or ask for less --time.")
