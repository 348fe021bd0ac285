"""Runs the commands of an engine's own client, with a time limit; what they refuse becomes one sentence."""

from __future__ import annotations

import time

from ups.types import ConfigError, DataError
from ups_fleet.supervise.children import UnansweredError, ask

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
