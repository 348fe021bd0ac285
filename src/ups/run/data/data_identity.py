"""The identity of a run's data: which files there are and what each holds, recorded once and compared ever after."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from torch import Tensor

from ups.data.checksums import WHOLE, Digest, Memory, glance, is_digest
from ups.data.source import UNFINISHED, Source
from ups.engine.checkpoint.manifest import FACTS, newest_whole
from ups.engine.checkpoint.store import Checkpoint, Snapshot, StateStore
from ups.engine.ranks.dist import Dist
from ups.parsing import read_json
from ups.run.config import RunConfig
from ups.run.data.datasets import DataSet
from ups.run.load import artifact_of
from ups.rundir import RunDir
from ups.types import DataError
from ups.wings import elsewhere

Digests = Mapping[str, Digest]  # by the name of a file
# How the name of a file in the run's own folder begins: the folder may be moved.
RUN = "{run}/"
# That of one that was fetched from elsewhere: the folder may be another one on another machine.
FETCHED = "{downloads}/"
REMEDY = "or train anew with --overwrite or another name"


def files_of(config: RunConfig, sets: Sequence[DataSet]) -> list[Path]:
    """The files that decide what a run learns: its data, its recorded splits, the simulator that it starts from."""
    entries = [entry for data in sets for entry in data.entries]
    files = [path for entry in entries for path in entry.source.files()]
    files += [Path(entry.config.split.record) for entry in entries if entry.config.split.record is not None]
    files += [artifact_of(config.start_from)] if config.start_from is not None else []
    return list(dict.fromkeys(files))


class Identity:
    """What the data files of the run in `folder` hold, as its data.json records it and as it is now.

    Its `files` are those of `files_of`; its `exams` the ones that were made to judge the simulator on. Files that the
    run makes itself may be missing, for they are made again; they must then hold the same.
    `home`: that of the run's config, from which its record counts what was named by a relative path.
    """

    def __init__(self, folder: RunDir, say: Callable[[str], None], home: str | None = None) -> None:
        self.folder, self.say, self.home = folder, say, home or os.curdir
        self.memory = Memory(folder.hashes, folder.shared_hashes)

    def recorded(self, section: str = "files") -> dict[str, Digest]:
        """What the run's data.json says, or its checkpoints where that is gone; nothing where neither is there."""
        if not self.folder.data.exists():
            return self._in_checkpoints() if section == "files" else {}
        values = read_json(self.folder.data)
        record = values.get(section, self._in_checkpoints() if section == "files" else {}) if values else None
        if not isinstance(record, dict) or not all(is_digest(row) for row in record.values()):
            raise DataError(
                f"{self.folder.data}: is damaged, so nobody can tell whether the data are those of this run; put back "
                "a copy of it, or delete it, and a checkpoint's record is taken."
            )
        return record

    def _in_checkpoints(self) -> dict[str, Digest]:
        """What the newest checkpoint says of the first stage, by name, that has one."""
        for stage in sorted(self.folder.checkpoints().glob("*")):
            newest = newest_whole(stage)
            if newest is not None and isinstance(record := read_json(newest / FACTS).get("data"), dict):
                return {name: row for name, row in record.items() if is_digest(row)}
        return {}

    def require_unchanged(self, *sections: str) -> None:
        """DataError for the first file that was recorded and holds something else now. No reader opens anything."""
        for section in sections or ("files", "exams"):
            record = self.recorded(section)
            there = {name: self._path(name) for name in record if self._path(name).exists()}
            then = {name: row for name, row in record.items() if name in there or self._gone(name)}
            self._compare(then, list(there.values()))

    def settle(self, files: Iterable[Path], whole: bool = True) -> None:
        """Compare the files that readers have opened with the record, or make it where there is none.

        `whole`: they are all that the run has, so that one that was recorded and is not among them has gone.
        """
        record, paths = self.recorded(), list(files)
        if record:
            names = {self.name_of(path) for path in paths}
            then = {n: row for n, row in record.items() if whole or n in names or self._gone(n)}
            self._compare(then, paths)
            return
        if self.folder.statistics.exists() or self.folder.artifact("simulator").exists():
            self.say(
                f"{self.folder.folder}: has no {self.folder.data.name}, so nobody can tell whether its data are those "
                f"it was begun with; they are taken as they are{' and recorded now' if whole else ''}."
            )
        if whole:
            digests = self._digests(paths)
            self._record("files", digests)
            large = [self._path(name) for name, row in digests.items() if "sampled" in row]
            if large:
                self.say(
                    f"{large[0]}{f' and {len(large) - 1} more' if len(large) > 1 else ''}: of a file of more than "
                    f"{WHOLE >> 30} GiB only samples are hashed; an edit between them is noticed by its time alone."
                )

    def settle_exams(self) -> None:
        """Record what the files hold that were made to judge the simulator on."""
        place = self.folder.cache("beyond")
        paths = sorted(p for p in place.rglob("*") if p.is_file() and UNFINISHED not in p.suffixes)
        then, now = self.recorded("exams"), self._digests(paths)
        for name in (name for name in now if name in then and then[name] != now[name]):
            self.say(f"{self._path(name)}: was made again and differs from what an earlier report was about.")
        if dict(then) != {**then, **now}:
            self._record("exams", {**then, **now})

    def require_unchanged_for(self, dist: Dist) -> None:
        """`require_unchanged` by rank 0, whose DataError all ranks raise; all must call this."""
        problem = ""
        if dist.leads:
            try:
                self.require_unchanged("files")
            except DataError as error:
                problem = str(error)
        problem = dist.gather(problem)[0]
        if problem:
            raise DataError(problem)

    def agreed(self, dist: Dist, files: Sequence[Path]) -> Digests:
        """Rank 0's record, after all ranks have found the same files, of the same sizes and samples."""
        if dist.world > 1:
            glances = {f"data file {self.name_of(path)}": glance(path) for path in files}
            if len(set(dist.gather(hashlib.sha256(str(sorted(glances.items())).encode()).hexdigest()))) > 1:
                dist.handshake({"number of data files": len(files), **glances})
        return dist.gather(self.recorded() if dist.leads else {})[0]

    def of(self, sources: Iterable[Source]) -> list[Digest]:
        """The recorded digests of the files of some sources; of none where there is no record."""
        record = self.recorded()
        names = [self.name_of(path) for source in sources for path in source.files()]
        return [record[name] for name in names if name in record]

    def by_path(self) -> dict[Path, Digest]:
        """The recorded digests of all files."""
        return {self._path(name): row for name, row in self.recorded().items()}

    def summary(self) -> str:
        """A digest of the record; empty where there is none."""
        record = self.recorded()
        return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest() if record else ""

    def complete(self) -> bool:
        """Whether every recorded file is there."""
        return all(self._path(name).exists() for name in self.recorded())

    def _compare(self, then: Digests, paths: Sequence[Path]) -> None:
        problem = difference(then, self._digests(paths, then))
        if problem is not None:
            (name, what), home = problem, self.folder.folder
            raise DataError(f"{self._path(name)}: {what} since the run in {home} was begun; {_remedy(what)}")

    def _digests(self, paths: Iterable[Path], then: Digests | None = None) -> dict[str, Digest]:
        """What files hold now, whole or sampled as they were recorded."""
        names = {self.name_of(path): path for path in paths}
        kinds = [("sampled" in then[name]) if then and name in then else None for name in names]
        digests = self.memory.digests(names.values(), kinds)
        with contextlib.suppress(OSError):  # it would only have saved time
            self.memory.save()
        while self.memory.touched:
            path = self.memory.touched.pop()
            self.say(f"{path}: was touched; it is too large to be compared whole, and all samples of it are the same.")
        return dict(zip(names, digests, strict=True))

    def _record(self, section: str, digests: Digests) -> None:
        about = "SHA-256 of every data file; `sampled`: of its first, its last and evenly spread blocks alone."
        self.folder.write(self.folder.data, {"about": about, **read_json(self.folder.data), section: digests})

    def name_of(self, path: Path) -> str:
        """What a record calls a file: below the run or the downloads where it lies there, for both may be moved."""
        for sign, home in self._movable():
            if path.is_relative_to(home):
                return f"{sign}{path.relative_to(home).as_posix()}"
        return str(path) if path.is_absolute() else os.path.relpath(path, self.home)

    def _movable(self) -> list[tuple[str, Path]]:
        """Folders that may be moved, and what stands for each in a record."""
        landing = elsewhere().folder()
        return [(RUN, self.folder.folder), *([] if landing is None else [(FETCHED, landing)])]

    def _gone(self, name: str) -> bool:
        """Whether a file is missing that the run neither makes nor fetches itself."""
        return not name.startswith((RUN, FETCHED)) and not self._path(name).exists()

    def _path(self, name: str) -> Path:
        for sign, home in self._movable():
            if name.startswith(sign):
                return home / name.removeprefix(sign)
        return Path(name) if os.path.isabs(name) else Path(os.path.relpath(os.path.join(self.home, name)))


