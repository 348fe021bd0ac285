"""Chooses an offer, rents its machine once under a label, waits until it runs, and gives it back if it does not."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ups.files import write_atomic
from ups.types import ConfigError, UpsError
from ups_fleet.submit.job import LaunchJob, Option
from ups_fleet.submit.records import file_of, jobs_folder
from ups_fleet.submit.vast.client import Client, Machine, NotOursError, VastError

PREFIX = "ups"
LONGEST = 48  # characters of a key in a label
LABEL = re.compile(rf"{PREFIX}:([\w.-]{{1,{LONGEST - 9}}}-[0-9a-f]{{8}}):([0-9a-f]{{8}}):([0-9]{{10}})")
EARLIEST = 1_577_836_800  # 2020: no lease has ended before


@dataclass(frozen=True)
class Label:
    """What a machine says of itself to whoever finds it. `home`: which folder of records it belongs to; `until`: when
    its lease is over, by Vast's clock."""

    key: str
    home: str
    until: int

    def __str__(self) -> str:
        return f"{PREFIX}:{self.key}:{self.home}:{self.until}"

    @classmethod
    def of(cls, text: str) -> Label | None:
        """The label that a text is; None where it is none of ours: people write labels that begin alike."""
        match = LABEL.fullmatch(text)
        return cls(match[1], match[2], int(match[3])) if match and int(match[3]) > EARLIEST else None


def short(key: str) -> str:
    """A key as labels hold it: a long one keeps its beginning and its end, which no other job has."""
    return key if len(key) <= LONGEST else f"{key[: LONGEST - 9]}{key[-9:]}"


def home() -> str:
    """Stands for the records of this user on this machine: another's jobs have no record here, and are no orphans."""
    words = f"{socket.gethostname()}:{os.getuid()}:{jobs_folder()}:{_folder_id()}"
    return hashlib.sha256(words.encode()).hexdigest()[:8]


def _folder_id() -> str:
    """A random word that the folder of records is given once: computers of one name are told apart by it."""
    path = jobs_folder() / "home"
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            draft = path.with_name(f".home-{os.getpid()}")
            draft.write_text(secrets.token_hex(8))
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
            draft.unlink()
        return path.read_text(errors="replace").strip()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; set UPS_STATE to a folder of yours.") from None


MOST = 20  # offers that are looked at
RELIABILITY, DOWNLOAD, CUDA = 0.95, 100, 12.6  # Vast's score; Mbit/s; what the pinned torch is built for
DISK = 40.0  # GB
DAY = 86400.0
GPU_NAME, IMAGE_NAME = re.compile(r"\w[\w .-]*"), re.compile(r"\w[\w./:@-]*")


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
    for name, pattern in (("gpu", GPU_NAME), ("image", IMAGE_NAME)):
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


IMAGE = "python:3.12-bookworm"
TRIES = 3  # machines that are rented one after the other, where one does not come
START = 900.0  # seconds from the rent of a machine to its container
LOOK = 5.0
LOOKS = 4  # at the list of machines, for one that was perhaps made
ABSENCES = 12  # looks in a row that do not show a machine: it has vanished
CENT = 0.01  # dollars an hour that a machine may cost more than its offer
GONE = 120.0  # seconds to see that a machine is gone
DEAD = ("exited", "offline", "error", "unknown")


@dataclass
class Rental:
    """What a launch has asked Vast for: the machines that it was given, and how many answers are missing."""

    key: str
    ids: set[int] = field(default_factory=set)
    unanswered: int = 0


def rented(client: Client, job: LaunchJob, script: str, say: Callable[[str], None]) -> Machine:
    """A machine that runs the script. Whatever happens before it runs, no machine of this job is left."""
    candidates = offers(client, job)
    check_money(client, job, candidates[0])
    machine, rental = None, Rental(job.key)
    try:
        machine = _first_that_comes(client, job, rental, script, candidates, say)
    finally:  # also where it was interrupted
        if machine is None:
            _nothing_left(client, rental, say)
    return machine


def _first_that_comes(
    client: Client, job: LaunchJob, rental: Rental, script: str, candidates: list[Offer], say: Callable[[str], None]
) -> Machine:
    """The first of some machines that comes to run; the others are given back."""
    reason = ""
    for number, offer in enumerate(candidates[:TRIES], 1):
        say(offer.sentence(job, len(candidates) - number + 1))
        try:
            machine = _come(client, job, offer, _made(client, job, rental, offer, script))
        except VastError as error:
            if error.key or error.money:
                raise
            reason = f"offer {offer.id}: {error}"
            say(f"{reason} (try {number} of at most {TRIES})")
            _give_up(client, rental)
            continue
        destroy_all(client, job.key, [other.id for other in machines_of(client, job.key) if other.id != machine.id])
        return machine
    left = "" if rental.unanswered else ", and none is left rented"
    raise ConfigError(f"none of {min(TRIES, len(candidates))} machines came{left}; the last: {reason}")


def machines_of(client: Client, key: str) -> list[Machine]:
    """All machines that carry the label of a job."""
    labelled = ((machine, Label.of(machine.label)) for machine in client.machines())
    return [machine for machine, label in labelled if label is not None and label.key == short(key)]


