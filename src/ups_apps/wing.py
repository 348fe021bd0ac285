"""What the apps add to the instrument: commands that use a simulator, each of which can be deleted by itself."""

from __future__ import annotations

from collections.abc import Sequence

from ups.plugins import at, is_there
from ups.wings import Command, Wing

COMMANDS = (
    "ups_apps.play.command:COMMAND",
    "ups_apps.serve.command:COMMAND",
    "ups_apps.export.command:COMMAND",
)


class Apps(Wing):
    """The apps."""

    def commands(self) -> Sequence[Command]:
        return [at(place) for place in COMMANDS if is_there(place)]


WING = Apps()
