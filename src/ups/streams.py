"""Standard output and error that never fail: what cannot be printed is lost, and decides no exit code."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import stat
import sys
from typing import Any

# The reader has left: a pipe, a terminal or a socket without its other end. There is nobody to tell.
GONE = {errno.EPIPE, errno.EBADF, errno.ECONNRESET, errno.ENXIO, errno.ENOTCONN}


class Descriptor(io.FileIO):
    """A file descriptor that takes every byte; `lost` is the first error that says that bytes were not written.

    A reader that has left is no such error. The first loss on standard output is told on standard error.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number, "wb", closefd=False)
        self.lost: OSError | None = None
        # A terminal that was closed gives EIO, which on a disk is a fault of the disk.
        self._gone = GONE | ({errno.EIO} if stat.S_ISCHR(os.fstat(number).st_mode) else set())

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        try:
            while (written := super().write(data)) is None:  # somebody made it non-blocking, and it is full
                select.select((), (self,), ())
        except OSError as error:
            if error.errno not in self._gone and self.lost is None:
                self.lost = error
                self._tell(error)
            return size
        return written

    def _tell(self, error: OSError) -> None:
        if self.fileno() == 1 and sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):
                cause = f"standard output could not be written ({error.strerror})"
                print(f"ups: {cause}; what it would have said is lost.", file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """A text without the characters that command a terminal: a file could have been given a name or a title of them."""
    return "".join(c if c in "\n\t" or c.isprintable() else repr(c)[1:-1] for c in text)


def protect() -> None:
    """Make standard output and error of this process such streams, and point those that are closed to /dev/null.

    Without the latter the next file that is opened would get the number 0, 1 or 2, and whatever a library or a child
    prints would be written into it. A stream that somebody has put in the place of Python's own is left alone.
    """
    _open_closed()
    if sys.stdout is sys.__stdout__:
        sys.stdout = sys.__stdout__ = _stream(1, sys.__stdout__)  # type: ignore[misc]
    if sys.stderr is sys.__stderr__:
        sys.stderr = sys.__stderr__ = _stream(2, sys.__stderr__)  # type: ignore[misc]


def delivered() -> int:
    """The exit code of a command whose product is what it prints: 1 where the disk under it did not take all of it."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return 1 if isinstance(raw, Descriptor) and raw.lost is not None else 0


def _open_closed() -> None:
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)


def _stream(number: int, old: io.TextIOWrapper | None) -> io.TextIOWrapper:
    """A text stream on a descriptor, like `old`; a character that its encoding lacks is written as its number."""
    if old is not None and isinstance(getattr(getattr(old, "buffer", None), "raw", None), Descriptor):
        return old
    with contextlib.suppress(OSError, ValueError):
        if old is not None:
            old.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(Descriptor(number)),
        encoding=getattr(old, "encoding", None) or "utf-8",
        errors="backslashreplace",
        line_buffering=number == 2 or getattr(old, "line_buffering", False),
        write_through=getattr(old, "write_through", False),
    )