def check_label(machine: Machine | None, key: str) -> None:
    """A NotOursError for a machine that does not carry the label of a job."""
    if machine is not None and ((label := Label.of(machine.label)) is None or label.key != short(key)):
        raise NotOursError(
            f"machine {machine.id} carries the label '{machine.label[:80]}', not that of {key}: it is left alone."
        )


def destroy_all(client: Client, key: str, ids: Iterable[int]) -> None:
    """Give machines of a job back: asked until each destroy was accepted, or there is no such machine, and the list
    agrees; else a VastError. A machine with another's label is left alone, with a NotOursError in the end."""
    waiting, accepted = set(ids), set[int]()
    end, pause = time.monotonic() + GONE, LOOK / 5
    problem, foreign = "", None
    while waiting:
        for id in sorted(waiting):
            try:
                check_label(client.machine(id), key)
                client.destroy(id)
                accepted.add(id)
            except NotOursError as error:
                waiting.discard(id)
                foreign = error
            except VastError as error:
                if error.key:
                    raise
                if error.status == 404:
                    accepted.add(id)
                problem = str(error)
        try:
            waiting -= accepted - {machine.id for machine in client.machines()}
        except VastError as error:
            problem = str(error)
        if waiting and time.monotonic() > end:
            named = ", ".join(str(id) for id in sorted(waiting))
            raise VastError(
                f"machine {named} is still there and is paid for ({problem or 'Vast says nothing'}); "
                "run `ups launch reap`, or destroy it at https://console.vast.ai/instances/."
            )
        if waiting:
            time.sleep(pause)
            pause = min(pause * 2, 30.0)
    if foreign is not None:
        raise foreign


def _made(client: Client, job: LaunchJob, rental: Rental, offer: Offer, script: str) -> int:
    """Rent the machine of an offer. Where Vast does not say whether it did, the label tells."""
    until = int(client.now() + START + (job.seconds or 0.0) + job.grace)
    label = str(Label(short(job.key), home(), until))
    rental.unanswered += 1
    try:
        id = client.create(offer.id, str(job.options.get("image", IMAGE)), disk(job), label, script)
    except VastError as error:
        if error.certain:
            rental.unanswered -= 1
            raise
        if not (machines := _looked_for(client, job.key)):
            raise
        id = machines[0].id
    rental.ids.add(id)
    rental.unanswered -= 1
    return id


def _looked_for(client: Client, key: str) -> list[Machine]:
    """The machines of a job of which one was perhaps made just now: looked for more than once."""
    for look in range(LOOKS):
        time.sleep(LOOK if look else 0.0)
        if machines := machines_of(client, key):
            return machines
    return []


def _come(client: Client, job: LaunchJob, offer: Offer, id: int) -> Machine:
    """The machine, once its container runs; a VastError where it does not within START seconds, is another's, or costs
    more than was offered."""
    end = time.monotonic() + START
    state, absences = "no state", 0
    most = float(job.options.get("max_price", offer.price + CENT))
    while time.monotonic() < end:
        try:
            machine = client.machine(id)
        except VastError as error:
            if error.key:
                raise
            state = str(error)
        else:
            absences = absences + 1 if machine is None else 0
            if machine is None and absences >= ABSENCES:
                raise VastError(f"machine {id} has vanished while it was waited for.")
            check_label(machine, job.key)
            if machine is not None:
                if machine.price > most + 1e-6:
                    raise VastError(f"machine {id} costs ${machine.price:.3f}/h, and ${most:.3f}/h is the most.")
                if machine.state == "running":
                    return machine
                state = " ".join(word for word in (machine.state or "no state", machine.message) if word)
                if machine.state in DEAD:
                    break
        time.sleep(LOOK)
    raise VastError(f"machine {id} does not run ({state}).")


def _give_up(client: Client, rental: Rental) -> None:
    """Give back the machines that were rented, by their ids whatever the list says, and what else has their label."""
    listed, problem = set[int](), None
    try:
        listed = {machine.id for machine in machines_of(client, rental.key)}
    except VastError as error:
        problem = error
    destroy_all(client, rental.key, rental.ids | listed)
    rental.ids.clear()
    if problem is not None:
        raise problem


def doubt_file(key: str) -> Path:
    """Is there while a launch that failed has perhaps left a machine."""
    return file_of(key, ".doubt")


def in_doubt(key: str) -> bool:
    """Whether a launch that failed has perhaps left a machine, which lists may not show yet."""
    try:
        return time.time() - doubt_file(key).stat().st_mtime < START
    except OSError:
        return False


def _nothing_left(client: Client, rental: Rental, say: Callable[[str], None]) -> None:
    """Give back what a failed or interrupted launch has rented; say so where that cannot be known."""
    doubt = doubt_file(rental.key)
    with contextlib.suppress(OSError):
        doubt.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(doubt, "".join(f"{id}\n" for id in sorted(rental.ids)))
    problem = "Vast has not answered whether it rented one."
    try:
        if rental.unanswered and (machines := _looked_for(client, rental.key)):
            rental.ids |= {machine.id for machine in machines}
            rental.unanswered = 0
        _give_up(client, rental)
    except UpsError as error:
        problem = str(error)
    else:
        if not rental.unanswered:
            doubt.unlink(missing_ok=True)
            return
    say(f"whether a machine of {rental.key} is left is not known: {problem} Run `ups launch reap` in some minutes.")
