"""Checks without ranks, of packages and of this machine; those of them that a run makes before it begins."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import platform
import re
import shutil
import socket
import sys
import threading
import time
import tomllib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ups.files import sync
from ups.host_memory import available
from ups.open_files import allowed, raising
from ups.parsing import threads_wanted
from ups.provenance import installed
from ups.types import ConfigError, counted
from ups.verdict import FAILING, StorageError
from ups.version import __version__
from ups_fleet.doctor.findings import Finding, State, bad, doubtful, good
from ups_fleet.supervise.job import refuse_nesting
from ups_fleet.supervise.network import check_interface, port_taken

if TYPE_CHECKING:
    from ups.run.config import RunConfig

CHECKOUT = Path(__file__).resolve().parents[3]
NAME = "universal-physics-stack"
EXTRAS = ("baselines", "bench")  # what a user may want; `dev` is for those who change the code
_REQUIREMENT = re.compile(r"^([\w.-]+)\s*([^;]*?)\s*(?:;.*extra == ['\"](\w+)['\"].*)?$")
_CLAUSE = re.compile(r"(>=|<=|==|!=|~=|<|>)\s*([\w.]+)")

Version = Callable[[str], str | None]
GIB = 2**30
SHARED = Path("/dev/shm")
OWN = ".ups-doctor-"  # how the names of folders that a check makes begin
FILES, FILES_OF_RANK = 256, 32  # that a process of a run opens, and more of them for each rank
LEFT_BEHIND = 600.0  # seconds after which no check works in one any more
EPOCH = 1_735_689_600  # 2025-01-01: a wall clock before it was never set
# What a disk says that is full or failing: no mistake of the user.
DISK = [os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, *FAILING)]


def quick_doctor(config: RunConfig, folder: Path) -> Sequence[str]:
    """What is doubtful, in sentences; ConfigError for the first thing that is bad."""
    ranks = config.dist.ranks
    findings: dict[str, Finding] = {
        "packages": required(),
        "cores": cores(ranks),
        "shared memory": shared_memory(ranks),
        "open files": descriptors(ranks),
        "file system": file_system(folder),
    }
    for name, finding in findings.items():
        if finding.state == State.BAD:
            sentence = f"doctor: {name}: {finding.found}; {finding.advice}"
            raise StorageError(sentence) if any(word in sentence for word in DISK) else ConfigError(sentence)
    return [f"doctor: {n}: {f.found}; {f.advice}" for n, f in findings.items() if f.state == State.DOUBTFUL]


def python() -> Finding:
    """Python against what the package asks for."""
    wanted = stated()[0]
    version = platform.python_version()
    if not within(version, wanted):
        return bad(f"{version}, but {wanted} is needed", f"make an environment with Python {wanted}.", version=version)
    return good(f"{version} ({sys.executable})", version=version)


def required(version: Version = installed) -> Finding:
    """Everything the package cannot do without."""
    wanted = {name: clauses for name, (clauses, extra) in requirements().items() if not extra}
    versions = {name: version(name) for name in wanted}
    wrong = [n for n, clauses in wanted.items() if (there := versions[n]) is None or not within(there, clauses)]
    if wrong:
        named = [f"{n} {versions[n]} is not {wanted[n]}" if versions[n] else f"{n} is missing" for n in wrong]
        return bad("; ".join(named), f"pip install {_quoted(wrong, wanted)}.", versions=versions)
    differ = _other_than_pinned(versions)
    main = ", ".join(f"{name} {versions[name]}" for name in ("torch", "numpy", "h5py") if versions.get(name))
    if differ:
        words = f"{main}; all {len(wanted)} in range, but not as tested: {', '.join(differ)}"
        return doubtful(words, "pip install -c constraints.txt -e . gives the tested versions.", versions=versions)
    return good(f"ups {__version__}, {main}; all {len(wanted)} in range", versions=versions, ups=__version__)


def optional(version: Version = installed) -> Finding:
    """What only some commands need: missing is well, out of range is not."""
    extras = {name: extra for name, (_, extra) in requirements().items() if extra in EXTRAS}
    wanted = {name: requirements()[name][0] for name in extras}
    versions = {name: version(name) for name in wanted}
    wrong = [n for n, clauses in wanted.items() if (there := versions[n]) is not None and not within(there, clauses)]
    if wrong:
        named = ", ".join(f"{n} {versions[n]} is not {wanted[n]}" for n in wrong)
        return doubtful(named, f"pip install {_quoted(wrong, wanted)}.", versions=versions)
    words = [f"{n} {versions[n] or 'not installed'} ({extra})" for n, extra in extras.items()]
    return good(", ".join(words) or "none", versions=versions)


def _quoted(names: Sequence[str], clauses: Mapping[str, str]) -> str:
    """Requirements as one writes them behind `pip install`."""
    return " ".join(f"'{name}{clauses[name]}'" for name in names)


def requirements() -> dict[str, tuple[str, str]]:
    """What the package asks for: version clauses and extra (or nothing), by name."""
    wanted = {}
    for text in stated()[1]:
        match = _REQUIREMENT.match(text)
        if match:
            name, clauses, extra = match.groups()
            wanted[name] = (clauses.strip("() "), extra or "")
    return wanted


def stated() -> tuple[str, list[str]]:
    """The Python and the requirements that the installed package states; a checkout that was not installed, too."""
    try:
        return str(metadata.metadata(NAME)["Requires-Python"]), list(metadata.requires(NAME) or ())
    except metadata.PackageNotFoundError:
        project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
        extras = project.get("optional-dependencies", {})
        more = [f"{text}; extra == '{extra}'" for extra, texts in extras.items() for text in texts]
        return str(project["requires-python"]), [*project["dependencies"], *more]


def within(version: str, clauses: str) -> bool:
    """Whether a version fulfils clauses such as `>=2.11,<3`; local parts (`+cpu`) and pre-releases do not count."""
    mine = _numbers(version)
    for sign, text in _CLAUSE.findall(clauses):
        other = _numbers(text)
        size = max(len(mine), len(other))
        a, b = (x + (0,) * (size - len(x)) for x in (mine, other))
        holds = {">=": a >= b, "<=": a <= b, "==": a == b, "!=": a != b, "<": a < b, ">": a > b}
        if not holds.get(sign, a >= b and mine[: len(other) - 1] == other[:-1]):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", re.split(r"[+a-z]", version)[0]))


def _other_than_pinned(versions: Mapping[str, str | None]) -> list[str]:
    """Packages whose version differs from constraints.txt; none without a checkout."""
    pins = CHECKOUT / "constraints.txt"
    if not pins.is_file():
        return []
    stated = dict(line.strip().lower().split("==") for line in pins.read_text().splitlines() if "==" in line)
    pairs = {name: (str(there).partition("+")[0], stated.get(name.lower())) for name, there in versions.items()}
    return [f"{name} {a} instead of {b}" for name, (a, b) in pairs.items() if b and a != b]


def environment() -> Finding:
    """Variables that would make every process here believe it is a rank."""
    try:
        refuse_nesting()
    except ConfigError as error:
        variables, _, advice = str(error).partition(" so another launcher")
        return bad(variables.rstrip(","), advice.rpartition("; ")[2])
    return good("no launcher, no variables left behind by one")


def memory(ranks: int) -> Finding:
    """RAM that can still be had."""
    free, total = available()
    words = f"{free / GIB:.1f} of {total / GIB:.1f} GiB free"
    facts = {"free": free, "total": total}
    if free < 0.5 * GIB * ranks:
        return bad(words, f"{ranks} ranks need about {0.5 * ranks:g} GiB for torch alone; end other programs.", **facts)
    if free < GIB * ranks:
        return doubtful(words, f"{GIB * ranks / GIB:g} GiB are comfortable for {ranks} ranks of small models.", **facts)
    return good(words, **facts)


def shared_memory(ranks: int) -> Finding:
    """Where heartbeats live, and where NCCL and worker processes exchange data."""
    if not os.access(SHARED, os.W_OK | os.X_OK):
        return doubtful(f"{SHARED} cannot be written", "heartbeats will use the temporary folder; mount a tmpfs there.")
    free = shutil.disk_usage(SHARED).free
    words = f"{free / GIB:.2f} GiB free in {SHARED}"
    advice = "in a container, start it with --shm-size=8g or --ipc=host."
    if free < 2**20 * ranks:
        return bad(words, advice, free=free)
    return good(words, free=free) if free >= 2**28 else doubtful(words, advice, free=free)


def disk(folder: Path, least: int = GIB) -> Finding:
    """Room for runs: what the system says, and what a write says (quotas are seen only by writing)."""
    with own_folder(folder) as inside:
        usage = shutil.disk_usage(inside)
        words = f"{usage.free / GIB:.1f} of {usage.total / GIB:.1f} GiB free in {folder}"
        try:
            with (inside / "block").open("wb") as file:
                file.write(os.urandom(2**20))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            return bad(f"{words}; writing 1 MiB failed: {why}", f"free some space in {folder}, or choose another.")
    if usage.free < least:
        advice = f"free some space in {folder}, or choose another: checkpoints need {least / GIB:.1f} GiB or more."
        return bad(words, advice, free=usage.free)
    share = usage.free / usage.total
    if share < 0.03:
        return doubtful(words, "less than 3 % is left; clear old runs before a long one.", free=usage.free)
    return good(words, free=usage.free)


def descriptors(ranks: int) -> Finding:
    """Open files: sockets of every pair of ranks, data files, checkpoints."""
    soft, hard = allowed()
    need = FILES + FILES_OF_RANK * ranks
    words, facts = f"{soft} open files allowed per process", {"soft": soft, "hard": hard}
    if soft >= need or soft < 0:
        return good(words, **facts)
    advice = f"at least {need} are needed; {raising(need, 'the run')}"
    if 0 <= hard < need:
        fitting = (hard - FILES) // FILES_OF_RANK
        fewer = f", or use at most {counted(fitting, 'rank')}" if fitting > 0 else ""
        advice = f"at least {need} are needed, and {raising(need, 'the run')}{fewer}"
    return bad(words, f"{advice}.", **facts)


def cores(ranks: int) -> Finding:
    """Cores this process may use, and how they are shared out."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota()
    usable = min(float(count), quota) if quota else float(count)
    threads = os.environ.get("OMP_NUM_THREADS", "")
    words = f"{usable:g} for {ranks} ranks" + (f", OMP_NUM_THREADS={threads}" if threads else "")
    facts = {"cores": count, "quota": quota, "threads": threads}
    if usable < ranks:
        return doubtful(words, f"ranks will wait for each other; use at most {max(1, int(usable))} on a CPU.", **facts)
    if threads_wanted(threads) * ranks > usable:
        fair = max(1, int(usable // ranks))
        return doubtful(words, f"threads outnumber cores; unset OMP_NUM_THREADS, or set it to {fair}.", **facts)
    try:
        for one in [threading.Thread(target=time.sleep, args=(0.01,)) for _ in range(64)]:
            one.start()
    except RuntimeError:
        return bad(f"{words}; 64 threads cannot be started", "raise the limit of processes (ulimit -u, pids.max).")
    return good(words, **facts)


def _quota() -> float | None:
    """Cores that the control group grants; None where it has no limit."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return int(limit) / int(period)
    except (OSError, ValueError):
        return None


def clock(folder: Path, wall: Callable[[], float] = time.time) -> Finding:
    """The wall clock goes as the monotonic one does, is not years off, and agrees with the file system's."""
    then = wall(), time.monotonic()
    time.sleep(0.1)
    gone = wall() - then[0], time.monotonic() - then[1]
    with own_folder(folder) as inside:
        (inside / "now").touch()
        skew = (inside / "now").stat().st_mtime - wall()
    drift = gone[0] - gone[1]
    facts = {"drift": drift, "skew": skew}
    if abs(drift) > 0.05:
        advice = "no result depends on it, but dates in logs do; let chrony or ntpd slew the clock, not step it."
        return doubtful(f"the wall clock moved {drift:+.2f} s against the monotonic one in 0.1 s", advice, **facts)
    if wall() < EPOCH:
        return doubtful(f"the wall clock says {time.strftime('%Y-%m-%d')}", "set the date of this machine.", **facts)
    if abs(skew) > 2:
        advice = "synchronise the clocks of this machine and its file server; nothing is decided by them."
        return doubtful(f"{folder} is {skew:+.1f} s off this machine's clock", advice, **facts)
    return good(f"steady, and {folder} agrees within {max(abs(skew), 0.01):.2f} s", **facts)


def ports(rendezvous: str = "") -> Finding:
    """A port can be had, and reached by this machine's own name and by loopback; the rendezvous' is free."""
    if rendezvous and not rendezvous.rpartition(":")[2].isdecimal():
        return bad(f"'{rendezvous}' is no HOST:PORT", "write --rendezvous HOST:PORT, for example node0:29400.")
    if rendezvous and port_taken(rendezvous):
        port = rendezvous.rpartition(":")[2]
        return bad(
            f"port {port} is in use here", f"choose another for --rendezvous, or end what `ss -ltnp` shows at {port}."
        )
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), timeout=2) as way:
                way.sendall(b"?")
    except OSError as error:
        return bad(
            f"loopback does not connect: {error}", "bring it up (`ip link set lo up`), or open the firewall for it."
        )
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        advice = f"add `127.0.0.1 {name}` to /etc/hosts, or export GLOO_SOCKET_IFNAME=lo."
        return doubtful(f"loopback connects, but the name of this machine, {name}, has no address", advice)
    free = f"; {rendezvous} is free" if rendezvous else ""
    if rendezvous:
        words = f"loopback connects, {name} is {address}{free}; whoever meets there must know the run's secret"
        advice = "what ranks of several machines send each other is not signed: keep it inside a network you trust."
        return doubtful(words, advice, address=address)
    return good(f"loopback connects, {name} is {address}{free}", address=address)


