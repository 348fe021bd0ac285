"""The run's folder is opened by the first node alone; the others come when it answers, with the same config."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ranks import free_port
from ups.config import load
from ups.run.config import RunConfig, run_config
from ups.run.run import Run
from ups.types import ConfigError
from ups_fleet.running import supervised
from ups_fleet.running.supervised import join
from ups_fleet.supervise.job import RankJob
from ups_fleet.supervise.network import answers, interface_of


@pytest.fixture
def meeting() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def settings(folder: Path, **changes: object) -> RunConfig:
    values = {"out": str(folder), "data.a.task": "advection1d", "limits.start": 1.0}
    return load(run_config(), None, {**values, **{key.replace("__", "."): value for key, value in changes.items()}})


def test_another_node_joins_the_folder_that_the_first_has_opened(tmp_path: Path, meeting: str) -> None:
    first = Run.open(settings(tmp_path)).folder
    try:
        joined = join(settings(tmp_path, dist__ranks=2), 1, meeting)  # what is incidental may differ
        assert joined.folder == first.folder
    finally:
        first.close()


def test_a_node_with_another_config_is_refused_and_the_others_are_told(tmp_path: Path, meeting: str) -> None:
    Run.open(settings(tmp_path)).folder.close()
    with pytest.raises(ConfigError, match="node 1 was started with another config than node 0"):
        join(settings(tmp_path, seed=7), 1, meeting)
    told = json.loads((tmp_path / "run" / ".node-1.json").read_text())
    assert (told["verdict"], "another config" in told["cause"]) == ("USER", True)


def test_a_node_that_does_not_see_the_folder_says_so(tmp_path: Path, meeting: str) -> None:
    with pytest.raises(ConfigError, match="does not see the run's folder"):
        join(settings(tmp_path), 1, meeting)


def test_a_node_waits_for_the_first_as_long_as_a_start_may_take(tmp_path: Path) -> None:
    Run.open(settings(tmp_path)).folder.close()
    with pytest.raises(ConfigError, match="node 0 has not answered in 1 s"):
        join(settings(tmp_path), 1, f"127.0.0.1:{free_port()}")
    port = free_port()

    def late() -> None:
        time.sleep(0.5)
        with socket.create_server(("127.0.0.1", port)) as server:
            server.accept()[0].close()

    thread = threading.Thread(target=late)
    thread.start()
    join(settings(tmp_path, limits__start=200.0), 1, f"127.0.0.1:{port}")
    thread.join()


@pytest.mark.parametrize(("changes", "least"), [({"dist__min_nodes": 1}, 1), ({"dist__min_nodes": 2}, 2), ({}, 3)])
def test_a_job_goes_on_with_as_few_nodes_as_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, int], least: int
) -> None:
    def refuse(job: RankJob, _: RunConfig) -> None:
        raise ConfigError(f"{job.nodes} nodes, at least {job.least}")

    monkeypatch.setattr(supervised, "_launcher", refuse)  # before anything is started
    with pytest.raises(ConfigError, match=f"3 nodes, at least {least}"):
        supervised.supervise(settings(tmp_path, dist__nodes=3, **changes), command="ups", rendezvous="here:1")


def test_an_address_belongs_to_an_interface() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.7") == ""


def test_a_place_to_meet_has_a_host_and_a_port(meeting: str) -> None:
    assert answers(meeting)
    with pytest.raises(ConfigError, match="HOST:PORT"):
        answers("nowhere")
