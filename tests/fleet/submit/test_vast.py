"""Machines rented by the real client from a server that misbehaves: one is paid for, and none is left over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from vast_client import installed
from vast_server import KEY, offer
from vast_server import Vast as Server

from ups.types import ConfigError, UpsError
from ups_fleet.submit.job import LaunchJob
from ups_fleet.submit.records import LaunchRecord, note
from ups_fleet.submit.vast.client import VastError
from ups_fleet.submit.vast.engine import Vast
from ups_fleet.submit.vast.rent import Label

SOURCE = {"repo": "https://example.org/ups.git", "commit": "c" * 40, "at": ".", "config": "x.yaml", "package": "."}


def job_at(folder: Path, **more: Any) -> LaunchJob:
    options = {**SOURCE, **more.pop("options", {})}
    return LaunchJob(
        key="advection-0123abcd",
        name="advection",
        config=folder / "x.yaml",
        folder=folder / "runs" / "advection",
        place=folder,
        gpus=1,
        seconds=7200.0,
        options=options,
        **more,
    )


def engine() -> tuple[Vast, list[str]]:
    sentences: list[str] = []
    return Vast(sentences.append), sentences


def test_the_cheapest_offer_is_rented_explained_and_labelled(vast: Server, tmp_path: Path) -> None:
    carrier, sentences = engine()
    job = job_at(tmp_path)
    id = carrier.submit(job, "echo")
    assert sentences == [
        "offer 12: 1 x RTX 4090 in Sweden, SE, $0.400/h, at most $0.80 within the lease of 2 h; the cheapest of 3."
    ]
    machine = vast.machines[int(id)]
    label = Label.of(machine.row["label"])
    assert label is not None
    assert label.key == job.key
    assert machine.row["start_date"] + 7200 < label.until < machine.row["start_date"] + 7200 + 300
    assert carrier.find(job.key) == id
    assert machine.script == "echo"


@pytest.mark.parametrize(
    "fault", ["after 500", "nonsense", *(pytest.param(fault, marks=pytest.mark.slow) for fault in (503, "done slowly"))]
)
def test_a_create_that_does_not_say_what_it_did_is_never_paid_for_twice(
    vast: Server, tmp_path: Path, fault: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ups_fleet.submit.vast.client.PATIENCE", 6.0 if fault == "done slowly" else 180.0)
    vast.faults["create"] = [fault]
    carrier, _ = engine()
    id = carrier.submit(job_at(tmp_path), "echo")
    assert list(vast.machines) == [int(id)]
    assert vast.kinds().count("create") == (1 if fault in ("after 500", "done slowly") else 2)


def test_offers_that_vanish_are_passed_over_and_machines_that_do_not_come_are_destroyed(
    vast: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ups_fleet.submit.vast.rent.START", 0.3)
    vast.states = ["loading"]
    vast.faults["create"] = [404]
    vast.faults["destroy"] = [500, "lie"]
    carrier, sentences = engine()
    with pytest.raises(ConfigError, match=r"none of 3 machines came, and none is left rented.*does not run .loading"):
        carrier.submit(job_at(tmp_path), "echo")
    assert not vast.machines
    assert len(vast.gone) == 2
    assert vast.kinds().count("destroy") >= 4
    assert "offer 12: Vast answers 404" in sentences[1]


def test_no_machine_is_left_when_the_launch_is_interrupted(
    vast: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ups_fleet.submit.vast.rent._come", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine()[0].submit(job_at(tmp_path), "echo")
    assert not vast.machines
    assert len(vast.gone) == 1


def test_no_key_no_money_no_offer_and_no_variable_are_one_sentence_and_cost_nothing(
    vast: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carrier, _ = engine()
    with pytest.raises(ConfigError, match=r"no machine for this job now .*dph_total<=0.1"):
        carrier.submit(job_at(tmp_path, options={"max_price": 0.1}), "echo")
    with pytest.raises(ConfigError, match=r"needs AWS_SECRET.* has not; .*vastai create env-var AWS_SECRET VALUE"):
        carrier.quote(replace(job_at(tmp_path), variables=("AWS_SECRET",)))
    vast.credit = 0.5
    with pytest.raises(ConfigError, match=r"has \$0.50, and the lease can cost \$0.80; add credit"):
        carrier.submit(job_at(tmp_path), "echo")
    monkeypatch.setenv("VAST_API_KEY", "another-key")
    with pytest.raises(UpsError, match=r"accepts no key of yours .401.*vastai set api-key") as problem:
        carrier.submit(job_at(tmp_path), "echo")
    assert "another" not in str(problem.value)
    assert "create" not in vast.kinds()
    assert not vast.machines


def test_an_account_that_cannot_pay_stops_at_the_first_offer(
    vast: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ups_fleet.submit.vast.rent.check_money", lambda *_: None)
    vast.credit = 0
    with pytest.raises(VastError, match="lacks credit"):
        engine()[0].submit(job_at(tmp_path), "echo")
    assert vast.kinds().count("create") == 1


def test_status_and_logs_are_those_of_vast(vast: Server, tmp_path: Path) -> None:
    vast.offers, vast.states = [offer(11, 0.25)], ["running"]
    carrier, _ = engine()
    job = job_at(tmp_path)
    note(LaunchRecord.of(job, "vast"))
    id = carrier.submit(job, "echo")
    note(replace(LaunchRecord.of(job, "vast"), identity=id))
    machine = vast.machines[int(id)]
    assert carrier.status(id).sentence == f"machine {id} costs $0.250/h."
    machine.row["log"] = "ups launch: the run begins\nups launch: ended with code 14, left 0 files\n"
    machine.row |= {"intended_status": "stopped", "actual_status": "exited", "states": []}
    status = carrier.status(id)
    assert (status.state, status.code) == ("failed", 14)
    assert "$0.10 a day until `ups launch reap`" in status.sentence
    vast.machines.clear()
    assert carrier.status(id).code == 14
    assert "".join(carrier.logs(id)).startswith("ups launch: the run begins")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"nodes": 2}, "single machines, not 2 nodes"),
        ({"gpus": 0}, "machines with GPUs"),
        ({"seconds": None}, "needs an end"),
        ({"options": {}}, "where the code comes from"),
    ],
)
def test_what_vast_cannot_do_is_said_before_anything_is_asked(
    tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Vast().check(replace(job_at(tmp_path), **change))


@pytest.mark.slow
def test_the_program_itself_finds_its_key_in_its_own_file_and_nobody_else_does(
    vast: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPS_VASTAI", "")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.delenv("VAST_API_KEY")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    installed()
    with pytest.raises(VastError, match="Set VAST_API_KEY, or run `vastai set api-key`"):
        engine()[0].quote(job_at(tmp_path))
    file = tmp_path / "me" / ".config" / "vastai" / "vast_api_key"
    file.write_text(KEY)
    carrier, _ = engine()
    id = carrier.submit(job_at(tmp_path), "echo")
    assert list(vast.machines) == [int(id)]
    vast.up = False
    with pytest.raises(VastError, match=r"`vastai show instances` has failed: .*Connection"):
        carrier.find("x")
