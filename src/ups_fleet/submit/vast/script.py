"""Renders the start script of a rented machine: its job as variables, then fixed text."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from ups.types import ConfigError
from ups_fleet.submit.job import LaunchJob
from ups_fleet.submit.shell import quoted

LONGEST = 4048  # characters: Vast takes no longer ones
REMARK = re.compile(r"^\s*#.*\n|\s{2}#\s.*$", re.MULTILINE)


def render(job: LaunchJob) -> str:
    """The script of a job: a pure function of it. It holds no secret; the machine has a key of its own."""
    options = job.options
    variables = {
        "JOB": job.key,
        "REPO": options["repo"],
        "COMMIT": options["commit"],
        "PLACE": options["at"],
        "PACKAGE": options["package"],
        "DATA": options.get("data", ""),
        "STORE": str(options.get("store", "")).rstrip("/"),
        "LEASE": f"{job.seconds:.0f}",
        "GRACE": f"{job.grace:.0f}",
    }
    lines = [f"{name}={quoted([value])}" for name, value in variables.items()]
    flags = [f"--{key}={value}" for key, value in job.flags if key != "out"]
    run = quoted([options["config"], f"--ranks={job.ranks}", *flags])
    script = "\n".join(["#!/bin/bash", f"# ups launch vast: {job.name}", *lines, f"RUN=({run})", body()])
    if len(script) > LONGEST:
        most = f"{len(script)} characters, and Vast takes {LONGEST}"
        raise ConfigError(f"the start script of {job.name} has {most}; put flags into the config.")
    return script


@cache
def body() -> str:
    """The text of start.sh without its remarks, and with half of its indentation."""
    text = REMARK.sub("", files(__package__).joinpath("start.sh").read_text())
    return re.sub(r"^ +", lambda indent: " " * (len(indent[0]) // 2), text, flags=re.MULTILINE)
