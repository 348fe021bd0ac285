"""Addresses of files: hides their secrets, tells two addresses apart, and names the file on this disk."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import PurePosixPath
from urllib.parse import SplitResult, quote, unquote, urlsplit

from ups.files import line_breaker
from ups.types import ConfigError, DataError

LONGEST_NAME = 200  # bytes of the name of a file
# Parts of a query that give access, or change whenever they do, by their whole names.
ACCESS = re.compile(
    r"x-(amz|goog|ms)-.*|((access|auth|api|id|refresh|security|session|private|secret|user)[_-]?)?(token|key)|"
    r"sig|signature|auth|authorization|credentials?|password|passwd|pwd|((client|api)[_-]?)?secret|jwt|"
    r"expires?|expiry|awsaccesskeyid|googleaccessid|key-pair-id|policy",
    re.I,
)
AZURE = re.compile(r"s[eptvr]|spr|sip|sk(oid|tid|[tesv])", re.I)  # the same, beside a `sig`
ZARR = frozenset({".zgroup", ".zarray", ".zattrs", ".zmetadata"})  # hidden files that data may have
SCHEMES = ("http", "https")
MISTAKE = (
    "is no address that can be asked for; write https://HOST:PORT/PATH, and in a user's name or password %2F for '/', "
    "%23 for '#', %3F for '?' and %40 for '@'."
)


def shown(url: str) -> str:
    """An address without what may be secret in it: user and password, and the whole query."""
    parts = split(url)
    if _may_be_password(parts):
        return f"{parts.scheme}://…"
    place = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{place}{parts.path}{'?…' if parts.query else ''}"


def may_hold_secrets(url: str) -> bool:
    """Whether an address has a user's name, a password, a query or a fragment."""
    parts = split(url)
    return "@" in parts.netloc or bool(parts.query) or bool(parts.fragment) or _may_be_password(parts)


def _may_be_password(parts: SplitResult) -> bool:
    """Whether what looks like host and port may be a user and the beginning of a password with a '/', '#' or '?'."""
    rest = parts.path + parts.fragment + ("" if parts.path else parts.query)
    return ":" in parts.netloc and "@" not in parts.netloc and "@" in rest


def split(url: str) -> SplitResult:
    """The parts of an address; a ConfigError that shows nothing of it where it cannot be read or its port is none."""
    try:
        parts = urlsplit(url)
        if parts.scheme in SCHEMES:
            _ = parts.port  # a ValueError where it is no number
        return parts
    except ValueError:
        raise ConfigError(f"{url.partition('://')[0]}://…: {MISTAKE}") from None


def http_address(url: str) -> str:
    """An http address as it is sent to a server: letters that may not stand in it are quoted, its fragment is gone."""
    parts = split(url)
    login, sign, place = parts.netloc.rpartition("@")
    if not place.isascii():
        try:
            place = place.encode("idna").decode()
        except UnicodeError:
            raise ConfigError(f"{parts.scheme}://…: {MISTAKE}") from None
    path, query = (_quoted(text) for text in (parts.path, parts.query))
    return f"{parts.scheme}://{login}{sign}{place}{path}{'?' if query else ''}{query}"


def _quoted(text: str) -> str:
    return quote(text, safe="/%:@!$&'()*+,;=~?[]|", errors="surrogateescape")


def identity(url: str) -> str:
    """What distinguishes an address from others and gives no access: all of it but passwords and signatures."""
    parts = split(url)
    fragment = (
        f"#{parts.fragment}" if parts.fragment and parts.scheme not in SCHEMES else ""
    )  # stores have names with #
    text = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}?{_open_query(parts.query)}{fragment}"
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def gives_access(url: str) -> bool:
    """Whether an address has a login or a signature. Two such addresses of one identity may be two files."""
    parts = split(url)
    return "@" in parts.netloc or _open_query(parts.query) != parts.query


def _open_query(query: str) -> str:
    """A query without what gives access."""
    fields = [(unquote(field.partition("=")[0]), field) for field in query.split("&")]
    of_azure = any(name.lower() == "sig" for name, _ in fields)
    secret = [ACCESS.fullmatch(name) or (of_azure and AZURE.fullmatch(name)) for name, _ in fields]
    return "&".join(field for (_, field), hidden in zip(fields, secret, strict=True) if not hidden)


def file_name(text: str) -> str:
    """The last part of a path in an address or a header, as a name within a folder; empty where it is none."""
    name = re.split(r"[/\\]", unquote(text))[-1].strip()
    if name.startswith(".") or line_breaker(name) or len(os.fsencode(name)) > LONGEST_NAME:
        return ""
    return name


def is_zarr(name: str) -> bool:
    """Whether a folder of this name is a data set of Zarr, and so belongs together."""
    return name.lower().endswith(".zarr")


def relative_path(text: str, address: str) -> str:
    """A path below a folder of a store; a DataError where it leads out of that folder or is hidden in it."""
    parts = PurePosixPath(text).parts
    if not parts or any(part not in ZARR and (not file_name(part) or {"/", "\\"} & {*part}) for part in parts):
        raise DataError(
            f"{shown(address)}: has a file '{text[:80]}', whose name is hidden or leads out of its folder; rename it."
        )
    return "/".join(parts)