def network(interface: str = "") -> Finding:
    """The interface that the config names is there, and no variable left in the environment works against nccl."""
    names = [row[1] for row in socket.if_nameindex()]
    if interface:
        try:
            check_interface(interface)
        except ConfigError as error:
            words, _, advice = str(error).partition("; ")
            return bad(words, f"{advice.rstrip('.')}; name another as dist.interface, or leave it out.")
    if os.environ.get("TORCH_NCCL_BLOCKING_WAIT", "0") != "0":
        advice = "unset it: it turns dist.nccl_errors off, and a GPU waits without end for a rank that is gone."
        return doubtful("TORCH_NCCL_BLOCKING_WAIT is set", advice)
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        wanted = os.environ.get(variable, "").lstrip("^=")
        if wanted and not any(name.startswith(part) for part in wanted.split(",") for name in names):
            advice = "unset it: runs choose their interface themselves, or take dist.interface."
            return doubtful(f"{variable} is {wanted}, and this machine has {', '.join(names)}", advice)
    return good(
        f"interfaces {', '.join(names)}" + (f"; ranks of several machines use {interface}" if interface else "")
    )


def file_system(folder: Path) -> Finding:
    """What runs rely on: renames that replace at once, fsync of files and folders, locks that exclude, mapped files."""
    with own_folder(folder) as inside:
        trials = {"rename": _renames, "fsync": _syncs, "flock": _locks, "mmap": _maps}
        slow = {}
        for name, trial in trials.items():
            began = time.monotonic()
            try:
                problem = trial(inside)
            except OSError as error:
                problem = os.strerror(error.errno) if error.errno else str(error)
            if problem:
                advice = f"put runs on a local disk or a POSIX file system (--folder, `out:`), not on {folder}."
                return bad(f"{name} does not hold in {folder}: {problem}", advice, failed=name)
            slow[name] = time.monotonic() - began
    if slow["fsync"] > 2:
        return doubtful(f"fsync took {slow['fsync']:.1f} s", "checkpoints are slow here; use a faster disk.", **slow)
    return good(f"rename, fsync ({1e3 * slow['fsync']:.0f} ms), flock, mmap in {folder}", **slow)


