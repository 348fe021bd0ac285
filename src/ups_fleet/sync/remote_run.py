"""The copy of a run in a store: files by name and content, and a manifest, written last, that says which count."""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from threading import Event
from typing import Any, BinaryIO, TypeVar

from ups.files import sum_of, write_atomic
from ups.parsing import parse_json
from ups.types import ConfigError, DataError
from ups_fleet.fetch.addresses import may_hold_secrets, relative_path, shown
from ups_fleet.fetch.patience import ChangedError, Patience, TransientError, UnreachableError, within
from ups_fleet.fetch.remote_file import LocalFile, RemoteFile
from ups_fleet.fetch.stores import StoredFile, from_store, store_of

FORMAT = 1
LONGEST = 1000  # letters of a path
MANIFEST = "manifest.json"
BLOCK = 1 << 22
BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "hf", "oci", "oss", "r2"})
ANSWER = 110.0  # seconds for the first answers of a store
BRIEF = Patience(tries=3, first=0.5, longest=5.0)

Result = TypeVar("Result")


@dataclass(frozen=True)
class Manifest:
    """The files of a run as they were when it was written: by path, their sizes, SHA-256 and names in the store.

    `run` is the id of the run. No two have the same `sum`: whoever has not written it himself sees that someone has.
    """

    run: str
    files: Mapping[str, Mapping[str, Any]]
    time: float
    id: str

    @classmethod
    def of(cls, run: str, files: Mapping[str, Mapping[str, Any]]) -> Manifest:
        """A new one, of now."""
        return cls(run, files, time.time(), uuid.uuid4().hex)

    @property
    def sum(self) -> str:
        return sum_of(self._values())

    def content(self) -> bytes:
        """The bytes that are stored."""
        return json.dumps({**self._values(), "sum": self.sum}, indent=1).encode()

    def _values(self) -> dict[str, Any]:
        return {"format": FORMAT, "run": self.run, "time": self.time, "id": self.id, "files": dict(self.files)}

    @classmethod
    def parse(cls, content: bytes, where: str) -> Manifest:
        """What a store holds; a DataError where it is damaged, or names files outside of the run."""
        try:
            values = parse_json(content)
            if values["format"] != FORMAT or values["sum"] != sum_of(values):
                raise ValueError("sum")
            files = {str(path): row for path, row in values["files"].items()}
            for path, row in files.items():
                relative_path(path, where)
                if len(path) > LONGEST or any(str(folder) in files for folder in PurePosixPath(path).parents):
                    raise ValueError(path)
                if (
                    type(row["bytes"]) is not int
                    or not 0 <= row["bytes"] < 1 << 63
                    or row["key"] != key_of(path, str(row["sha256"]))
                ):
                    raise ValueError(path)
            return cls(str(values["run"]), files, float(values["time"]), str(values["id"]))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            raise DataError(f"{where}: is no manifest of a run, or is damaged; use another place.") from None


def require_syncable(url: str) -> None:
    """A ConfigError for what cannot be the place of copies."""
    scheme, sign, _ = url.partition("://")
    if not sign or scheme in ("http", "https", "memory") or "::" in scheme:
        raise ConfigError("it is no store that runs can be copied to; write s3://BUCKET/FOLDER or the like.")
    if scheme == "file" and not url.startswith(("file:///", "file://localhost/")):
        raise ConfigError("it names another machine; write file:///PATH for a folder of this one.")
    if may_hold_secrets(url):
        raise ConfigError("it may hold a password or a token ('@', '?' or '#'); put logins into the environment.")


