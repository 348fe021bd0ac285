"""COMMANDS: what the workshop adds to the command line."""

from __future__ import annotations

from ups.plugins import at, is_there
from ups.wings import CHECK, LOOK, TRAIN, Command
from ups_fleet.cli.doctor import doctor
from ups_fleet.cli.faults import faults
from ups_fleet.cli.launch import launch
from ups_fleet.cli.run import run
from ups_fleet.cli.runs import compare, leaderboard, logs, runs, show, track, watch
from ups_fleet.cli.sweep import sweep

KEYS = "[OPTIONS] [--KEY.OF.CONFIG VALUE ...]"
# Of folders that can be deleted by themselves.
PLUG_INS = (
    "ups_fleet.fetch.command:COMMAND",
    "ups_fleet.bundle.command:COMMAND",
    "ups_fleet.submit.sky.command:COMMAND",
    "ups_fleet.submit.vast.command:VAST",
    "ups_fleet.submit.vast.command:REAP",
)
COMMANDS: tuple[Command, ...] = (
    Command("run", run, TRAIN, f"Usage: ups run CONFIG {KEYS}"),
    Command("sweep", sweep, TRAIN, f"Usage: ups sweep CONFIG --over KEY=VALUE,VALUE {KEYS}"),
    Command("launch", launch, TRAIN),
    Command("runs", runs, LOOK),
    Command("show", show, LOOK),
    Command("watch", watch, LOOK),
    Command("logs", logs, LOOK),
    Command("compare", compare, LOOK, "Usage: ups compare RUN RUN... [OPTIONS]"),
    Command("leaderboard", leaderboard, LOOK),
    Command("track", track, LOOK),
    Command("doctor", doctor, CHECK, f"Usage: ups doctor [CONFIG] {KEYS}"),
    Command("faults", faults, CHECK),
    *(at(place) for place in PLUG_INS if is_there(place)),
)
