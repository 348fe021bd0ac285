"""From an offer to a machine that runs: rented once, waited for, and given back where it does not come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from ups.submit.job import Job
from ups.submit.vast.client import Client, Machine, VastError
from ups.submit.vast.labels import Label, home, short
from ups.submit.vast.offers import Offer, check_money, disk, offers
from ups.types import ConfigError, UpsError

IMAGE = "python:3.12-bookworm"
TRIES = 3  # machines that are rented one after the other, where one does not come
START = 900.0  # seconds from the rent of a machine to its container
LOOK = 5.0
LOOKS = 4  # at the list of machines, for one that was perhaps made
GONE = 120.0  # seconds to see that a machine is gone
DEAD = ("exited", "offline", "error", "unknown")


def rented(client: Client, job: Job, script: str, say: Callable[[str], None]) -> Machine:
    """A machine that runs the script. Whatever happens before it runs, no machine of this job is left."""
    candidates = offers(client, job)
    check_money(client, job, candidates[0])
    machine = None
    try:
        machine = _first_that_comes(client, job, script, candidates, say)
    finally:  # also where it was interrupted
        if machine is None:
            _nothing_left(client, job, say)
    return machine


def _first_that_comes(
    client: Client, job: Job, script: str, candidates: list[Offer], say: Callable[[str], None]
) -> Machine:
    """The first of some machines that comes to run; the others are given back."""
    reason = ""
    for number, offer in enumerate(candidates[:TRIES], 1):
        say(offer.sentence(job, len(candidates)))
        try:
            machine = _come(client, _made(client, job, offer, script))
        except VastError as error:
            if error.key or error.money:
                raise
            reason = f"offer {offer.id}: {error}"
            say(f"{reason} (try {number} of at most {TRIES})")
            destroy_all(client, machines_of(client, job.key))
            continue
        destroy_all(client, [other for other in machines_of(client, job.key) if other.id != machine.id])
        return machine
    tries = min(TRIES, len(candidates))
    raise ConfigError(f"none of {tries} machines came, and none is left rented; the last: {reason}")


def machines_of(client: Client, key: str) -> list[Machine]:
    """All machines that carry the label of a job."""
    labelled = ((machine, Label.of(machine.label)) for machine in client.machines())
    return [machine for machine, label in labelled if label is not None and label.key == short(key)]


def destroy_all(client: Client, machines: Iterable[Machine]) -> None:
    """Give machines back: asked again and again until the list holds none of them; else a VastError."""
    waiting = {machine.id for machine in machines}
    end, pause = time.monotonic() + GONE, LOOK / 5
    problem = ""
    while waiting:
        for id in sorted(waiting):
            try:
                client.destroy(id)
            except VastError as error:
                if error.key:
                    raise
                problem = str(error)
        try:
            waiting &= {machine.id for machine in client.machines()}
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


def _made(client: Client, job: Job, offer: Offer, script: str) -> int:
    """Rent the machine of an offer. Where Vast does not say whether it did, the label tells."""
    until = int(time.time() + START + (job.seconds or 0.0) + job.grace)
    label = str(Label(short(job.key), home(), until))
    try:
        return client.create(offer.id, str(job.options.get("image", IMAGE)), disk(job), label, script)
    except VastError as error:
        if error.certain:
            raise
        problem = error
    for look in range(LOOKS):
        time.sleep(LOOK if look else 0.0)
        if machines := machines_of(client, job.key):
            return machines[0].id
    raise problem


def _come(client: Client, id: int) -> Machine:
    """The machine, once its container runs; a VastError where it does not within START seconds."""
    end = time.monotonic() + START
    state = "no state"
    while time.monotonic() < end:
        try:
            machine = client.machine(id)
        except VastError as error:
            if error.key:
                raise
            state = str(error)
        else:
            if machine is None:
                raise VastError(f"machine {id} has vanished while it was waited for.")
            if machine.state == "running":
                return machine
            state = " ".join(word for word in (machine.state or "no state", machine.message) if word)
            if machine.state in DEAD:
                break
        time.sleep(LOOK)
    raise VastError(f"machine {id} does not run ({state}).")


def _nothing_left(client: Client, job: Job, say: Callable[[str], None]) -> None:
    """Give back what a failed or interrupted launch has rented; say so where that cannot be known."""
    try:
        destroy_all(client, machines_of(client, job.key))
    except UpsError as error:
        say(f"whether a machine of {job.key} is left is not known: {error} Run `ups launch reap`.")
