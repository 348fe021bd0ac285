"""Launchers, by name: what starts the ranks of a job. A new one is a file here and a line in BUILT_IN."""

from __future__ import annotations

from ups.plugins import Table
from ups.types import ConfigError, check_known
from ups_fleet.supervise.job import RankJob
from ups_fleet.supervise.launchers.forked import ForkLauncher
from ups_fleet.supervise.launchers.launcher import Launcher, ProcessLauncher
from ups_fleet.supervise.launchers.nodes import Nodes

__all__ = ["LAUNCHERS", "Launcher", "launcher_of"]

BUILT_IN: dict[str, type[Launcher]] = {
    "forked": ForkLauncher,
    "processes": ProcessLauncher,
    "nodes": Nodes,
}
LAUNCHERS: Table[type[Launcher]] = Table("launchers", BUILT_IN)


def launcher_of(job: RankJob, name: str = "") -> Launcher:
    """The launcher called `name`; without a name `processes` on one machine and `nodes` on several."""
    name = name or ("processes" if job.nodes == 1 else "nodes")
    check_known("launcher", (name,), LAUNCHERS)
    if job.nodes > 1 and not LAUNCHERS[name].several_nodes:
        able = ", ".join(other for other, kind in LAUNCHERS.items() if kind.several_nodes)
        raise ConfigError(f"the launcher '{name}' starts ranks on one machine, not on {job.nodes}; use {able}.")
    return LAUNCHERS[name]()
