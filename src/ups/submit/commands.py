"""The commands of an engine's own client, asked with a limit of time; what they refuse is one sentence."""

from __future__ import annotations

import subprocess

from ups.types import ConfigError, DataError

ANSWER = 120.0  # seconds that a client has for its answer


class RefusedError(DataError):
    """An engine would not do what it was asked for."""


def answer(
    *words: str, text: str = "", within: float = ANSWER, codes: tuple[int, ...] = (0,), advice: str = "install it"
) -> str:
    """What a command prints that was given `text` to read; a sentence where it is not there, does not answer or leaves
    with another code than these."""
    name = " ".join(words[:2]) if len(words) > 1 and not words[1].startswith("-") else words[0]
    try:
        done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=within, check=False)
    except FileNotFoundError:
        raise ConfigError(f"{words[0]}: there is no such command here; {advice}.") from None
    except subprocess.TimeoutExpired:
        raise RefusedError(f"{name} has not answered in {within:.0f} s; ask again when it does.") from None
    if done.returncode not in codes:
        reason = " ".join((done.stderr or done.stdout or "").split())[-600:] or f"code {done.returncode}"
        raise RefusedError(f"{name} refuses: {reason.rstrip('.')}.")
    return done.stdout
