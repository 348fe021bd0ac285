"""What ranks are told by their environment: by --debug, and on which interface those of several nodes talk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from ups.types import ConfigError
from ups_fleet.supervise.job import RankJob, RankStart, debugging
from ups_fleet.supervise.launchers.nodes import Nodes
from ups_fleet.supervise.network import check_interface, loopback
from ups_fleet.supervise.start_dir import StartDir


def test_debugging_says_more_and_waits_for_kernels_only_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in debugging("cuda"):
        monkeypatch.delenv(name, raising=False)
    gpu, cpu = debugging("auto"), debugging("cpu")
    assert gpu["CUDA_LAUNCH_BLOCKING"] == "1"
    assert gpu["NCCL_DEBUG"] == "INFO"
    assert cpu["TORCH_DISTRIBUTED_DEBUG"] == "INFO", "DETAIL crashes gloo"
    assert cpu["TORCH_SHOW_CPP_STACKTRACES"] == "1"
    assert not {"CUDA_LAUNCH_BLOCKING", "NCCL_DEBUG"} & cpu.keys()
    assert int(cpu["TORCH_FR_BUFFER_SIZE"]) > 2000
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "OFF")
    assert "TORCH_DISTRIBUTED_DEBUG" not in debugging("cpu")


class Begun(Nodes):
    """Remembers where its ranks would meet, and starts none."""

    place: Mapping[str, str]

    def begin(self, start: RankStart, place: Mapping[str, str], first: int, world: int) -> None:  # noqa: ARG002
        self.place = place


@pytest.mark.parametrize(("named", "used"), [("ib7", "ib7"), ("", loopback())])
def test_ranks_of_several_nodes_talk_on_the_named_interface_or_on_that_to_the_rendezvous(
    tmp_path: Path, named: str, used: str
) -> None:
    job = RankJob(("rank",), nodes=2, rendezvous="127.0.0.1:4000", interface=named)
    launcher = Begun()
    start = RankStart(job, 1, StartDir(tmp_path), tmp_path, {"UPS_HOME": str(tmp_path)})
    launcher._begin(start, {"group": "g", "first": 0, "world": 2})
    assert launcher.place["GLOO_SOCKET_IFNAME"] == launcher.place["NCCL_SOCKET_IFNAME"] == used


def test_an_interface_that_is_not_there_is_one_sentence() -> None:
    check_interface(loopback())
    with pytest.raises(ConfigError, match=r"dist.interface is 'ib7', which this machine has not; it has "):
        check_interface("ib7")
