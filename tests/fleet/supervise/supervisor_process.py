"""A supervisor in a process of its own: `supervisor_process.py HOME JOB-AS-JSON LIMITS-AS-JSON LAUNCHER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ups_fleet.supervise.job import RankJob
from ups_fleet.supervise.launchers.forked import ForkLauncher
from ups_fleet.supervise.launchers.launcher import ProcessLauncher
from ups_fleet.supervise.launchers.nodes import Nodes
from ups_fleet.supervise.limits import Limits
from ups_fleet.supervise.supervisor import Supervisor

home, job, limits, launcher = sys.argv[1:]
words = json.loads(job)
launchers = {"processes": ProcessLauncher, "forked": ForkLauncher, "nodes": lambda: Nodes(last_call=1, join=30)}
verdict = Supervisor(
    RankJob(**{**words, "command": tuple(words["command"])}),
    Path(home),
    Limits(**json.loads(limits)),
    say=lambda text: print(text, flush=True),
    launcher=launchers[launcher](),
).supervise()
assert "torch" not in sys.modules, "a supervisor needs no torch"
print(verdict.ending.name, verdict.cause)
sys.exit(int(verdict.ending))
