"""Files in stores that fsspec knows (s3, hf, gs, …): their facts and pieces, and what their errors mean."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ups.types import ConfigError, DataError
from ups_fleet.fetch.addresses import is_zarr, relative_path, shown
from ups_fleet.fetch.patience import ChangedError, TransientError, UnreachableError, within
from ups_fleet.fetch.remote_file import RemoteFacts, local_path

LEAST, MOST = 1 << 20, 1 << 23  # bytes of one request: more and more of them while they come quickly
QUICK = 2.0  # seconds
ANSWER, LISTING = 50.0, 110.0  # seconds for one answer, whatever the client of a store would wait; for that on a folder
TAGS = (
    "ETag",
    "etag",
    "blob_id",
    "checksum",
    "md5Hash",
    "generation",
    "LastModified",
    "last_modified",
    "mtime",
    "created",
)
LOGIN = ("Credential", "Token", "Login", "Unauthorized", "Forbidden", "AccessDenied", "InvalidAccessKey", "GatedRepo")
MISTAKES = ("HfUriError", "HFValidationError")  # of an address that no file can have
LIBRARIES = {
    "botocore.exceptions": ("BotoCoreError", "ClientError"),
    "aiohttp": ("ClientError",),
    "httpx": ("HTTPError",),
    "httpx2": ("HTTPError",),
    "ftplib": ("Error",),
}
LOG_IN = "log in as the store wants it (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, HF_TOKEN, …)"
INSTALL = "pip install 'universal-physics-stack[remote]'"

Result = TypeVar("Result")


def store_of(url: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it; ConfigError where the packages for it are missing."""
    scheme = url.partition("://")[0]
    try:
        import fsspec
    except ImportError:
        raise ConfigError(f"{shown(url)}: stores need a package that is not installed: {INSTALL}.") from None
    try:
        store, path = fsspec.core.url_to_fs(
            url, **({} if scheme in ("memory", "file") else {"use_listings_cache": False})
        )
        if hasattr(store, "retries"):  # of s3fs, around those of botocore: a hang would last half an hour
            store.retries = 1
    except ImportError as error:
        words = " ".join(str(error).split())
        raise ConfigError(
            f"{shown(url)}: {scheme}:// needs a package that is not installed ({words}): {INSTALL}."
        ) from None
    except ValueError:
        raise ConfigError(
            f"{shown(url)}: no store is called {scheme}://; write s3://, hf://, gs:// or https://."
        ) from None
    except _errors_of_stores() as error:  # some log in at once
        raise UnreachableError(
            f"{shown(url)}: does not answer, or refuses the login ({type(error).__name__}); check the address, or try "
            "again later."
        ) from None
    return store, str(local_path(url)) if scheme == "file" else path


def from_store(url: str, act: Callable[[], Result]) -> Result:
    """What `act` gets from a store: a DataError for what the user can mend, a TransientError for all else."""
    try:
        return act()
    except FileNotFoundError:
        raise DataError(
            f"{shown(url)}: does not exist, or you may not know that it does; check the address, and {LOG_IN}."
        ) from None
    except (NotADirectoryError, IsADirectoryError) as error:
        raise DataError(f"{shown(url)}: cannot be used ({error.strerror or error}); check the address.") from None
    except (TransientError, ChangedError, DataError, MemoryError):
        raise
    except _errors_of_stores() as error:
        kind, words = type(error).__name__, spoken(error)
        if isinstance(error, NotImplementedError) or kind in MISTAKES:
            raise DataError(f"{shown(url)}: is no address of a file there ({words.rstrip('.')}); check it.") from None
        if isinstance(error, PermissionError) or any(word in f"{kind} {words}" for word in LOGIN):
            raise DataError(
                f"{shown(url)}: is denied ({kind}: {words}); {LOG_IN}, and check that you may use it."
            ) from None
        raise TransientError(f"{kind}: {words}") from None


def _errors_of_stores() -> tuple[type[Exception], ...]:
    """What stores raise, those included whose libraries have error types of their own."""
    own = []
    for name, kinds in LIBRARIES.items():
        module = sys.modules.get(name)
        own += [getattr(module, kind) for kind in kinds if hasattr(module, kind)]
    return (OSError, EOFError, ValueError, RuntimeError, KeyError, TypeError, NotImplementedError, *own)


def spoken(error: BaseException) -> str:
    """The words of an error, short and without secrets."""
    from ups_fleet.secrets import hiding

    text = hiding(os.environ)(" ".join(str(error).split()).encode(errors="replace")).decode(errors="replace")
    return text[:200]


class StoredFile:
    """A file in a store. It is known by its tag, which is looked at before each piece and after the last."""

    def __init__(self, url: str, store: Any = None, path: str = "") -> None:
        self.url = url
        self.store, self.path = (store, path) if store is not None else store_of(url)

    def facts(self) -> RemoteFacts:
        info = within(ANSWER, lambda: from_store(self.url, self._info))
        if info.get("type") == "directory":
            raise DataError(f"{shown(self.url)}: is a folder; write it with a / at its end to fetch all of it.")
        tags = [f"{key}={info[key]}" for key in TAGS if info.get(key) is not None]
        size = info.get("size")
        large, blob = info.get("lfs") or {}, str(info.get("blob_id") or "")  # as the Hub of Hugging Face says it
        sha256, git = str(large.get("sha256", "")), blob if not large and len(blob) == 40 else ""
        length = int(size) if size is not None else None
        return RemoteFacts(length, " ".join(tags), length is not None, sha256=sha256, git=git)

    def _info(self) -> dict[str, Any]:
        self.store.invalidate_cache()
        return dict(self.store.info(self.path))

    def read(self, start: int, end: int, facts: RemoteFacts) -> Iterator[bytes]:
        if self.facts() != facts:
            raise ChangedError
        size = LEAST
        while start < end:
            began = time.monotonic()
            block = self._block(start, min(start + size, end))
            size = min(2 * size, MOST) if time.monotonic() - began < QUICK else LEAST
            start += len(block)
            yield block

    def _block(self, start: int, end: int) -> bytes:
        cut = lambda: bytes(self.store.cat_file(self.path, start=start, end=end))  # noqa: E731
        block = within(ANSWER, lambda: from_store(self.url, cut))
        if len(block) != end - start:
            raise TransientError(f"{len(block)} of {end - start} bytes came")
        return block

    def whole(self, facts: RemoteFacts) -> Iterator[bytes]:
        yield within(LISTING, lambda: from_store(self.url, lambda: bytes(self.store.cat_file(self.path))))
        if self.facts() != facts:
            raise ChangedError


def files_below(url: str) -> list[tuple[StoredFile, str]]:
    """The files of a folder (`…/`) or of a pattern, each with its path below the folder; DataError where none is."""
    store, path = store_of(url)
    parts = path.rstrip("/").split("/")
    fixed = next((i for i, part in enumerate(parts) if any(c in part for c in "*?[")), len(parts))
    own = fixed == len(parts) and is_zarr(parts[-1])  # it stays a folder of that name
    root, scheme = "/".join(parts[: fixed - own]) + "/", url.partition("://")[0]

    def names() -> list[str]:
        return sorted(store.find(path) if fixed == len(parts) else filter(store.isfile, store.glob(path)))

    listed = within(LISTING, lambda: from_store(url, names))
    files = [name for name in listed if not name.endswith("/") and name != path.rstrip("/")]  # markers
    if not files:
        raise DataError(f"{shown(url)}: holds no file; check the address.")
    return [
        (StoredFile(f"{scheme}://{name.lstrip('/')}", store, name), relative_path(name.removeprefix(root), url))
        for name in files
    ]
