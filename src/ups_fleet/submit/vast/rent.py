"""Rents the machine of an offer once, waits until it runs, and gives it back if it does not."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ups.files import write_atomic
from ups.types import ConfigError, UpsError
from ups_fleet.submit.job import LaunchJob
from ups_fleet.submit.records import file_of
from ups_fleet.submit.vast.client import Client, Machine, NotOursError, VastError
from ups_fleet.submit.vast.labels import Label, home, short
from ups_fleet.submit.vast.offers import Offer, check_money, disk, offers

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
