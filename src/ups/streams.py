"""Standard output and error that never raise: what cannot be printed is dropped."""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import select
import signal
import stat
import sys
import threading
import time
from collections import deque
from typing import Any

# The reader has left: a pipe, a terminal or a socket without its other end. There is nobody to tell.
GONE = {errno.EPIPE, errno.EBADF, errno.ECONNRESET, errno.ENXIO, errno.ENOTCONN}
QUEUE = 8 << 20  # bytes that wait for a reader; of more, the oldest are dropped
PIECE = 4096  # bytes that are written at once, so that it is seen whether a reader takes any
GRACE = 5.0  # seconds without a byte taken after which an ending process waits no longer


class Descriptor(io.FileIO):
    """A file descriptor that takes every byte; `lost` is the first error that says that bytes were not written.

    A reader that has left is no such error. The first loss on standard output is told on standard error. Without a
    `writer` a reader who is slow is waited for; with one, which then does the waiting, nobody is.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number, "wb", closefd=False)
        self.lost: OSError | None = None
        self.writer: StreamWriter | None = None
        # A terminal that was closed gives EIO, which on a disk is a fault of the disk.
        self._gone = GONE | ({errno.EIO} if stat.S_ISCHR(os.fstat(number).st_mode) else set())

    def write(self, data: Any) -> int:
        if self.writer is None:
            return self.put(data)
        self.writer.take(self, bytes(data))
        return memoryview(data).nbytes

    def put(self, data: Any) -> int:
        """Write now, however long the reader takes; how many bytes need not be written any more."""
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
            cause = f"standard output could not be written ({error.strerror})"
            line = f"ups: {cause}; what it would have said is lost.\n"
            if (errors := _descriptor(sys.stderr)) is not None:
                errors.write(line.encode())  # not through the text stream, whose locks are the main thread's
                return
            with contextlib.suppress(OSError, ValueError):
                print(line, end="", file=sys.stderr, flush=True)


class StreamWriter(threading.Thread):
    """Writes in order, in the background, to descriptors that have one reader.

    Nobody ever waits for it but `drain`. It holds no lock but `_changed` (which is taken for every fork) and writes
    without Python's buffers, so that a forked child finds every lock open.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True, name="writer")
        self._waiting: deque[tuple[Descriptor, bytes]] = deque()
        self._size = 0  # bytes in it
        self._dropped = 0  # bytes since the reader was last told
        self._taken = 0  # bytes by the reader, so far
        self._busy = False

    def take(self, target: Descriptor, data: bytes) -> None:
        """Have `data` written; where too much waits already, the oldest is dropped."""
        with _changed:
            self._waiting.append((target, data))
            self._size += len(data)
            while self._size > QUEUE and len(self._waiting) > 1:
                _, oldest = self._waiting.popleft()
                self._size -= len(oldest)
                self._dropped += len(oldest)
            _changed.notify_all()

    def run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for the main thread
        while True:
            target, data = self._next()
            while data:
                count = target.put(data[:PIECE])
                data = data[count:]
                self._taken += count

    def _next(self) -> tuple[Descriptor, bytes]:
        with _changed:
            self._busy = False
            _changed.notify_all()
            while not self._waiting:
                _changed.wait()
            target, data = self._waiting.popleft()
            self._size -= len(data)
            self._busy = True
            if self._dropped:
                gap = f"\nups: {self._dropped} bytes are missing here, because they were not read in time.\n"
                data, self._dropped = gap.encode() + data, 0
            return target, data

    def drain(self, stopped: list[int]) -> bool:
        """Wait until all is written; False where the reader took nothing for GRACE seconds, or a signal is in
        `stopped`."""
        taken, since = self._taken, time.monotonic()
        with _changed:
            while (self._waiting or self._busy) and not stopped:
                _changed.wait(0.05)
                if self._taken != taken:
                    taken, since = self._taken, time.monotonic()
                elif time.monotonic() - since > GRACE:
                    return False
            return not stopped


_changed = threading.Condition()  # of all writers
_writers: dict[tuple[int, int], StreamWriter] = {}  # by the device and inode of what they write to


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


