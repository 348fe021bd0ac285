"""Where Vast lags, lies or names another's machine: nothing is lost, left rented unsaid, or taken from others."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from vast_server import Vast as Server
from vast_stage import machine_with, record_machine

from ups.types import ConfigError
from ups_fleet.submit.job import LaunchJob
from ups_fleet.submit.records import LaunchRecord, all_records, file_of, forget_if_unknown, note, status_of, stopped
from ups_fleet.submit.vast.client import Client, NotOursError, VastError
from ups_fleet.submit.vast.engine import UNKNOWN, Vast, files_left
from ups_fleet.submit.vast.reap import reap
from ups_fleet.submit.vast.rent import Label, home, rented

KEY = "wave-0123abcd"
BEGUN, NOTHING = "ups launch: the run begins\n", "ups launch: ended with code 3, left 0 files\n"
TWELVE = "ups launch: ended with code 0, left 12 files\n"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ups_fleet.submit.vast.engine.REST", 0.5)
    monkeypatch.setattr("ups_fleet.submit.vast.engine.LOOK", 0.05)


def job_at(folder: Path, **options: Any) -> LaunchJob:
    config, run = folder / "x.yaml", folder / "runs" / "wave"
    return LaunchJob(KEY, "wave", config, run, folder, gpus=1, seconds=7200.0, options=options)


def blind(vast: Server, monkeypatch: pytest.MonkeyPatch, *, pages: int = 0, lists: int = 0) -> None:
    """The server does not show its machines, so many times."""
    real, left = vast.answer, {"pages": pages, "lists": lists}

    def answer(method: str, path: str, body: dict[str, Any], key: str) -> tuple[str, int, Any]:
        kind = "lists" if path == "/api/v1/instances/" else "pages" if path.startswith("/api/v0/instances/7") else ""
        if method == "GET" and left.get(kind, 0) > 0:
            left[kind] -= 1
            return "blind", 200, {"instances": [] if kind == "lists" else None, "next_token": None}
        return real(method, path, body, key)

    monkeypatch.setattr(vast, "answer", answer)


def test_only_a_log_that_counts_no_files_says_that_there_is_nothing_to_copy() -> None:
    assert [files_left(log) for log in (NOTHING, BEGUN + TWELVE, TWELVE)] == [0, 12, 12]
    assert [files_left(log) for log in ("", BEGUN, "x\n", NOTHING + BEGUN)] == [UNKNOWN] * 4


def test_a_stopped_machine_whose_log_does_not_prove_that_it_is_empty_keeps_its_disk(
    vast: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[int] = []
    monkeypatch.setattr("ups_fleet.submit.vast.client.Client.copy", lambda _, id, *__: copies.append(id))
    rows = [{"log": ""}, {"log": TWELVE}, {"log": BEGUN, "actual_status": "loading"}]
    for number, row in enumerate(rows):
        state = {"actual_status": "exited", "intended_status": "stopped", **row}
        id = machine_with(vast, f"wave-0000000{number}", time.time() + 600, **state)
        record_machine(f"wave-0000000{number}", id, tmp_path)
    harvest = reap(lambda _: None)
    assert (len(harvest.stuck), harvest.destroyed) == (3, ())
    assert copies == sorted(vast.machines)
    assert all("is kept" in sentence for sentence in harvest.stuck)


def test_machines_that_neither_page_nor_list_show_are_destroyed_by_their_numbers(
    vast: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blind(vast, monkeypatch, pages=999, lists=999)
    monkeypatch.setattr("ups_fleet.submit.vast.rent.ABSENCES", 2)
    monkeypatch.setattr("ups_fleet.submit.vast.rent.TRIES", 2)
    with pytest.raises(ConfigError, match="none of 2 machines came, and none is left rented"):
        Vast(lambda _: None).submit(job_at(tmp_path), "echo")
    assert (len(vast.machines), len(vast.gone)) == (0, 2)


def test_a_page_that_is_empty_once_is_no_vanished_machine(
    vast: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blind(vast, monkeypatch, pages=2, lists=1)
    id = Vast(lambda _: None).submit(job_at(tmp_path), "echo")
    assert list(vast.machines) == [int(id)]


def test_an_interrupted_launch_destroys_its_machine_though_the_list_lags(
    vast: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    blind(vast, monkeypatch, lists=1)
    monkeypatch.setattr("ups_fleet.submit.vast.rent._come", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Vast(lambda _: None).submit(job_at(tmp_path), "echo")
    assert (len(vast.machines), len(vast.gone)) == (0, 1)


def test_a_launch_that_may_have_left_a_machine_says_so_and_keeps_its_record_until_a_reap(
    vast: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vast.offers, vast.faults["create"] = vast.offers[:1], ["after 500"]
    blind(vast, monkeypatch, lists=12)
    record, sentences = LaunchRecord.of(job_at(tmp_path), "vast"), list[str]()
    note(record)
    with pytest.raises(ConfigError, match="none of 1 machines came; the last"):
        Vast(sentences.append).submit(job_at(tmp_path), "echo")
    assert "whether a machine of wave-0123abcd is left is not known: Vast has not answered" in sentences[-1]
    forget_if_unknown(record, ConfigError("refused"))
    assert all_records() == [record]
    assert "whether a machine of it is left is not known" in status_of(record)[1].sentence
    (machine,) = vast.machines.values()
    machine.row["log"] = NOTHING
    note(replace(record, identity=str(machine.row["id"])))  # as a later status finds it
    (finding,) = reap(lambda _: None).destroyed
    assert finding.reason == "its launch failed"
    assert not vast.machines


def test_a_machine_is_gone_only_where_its_destroy_was_accepted(
    vast: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ups_fleet.submit.vast.rent.GONE", 0.3)
    id = machine_with(vast, KEY, time.time() - 600, log=NOTHING)
    record_machine(KEY, id, tmp_path)
    listed = Client.machines(Client())
    monkeypatch.setattr(Client, "machines", lambda _: listed.copy() if not asked else [])

    def refused(_: Client, id: int) -> None:
        asked.append(id)
        raise VastError("Vast answers 500", 500)

    asked: list[int] = []
    monkeypatch.setattr(Client, "destroy", refused)
    harvest = reap(lambda _: None)
    assert not harvest.destroyed
    assert f"machine {id} is still there and is paid for" in harvest.stuck[0]


def test_a_machine_of_somebody_else_is_never_destroyed_and_named(vast: Server, tmp_path: Path) -> None:
    foreign = machine_with(vast, KEY, time.time() + 600)
    vast.machines[foreign].row["label"] = "somebody's own"
    real = vast.create
    vast.create = lambda ask, body: (real(ask, body)[0], {"success": True, "new_contract": foreign})  # type: ignore[method-assign]
    with pytest.raises(NotOursError, match=f"machine {foreign} carries the label 'somebody's own', .*left alone"):
        Vast(lambda _: None).submit(job_at(tmp_path), "echo")
    assert list(vast.machines) == [foreign]
    record_machine(KEY, foreign, tmp_path)
    with pytest.raises(NotOursError, match="left alone"):
        stopped(all_records()[0])
    assert list(vast.machines) == [foreign]


def test_a_label_that_only_begins_like_ours_is_none() -> None:
    assert Label.of(f"ups:{KEY}:0123abcd:1800000000") == Label(KEY, "0123abcd", 1800000000)
    likes = ["prod:inference:42", "foo::1", "prod:4090:8", f"{KEY}:prod:1800000000", f"{KEY}:0123abcd:1000000000"]
    likes += ["wave:0123abcd:1800000000", f"{KEY}:0123abcd:1800000000:x", f"{KEY}:0123abcd:1800000000\n"]
    assert [Label.of(f"ups:{like}") for like in likes] == [None] * len(likes)


def test_a_job_of_another_engine_with_the_number_of_a_machine_is_another_job(vast: Server, tmp_path: Path) -> None:
    id = machine_with(vast, KEY, time.time() + 600, log=NOTHING)
    record_machine("wave-00000002", id, tmp_path, engine="slurm")
    record_machine(KEY, id, tmp_path)
    (record,) = [record for record in all_records() if record.engine == "vast"]
    assert status_of(record)[1].state == "running"
    assert stopped(record).code == 3
    assert not vast.machines


def test_a_machine_that_costs_more_than_its_offer_is_given_back_and_the_next_is_tried(
    vast: Server, tmp_path: Path
) -> None:
    real, prices = vast.create, [9.99, 0.505]

    def create(ask: int, body: dict[str, Any]) -> tuple[int, Any]:
        status, answer = real(ask, body)
        vast.machines[answer["new_contract"]].row["dph_total"] = prices.pop(0)
        return status, answer

    vast.create = create  # type: ignore[method-assign]
    sentences: list[str] = []
    id = Vast(sentences.append).submit(job_at(tmp_path), "echo")
    assert "costs $9.990/h, and $0.410/h is the most" in sentences[1]
    assert (list(vast.machines), len(vast.gone)) == ([int(id)], 1)
    assert vast.machines[int(id)].row["dph_total"] == 0.505


def test_a_machine_whose_record_cannot_be_read_is_no_orphan(vast: Server, tmp_path: Path) -> None:
    id = machine_with(vast, KEY, time.time() + 600)
    record_machine(KEY, id, tmp_path)
    file_of(KEY).write_text("{")
    harvest = reap(lambda _: None)
    assert [finding.machine.id for finding in harvest.in_use] == [id]
    assert harvest.stuck == (f"machine {id} is left alone: the record of its job cannot be read.",)
    assert list(vast.machines) == [id]


@pytest.mark.parametrize("ahead", [-7200.0, 7200.0])
def test_a_lease_ends_by_the_clock_of_vast_whatever_the_clocks_here_say(
    vast: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    """`ahead`: seconds that Vast's clock, the true one, is ahead of that of this computer."""
    vast.ahead, vast.states = ahead, ["running"]
    true = time.time() + ahead
    job = job_at(tmp_path)
    machine = rented(Client(), job, "true", lambda _: None)
    label = Label.of(machine.label)
    assert label is not None
    assert 0 <= label.until + 1 - true - 30 - 7200 - job.grace < 60  # START is 30 s here
    record_machine(job.key, machine.id, tmp_path)
    elsewhere = machine_with(vast, "other-00000001", true + 600, "0" * 8)
    over = machine_with(vast, "over-00000001", true - 60, "0" * 8, log=NOTHING)
    harvest = reap(lambda _: None)
    assert [finding.machine.id for finding in harvest.destroyed] == [over]
    assert set(vast.machines) == {machine.id, elsewhere}
    assert not harvest.stuck
    vast.up = False
    monkeypatch.setattr("ups_fleet.submit.vast.client.PAUSE", 0.01)
    with pytest.raises(VastError, match="does not say what time it is"):
        reap(lambda _: None)


def test_two_folders_of_records_are_two_homes_though_their_computers_have_one_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPS_STATE", str(tmp_path / "state"))
    first = home()
    assert home() == first
    (tmp_path / "state" / "jobs").rename(tmp_path / "away")  # the same path on another computer
    assert home() != first