class RemoteRun:
    """The copy of the run `name` at `url`."""

    def __init__(self, url: str, name: str) -> None:
        require_syncable(url)
        self.url = f"{url.rstrip('/')}/{name}"
        self.store, place = store_of(url)
        self.path = f"{place.rstrip('/')}/{name}"
        self.local, self.in_bucket = url.startswith("file://"), url.partition("://")[0] in BUCKETS

    def probe(self) -> None:
        """Write, read and delete a small file: a ConfigError where that is denied, an UnreachableError where nothing
        is answered within ANSWER seconds: the clients of stores try for much longer."""
        try:
            within(ANSWER, self._probe)
        except TransientError as error:
            raise self._silent(error) from None

    def _probe(self) -> None:
        key, words = f".probe-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex.encode()
        path = f"{self.path}/{key}"
        try:
            self._tried(lambda: self._write(path, words))
            back = self._tried(lambda: self._read(key))
            self._tried(lambda: self.store.rm_file(path))
        except DataError as error:
            raise ConfigError(f"sync: {error} Nothing was begun; mend it, or leave `sync` out.") from None
        if back != words:
            raise ConfigError(f"sync: {shown(self.url)}: does not give back what was written to it; use another place.")

    def manifest(self) -> Manifest | None:
        """What counts there; None where no run is."""

        path = f"{self.path}/{MANIFEST}"

        def read() -> bytes | None:
            self.store.invalidate_cache()
            return bytes(self.store.cat_file(path)) if self.store.exists(path) else None

        try:
            content = self._tried(read)
        except TransientError as error:
            raise self._silent(error) from None
        return None if content is None else Manifest.parse(content, f"{shown(self.url)}/{MANIFEST}")

    def listed(self) -> dict[str, tuple[int, str]]:
        """The bytes and the tag of each file that is there, by its key, whatever the manifest says."""

        def listed() -> dict[str, tuple[int, str]]:
            self.store.invalidate_cache()
            rows = self.store.find(f"{self.path}/files", detail=True)
            return {name.removeprefix(f"{self.path}/"): (int(row["size"]), tag_of(row)) for name, row in rows.items()}

        return from_store(self.url, listed)

    def put(self, source: Path, path: str, size: int, sha256: str, beat: Callable[[], None]) -> dict[str, str]:
        """Copy the first `size` bytes of a file, and prove that they are those that were hashed; its key and tag."""
        key, hashed, left = key_of(path, sha256), hashlib.sha256(), size
        place = f"{self.path}/{key}"

        def copy(file: BinaryIO) -> None:
            nonlocal left
            self._make_folder(place)
            with self.store.open(place, "wb") as out:
                while left and (block := file.read(min(BLOCK, left))):
                    out.write(block)
                    hashed.update(block)
                    left -= len(block)
                    beat()

        with source.open("rb") as file:
            from_store(self.url, lambda: copy(file))
        if left or hashed.hexdigest() != sha256:
            raise ChangedError(f"{source} changed while it was copied")
        info = from_store(self.url, lambda: self.store.info(place))
        if info["size"] != size:
            raise TransientError(f"{path}: {info['size']} bytes arrived of {size}")
        return {"key": key, "tag": tag_of(info)}

    def publish(self, manifest: Manifest, before: Manifest | None) -> None:
        """Make a manifest the one that counts, and delete what only the one before it named."""
        from_store(self.url, lambda: self._write(f"{self.path}/{MANIFEST}", manifest.content()))
        named = {row["key"] for row in manifest.files.values()}
        for key in {row["key"] for row in (before.files.values() if before else ())} - named:
            try:
                from_store(self.url, lambda key=key: self.store.rm_file(f"{self.path}/{key}"))  # type: ignore[misc]
            except (TransientError, DataError):
                continue  # it takes up room, and no harm is done

    def file(self, key: str) -> RemoteFile:
        """One of its files, to be fetched."""
        url = f"{self.url}/{key}"
        path = f"{self.path}/{key}"
        return LocalFile(url, Path(path)) if self.local else StoredFile(url, self.store, path)

    def _read(self, key: str) -> bytes:
        """The content of a file, had as a run is brought back; what changes meanwhile is nothing."""
        file = self.file(key)
        facts = file.facts()
        try:
            return b"".join(file.read(0, facts.size or 0, facts))
        except ChangedError:
            return b""

    def _write(self, path: str, content: bytes) -> None:
        self._make_folder(path)
        if self.local:
            write_atomic(Path(path), content)
        else:
            self.store.pipe_file(path, content)

    def _silent(self, error: TransientError) -> UnreachableError:
        return UnreachableError(f"sync: {shown(self.url)}: does not answer ({error}); try again later.")

    def _make_folder(self, path: str) -> None:
        """Where files lie in folders; in a bucket they do not, and one that was misspelt must not be made."""
        if not self.in_bucket:
            self.store.makedirs(path.rpartition("/")[0], exist_ok=True)

    def _tried(self, act: Callable[[], Result]) -> Result:
        failures = 0
        while True:
            try:
                return from_store(self.url, act)
            except TransientError as error:
                failures += 1
                BRIEF.wait(failures, error, Event())


def tag_of(info: Mapping[str, Any]) -> str:
    """What a store says of a file that is another when somebody has written it again; empty where it says nothing."""
    return next((str(info[name]).strip('"') for name in ("ETag", "mtime") if info.get(name)), "")


def key_of(path: str, sha256: str) -> str:
    """The name of a file in the store: other content has another name."""
    return f"files/{path}~{sha256[:16]}"
