"""A real SLURM of two nodes on this machine, in a folder of its own: munged, slurmctld and two slurmd."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
NODES = ("n1", "n2")
CONF = """
ClusterName=ups
SlurmctldHost=localhost
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/completed.txt
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=100000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait={kill_wait}
SlurmdTimeout=120
SlurmctldTimeout=120
ReturnToService=2
MinJobAge=7200
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={n1} CPUs=1 RealMemory=500
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={n2} CPUs=1 RealMemory=500
PartitionName=low Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace}
PartitionName=high Nodes=n1,n2 MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


def lacking() -> str:
    """Why there can be no cluster here; empty where there can."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if missing:
        return f"SLURM is not installed ({', '.join(missing)}): apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else f"SLURM's daemons need root, and this is {getpass.getuser()}"


@dataclass
class Cluster:
    """Two nodes, `n1` and `n2`, with the partitions low (preempted by high) and high."""

    folder: Path
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environ(self) -> dict[str, str]:
        """By which the commands of SLURM find this cluster and no other."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        path = f"{kept.get('PATH', '')}:/usr/sbin:/sbin"
        return {**kept, "SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": path}

    def ask(self, *words: str) -> str:
        return subprocess.run(words, env=self.environ, capture_output=True, text=True, check=True, timeout=600).stdout

    def start(self, name: str, *words: str) -> None:
        log = (self.folder / f"{name}.out").open("ab")
        with log:
            self.daemons[name] = subprocess.Popen(
                words, env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def start_node(self, name: str) -> None:
        self.start(name, "slurmd", "-D", "-f", str(self.folder / "slurm.conf"), "-N", name)

    def take_away(self, name: str) -> None:
        """A node that loses its power: its daemon and everything that it has started are gone at once."""
        daemon = self.daemons.pop(name)
        for pid in [daemon.pid, *self.processes(name)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        daemon.wait()

    def bring_back(self, name: str, seconds: float = 60) -> None:
        """The node again, ready for work."""
        self.start_node(name)
        end = time.monotonic() + seconds
        while "DOWN" in self.ask("scontrol", "show", "node", name).partition("State=")[2].split()[0]:
            assert time.monotonic() < end, "it took too long"
            with contextlib.suppress(subprocess.CalledProcessError):  # it may have come back by itself
                self.ask("scontrol", "update", f"nodename={name}", "state=resume")
            time.sleep(0.2)

    def processes(self, node: str = "") -> list[int]:
        """What jobs have left on a node, or on all: step managers and everything with a job in its environment."""
        pids = []
        own, of_node = f"SLURM_CONF={self.folder / 'slurm.conf'}", f"SLURMD_NODENAME={node}"
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                variables = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
                if own not in variables or not command:
                    continue
                works = any(v.startswith("SLURM_JOB_ID=") for v in variables) and (not node or of_node in variables)
                manages = "slurmstepd" in command and (not node or self.is_of(int(entry.name), node))
                pids += [int(entry.name)] if works or manages else []
        return pids

    def is_of(self, pid: int, node: str) -> bool:
        """Whether a step manager is a node's: it has its log open."""
        with contextlib.suppress(OSError):
            files = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
            return str(self.folder / f"slurmd-{node}.log") in files
        return False

    def wait_for_nodes(self, seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(subprocess.CalledProcessError):
                if self.ask("sinfo", "--noheader", "--Node", "--partition=low", "--format=%T").split() == ["idle"] * 2:
                    return
            time.sleep(0.1)
        raise TimeoutError((self.folder / "slurmctld.log").read_text()[-2000:])

    def cancel_all(self, seconds: float = 60) -> None:
        """No job is left, and both nodes are idle."""
        self.ask("scancel", "--user=root")
        self.wait_for_nodes(seconds)

    def close(self) -> None:
        """End every job and every daemon: nothing is left."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for daemon in reversed(self.daemons.values()):
            daemon.kill()
            daemon.wait()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as sockets:
        opened = [sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in opened]


@contextlib.contextmanager
def cluster(folder: Path, kill_wait: int = 20, grace: int = 20) -> Iterator[Cluster]:
    """A cluster in `folder`, for as long as the block lasts."""
    (folder / "state").mkdir(parents=True)
    ports = dict(zip(("controller", "n1", "n2"), free_ports(3), strict=True))
    (folder / "slurm.conf").write_text(CONF.format(folder=folder, kill_wait=kill_wait, grace=grace, **ports))
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    it = Cluster(folder)
    try:
        files = {
            "key-file": key,
            **{n: folder / f"munge.{n.partition('-')[0]}" for n in ("socket", "pid-file", "log-file", "seed-file")},
        }
        options = [f"--{name}={path}" for name, path in files.items()]
        it.start("munged", "munged", "--foreground", "--force", f"--key-file={key}", *options)
        end = time.monotonic() + 120
        while not (folder / "munge.socket").exists():
            if time.monotonic() > end or it.daemons["munged"].poll() is not None:
                raise TimeoutError((folder / "munged.out").read_text())
            time.sleep(0.05)
        it.start("slurmctld", "slurmctld", "-D", "-c", "-f", str(folder / "slurm.conf"))
        for name in NODES:
            (folder / f"spool-{name}").mkdir()
            it.start_node(name)
        it.wait_for_nodes()
        yield it
    finally:
        it.close()
