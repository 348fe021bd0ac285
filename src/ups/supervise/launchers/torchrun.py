"""The launcher `torchrun`: ranks under torch's own launcher, which brings several machines together."""

from __future__ import annotations

import subprocess
import sys
from typing import ClassVar

from ups.supervise.job import Job, Start, parent_command
from ups.supervise.launchers.launcher import RecordedRanks, kill_group
from ups.supervise.network import interface_of, local_address


class Torchrun(RecordedRanks):
    """torchrun brings the nodes together and gives each rank its number; it decides nothing else.

    It does not restart (what may be restarted is the supervisor's to say), it does not detect a hang, its exit code
    is 1 for everything, and its ranks would survive it: the parents of the ranks see to that.
    `last_call`: seconds that it waits for more nodes once enough are there; `join`: for enough of them.
    """

    several_nodes: ClassVar[bool] = True

    def __init__(self, last_call: float = 15, join: float | None = None) -> None:
        super().__init__()
        self._last_call = last_call
        self._join = join
        self._agent: subprocess.Popen[bytes] | None = None

    def start(self, start: Start) -> None:
        self._files = start.files
        rank = parent_command("rank", start.job.command)
        words = (sys.executable, "-m", "torch.distributed.run", *self._arguments(start), *rank)
        with (start.logs / f"launcher-{start.job.node}.log").open("ab") as log:
            self._agent = subprocess.Popen(
                parent_command("launcher", words),
                env={**_network(start.job), **start.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _arguments(self, start: Start) -> tuple[str, ...]:
        job, join = start.job, start.join if self._join is None else self._join
        if job.nodes == 1:
            meet: tuple[str, ...] = ("--nnodes", "1", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1")
            conf = "is_host=true"
        else:
            least = job.least or job.nodes
            meet = ("--nnodes", f"{least}:{job.nodes}", "--rdzv-endpoint", job.rendezvous)
            conf = f"is_host={'true' if job.node == 0 else 'false'}"
            if address := local_address(job.rendezvous):
                meet = (*meet, "--local-addr", address)
        return (
            *meet,
            *("--rdzv-backend", "c10d", "--rdzv-id", job.name, "--nproc-per-node", str(job.ranks)),
            *("--rdzv-conf", f"{conf},join_timeout={join:.0f},last_call_timeout={self._last_call:.0f}"),
            *("--max-restarts", "0", "--monitor-interval", "0.1", "--no-python"),
        )

    def poll(self) -> int | None:
        return self._agent.poll() if self._agent else 0

    def kill(self) -> None:
        if self._agent is None:
            return
        if self._agent.poll() is None:
            kill_group(self._agent.pid)
        self._agent.wait()


def _network(job: Job) -> dict[str, str]:
    """Ranks of several nodes talk over the interface that leads to the rendezvous, whatever a host's name says."""
    name = interface_of(local_address(job.rendezvous)) if job.nodes > 1 else ""
    return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name} if name else {}
