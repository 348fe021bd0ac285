"""Files at http and https addresses: ranges of one version, redirects that are safe, errors that say what to do."""

from __future__ import annotations

import base64
import contextlib
import http.client
import ipaddress
import netrc
import os
import re
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.message import Message
from functools import partial
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from ups.types import ConfigError, DataError
from ups.version import __version__
from ups_fleet.fetch.addresses import MISTAKE, SCHEMES, file_name, http_address, shown
from ups_fleet.fetch.patience import ChangedError, NoRangesError, Patience, StoppedError, TransientError, retry_after
from ups_fleet.fetch.remote_file import BLOCK, RemoteFacts
from ups_fleet.web import FetchPace, StalledError, WebRequest, addresses_of, opener


def inward(address: str) -> str:
    """An address that only this machine or its network has, written alike for one host; empty for one of the world.
    Loopback is one host, whatever its number."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    ip = getattr(ip, "ipv4_mapped", None) or ip
    if ip.is_loopback:
        return "loopback"
    return str(ip) if ip.is_multicast or not ip.is_global else ""


def check_redirect(place: str, named: str, host: str, address: str = "") -> None:
    """DataError where a redirect of `place` leads inward, to a `host` (at this `address`, if it is known already) that
    is another than the one that the user has `named`."""
    for one in [address] if address else addresses_of(host):
        if (inside := inward(one)) and inside not in map(inward, addresses_of(named)):
            where = host if host == one else f"{host} ({one})"
            raise DataError(
                f"{place}: redirects to {where}, which is this machine or in its network, and was not asked for; if "
                "you trust it, name that address itself."
            )


HEADERS = {"User-Agent": f"ups/{__version__}", "Accept-Encoding": "identity"}
REDIRECTS = 10
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
REFUSALS = {
    401: "asks for a login; put one for this host into ~/.netrc",
    403: "denies access; check that you may read it, and that the address has not expired",
    404: "does not exist; check the address",
    410: "is there no longer; look for another address",
}
PAGE = re.compile(rb"^\s*(<!doctype html|<html|<\?xml[^>]*>\s*<(!doctype )?html)", re.I)
CODINGS = ("gzip", "x-gzip", "deflate", "br", "zstd", "compress", "x-compress")
COMPRESSED = (".gz", ".tgz", ".br", ".zst", ".z")  # files that some servers call so
PAGES = ("text/html", "application/xhtml+xml")


class HttpFile:
    """A file behind an http address. Every request begins at the address itself: where it redirects to, and what that
    gives access to, may change between two pieces."""

    def __init__(self, url: str, patience: Patience, expects_page: bool = False) -> None:
        self.url, self.patience, self.expects_page = http_address(url), patience, expects_page
        self._opener = opener()

    def facts(self) -> RemoteFacts:
        """What the server says of the file, from its answer to a request for the first byte."""
        with self._first_byte() as answer:
            headers = answer.headers
            self._refuse_page(answer.headers, b"")
            if answer.status == 206:
                size: int | None = _content_range(headers)[2]
            else:
                size = _content_length(headers)
            if size == 0:
                raise self._empty()
            framed = size is not None or "chunked" in (headers.get("Transfer-Encoding") or "").lower()
            return RemoteFacts(
                size, _version(headers), answer.status == 206 and size is not None, self._name(headers), framed
            )

    def read(self, start: int, end: int, facts: RemoteFacts) -> Iterator[bytes]:
        """The bytes from `start` to before `end`, all of the version that `facts` are of."""
        with self._answer(start, end - 1, facts.version) as answer:
            if answer.status != 206:
                raise ChangedError if _version(answer.headers) != facts.version else NoRangesError
            first, last, size = _content_range(answer.headers)
            if size != facts.size or _version(answer.headers) != facts.version:
                raise ChangedError
            if first != start:
                raise TransientError(f"sent the bytes from {first} on, and not from {start}")
            yield from self._blocks(answer, min(end, last + 1) - start, at_beginning=not start)

    def whole(self, facts: RemoteFacts) -> Iterator[bytes]:
        """The whole file in one answer."""
        with self._answer(None, None) as answer:
            if _version(answer.headers) != facts.version or _content_length(answer.headers) not in (None, facts.size):
                raise ChangedError
            yield from self._blocks(answer, facts.size, at_beginning=True)

    def _blocks(self, answer: http.client.HTTPResponse, size: int | None, at_beginning: bool) -> Iterator[bytes]:
        """What is sent; a TransientError where it stalls or ends too early."""
        done = 0
        while size is None or done < size:
            try:
                block = answer.read1(BLOCK if size is None else min(BLOCK, size - done))
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise _passing(error) from None
            if not block:
                if size is None and done:
                    return
                if size is None:
                    raise self._empty()
                raise TransientError(f"the answer ended after {done} of {size} bytes")
            if at_beginning and not done:
                self._refuse_page(None, block)
            done += len(block)
            yield block

    @contextlib.contextmanager
    def _first_byte(self) -> Iterator[http.client.HTTPResponse]:
        try:
            with self._answer(0, 0) as answer:
                yield answer
        except ChangedError:  # it has no first byte
            raise self._empty() from None

    def _empty(self) -> DataError:
        return DataError(f"{shown(self.url)}: is empty; check the address.")

    @contextlib.contextmanager
    def _answer(self, first: int | None, last: int | None, version: str = "") -> Iterator[http.client.HTTPResponse]:
        """The answer to a request, after its redirects."""
        url = start = _without_login(self.url)
        begins, pace = _origin(self.url), FetchPace(self.patience.stall, self.patience.least)
        for _ in range(REDIRECTS):
            look = None if url == start else partial(self._look, urlsplit(url).hostname or "")
            request = WebRequest(url, pace, look, headers=HEADERS)
            if first is not None:
                request.add_header("Range", f"bytes={first}-{last}")
            if version and (condition := version.partition(" ")[2]):
                request.add_header("If-Range", condition)
            if _origin(url) == begins and (login := _login(self.url)):
                request.add_unredirected_header("Authorization", login)
            try:
                answer: Any = self._opener.open(request)
            except urllib.error.HTTPError as error:
                answer = error
            except (http.client.InvalidURL, UnicodeError):  # their words show the address
                raise ConfigError(f"{shown(self.url)}: {MISTAKE}") from None
            except (urllib.error.URLError, OSError, http.client.HTTPException) as error:
                raise _passing(error.reason if isinstance(error, urllib.error.URLError) else error) from None
            with contextlib.closing(answer):
                if answer.status in (301, 302, 303, 307, 308):
                    url = self._next(url, answer.headers)
                    continue
                self._require_good(answer.status, answer.headers)
                yield answer
                return
        raise DataError(f"{shown(self.url)}: redirects more than {REDIRECTS} times; check the address.")

    def _next(self, url: str, headers: Message) -> str:
        """Where a redirect leads, unless that is less safe than the address itself."""
        location = (headers.get("Location") or "").encode("latin-1", "replace").decode(errors="surrogateescape")
        try:
            target = http_address(urljoin(url, location))
        except (ConfigError, ValueError):
            target = ""
        parts = urlsplit(target)
        if parts.scheme not in SCHEMES or not parts.hostname:
            raise DataError(f"{shown(self.url)}: redirects to what is no http address; check the address.")
        if urlsplit(url).scheme == "https" and parts.scheme == "http":
            raise DataError(
                f"{shown(self.url)}: redirects from https to http, where anyone could change it; ask its owner."
            )
        check_redirect(shown(self.url), urlsplit(self.url).hostname or "", parts.hostname)
        return _without_login(target)

    def _look(self, host: str, connection: http.client.HTTPConnection) -> None:
        """DataError where a redirect has arrived at another address than its name stood for before; a proxy is none."""
        if connection.host.lower() == host:
            check_redirect(
                shown(self.url), urlsplit(self.url).hostname or "", host, str(connection.sock.getpeername()[0])
            )

    def _require_good(self, status: int, headers: Message) -> None:
        if status in (200, 206):
            coding = (headers.get("Content-Encoding") or "").strip().lower()
            if coding in CODINGS and not urlsplit(self.url).path.lower().endswith(COMPRESSED):
                raise DataError(
                    f"{shown(self.url)}: is sent compressed ({coding}) although it was asked for as it is; fetch it "
                    "from another address, or with a program that unpacks it."
                )
            return
        if status in PASSING:
            raise TransientError(f"the server answers {status}", retry_after(headers.get("Retry-After")))
        if status == 416:
            raise ChangedError
        raise DataError(f"{shown(self.url)}: {REFUSALS.get(status, f'is answered with {status}; check the address')}.")

    def _refuse_page(self, headers: Message | None, beginning: bytes) -> None:
        """Portals answer with a page, and say that all is well."""
        kind = headers.get_content_type() if headers is not None and headers.get("Content-Type") else ""
        if not self.expects_page and (kind in PAGES or PAGE.match(beginning)):
            raise DataError(
                f"{shown(self.url)}: is answered with a web page in the place of the file; open the address in a "
                "browser and see what it asks for."
            )

    def _name(self, headers: Message) -> str:
        with contextlib.suppress(ValueError, LookupError):  # a header may say anything
            if name := file_name(headers.get_filename() or ""):
                return name
        return ""


def _version(headers: Message) -> str:
    """What an answer says of the version of a file: its tag or date, and after a space what a request for more of the
    same version says (a weak tag may not)."""
    tag, date = headers.get("ETag") or "", headers.get("Last-Modified") or ""
    strong = tag if tag and not tag.startswith("W/") else date
    return f"{(tag or date).replace(' ', '_')} {strong}" if tag or date else ""


def _content_length(headers: Message) -> int | None:
    """Bytes of an answer, where it says how many."""
    length = headers.get("Content-Length") or ""
    return int(length) if re.fullmatch(r"[0-9]{1,18}", length) else None


def _content_range(headers: Message) -> tuple[int, int, int]:
    """The first and the last byte of an answer, and the size of the file."""
    match = re.fullmatch(
        r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})", (headers.get("Content-Range") or "").strip()
    )
    if match is None:
        raise TransientError("the server does not say which bytes it sends")
    return int(match[1]), int(match[2]), int(match[3])


def _passing(error: object) -> Exception:
    """What another try may mend."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return DataError(f"the certificate of the server is not valid ({error.verify_message}); check the address.")
    if isinstance(error, socket.gaierror):
        return TransientError("its host is not known here")
    if isinstance(error, StalledError):
        return TransientError(str(error), silent=error.seconds)
    if isinstance(error, http.client.IncompleteRead):
        return TransientError("the answer was cut")
    if isinstance(error, http.client.HTTPException) and not isinstance(error, OSError):
        return TransientError(f"the answer is no proper HTTP: {type(error).__name__}")  # it may repeat the request
    if isinstance(error, ValueError):  # closed by somebody else
        return StoppedError()
    return TransientError(" ".join(str(getattr(error, "strerror", "") or error or type(error).__name__).split())[:200])


def _without_login(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path or "/", parts.query, ""))


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _login(url: str) -> str:
    """The header of the login that an address has, or ~/.netrc for its host."""
    parts = urlsplit(url)
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if not user and parts.hostname:
        with contextlib.suppress(OSError, netrc.NetrcParseError, UnicodeDecodeError):
            entry = netrc.netrc(os.environ.get("NETRC")).hosts.get(parts.hostname)
            user, password = (entry[0], entry[2] or "") if entry else ("", "")
    return (
        "Basic " + base64.b64encode(f"{user}:{password}".encode(errors="surrogateescape")).decode()
        if user or password
        else ""
    )
