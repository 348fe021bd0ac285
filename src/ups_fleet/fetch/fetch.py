"""Plans what a user wants from elsewhere, by name or address: which files, do they fit on the disk; fetches them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ups.files import no_room
from ups.progress import OnProgress
from ups.types import ConfigError, DataError
from ups_fleet.fetch.addresses import SCHEMES, file_name, http_address, is_zarr, shown
from ups_fleet.fetch.catalogue import ROOTS, lookup
from ups_fleet.fetch.download import Download, Wanted
from ups_fleet.fetch.http_file import HttpFile
from ups_fleet.fetch.patience import Patience, TransientError, UnreachableError
from ups_fleet.fetch.remote_file import LocalFile
from ups_fleet.fetch.stores import StoredFile, files_below

ADDRESS = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
AT_ONCE = 8  # files whose sizes are asked for at once
COMPANIONS = (".yaml", ".yml", ".json", ".md", ".txt", ".csv")  # that go with data, and hold none
PAGES = (".html", ".htm", ".xhtml")


def is_elsewhere(word: str) -> bool:
    """Whether a word names files of the catalogue or has an address, and is no path."""
    return word.startswith(tuple(f"{name}:" for name in ROOTS)) or ADDRESS.match(word) is not None


def wanted(word: str, patience: Patience) -> list[Wanted]:
    """The files that a word names: of the catalogue, or at an address."""
    if word.startswith(tuple(f"{name}:" for name in ROOTS)):
        return [Wanted(HttpFile(file.url, patience), file.path, file.md5) for file in lookup(word)]
    match = ADDRESS.match(word)
    if match is None:
        raise ConfigError(
            f"'{_without_login(word)}' is neither a name of the catalogue nor an address; write pdebench:NAME, "
            "well:NAME (`ups data fetch --list`), https://…, s3://…, hf://… or file://…."
        )
    scheme = match[1].lower()
    if scheme in SCHEMES:
        return [_at(word, patience)]
    if scheme == "file":
        local = LocalFile(word)
        return [Wanted(local, _name(local.path.name, word))]
    if word.endswith("/") or any(character in word for character in "*?["):
        try:
            return [Wanted(file, path) for file, path in files_below(word)]
        except TransientError as error:
            raise UnreachableError(f"{shown(word)}: does not answer ({error}); try again later.") from None
    stored = StoredFile(word)
    return [Wanted(stored, _name(stored.path, word))]


def _without_login(word: str) -> str:
    """A word that should have been an address, without what may be secret in it."""
    _, sign, rest = word.rpartition("@")
    return f"{'…@' if sign else ''}{rest.partition('?')[0]}"[:120]


def _at(url: str, patience: Patience) -> Wanted:
    """A file at an http address; where that has no name for it, the server is asked."""
    url = http_address(url)
    if not urlsplit(url).hostname:
        raise ConfigError(f"{shown(url)}: has no host; write https://HOST/PATH.")
    name = file_name(urlsplit(url).path)
    file = HttpFile(url, patience, name.lower().endswith(PAGES))
    if "." not in name:
        name = Download(Wanted(file, name or "file"), Path(), lambda _: None, patience=patience).facts().name or name
    return Wanted(file, _name(name, url))


def _name(text: str, url: str) -> str:
    name = file_name(text)
    if not name:
        raise DataError(f"{shown(url)}: says no name that a file could have; use another address.")
    return name


@dataclass(frozen=True)
class FetchPlan:
    """Files to be fetched into a folder: those that are missing have a size, as far as their servers say it."""

    downloads: tuple[Download, ...]
    sizes: tuple[int | None, ...]  # 0 for what is there
    folder: Path

    @property
    def missing(self) -> int:
        """Bytes that are missing, as far as is known."""
        return sum(size or 0 for size in self.sizes)

    def lines(self) -> list[str]:
        """What would be done, in words."""
        lines = []
        for download, size in zip(self.downloads, self.sizes, strict=True):
            what = (
                "is there"
                if download.is_there
                else f"{size / 1e6:.1f} MB missing"
                if size is not None
                else "size unknown"
            )
            checksum = f"MD5 {download.wanted.md5}" if download.wanted.md5 else "no MD5 published"
            lines.append(f"{download.landing.target}: {what}, {checksum}, from {download.shown}")
        return [*lines, f"{self.missing / 1e9:.3g} GB missing, {free_space(self.folder) / 1e9:.3g} GB free"]

    def data(self, paths: Sequence[Path]) -> tuple[Path, ...]:
        """What can be opened as data of files that were fetched: the files, or the folder of a data set of The Well
        where all of it was fetched, or of Zarr."""
        whole: dict[Path, None] = {}
        for path in paths:
            parts = path.relative_to(self.folder).parts
            root = (
                self.folder / parts[0] if len(parts) > 1 and (self.folder / parts[0] / "stats.yaml") in paths else path
            )
            depth = next((i for i, part in enumerate(parts[:-1], 1) if is_zarr(part)), None)
            whole[root if depth is None else self.folder.joinpath(*parts[:depth])] = None
        return tuple(path for path in whole if path.suffix.lower() not in COMPANIONS) or tuple(whole)

    def require_room(self) -> None:
        """A DataError where all together do not fit on the disk."""
        free = free_space(self.folder)
        if self.missing > free:
            raise DataError(
                f"{self.folder}: {self.missing / 1e9:.3g} GB are missing, and {free / 1e9:.3g} GB are free there; free "
                "some space, fetch less, or fetch to another disk."
            ) from no_room()

    def fetch(self) -> list[Path]:
        """All of them, one after the other, each over several connections; their paths."""
        self.require_room()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            return [download.fetch() for download in self.downloads]
        except PermissionError as error:
            raise DataError(f"{error.filename}: may not be written; fetch to another folder.") from None


def plan(
    words: Sequence[str], folder: Path, report: OnProgress, connections: int = 4, patience: Patience | None = None
) -> FetchPlan:
    """What fetching these words to a folder means; servers are asked for the sizes of what is missing."""
    patience = patience or Patience()
    files: dict[str, Wanted] = {}
    for file in (file for word in words for file in wanted(word, patience)):
        if file.path in files and files[file.path].file.url != file.file.url:
            raise ConfigError(
                f"{shown(files[file.path].file.url)} and {shown(file.file.url)} would both be called {file.path}; "
                "fetch them to two folders."
            )
        files[file.path] = file
    downloads = [Download(file, folder, report, connections, patience) for file in files.values()]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        sizes = list(threads.map(lambda download: 0 if download.is_there else download.remaining(), downloads))
    return FetchPlan(tuple(downloads), tuple(sizes), folder)


def free_space(folder: Path) -> int:
    """Bytes that are free on the disk of a folder that may not be there yet."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free
