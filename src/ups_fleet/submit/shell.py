"""Programs of engines: text for a POSIX shell that their scripts share, and asking a client of theirs."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable
from pathlib import PurePath

from ups.run_files import CONFIG
from ups.types import ConfigError, DataError
from ups_fleet.submit.job import LaunchJob
from ups_fleet.supervise.children import UnansweredError, ask

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


ANSWER = 120.0  # seconds that a client has for its answer
AGAIN = 1.0  # seconds before it is asked again


class RefusedError(DataError):
    """An engine would not do what it was asked for."""


class NotSubmittedError(RefusedError):
    """It would not, and was asked before anything was handed over."""


def answer(
    *words: str,
    text: str = "",
    within: float = ANSWER,
    codes: tuple[int, ...] = (0,),
    advice: str = "install it",
    tries: int = 1,
) -> str:
    """What a command prints that was given `text` to read; a sentence where it is not there, does not answer or leaves
    with another code than these. `tries`: how often it is asked where a signal ended it, as a lost connection does."""
    name = " ".join(words[:2]) if len(words) > 1 and not words[1].startswith("-") else words[0]
    try:
        done = ask(words, within, text=text)
    except FileNotFoundError:
        raise ConfigError(f"{words[0]}: there is no such command here; {advice}.") from None
    except UnansweredError:
        raise RefusedError(f"{name} has not answered in {within:.0f} s; ask again when it does.") from None
    if done.returncode < 0 and tries > 1:
        time.sleep(AGAIN)
        return answer(*words, text=text, within=within, codes=codes, advice=advice, tries=tries - 1)
    if done.returncode not in codes:
        reason = " ".join((done.stderr or done.stdout or "").split())[-600:] or f"code {done.returncode}"
        raise RefusedError(f"{name} refuses: {reason.rstrip('.')}.")
    return done.stdout
