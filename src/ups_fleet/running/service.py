"""Writes the systemd unit of a run, which starts it at boot and again whenever that may help."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ups.run.config import RunConfig
from ups.types import ConfigError
from ups.verdict import Ending
from ups_fleet.keys import fleet_keys
from ups_fleet.running.forever import MENDED_BY_TIME

# How long systemd waits beyond the grace that the ranks have for their last checkpoint.
MARGIN = 30
# What a shell may have set and the run depends on.
VARIABLES = ("PYTHONPATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
# Endings after which the service is started again, should the command ever leave with them; PREEMPTED is one, for
# whoever wants a service to stay down stops the service.
AGAIN = MENDED_BY_TIME | {Ending.PREEMPTED}

UNIT = """\
# {name} as a service of this user. To install it:
#   ups run CONFIG --forever --unit > ~/.config/systemd/user/{service}
#   systemctl --user daemon-reload
#   systemctl --user enable --now {service}
#   loginctl enable-linger        # so that it begins at boot, and not when you log in
# What it says: journalctl --user --unit {service}. To stop it: systemctl --user stop {service}

[Unit]
Description=ups run {name}
StartLimitIntervalSec=0
RequiresMountsFor={places}

[Service]
Type=exec
WorkingDirectory={folder}
{variables}ExecStart={command}
Restart=always
RestartSec=30
# Finished, or an ending that another start would only repeat.
RestartPreventExitStatus={final}
# Stopped with a checkpoint.
SuccessExitStatus={preempted}
# The command itself tells the ranks, which save and leave; systemd ends what is left after that.
KillMode=mixed
TimeoutStopSec={patience}
# A rank that the kernel ends for its memory is started again by the command.
OOMPolicy=continue

[Install]
WantedBy=default.target
"""


def systemd_unit(config: RunConfig, words: Sequence[str], environ: Mapping[str, str], folder: Path) -> str:
    """The unit that runs the command `words` from `folder`."""
    final = sorted(int(ending) for ending in Ending if ending not in AGAIN)
    set_here = [f"{name}={environ[name]}" for name in VARIABLES if environ.get(name)]
    limits = fleet_keys(config).limits
    safe = "".join(c if c.isascii() else "_" for c in config.name)
    return UNIT.format(
        name=config.name,
        service=f"ups-{safe}.service",
        places=" ".join(_quoted(path, dollars=False) for path in _places(config, folder)),
        folder=str(folder).replace("%", "%%"),
        variables="".join(f"Environment={_quoted(pair, dollars=False)}\n" for pair in set_here),
        command=" ".join(_quoted(word) for word in words),
        final=" ".join(map(str, final)),
        preempted=int(Ending.PREEMPTED),
        patience=round(limits.grace + limits.teardown + MARGIN),
    )


def _places(config: RunConfig, folder: Path) -> list[str]:
    """Folders whose disks must be there: the command's, the run's, and those of data and caches."""
    names: list[str] = [".", config.out, config.cache.folder or ".", config.start_from or "."]
    for data in config.data.values():
        names += data.paths
    fixed = [name.split("*")[0].split("?")[0].split("[")[0] for name in names]
    return list(dict.fromkeys(os.path.abspath(folder / name) for name in fixed))


def _quoted(word: str, dollars: bool = True) -> str:
    """A word as systemd reads it: no specifier, no variable, one word of one line."""
    if any(ord(character) < 32 and character != "\t" for character in word):
        raise ConfigError(f"{word!r}: has a line break or a control character, which no unit can hold; rename it.")
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    text = text.replace("$", "$$") if dollars else text
    return text if text and not set(text) & set(" \t;'\"\\") else f'"{text}"'
