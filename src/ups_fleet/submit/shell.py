"""Text for a POSIX shell that the scripts of all engines share."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import PurePath

from ups.run_files import CONFIG
from ups.types import ConfigError
from ups_fleet.submit.job import LaunchJob

LACKS = "is not there on $(hostname), and the run needs it; copy it there, or correct the config."


def quoted(words: Iterable[object]) -> str:
    """Words as a shell reads them back: none of them is a variable, a pattern or two words."""
    return " ".join(_quoted(str(word)) for word in words)


def checks(inputs: Iterable[PurePath], place: PurePath | None = None) -> str:
    """Lines that end a job in its first second where a node lacks what it needs: with a sentence, and code 2. `place`:
    where the command is run."""
    lines = ["lacks() {", f'    echo "ups: $1: {LACKS}" >&2', "    exit 2", "}"]
    lines += [] if place is None else [f"cd {quoted([place])} 2> /dev/null || lacks {quoted([place])}"]
    return "\n".join([*lines, *(f"[ -e {quoted([path])} ] || lacks {quoted([path])}" for path in inputs)])


def begun_or_resumed(folder: PurePath) -> str:
    """Lines that put `--resume` into the positional parameters where the run of `folder` has been begun."""
    return f"set --\n[ ! -e {quoted([folder / CONFIG])} ] || set -- --resume"


def within_seconds(job: LaunchJob) -> str:
    """What stands before a command that is to save and leave when its time is over; empty where it has no limit."""
    if job.seconds is None:
        return ""
    return f"timeout --preserve-status --signal=TERM --kill-after={job.grace:.0f} {job.seconds:.0f}"


def _quoted(word: str) -> str:
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in word):
        raise ConfigError(f"{word!r}: has a line break or a control character, which no script may hold; rename it.")
    if any("\ud800" <= letter <= "\udfff" for letter in word):
        raise ConfigError(f"{word!r}: has bytes that are no text (UTF-8), which no script may hold; rename it.")
    return shlex.quote(word)
