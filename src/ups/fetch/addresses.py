"""Addresses of files: what may be shown of them, what identifies them, and which name a file gets on this disk."""

from __future__ import annotations

import hashlib
import re
from pathlib import PurePosixPath
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from ups.types import DataError

LONGEST_NAME = 200  # bytes of the name of a file
# Parts of a query that give access, or change whenever they do.
ACCESS = re.compile(r"sig|token|key|credential|password|passwd|secret|auth|expire|date|^x-(amz|goog|ms)-", re.I)


def shown(url: str) -> str:
    """An address without what may be secret in it: user and password, and the whole query."""
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{place}{parts.path}{'?…' if parts.query else ''}"


def may_hold_secrets(url: str) -> bool:
    """Whether an address has a user's name, a password, a query or a fragment."""
    parts = urlsplit(url)
    return "@" in parts.netloc or bool(parts.query) or bool(parts.fragment)


def identity(url: str) -> str:
    """What distinguishes an address from others and gives no access: all of it but passwords and signatures."""
    parts = urlsplit(url)
    query = sorted((key, value) for key, value in parse_qsl(parts.query, True) if not ACCESS.search(key))
    text = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}?{urlencode(query)}"
    return hashlib.sha256(text.encode()).hexdigest()


def file_name(text: str) -> str:
    """The last part of a path in an address or a header, as a name within a folder; empty where it is none."""
    name = re.split(r"[/\\]", unquote(text))[-1].strip()
    if name.startswith(".") or any(ord(c) < 32 or c == "\x7f" for c in name) or len(name.encode()) > LONGEST_NAME:
        return ""
    return name


def relative_path(text: str, address: str) -> str:
    """A path below a folder of a store; a DataError where it leads out of that folder or is hidden in it."""
    parts = PurePosixPath(text).parts
    if not parts or any(part in ("/", "..") or not file_name(part) or "\\" in part for part in parts):
        raise DataError(f"{shown(address)}: has a file '{text[:80]}', whose name leads out of its folder; rename it.")
    return "/".join(parts)
