"""Downloads one file to its place: in pieces of one version, verified, renamed at last."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import TypeVar

from ups.files import no_room, publish
from ups.progress import OnProgress, Progress
from ups.types import DataError
from ups_fleet.fetch.addresses import gives_access, identity, shown
from ups_fleet.fetch.landing import Landing
from ups_fleet.fetch.patience import ChangedError, NoRangesError, Patience, TransientError, UnreachableError
from ups_fleet.fetch.pieces import Connections, Pieces, blob_of, digests_of
from ups_fleet.fetch.remote_file import RemoteFacts, RemoteFile

ROOM = 1 << 26  # bytes of a disk that a large file leaves to others
ROUNDS = 3  # times that pieces are fetched again which the disk does not hold as they came
TOLD = 3  # failed tries from which on a word is said on what is the matter


Result = TypeVar("Result")


@dataclass(frozen=True)
class Wanted:
    """A file to be fetched: where it is, its path below the folder, and the checksums of it that are known."""

    file: RemoteFile
    path: str
    md5: str = ""
    sha256: str = ""

    @property
    def proven(self) -> bool:
        """Whether a checksum of it is known."""
        return bool(self.md5 or self.sha256)

    def agrees(self, digests: Mapping[str, str]) -> bool:
        """Whether what has come has the checksums that are known."""
        return self.md5 in ("", digests["md5"]) and self.sha256 in ("", digests["sha256"])

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass
class Download:
    """One fetch of one file into `folder`."""

    wanted: Wanted
    folder: Path
    report: OnProgress
    connections: int = 4
    patience: Patience = field(default_factory=Patience)

    def __post_init__(self) -> None:
        self.url, self.shown = self.wanted.file.url, shown(self.wanted.file.url)
        self.landing = Landing(self.folder, self.wanted.path)
        self.pieces = Pieces(self.landing.part, self.landing.record)
        self._reached = 0.0, 1  # megabytes, and of how many

    @property
    def is_there(self) -> bool:
        """Whether the file was fetched before, and nobody has touched it since. The server is asked where that may not
        be the same file."""
        if gives_access(self.url) and not self.wanted.proven:
            return False
        return self.landing.settled(self.url, self.wanted.agrees)

    def fetch(self) -> Path:
        """The file in its place. One that was fetched before and not touched since is taken as it is."""
        if not self.is_there:
            with self.landing.alone(lambda: self._say("is being fetched by another process, which is waited for")):
                if not self.is_there and not self._adopt():
                    self._fetch()
        return self.landing.target

    def facts(self) -> RemoteFacts:
        """What the place says of the file."""
        return self._tried(self.wanted.file.facts)

    def remaining(self) -> int | None:
        """Bytes that are missing here; None where the place does not say how many there are."""
        size = self.facts().size
        if size is None or not self.landing.target.exists():
            return size if size is None else max(0, size - self.pieces.left())
        return 0  # it is compared, and nothing is fetched

    def _fetch(self) -> None:
        changes, damages = 0, 0
        while True:
            try:
                facts = self.facts()
                self._require_known_end(facts)
                if gives_access(self.url) and not facts.version:
                    self.pieces.discard()  # what was left may be of another file
                digests = self._verified(facts)
            except ChangedError:
                changes += 1
                self.pieces.discard()
                if changes >= self.patience.restarts:
                    raise DataError(
                        f"{self.shown}: changes while it is fetched; try again when it is finished."
                    ) from None
                self._say("has changed on the server, and is fetched from the beginning")
                continue
            if self._agrees(self.pieces.path, facts, digests):
                self._settle(facts, digests)
                return
            damages += 1
            self.pieces.discard()
            if damages > 1:
                raise DataError(
                    f"{self.shown}: what came has the MD5 {digests['md5']}, twice, and is not what was published; "
                    "it is damaged or another file, and was deleted."
                )
            self._say("is not what was published (its checksum differs), and is fetched once more")

    def _verified(self, facts: RemoteFacts) -> dict[str, str]:
        """All of the file as it is now, beside its place, read back; its digests."""
        for _ in range(ROUNDS):
            self._one_version(facts)
            if digests := self.pieces.verify(("md5", "sha256")):
                after = self.facts()
                if after.version != facts.version or after.size not in (None, self.pieces.size):
                    raise ChangedError
                return digests
            self._say("was not read back from this disk as it came; the pieces that differ are fetched again")
        raise DataError(f"{self.folder}: this disk does not give back what is written to it; use another.")

    def _one_version(self, facts: RemoteFacts) -> None:
        if facts.ranges and facts.size:
            size = facts.size
            if self.pieces.begin(identity(self.url), facts, self.connections):
                self._say(f"goes on from {self.pieces.had() / 1e6:.0f} of {size / 1e6:.0f} MB")
            self._require_room(size - self.pieces.had())

            def tell(done: int) -> None:
                self._tell(done, size)

            try:
                Connections(self.wanted.file, facts, self.pieces, self.patience, tell).fetch(self.connections)
                return
            except NoRangesError:
                self._say("cannot be fetched in pieces from this server, so it comes in one")
            except TransientError as error:
                raise self._final(error) from None
        self._tried(lambda: self._whole(facts))

    def _whole(self, facts: RemoteFacts) -> None:
        """Fetch a file in one answer, every time from its beginning."""
        self._require_room(facts.size or 0)
        self.pieces.begin_whole()
        done = 0
        for count in self.pieces.write(0, 0, self.wanted.file.whole(facts)):
            done += count
            self._tell(done, facts.size or done)
        self.pieces.header["size"] = done

    def _agrees(self, path: Path, facts: RemoteFacts, digests: Mapping[str, str]) -> bool:
        """Whether what lies at `path` has the checksums that are known, those included that its place publishes."""
        published = facts.sha256 in ("", digests["sha256"]) and (not facts.git or facts.git == blob_of(path))
        return self.wanted.agrees(digests) and published

    def _settle(self, facts: RemoteFacts, digests: dict[str, str]) -> None:
        """Give the file its name, and write down what is known of it."""
        target = self.landing.target
        publish(self.pieces.path, target, None)
        self.landing.settle(self.url, facts.version, digests)
        self.pieces.discard()
        size = target.stat().st_size
        self._tell(size, size)
        other = "its SHA-256 is" if facts.sha256 else "its name in git is" if facts.git else ""
        what = f"{other} as published".strip() if self.wanted.md5 or other else "nobody has published one"
        self._say(f"is whole: {size} bytes, MD5 {digests['md5']} ({what})")

    def _adopt(self) -> bool:
        """Whether a file of this name that lies there already is the one that is wanted; DataError where it is not."""
        target, proven = self.landing.target, self.wanted.proven
        if target.is_symlink() and not target.exists():
            raise DataError(f"{target}: is a link to what is not there; remove it, or fetch to another folder.")
        if not target.exists():
            return False
        self._say("is there already, and is compared")
        digests, facts = digests_of(target), RemoteFacts(None) if proven else self.facts()
        another = self.landing.holds_another(self.url, facts.version, digests["sha256"])
        agrees = self._agrees(target, facts, digests)
        if not agrees or (not proven and (another or facts.size != target.stat().st_size)):
            raise DataError(
                f"{target}: is there already and is another file than {self.shown}; move it away, or fetch to another "
                "folder."
            )
        if not proven and not (facts.sha256 or facts.git):
            self._say("has the size of that on the server and is taken for it: no MD5 was published")
        self.landing.settle(self.url, facts.version, digests)
        return True

    def _tried(self, act: Callable[[], Result]) -> Result:
        """What `act` gives, as often as it takes."""
        failures, silent = 0, 0.0
        while True:
            try:
                return act()
            except TransientError as error:
                failures, silent = failures + 1, silent + error.silent
                if TOLD <= failures < self.patience.tries:
                    self._say(f"{error}; it is tried again")
                try:
                    self.patience.wait(failures, error, Event(), silent)
                except TransientError as last:
                    raise self._final(last) from None

    def _final(self, error: TransientError) -> UnreachableError:
        """What is said after the last try."""
        wait = f"; it asks to be left alone for {error.wait:.0f} s" if error.wait else ""
        return UnreachableError(
            f"{self.shown}: could not be fetched ({error}{wait}); what has come is kept, and the same command goes on "
            "from there."
        )

    def _require_known_end(self, facts: RemoteFacts) -> None:
        if facts.size is None and not facts.framed and not self.wanted.proven:
            raise DataError(
                f"{self.shown}: the server does not say how long the file is, so nobody could tell whether all of it "
                "came; fetch it from another address."
            )

    def _require_room(self, size: int) -> None:
        free = shutil.disk_usage(self.folder).free
        if size + (ROOM if size > ROOM else 0) > free:
            raise DataError(
                f"{self.folder}: {self.wanted.name} needs {size / 1e9:.3g} GB more, and {free / 1e9:.3g} GB are free; "
                "free some space, or fetch it to another disk."
            ) from no_room()

    def _tell(self, done: int, total: int) -> None:
        self._reached = done / 1e6, max(1, round(total / 1e6))
        share = 1.0 if done == total else min(done / max(total, 1), 0.999)
        self.report(Progress(self._reached[1] * share, self._reached[1], f"{self.wanted.name} (MB)"))

    def _say(self, note: str) -> None:
        self.report(Progress(min(self._reached), self._reached[1], f"{self.wanted.name} (MB)", note))
