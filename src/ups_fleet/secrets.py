"""Keys and passwords, blotted out of what a library prints."""

from __future__ import annotations

import base64
import netrc
import os
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from urllib.parse import quote, quote_plus

SECRETS = re.compile(r"KEY|TOKEN|PASSWORD|PASSWD|SECRET|CREDENTIAL")
USERS = re.compile(r"USER", re.I)
PASSWORDS = re.compile(r"://[^/\s:@]*:([^\s@]+)@")  # in addresses; some hold a "/"
SHORTEST = 4  # characters: a shorter word stands in many others
LONG = 8  # characters: a text may not hold a word of this length, which nobody writes by chance


def hiding(environ: Mapping[str, str]) -> Callable[[bytes], bytes]:
    """A function that blots out what the environment and ~/.netrc hold of keys and passwords, as they are and in the
    ways in which libraries write them: quoted in an address, escaped, and with a user's name in base64."""
    known = {value for name, value in environ.items() if SECRETS.search(name)} | set(_logins(environ))
    known |= {match for value in environ.values() for match in PASSWORDS.findall(value)}
    known = {value for value in known if len(value) >= SHORTEST}
    users = {value for name, value in environ.items() if USERS.search(name)} | {"", "api", "user", "token"}
    forms = {form for secret in known for form in _forms(secret)}
    forms |= {_base64(f"{user}:{secret}") for user, secret in product(users, known)}
    words = sorted((form.encode(errors="surrogateescape") for form in forms), key=len, reverse=True)

    def hide(text: bytes) -> bytes:
        for word in words:
            text = text.replace(word, b"***")
        return text

    return hide


def secret_in(text: str, environ: Mapping[str, str]) -> str:
    """The name of a variable whose key or password stands in a text; empty where none does. Short values are words."""
    known = [(name, value) for name, value in environ.items() if SECRETS.search(name) and len(value) >= LONG]
    for name, value in environ.items():
        known += [(name, part) for part in PASSWORDS.findall(value) if len(part) >= SHORTEST]
    known += [("a login in ~/.netrc", value) for value in _logins(environ) if len(value) >= LONG]
    return next((name for name, value in known if any(form in text for form in _forms(value))), "")


def _forms(secret: str) -> Iterator[str]:
    yield from (secret, quote(secret, safe=""), quote(secret), quote_plus(secret), repr(secret)[1:-1])
    yield from (repr(repr(secret)[1:-1])[1:-1], _base64(secret))
    yield secret.replace("'", "'\"'\"'")  # as a shell reads it between quotes


def _base64(text: str) -> str:
    return base64.b64encode(text.encode(errors="surrogateescape")).decode()


def _logins(environ: Mapping[str, str]) -> Iterator[str]:
    """Passwords of the file in which logins are kept."""
    path = Path(environ.get("NETRC") or Path(environ.get("HOME") or "~").expanduser() / ".netrc")
    try:
        if not path.is_file() or os.path.getsize(path) > 1_000_000:
            return
        yield from (password for _, _, password in netrc.netrc(str(path)).hosts.values() if password)
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
        return