class IdentifiedStore:
    """A store whose checkpoints hold the digests of their data; it loads none that was trained on other data.

    `require_unchanged` raises where the data are no longer those: what was learnt since the last checkpoint is not
    saved.
    """

    def __init__(
        self, store: StateStore, data: Digests, say: Callable[[str], None], require_unchanged: Callable[[], None]
    ) -> None:
        self.store, self.data, self.say, self.require_unchanged = store, data, say, require_unchanged

    def save(self, snapshot: Snapshot) -> OSError | None:
        self.require_unchanged()
        return self.store.save(dataclasses.replace(snapshot, facts={**snapshot.facts, "data": self.data}))

    def wait(self) -> None:
        self.store.wait()

    def newest(self) -> Checkpoint | None:
        checkpoint = self.store.newest()
        if checkpoint is None:
            return None
        record = checkpoint.facts.get("data")
        then = {name: row for name, row in record.items() if is_digest(row)} if isinstance(record, dict) else {}
        if not then:
            self.say(f"checkpoint {checkpoint.path.name} does not say which data it was trained on; the next one will.")
            return checkpoint
        problem = difference(then, self.data)
        if problem is not None:
            (name, what), home = problem, checkpoint.path.parents[2]  # RUN/checkpoints/STAGE/step-N
            file = home / name.removeprefix(RUN) if name.startswith(RUN) else name
            raise DataError(f"{file}: {what} since {checkpoint.path} was saved; {_remedy(what)}")
        return checkpoint

    def load(self, checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> None:
        self.store.load(checkpoint, tensors)


ADDED = "has come"


def difference(then: Digests, now: Digests) -> tuple[str, str] | None:
    """The name of the first file that is not what it was, and what happened to it; None where all are the same."""
    for name, row in then.items():
        if name in now and now[name] != row:
            other = next((n for n, old in then.items() if old == now[name]), None)
            if other is not None:
                return name, f"holds what {other} held, and not what it held"
            if now[name]["bytes"] != row["bytes"]:
                return name, f"has {now[name]['bytes']} bytes and not the {row['bytes']} that it had"
            kind = "sampled" if "sampled" in row else "sha256"
            return name, f"has changed (SHA-256 {now[name][kind][:12]}…, not {row[kind][:12]}…)"
    gone = next((name for name in then if name not in now), None)
    if gone is not None:
        return gone, "has gone"
    added = next((name for name in now if name not in then), None)
    return None if added is None else (added, ADDED)


def _remedy(what: str) -> str:
    return f"{'take it away' if what == ADDED else 'put it back as it was'}, {REMEDY}."
