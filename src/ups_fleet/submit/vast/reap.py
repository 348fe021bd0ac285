"""The watchdog from outside: machines that should be gone are found by their labels, and given back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ups_fleet.submit.records import LaunchRecord, all_records, jobs_folder
from ups_fleet.submit.vast.client import Client, Machine, VastError
from ups_fleet.submit.vast.engine import ENGINE, give_back
from ups_fleet.submit.vast.rent import Label, doubt_file, home, short


@dataclass(frozen=True)
class RentedMachine:
    """A machine with a label of ours: why it should be gone, or nothing."""

    machine: Machine
    label: Label
    record: LaunchRecord
    reason: str

    def sentence(self, now: float) -> str:
        cost = self.machine.disk_price if self.machine.stopped else self.machine.price
        left = f"{max(0.0, self.label.until - now) / 60:.0f} min are left of its lease"
        state = self.machine.state or "no state"
        return f"machine {self.machine.id} of {self.label.key}: {state}, ${cost:.3f}/h, {self.reason or left}."


@dataclass(frozen=True)
class Harvest:
    """The machines after a reap: `in_use` by right, `destroyed`, and why others are `stuck`."""

    in_use: tuple[RentedMachine, ...]
    destroyed: tuple[RentedMachine, ...]
    stuck: tuple[str, ...]
    """Sentences on what should be gone, and is not."""

    @property
    def price(self) -> float:
        """Dollars an hour for what still runs by right."""
        return sum(f.machine.disk_price if f.machine.stopped else f.machine.price for f in self.in_use)


def findings(client: Client, now: float) -> Iterator[RentedMachine]:
    """Every machine of the account that carries a label of ours."""
    records = {short(record.key): record for record in all_records() if record.engine == ENGINE}
    for machine in client.machines():
        label = Label.of(machine.label)
        if label is not None:
            record = records.get(label.key)
            reason = _reason(machine, label, record, now)
            twin = record is None or record.identity not in ("", str(machine.id))
            yield RentedMachine(machine, label, _unknown(machine, label) if record is None or twin else record, reason)


def _reason(machine: Machine, label: Label, record: LaunchRecord | None, now: float) -> str:
    """Why a machine should be gone; empty where it should not."""
    if now > label.until:
        return f"its lease is over for {(now - label.until) / 60:.0f} min"
    if label.home != home():
        return ""  # of another computer, or user: theirs until the lease is over
    if record is None:
        return "" if _unread(label) else "no job here has a record of it"
    if doubt_file(record.key).exists():
        return "its launch failed"
    if record.identity and record.identity != str(machine.id):
        return f"its job has another machine, {record.identity}"
    if machine.stopped or machine.state == "exited":
        return "its job has ended"
    return ""


def _unread(label: Label) -> bool:
    """Whether a machine has a record here; asked of one whose record was not read: it is no orphan."""
    return label.home == home() and any(short(path.stem) == label.key for path in jobs_folder().glob("*.json"))


def _unknown(machine: Machine, label: Label) -> LaunchRecord:
    """Stands for the record that an orphan has not: what it leaves is put into the current folder."""
    name = f"{label.key}-{machine.id}"
    return LaunchRecord(label.key, ENGINE, name, "", f"runs/{name}", 1, 0, "", str(machine.id))


def reap(say: Callable[[str], None], *, dry_run: bool = False, discard: bool = False) -> Harvest:
    """Give back what should be gone; say what is there and what it costs."""
    client = Client()
    now = client.now()
    in_use, destroyed, stuck = [], [], []
    for finding in findings(client, now):
        say(finding.sentence(now))
        if not finding.reason:
            in_use.append(finding)
            if not finding.record.time and _unread(finding.label):
                stuck.append(f"machine {finding.machine.id} is left alone: the record of its job cannot be read.")
        elif dry_run:
            stuck.append(f"machine {finding.machine.id} would be destroyed.")
        else:
            try:
                give_back(client, finding.machine, finding.record, discard=discard)
                destroyed.append(finding)
            except VastError as error:
                stuck.append(str(error))
    return Harvest(tuple(in_use), tuple(destroyed), tuple(stuck))
