"""Ranks of one machine meet where only their user can look, and listen where only this machine can connect."""

from __future__ import annotations

import json
import os
import secrets
import socket
import stat
import sys
import time
from pathlib import Path

from ups_fleet.supervise.job import RankJob, RankStart, environment
from ups_fleet.supervise.launchers.launcher import ProcessLauncher
from ups_fleet.supervise.network import loopback
from ups_fleet.supervise.start_dir import StartDir

RANK = """
import json, os, torch, torch.distributed as dist
from ups.engine.ranks.dist import Dist
from ups.engine.ranks.dist_config import DistConfig
from ups_fleet.supervise.network import listeners

with Dist.start("cpu", DistConfig(ranks=2, timeout=60, vote_timeout=60)) as ranks:
    total = torch.tensor([1.0 + ranks.rank])
    dist.all_reduce(total)
    print(json.dumps([os.environ["UPS_MEET"], total.item(), [row.address for row in listeners()]]))
    ranks.barrier()
"""


def test_ranks_of_one_machine_meet_in_a_private_folder_and_listen_on_loopback_alone(tmp_path: Path) -> None:
    before = os.umask(0)  # whatever the user's is
    try:
        files = StartDir.create(1)
    finally:
        os.umask(before)
    launcher, job = ProcessLauncher(), RankJob((sys.executable, "-c", RANK), ranks=2)
    try:
        env = environment(job, 1, files, tmp_path, tmp_path, secrets.token_hex(8))
        others = [name for _, name in socket.if_nameindex() if name != loopback()]
        env |= {"GLOO_SOCKET_IFNAME": others[0]} if others else {}  # whatever the user's shell says
        launcher.start(RankStart(job, 1, files, tmp_path, env))
        end = time.monotonic() + 120
        while launcher.poll() is None:
            assert time.monotonic() < end, "the ranks did not meet in time"
            time.sleep(0.05)
        assert launcher.poll() == 0, [path.read_text() for path in tmp_path.glob("*.log")]
        assert stat.S_IMODE(files.folder.stat().st_mode) == 0o700
        for rank in range(2):
            place, total, addresses = json.loads((tmp_path / f"rank-{rank}.log").read_text().splitlines()[-1])
            assert (place, total) == (f"file:{files.meeting()}", 3.0)
            assert set(addresses) == {"127.0.0.1"}
    finally:
        launcher.kill()
        files.remove()
