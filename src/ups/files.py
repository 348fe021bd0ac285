"""Writes files whole or not at all, reads them by position, hashes them, and locks them for one process."""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import json
import os
import resource
import stat
import struct
import unicodedata
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ups.parsing import has_no_text
from ups.types import ConfigError, DataError, data_size

CHUNK = 1 << 22
MARGIN = 1 << 16  # bytes that a file has beside its numbers, at most
_FLOCK = struct.Struct("hhqqi4x")  # the kernel's struct flock: kind, whence, start, length, process
_held: dict[tuple[int, int], int] = {}  # by device and inode: the process that holds it, or that this is a fork of
LINKS = 40  # symlinks one after the other, as Linux allows
LONG_NAME = 240  # bytes; a file system allows 255, and drafts have a longer name than their file


def no_room() -> OSError:
    """The OSError of a full disk, where a disk is found too small before anything is written to it. As the cause of an
    error (`raise … from no_room()`) it has the command end with the exit code of a full disk."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def draft(path: Path) -> Iterator[Path]:
    """An empty file beside `path` to write to; it becomes `path`, durably, if the block ends well, and vanishes if not.

    Only a regular file is replaced, and only one that this user may write: anything else is an OSError, before the
    block. A symlink stays, and the file it points to is written; a dangling one gets its target. A file that is
    replaced hands on its mode and, where that is allowed, its owner and group (no other attributes); a new one has the
    mode of the umask. Other hard links keep the old content: they are names of the old file.
    """
    target, old = target_of(path)
    beside = _beside(target)
    try:
        os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        fresh = os.stat(beside)
        if old is not None:  # before there is anything in it that others should not read
            _hand_on(old, beside, 0o600)
        yield beside
        publish(beside, target, old or fresh)  # also its own mode: a library may have put another file there
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def writing(path: Path, remedy: str) -> Iterator[Path]:
    """As `draft`, for a file that a user named; its folder is made if it is missing.

    Args:
        path: The file.
        remedy: What the user can do where it cannot be written, as the end of a sentence.

    Raises:
        DataError: The system refuses to write it; what it says, and the remedy.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft(path) as beside:
            yield beside
    except OSError as error:
        raise _unwritable(path, error, remedy) from error


def check_writing(path: Path, remedy: str) -> None:
    """The DataError of `writing` before long work is begun whose result could not be written. Nothing is left behind,
    and no folder is made."""
    try:
        target, _ = target_of(path)
        folder = next(above for above in target.absolute().parents if above.exists())
        probe = _beside(folder / target.name)
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        probe.unlink()
    except OSError as error:
        raise _unwritable(path, error, remedy) from error


def _unwritable(path: Path, error: OSError, remedy: str) -> DataError:
    return DataError(f"{path}: cannot be written ({error.strerror or error}); {remedy}.")


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file so that, whatever happens, either all of the new content is there or the old file is."""
    with draft(path) as beside:
        beside.write_bytes(encoded(content) if isinstance(content, str) else content)


def write_named(path: Path, content: str, remedy: str) -> None:
    """As `write_atomic`, for a file that a user named: a DataError with the `remedy` where it cannot be written."""
    with writing(path, remedy) as beside:
        beside.write_bytes(encoded(content))


def encoded(text: str) -> bytes:
    """A text as UTF-8; DataError where it holds the name of a file whose bytes are not UTF-8."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise DataError(no_text(text)) from None


def no_text(text: str) -> str:
    """The sentence that refuses a text with the name of a file or folder whose bytes are not UTF-8."""
    name = next((word for word in text.split() if has_no_text(word)), text[:200]).strip("'\",:;()[]")
    name = name.encode("utf-8", "backslashreplace").decode()
    return f"'{name}': has bytes that are no text (UTF-8) and cannot be written down; rename that file or folder."


def line_breaker(name: str) -> str:
    """The first character of a name that ends a line or commands a terminal; empty where it has none."""
    return next((c for c in name if unicodedata.category(c) in ("Cc", "Zl", "Zp")), "")


def one_line(path: Path) -> Path:
    """The path itself; ConfigError if it has a character that would break the line which is printed for scripts."""
    if odd := line_breaker(str(path)):
        raise ConfigError(
            f"{str(path)!r}: has the character {odd!r}, and could not be printed as a line; choose another name."
        )
    return path


def check_file_size(path: Path, need: int, remedy: str) -> None:
    """DataError if this process may not write a file with `need` bytes of numbers (ulimit -f): the HDF5 library would
    crash at that limit."""
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if most not in (resource.RLIM_INFINITY, -1) and need + MARGIN > most:
        raise DataError(
            f"{path}: is to hold {data_size(need)} of numbers, and no file that this process writes may be larger than "
            f"{data_size(most)} (ulimit -f); raise that limit, or {remedy}."
        ) from OSError(errno.EFBIG, os.strerror(errno.EFBIG))


def is_pattern(name: str, place: Path = Path()) -> bool:
    """Whether a name is a pattern such as `*.h5`, and no file below `place` has that very name with its brackets."""
    return glob.has_magic(name) and not os.path.lexists(place / name)


def target_of(path: Path) -> tuple[Path, os.stat_result | None]:
    """The file that writing to `path` means, behind symlinks, and its status; None where it is not there yet.

    An OSError where it is no regular file or may not be written, and for a symlink that another user has laid in a
    folder where anyone may lay one, such as /tmp.
    """
    status: os.stat_result | None
    try:
        status = os.stat(path)
    except FileNotFoundError:
        status = None
    else:
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, f"it is {_kind(status.st_mode)}, not a file", str(path))
        os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))  # a file that may not be written is not replaced either
    target = path
    for _ in range(LINKS):
        if not target.is_symlink():
            return target, status
        _check_link(target)
        target = target.parent / os.readlink(target)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def publish(beside: Path, target: Path, like: os.stat_result | None) -> None:
    """Give a finished draft its name, durably; `like` is the status whose mode, owner and group it gets."""
    if like is not None:
        _hand_on(like, beside)
    sync(beside)
    beside.replace(target)
    sync(target.parent)


