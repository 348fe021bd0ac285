"""The folder of one start of the ranks: in memory, private to its user, swept when nobody holds it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

from ups.files import hold, holder, release

DRAFT = ".ups-start-"  # the name of a start's folder that is being made or removed
OLD = 3600.0  # seconds after which nobody is still making a draft
SEMAPHORES = Path("/dev/shm")  # where the system keeps those that have names


class StartDir:
    """The folder, in memory, of one start of the ranks: what they and their parents write while they run.

    `rank_parent.py` runs without this package and spells the same names.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = folder / "lock"  # held by the supervisor that made the folder, for as long as it lives
        self._lock: int | None = None

    @staticmethod
    def parent() -> Path:
        """Where supervisors make these folders: in memory, where a full or slow disk cannot stop a heartbeat."""
        shm = Path("/dev/shm")
        return shm if os.access(shm, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())

    @classmethod
    def create(cls, number: int) -> StartDir:
        """A folder for start `number` of the ranks of this process. It has its name only once its lock is held."""
        draft = cls(Path(tempfile.mkdtemp(prefix=DRAFT, dir=cls.parent())))
        lock = hold(draft.lock)
        made = cls(draft.folder.with_name(f"ups-{os.getpid()}-{number}-{draft.folder.name.removeprefix(DRAFT)}"))
        draft.folder.rename(made.folder)
        made._lock = lock
        return made

    @classmethod
    def sweep(cls) -> None:
        """Remove this user's folders that nobody holds: their supervisor is gone, in whichever container it was.

        One without a lock is left alone, unless it is a draft that a kill has left long ago.
        """
        drafts = [cls(folder) for folder in cls.parent().glob(f"{DRAFT}*")]
        for old in [cls(folder) for folder in cls.parent().glob("ups-*-*")] + drafts:
            with contextlib.suppress(OSError):  # anybody can make a folder here, of any name and kind
                status = old.folder.lstat()
                mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
                left = time.time() - status.st_mtime >= OLD if old in drafts else mine and old.lock.exists()
                if mine and left:
                    old.remove()

    def remove(self) -> None:
        """Remove the folder, unless somebody else holds it; a kill on the way leaves a draft."""
        if self._lock is None and holder(self.lock) is not None:
            return
        gone = self.folder.with_name(f"{DRAFT}{self.folder.name.rpartition('-')[2]}")
        self.folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
        for left in SEMAPHORES.glob(f"sem.{self.folder.name}-*"):
            with contextlib.suppress(OSError):
                left.unlink()
        if self._lock is not None:
            release(self._lock)
            self._lock = None

    def name_semaphores(self) -> None:
        """Have the semaphores of this process's loader workers bear the name of the folder, with which they go: a
        kill of everything leaves nobody who would remove them."""
        multiprocessing.current_process()._config["semprefix"] = f"/{self.folder.name}"  # type: ignore[attr-defined]

    def meeting(self) -> Path:
        """Through which the ranks of one machine find each other."""
        return self.folder / "meeting"

    def heartbeat(self, rank: int) -> Path:
        return self.folder / f"heartbeat-{rank}"

    def stack(self, rank: int) -> Path:
        """The stacks of a rank's threads; there from the moment it can be asked for them."""
        return self.folder / f"stack-{rank}"

    def flight(self, rank: int | str) -> Path:
        """The last collectives of a rank."""
        return self.folder / f"flight-{rank}.json"

    def failure(self, rank: int) -> Path:
        return self.folder / f"failure-{rank}.json"

    def failures(self) -> list[Path]:
        return list(self.folder.glob("failure-*.json"))

    def where(self, node: int) -> Path:
        """Which rank of a node was where when it failed."""
        return self.folder / f"where-{node}.txt"

    def pids(self) -> dict[int, Path]:
        """The files with the process number of each rank, by rank."""
        names = {path.name.removeprefix("pid-"): path for path in self.folder.glob("pid-*")}
        return {int(rank): path for rank, path in names.items() if rank.isdecimal()}

    def exits(self) -> list[Path]:
        """One file for each rank that is gone."""
        return list(self.folder.glob("exit-*.json"))

    def evidence(self) -> list[Path]:
        """What is worth keeping beside the logs: records, stacks, collectives, who was where."""
        kinds = ("failure-", "stack-", "flight-", "where")
        return sorted(path for path in self.folder.iterdir() if path.name.startswith(kinds))
