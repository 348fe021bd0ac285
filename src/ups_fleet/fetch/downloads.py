"""The folder of data that configs name by address: where each lies, is it complete, fetching it once."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from ups.files import stamp, write_atomic
from ups.parsing import read_record
from ups.progress import OnProgress
from ups.types import ConfigError, DataError
from ups_fleet.fetch.addresses import may_hold_secrets, shown
from ups_fleet.fetch.catalogue import ROOTS, lookup
from ups_fleet.fetch.fetch import ADDRESS, is_elsewhere, plan
from ups_fleet.fetch.landing import FOLDER, Landing

VARIABLE = "UPS_DOWNLOADS"


names = is_elsewhere


def folder() -> Path:
    """Where data land that configs name by address: $UPS_DOWNLOADS, else `ups/downloads` in the user's cache."""
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "ups" / "downloads"


def place_of(word: str) -> Path:
    """The folder of what a word names: one for all of PDEBench, one for all of The Well, else one for each address."""
    kind = word.partition(":")[0].lower()
    return folder() / kind if kind in ROOTS else folder() / kind / _key(word)


def require_nameable(word: str) -> None:
    """A ConfigError for a word that no config may hold: one that nobody publishes, or that could hold a secret."""
    if word.startswith(tuple(f"{name}:" for name in ROOTS)):
        lookup(word)
    elif ADDRESS.match(word) and may_hold_secrets(word):
        raise ConfigError(
            f"{shown(word)}: may hold a password or a token (it has a '@', a '?' or a '#'), which would be written "
            "into the run's folder; put logins into the environment or ~/.netrc, or fetch it with `ups data fetch` and "
            "name the file."
        )


def paths(word: str) -> list[Path]:
    """The files or folders of what a word names, as they were fetched; a DataError where something is missing."""
    place = place_of(word)
    try:
        files = [str(name) for name in read_record(_record(word))["files"]]
        data = [str(name) for name in read_record(_record(word))["data"]]
    except (OSError, ValueError, KeyError, TypeError):
        files, data = [], []
    if not files or not all(_untouched(Landing(place, name)) for name in files):
        raise DataError(
            f"{shown_word(word)}: is not on this machine yet, in {place}; `ups run` with this config fetches it."
        )
    return [place / name for name in data]


def provide(words: Sequence[str], report: OnProgress) -> None:
    """Fetch what is missing of what words name; paths among them are left alone. One process fetches a file, and
    others that want it wait."""
    for word in filter(names, words):
        require_nameable(word)
        try:
            paths(word)
            continue
        except DataError:
            place = place_of(word)
        wanted = plan([word], place, report)
        fetched = wanted.fetch()
        files = [path.relative_to(place).as_posix() for path in fetched]
        data = [path.relative_to(place).as_posix() for path in wanted.data(fetched)]
        _record(word).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(_record(word), json.dumps({"word": shown_word(word), "files": files, "data": data}, indent=1))


def shown_word(word: str) -> str:
    """A word of a config, as it may be shown."""
    return shown(word) if ADDRESS.match(word) else word


def _record(word: str) -> Path:
    return place_of(word) / FOLDER / "words" / f"{_key(word)}.json"


def _key(word: str) -> str:
    return hashlib.sha256(word.encode()).hexdigest()[:12]


def _untouched(landing: Landing) -> bool:
    try:
        return read_record(landing.receipt).get("stamp") == stamp(landing.target.stat())
    except (OSError, ValueError):
        return False
