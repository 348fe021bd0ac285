"""How many files a process may hold open at a time, and what to do where these are too few."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator

from ups.types import ConfigError

PLENTY = 4096
FEWEST = 48  # under which a run does not come as far as to the checks of the machine
_SPENT = {errno.EMFILE, errno.ENFILE}
_TEXTS = tuple(map(os.strerror, _SPENT))


def allowed() -> tuple[int, int]:
    """The limit, and what `ulimit -n` can raise it to; -1 where there is none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (-1 if soft == resource.RLIM_INFINITY else soft), (-1 if hard == resource.RLIM_INFINITY else hard)


def raising(need: int, what: str) -> str:
    """How to have at least so many, before `what`."""
    hard, plenty = allowed()[1], max(need, PLENTY)
    if hard < 0 or hard >= need:
        return f"`ulimit -n {plenty if hard < 0 else min(plenty, hard)}` before {what}"
    return (
        f"`ulimit -n` cannot give more than the hard limit of {hard} here; have that raised to {plenty} (LimitNOFILE= "
        f"of a service, --ulimit nofile={plenty} of a container, nofile in /etc/security/limits.conf, or a new login "
        "shell where an `ulimit -n` has lowered it)"
    )


def require(what: str) -> None:
    """ConfigError where there are so few that `what` would end in the middle of anything."""
    soft, _ = allowed()
    if 0 <= soft < FEWEST:
        raise ConfigError(f"{soft} open files allowed per process, too few for {what}; {raising(FEWEST, what)}.")


def spent(error: BaseException) -> str:
    """A sentence where an error comes of too many open files, whatever it says itself; else nothing."""
    origin = next((link for link in _links(error) if _is_spent(link)), None)
    if origin is None:
        return ""
    place = origin.filename if isinstance(origin, OSError) and origin.filename else ""
    soft, _ = allowed()
    which = f"{place}: cannot be opened" if place else "a file cannot be opened"
    return f"{which}: {soft} open files allowed per process, too few here; {raising(2 * soft, 'the command')}."


def _links(error: BaseException) -> Iterator[BaseException]:
    """An error, and all that it was raised from or while handling."""
    seen: dict[int, BaseException] = {}
    stack = [error]
    while stack:
        link = stack.pop()
        if id(link) not in seen:
            seen[id(link)] = link
            stack += [below for below in (link.__context__, link.__cause__) if below is not None]
    yield from seen.values()


def _is_spent(error: BaseException) -> bool:
    by_number = isinstance(error, OSError) and error.errno in _SPENT
    return by_number or any(text in str(error) for text in _TEXTS)