def _beside(target: Path) -> Path:
    """A new name in the same folder; a long one is cut, for a system has a limit."""
    name = target.name if len(os.fsencode(target.name)) <= LONG_NAME else target.name[: LONG_NAME // 4]
    return target.with_name(f".{name}.{uuid.uuid4().hex[:8]}")


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def _check_link(link: Path) -> None:
    """PermissionError for a link that another user has laid where anyone may. Linux itself refuses to follow one, but
    only in sticky folders, and unless it is told otherwise (fs.protected_symlinks)."""
    folder, status = os.stat(link.parent), os.lstat(link)
    if folder.st_mode & stat.S_IWOTH and status.st_uid not in (os.geteuid(), folder.st_uid):
        raise PermissionError(errno.EACCES, "it is a link that another user has laid there", str(link))


def _hand_on(old: os.stat_result, path: Path, least: int = 0) -> None:
    """Give a file the owner, group and mode of `old`, and at least the permissions `least`. Where the group cannot be
    kept, another group gets only what everybody may do."""
    mode = stat.S_IMODE(old.st_mode)
    with suppress(PermissionError):
        os.chown(path, -1, old.st_gid)
    with suppress(PermissionError):
        os.chown(path, old.st_uid, -1)
    if os.stat(path).st_gid != old.st_gid:
        mode = mode & ~0o070 | (mode & 0o007) << 3
    os.chmod(path, mode & 0o777 | least)


def laid_by_another(folder: Path) -> bool:
    """Whether a folder is another user's (not root's), and it or the folder around it can be written by anyone."""
    status, around = folder.stat(), folder.resolve().parent.stat()
    return status.st_uid not in (os.geteuid(), 0) and bool((status.st_mode | around.st_mode) & stat.S_IWOTH)


def foreign_in(folder: Path, depth: int) -> Path | None:
    """The first thing below a folder that is neither a file nor a folder of its own, or a folder deeper than `depth`:
    a link would have whoever writes here write elsewhere, a pipe would be waited for. None where there is none."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        return None
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            inside = foreign_in(Path(entry.path), depth - 1) if depth else Path(entry.path)
            if inside is not None:
                return inside
        elif not entry.is_file(follow_symlinks=False) and os.path.lexists(entry.path):
            return Path(entry.path)
    return None


def starts_with(path: Path, *signatures: bytes) -> bool:
    """Whether a file begins with one of these bytes; never raises."""
    try:
        with open(path, "rb", buffering=0) as file:
            beginning = file.read(max(map(len, signatures)))
    except (OSError, ValueError):
        return False
    return beginning.startswith(signatures)


def read_at(descriptor: int, into: memoryview, place: int) -> int:
    """Fill `into` with the bytes of an open file from `place` on; fewer only where the file ends before."""
    done = 0
    while done < len(into) and (more := os.preadv(descriptor, (into[done:],), place + done)):
        done += more
    return done


def write_all(descriptor: int, content: memoryview) -> None:
    """Write all of it: on a disk that is nearly full the system may write less than it is given."""
    while content:
        content = content[os.write(descriptor, content) :]


def sync(path: Path) -> None:
    """Make the bytes of a file, or the names in a folder, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path: Path, cold: bool = False) -> str:
    """The SHA-256 of a file; `cold` has the system drop its copy in memory first, so that the disk itself is read."""
    hashed = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        if cold and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while chunk := file.read(CHUNK):
            hashed.update(chunk)
    return hashed.hexdigest()


def stamp(status: os.stat_result) -> list[int]:
    """Inode, size, and times of change of a file: they differ once it is replaced or written to, and no program can set
    the last of them (ctime) back."""
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def sum_of(manifest: Mapping[str, Any]) -> str:
    """The SHA-256 of a manifest without its own key `sum`, in which it is stored, so that damage is seen."""
    content = {name: value for name, value in manifest.items() if name != "sum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def has_its_sum(row: object) -> bool:
    """Whether a row's key `sum` is that of its content; False for anything but a dict."""
    return isinstance(row, dict) and row.get("sum") == sum_of(row)


def hold(path: Path) -> int:
    """Hold a new file until this process ends, however it ends, or calls `release` with the descriptor returned here.

    It is a POSIX record lock: unlike flock's it belongs to this process alone, and forked copies do not hold it.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    status = os.fstat(handle)
    _held[status.st_dev, status.st_ino] = os.getpid()
    return handle


def release(handle: int) -> None:
    """Give up a file that `hold` holds."""
    status = os.fstat(handle)
    _held.pop((status.st_dev, status.st_ino), None)
    os.close(handle)


def holder(path: Path) -> int | None:
    """The process that holds a file; None if nobody does, or it is not there.

    0 if it is out of this process's sight (in another container), or if the file may not be looked at.
    """
    try:
        status = path.lstat()
        if _held.get((status.st_dev, status.st_ino)) == os.getpid():
            return os.getpid()  # and not opened: closing it again would release it
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return 0
    try:
        answer = fcntl.fcntl(handle, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    finally:
        os.close(handle)
    kind, _, _, _, pid = _FLOCK.unpack(answer)
    return None if kind == fcntl.F_UNLCK else max(pid, 0)
