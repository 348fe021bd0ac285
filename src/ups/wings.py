"""What other wings add: keys of a run's config, commands, data from elsewhere, copies and mirrors of its folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ups.config import Config
from ups.plugins import Table
from ups.progress import OnProgress, Say
from ups.types import ConfigError

# Headings of `ups --help`, in the order in which a newcomer meets them.
BEGIN, TRAIN, LOOK, USE = "Begin", "Train", "Look at runs", "Use what was learnt"
CHECK = "Check this machine and this software"
HEADINGS = (BEGIN, TRAIN, LOOK, USE, CHECK)


@dataclass(frozen=True)
class Command:
    """A command of `ups`: a function or an app of cyclopts, as `run` gives it.

    Args:
        name: what is typed.
        run: the function or the app; its module imports nothing heavy.
        group: the heading under which help shows it.
        usage: how it is typed, where that is not seen from its parameters.
        parent: the command that it belongs to, such as `data`; none for one of its own.
    """

    name: str
    run: Any
    group: Any = ""
    usage: str | None = None
    parent: str = ""


class Elsewhere(Protocol):
    """Data that a config names and that lie on no disk of this machine."""

    def names(self, word: str) -> bool:
        """Whether a word names such data, and is no path."""

    def require_nameable(self, word: str) -> None:
        """ConfigError for a word that no config may hold."""

    def provide(self, words: Sequence[str], report: OnProgress) -> None:
        """Fetch what is missing of what the words name; paths among them are left alone."""

    def paths(self, word: str) -> list[Path]:
        """The files of what a word names; DataError where some are missing."""

    def folder(self) -> Path | None:
        """Where all of them land; None where nothing ever does."""


class Nowhere:
    """What stands in for a wing that fetches, where there is none: every word is a path."""

    def names(self, word: str) -> bool:
        return "://" in word

    def require_nameable(self, word: str) -> None:
        if self.names(word):
            raise ConfigError(
                f"{word.partition('://')[0]}://…: nothing here fetches data; download it and name the file."
            )

    def provide(self, words: Sequence[str], report: OnProgress) -> None:
        for word in words:
            self.require_nameable(word)

    def paths(self, word: str) -> list[Path]:
        return [Path(word)]

    def folder(self) -> Path | None:
        return None


@dataclass(frozen=True)
class Opening:
    """How the folder of a run is about to be opened."""

    config: Config
    place: Path
    say: Say
    resume: bool
    overwrite: bool


class Starter(Protocol):
    """Carries out runs in processes of their own; without one a run is carried out in the process that was asked."""

    def __call__(self, config: Any, screen: Any, start: Any) -> Any:
        """The folder of a run, and how it ended."""


class Wing:
    """What a wing adds to the instrument; here, nothing. All methods import what they need when they are called."""

    def config(self) -> type[Config] | None:
        """RunConfig with the keys that it adds."""
        return None

    def commands(self) -> Sequence[Command]:
        """What it adds to the command line."""
        return ()

    def opening(self, about: Opening) -> Callable[[Path], None]:
        """Refuse what could not work, before a run's folder is opened. What is returned is called once it is open."""
        return lambda _: None

    def around(self, folder: Path, config: Config, say: Say) -> contextlib.AbstractContextManager[None]:
        """While a run is carried out in this process."""
        return contextlib.nullcontext()

    def look(self, config: Config, folder: Path) -> Sequence[str]:
        """Remarks on this machine before the first step; ConfigError where the run could not end well on it."""
        return ()

    def made_again(self) -> Mapping[str, str]:
        """Folders in a run's that may be deleted, and what writes each again."""
        return {}

    def elsewhere(self) -> Elsewhere | None:
        """Where data are fetched from."""
        return None

    def starter(self) -> Starter | None:
        """What carries out runs in processes of their own."""
        return None


BUILT_IN: dict[str, Wing | str] = {
    "fleet": "ups_fleet.wing:WING",
    "bench": "ups_bench.wing:WING",
    "apps": "ups_apps.wing:WING",
}
WINGS: Table[Wing] = Table("wings", BUILT_IN)
COMMANDS: Table[Command] = Table("commands", {})  # of packages that add nothing else


def wings() -> list[Wing]:
    """All that are installed."""
    return list(WINGS.values())


def commands() -> list[Command]:
    """What wings and other packages add to the command line."""
    return [*(command for wing in wings() for command in wing.commands()), *COMMANDS.values()]


def opening(about: Opening) -> Callable[[Path], None]:
    """All wings look at a run that is about to be opened; what is returned tells them when it is."""
    after = [wing.opening(about) for wing in wings()]

    def opened(folder: Path) -> None:
        for tell in after:
            tell(folder)

    return opened


@contextlib.contextmanager
def around(folder: Path, config: Config, say: Say) -> Iterator[None]:
    """All that wings do while a run is carried out in this process."""
    with contextlib.ExitStack() as stack:
        for wing in wings():
            stack.enter_context(wing.around(folder, config, say))
        yield


def look(config: Config, folder: Path) -> list[str]:
    """What wings remark before the first step."""
    return [remark for wing in wings() for remark in wing.look(config, folder)]


def made_again() -> dict[str, str]:
    """Folders in a run's that may be deleted, and what writes each again."""
    return {name: words for wing in wings() for name, words in wing.made_again().items()}


def elsewhere() -> Elsewhere:
    """Where data are fetched from."""
    return next((place for wing in wings() if (place := wing.elsewhere()) is not None), Nowhere())


def starter() -> Starter | None:
    """What carries out runs in processes of their own; None where there is nothing."""
    return next((one for wing in wings() if (one := wing.starter()) is not None), None)
