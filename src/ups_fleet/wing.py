"""What the workshop does for the instrument: keys, commands, and what surrounds a run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ups.config import Config
from ups.progress import Say
from ups.wings import Command, Elsewhere, Opening, Starter, Wing

if TYPE_CHECKING:
    from ups_fleet.keys import FleetConfig


class Fleet(Wing):
    """The workshop."""

    def config(self) -> type[Config]:
        from ups_fleet.keys import FleetConfig

        return FleetConfig

    def commands(self) -> Sequence[Command]:
        from ups_fleet.cli.commands import COMMANDS

        return COMMANDS

    def opening(self, about: Opening) -> Callable[[Path], None]:
        from ups.rundir import RunDir
        from ups_fleet.sync import restore
        from ups_fleet.tracking import require

        keys = _keys(about.config)
        require(keys.tracking, about.say)
        seen = restore.prepare(keys.sync, about.place, about.say, resume=about.resume, overwrite=about.overwrite)
        return lambda folder: restore.remember(RunDir(folder), seen)

    @contextlib.contextmanager
    def around(self, folder: Path, config: Config, say: Say) -> Iterator[None]:
        from ups_fleet.sync.copier import copied
        from ups_fleet.tracking import mirrored

        keys = _keys(config)
        with copied(folder, keys.sync, say), mirrored(folder, keys.tracking, say):
            yield

    def look(self, config: Config, folder: Path) -> Sequence[str]:
        from ups_fleet.doctor.machine_checks import quick_doctor

        return quick_doctor(_keys(config), folder)

    def made_again(self) -> Mapping[str, str]:
        from ups_fleet.tracking import MIRRORS

        return dict.fromkeys(MIRRORS, "what trackers wrote and `ups track` writes again")

    def elsewhere(self) -> Elsewhere:
        from ups_fleet.fetch import downloads

        return downloads

    def starter(self) -> Starter:
        from ups_fleet.running.supervised import on_ranks

        return on_ranks


def _keys(config: Config) -> FleetConfig:
    return cast("FleetConfig", config)


WING = Fleet()
