"""A second copy of the newest checkpoint in another place: made in the background, verified, put back when needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from ups.engine.checkpoint import manifest

PATIENCE = 30.0  # seconds that the end of a training waits for a copy


class SecondCopy:
    """The newest checkpoint of a stage again, in a folder on another disk. Rank 0 alone uses it.

    A copy that fails never stops a training: `note` is told once, and again only after one has succeeded.
    """

    def __init__(self, folder: Path, note: Callable[[str], None]) -> None:
        self.folder, self.note = folder, note
        self._lock = threading.Lock()
        self._waiting: Path | None = None  # the next to be copied: of several that come meanwhile only the newest
        self._thread: threading.Thread | None = None
        self._failed = False

    def take(self, checkpoint: Path) -> None:
        """Copy a verified checkpoint in the background."""
        with self._lock:
            self._waiting = checkpoint
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, daemon=True, name="second copy")
                self._thread.start()

    def wait(self, patience: float = PATIENCE) -> None:
        """Wait until the last checkpoint that was taken is copied, for `patience` seconds at most."""
        thread = self._thread
        if thread is not None:
            thread.join(patience)
            if thread.is_alive():
                self.note(f"the second copy in {self.folder} was not finished within {patience:.0f} s.")

    def newest(self) -> Path | None:
        """The newest copy that is whole."""
        try:
            return next((path for path in manifest.listing(self.folder) if manifest.verify(path) is None), None)
        except OSError as error:
            self.note(f"the second copies in {self.folder} cannot be read ({error.strerror}).")
            return None

    def _work(self) -> None:
        while True:
            with self._lock:
                source, self._waiting = self._waiting, None
                if source is None:
                    self._thread = None
                    return
            try:
                copy = manifest.copy(source, self.folder)
                manifest.drop_outdated(self.folder, copy)
                self._failed = False
            except (OSError, ValueError) as error:  # also one that was set aside, or deleted, before it was copied
                if source.exists() and not self._failed:  # one that was outdated while it was copied is no loss
                    self._failed = True
                    reason = (isinstance(error, OSError) and error.strerror) or error
                    self.note(
                        f"{self.folder}: the second copy of checkpoint {source.name} could not be made ({reason}); "
                        "training goes on, and later ones are tried again."
                    )


class NoCopy:
    """No second place."""

    folder = Path()

    def take(self, checkpoint: Path) -> None: ...
    def wait(self, patience: float = PATIENCE) -> None: ...
    def newest(self) -> Path | None: ...
