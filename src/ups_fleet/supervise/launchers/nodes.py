"""The launcher `nodes`: the ranks of several machines, which meet at node 0."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

from ups.rundir import RunDir
from ups.wire import Channel, connect, host_and_port, read_secret
from ups_fleet.supervise.job import RankStart
from ups_fleet.supervise.launchers.launcher import ProcessLauncher
from ups_fleet.supervise.meeting import Meeting
from ups_fleet.supervise.network import interface_of, local_address

PAUSE = 0.2  # seconds between two looks for node 0


class Nodes(ProcessLauncher):
    """Each node starts its own ranks once the meeting point has told it their numbers; see `Meeting` for who is there.

    The meeting point lives as long as node 0's supervisor, over all starts. `last_call`: seconds that it waits for more
    nodes once enough are there; `join`: that a node waits for its group.
    """

    several_nodes: ClassVar[bool] = True

    def __init__(self, last_call: float = 15, join: float | None = None) -> None:
        super().__init__()
        self._last_call, self._join = last_call, join
        self._meeting: Meeting | None = None
        self._attendance: Attendance | None = None
        self._start: RankStart | None = None
        self._told = False

    def start(self, start: RankStart) -> None:
        if start.job.nodes == 1:  # nobody to meet
            super().start(start)
            return
        job, secret = start.job, RunDir(Path(start.env["UPS_HOME"])).secret
        self._files, self._start, self._told = start.files, start, False
        self._parents, self._gone = [], {}
        with self.log(start):
            pass  # it says that this node has made this start
        address = host_and_port(job.rendezvous)
        if job.node == 0 and self._meeting is None:
            self._meeting = Meeting(address, secret, job.nodes, job.least or job.nodes, self._last_call)
        join = start.join if self._join is None else self._join
        self._attendance = Attendance(address, secret, job.node, job.ranks, join)
        self._attendance.start()

    @property
    def regrouping(self) -> bool:
        return self._attendance is not None and self._attendance.over

    def poll(self) -> int | None:
        attendance, start = self._attendance, self._start
        if attendance is None or start is None:
            return super().poll()
        if attendance.group and not self._parents:
            self._begin(start, attendance.group)
        elif attendance.late and not self._parents:
            with self.log(start) as log:
                log.write(f"{attendance.late}\n".encode())
            return 1
        if self.regrouping:
            self._send_away()
            return None  # not the end of the job
        return super().poll() if self._parents else None

    def _begin(self, start: RankStart, group: dict[str, Any]) -> None:
        place = {"UPS_MEET": f"tcp:{start.job.rendezvous}", "UPS_GROUP": group["group"]}
        place["UPS_SECRET"] = str(RunDir(Path(start.env["UPS_HOME"])).secret)
        # Ranks talk over the interface that leads to the rendezvous, whatever a host's name says.
        if name := start.job.interface or interface_of(local_address(start.job.rendezvous)):
            place |= {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name}
        self.begin(start, place, int(group["first"]), int(group["world"]))

    def _send_away(self) -> None:
        """Ask the ranks, once, to save and leave."""
        if not self._told:
            self._told = True
            for parent in self._parents:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(parent.pid, signal.SIGTERM)

    def kill(self) -> None:
        super().kill()
        if self._attendance is not None:
            self._attendance.close()

    def close(self) -> None:
        if self._meeting is not None:
            self._meeting.close()
            self._meeting = None


class Attendance(threading.Thread):
    """This node at the meeting point, from its coming to the end of its group.

    `group`: what it was told once the group was made; `late`: why there is none; `over`: the group is to end.
    """

    def __init__(self, address: tuple[str, int], secret: Path, node: int, ranks: int, join: float) -> None:
        super().__init__(daemon=True, name="attendance")
        self._address, self._secret, self._node, self._ranks = address, secret, node, ranks
        self._join = join
        self._channel: Channel | None = None
        self._left = False
        self.group: dict[str, Any] = {}
        self.late = ""
        self.over = False

    def run(self) -> None:
        end, trouble = time.monotonic() + self._join, "the other nodes have not come"
        while not self._left:
            try:
                self._attend(max(0.1, end - time.monotonic()))
            except (OSError, ValueError, KeyError) as error:  # also a secret that is not there yet, or has changed
                trouble = str(error) or type(error).__name__
            if not self.group and time.monotonic() > end:
                host, port = self._address
                self.late = f"no group was made at {host}:{port} within {self._join:.0f} s: {trouble}"
                return
            time.sleep(PAUSE)

    def _attend(self, patience: float) -> None:
        self._channel = channel = connect(self._address, read_secret(self._secret))
        try:
            if self._left:  # while it was on its way: whoever comes from this node next is another
                return
            about = {"node": self._node, "ranks": self._ranks}
            if not self.group:
                self.group = channel.ask({"op": "join", **about}, patience)
            else:
                channel.send({"op": "present", "group": self.group["group"], **about})
            while not self._left:  # to the end, also of a group that is over: nobody else begins before this one left
                self.over |= bool(channel.wait().get("over"))
        finally:
            channel.close()

    def close(self) -> None:
        self._left = True
        if self._channel is not None:
            self._channel.close()