def _renames(inside: Path) -> str:
    """A reader that looks all the time sees the old or the new, whole, and never nothing."""
    target, seen, done = inside / "target", set[str](), threading.Event()
    target.write_text("old")

    def look() -> None:
        while not done.is_set():
            try:
                seen.add(target.read_text())
            except FileNotFoundError:
                seen.add("nothing")

    reader = threading.Thread(target=look, daemon=True)
    reader.start()
    for text in ("new", "old") * 50:
        (inside / "beside").write_text(text)
        os.replace(inside / "beside", target)
    done.set()
    reader.join(5)
    os.mkdir(inside / "a")
    os.rename(inside / "a", inside / "b")
    others = sorted(seen - {"new", "old"})
    return f"a reader saw {others[0] or 'an empty file'} during one" if others else ""


def _syncs(inside: Path) -> str:
    with (inside / "synced").open("wb") as file:
        file.write(b"x" * 4096)
        file.flush()
        os.fsync(file.fileno())
    sync(inside)
    return ""


def _locks(inside: Path) -> str:
    one, two = (os.open(inside / "lock", os.O_RDWR | os.O_CREAT, 0o644) for _ in range(2))
    try:
        fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return "" if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN) else os.strerror(error.errno or 0)
        return "two processes got the same lock"
    finally:
        os.close(one)
        os.close(two)


def _maps(inside: Path) -> str:
    path = inside / "mapped"
    path.write_bytes(bytes(4096))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 4096) as mapped:
        mapped[:5] = b"hello"
        mapped.flush()
        return "" if path.read_bytes()[:5] == b"hello" else "what was written to a mapped file is not read from it"


@contextlib.contextmanager
def own_folder(folder: Path, do: Callable[..., Any] = lambda act, *args: act(*args)) -> Iterator[Path]:
    """A folder of our own in `folder`, which is made if it is not there and goes again if it was not.

    `do(function, *args)` is what touches the disk.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    inside = folder / f"{OWN}{uuid.uuid4().hex[:8]}"
    do(_remove_old, folder)
    do(os.makedirs, inside)
    try:
        yield inside
    finally:
        do(_remove, inside, made)


def _remove_old(folder: Path) -> None:
    """Take away what doctors that were killed have left; that of one at work is younger."""
    for path in folder.glob(f"{OWN}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > LEFT_BEHIND:
                shutil.rmtree(path)


def _remove(inside: Path, made: list[Path]) -> None:
    shutil.rmtree(inside, ignore_errors=True)
    for path in made:
        with contextlib.suppress(OSError):
            path.rmdir()