def never_wait() -> None:
    """Have printing wait for no reader from now on: a `StreamWriter` waits instead, and keeps the order.

    For a process that watches others. It is to call `finish` before it ends; its forked children print as before.
    """
    for descriptor in _descriptors():
        if descriptor.writer is not None:
            continue
        status = os.fstat(descriptor.fileno())
        writer = _writers.get((status.st_dev, status.st_ino))
        if writer is None:
            writer = StreamWriter()
            try:
                writer.start()
            except RuntimeError:  # no thread is left to us: then readers are waited for
                continue
            _writers[status.st_dev, status.st_ino] = writer
        descriptor.writer = writer


def finish() -> None:
    """Give readers the time to take what is left for them; those who take nothing are not waited for.

    Nor is anybody after a request to stop: what the exit code says has been decided.
    """
    if not _writers:
        return
    stopped: list[int] = []
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda sent, _: stopped.append(sent))
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    taken = {writer: writer.drain(stopped) for writer in _writers.values()}
    for descriptor in _descriptors():
        if descriptor.writer is not None and taken[descriptor.writer]:
            descriptor.writer = None  # the interpreter may still have a last word


def alone() -> bool:
    """Whether this process may fork: a copy of it would lack no thread but writers, which a fork does not harm.

    Threads that libraries start are counted as the system counts them, for Python does not know them. Those that
    OpenMP starts at the first parallel operation are missing in a copy, whose own first one waits for them for ever.
    Those of OpenBLAS end before every fork and come back when they are needed, so the count is taken after a fork.
    """
    threads = threading.enumerate()
    if not all(isinstance(t, StreamWriter) or t is threading.main_thread() for t in threads):
        return False
    try:
        if _tasks() != len(threads):
            copy = os.fork()
            if copy == 0:
                os._exit(0)
            os.waitpid(copy, 0)
        end = time.monotonic() + 0.1  # a thread that has ended is counted for a moment more
        while (tasks := _tasks()) != len(threads) and time.monotonic() < end:
            time.sleep(0.002)
    except OSError:  # nobody counts, or there is no room for a copy
        return False
    return tasks == len(threads)


def _tasks() -> int:
    """The threads of this process, whoever started them."""
    return len(os.listdir("/proc/self/task"))


def delivered() -> int:
    """The exit code of a command whose product is what it prints: 1 where the disk under it did not take all of it."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    output = _descriptor(sys.stdout)
    return 1 if output is not None and output.lost is not None else 0


def _descriptor(stream: Any) -> Descriptor | None:
    """The descriptor below one of our streams; None for anybody else's."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw if isinstance(raw, Descriptor) else None


def _descriptors() -> list[Descriptor]:
    """The descriptors below our streams, also where somebody else's stand in their place for a while."""
    streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    return [descriptor for stream in streams if (descriptor := _descriptor(stream)) is not None]


def _forget() -> None:
    """Called in a forked child, which has no other thread: drops what waits, for its parent writes that."""
    _changed.release()
    _writers.clear()
    for descriptor in _descriptors():
        descriptor.writer = None


os.register_at_fork(before=_changed.acquire, after_in_parent=_changed.release, after_in_child=_forget)


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


def _as_bytes(error: UnicodeError) -> tuple[str | bytes, int]:
    """What stands for a character that an encoding lacks: the byte of a name of a file that is no text, as the system
    knows that name; of all others the number."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.backslashreplace_errors(error)


codecs.register_error("ups.bytes", _as_bytes)


def _stream(number: int, old: io.TextIOWrapper | None) -> io.TextIOWrapper:
    """A text stream on a descriptor, like `old`; a character that its encoding lacks is written as its number.

    On standard output, from which scripts read paths, what stands in a name for a byte is that byte.
    """
    if old is not None and _descriptor(old) is not None:
        return old
    with contextlib.suppress(OSError, ValueError):
        if old is not None:
            old.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(Descriptor(number)),
        encoding=getattr(old, "encoding", None) or "utf-8",
        errors="ups.bytes" if number == 1 else "backslashreplace",
        line_buffering=number == 2 or getattr(old, "line_buffering", False),
        write_through=getattr(old, "write_through", False),
    )
