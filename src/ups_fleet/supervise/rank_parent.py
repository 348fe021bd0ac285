"""The parent process of one rank: starts it in a session of its own, logs its output, writes down how it ended."""

# Run as a file by a bare interpreter (`python -I -S rank_parent.py COMMAND …`), hence nothing outside the standard
# library, and the file names of `start_dir.StartDir` are spelt again: it starts in milliseconds, one per rank.

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Callable

Become = Callable[[list[str], int, str], None]  # the command, the process to die with, the log to write to

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
F_SETSIG = 10  # which signal an O_ASYNC descriptor sends; fcntl has no name for it before Python 3.13
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
ORPHANS = 1.0  # seconds in which what a rank has left is ended


def die_with_parent(number: int, parent: int) -> None:
    """Have the kernel send `number` when the parent dies; leave at once where `parent` is already gone."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies: none can leave the tree below this process."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class DeathSwitch:
    """Has the kernel SIGKILL a process group when this process dies, in whatever state either of them is.

    Each pipe has both its ends here. When the kernel closes them at this process's death, the end of the writing side
    is an event of the reading side, whose signal goes to the group. Two pipes, because the order in which a dying
    process's descriptors are closed is not promised: in one of them the writing end has the lower number.
    """

    def __init__(self, group: int) -> None:
        self._pipes: list[tuple[int, int]] = []
        try:
            self._pipes.append(os.pipe())
            reading, writing = os.pipe()
            self._pipes.append((os.dup(reading), writing))
            os.close(reading)
            for reading, _ in self._pipes:
                os.set_inheritable(reading, False)
                fcntl.fcntl(reading, fcntl.F_SETOWN, -group)
                fcntl.fcntl(reading, F_SETSIG, signal.SIGKILL)
                fcntl.fcntl(reading, fcntl.F_SETFL, fcntl.fcntl(reading, fcntl.F_GETFL) | os.O_ASYNC)
        except OSError:
            self.disarm()
            raise

    def fire(self) -> None:
        """Kill the group now; unlike its number, this never means another group."""
        for reading, writing in self._pipes:
            os.close(writing)
            os.close(reading)
        self._pipes = []

    def disarm(self) -> None:
        """Let the group live."""
        for reading, writing in self._pipes:
            os.close(reading)
            os.close(writing)
        self._pipes = []


def rank(command: list[str], become: Become | None = None) -> int:
    """Run one rank to its end; how it ended stands in exit-<rank>.json, and is this process's own exit code.

    `become` makes a rank of a fresh child and never returns; by default it executes the command.
    """
    number, folder, parent = os.environ["RANK"], os.environ["UPS_RUN"], int(os.environ["UPS_PARENT"])
    die_with_parent(signal.SIGKILL, parent)  # not by a signal that a stopped process never handles
    adopt_orphans()
    mine = os.getpid()
    child = 0

    def pass_on(sent: int, _frame: object) -> None:
        if child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, sent)

    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # first: before there is a child they could not be passed on
    for one in FORWARDED:
        signal.signal(one, pass_on)
    child = os.fork()
    if child == 0:
        (become or execute)(command, mine, f"{os.environ['UPS_LOGS']}/rank-{number}.log")
    switch = _switch(child)
    _write(f"{folder}/pid-{number}", str(child))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    clock = _await(child)
    with contextlib.suppress(OSError):  # while the dead rank still holds its number: nobody else's group can be meant
        os.killpg(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    child = 0
    _write(f"{folder}/exit-{number}.json", json.dumps({"rank": int(number), "code": code, "clock": clock}))
    _end_orphans()
    if switch:
        switch.disarm()
    return code if code >= 0 else 128 - code


def _switch(group: int) -> DeathSwitch | None:
    """The switch of a rank's group; None where this kernel has no such thing: then the rank alone dies with us."""
    try:
        return DeathSwitch(group)
    except OSError as error:
        os.write(2, f"children of the rank may outlive a kill of its supervisor: {error}\n".encode())
        return None


def _await(child: int) -> float:
    """When `child` ended; it is left to be waited for. Adopted processes that end before it are seen off."""
    while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)) is not None and ended.si_pid != child:
        os.waitpid(ended.si_pid, 0)
    return time.monotonic()


def _end_orphans() -> None:
    """SIGKILL to what the rank has left below this process: workers, also those in a session of their own."""
    end = time.monotonic() + ORPHANS
    while time.monotonic() < end:
        try:
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                left = [int(word) for word in file.read().split()]
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except OSError:  # none is left (ECHILD), or this kernel does not list children
            return
        time.sleep(0.005)


def settle(parent: int, log: str) -> None:
    """Called in the child: gives it a session of its own (by which its children are found), has it die with its
    parent, and sends its output to its log."""
    os.setsid()
    die_with_parent(signal.SIGKILL, parent)
    for one in FORWARDED:
        signal.signal(one, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def execute(command: list[str], parent: int, log: str) -> None:
    """Called in the child: becomes the command."""
    try:
        settle(parent, log)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: could not be started ({error})\n".encode())
    finally:
        os._exit(127)


def _write(path: str, text: str) -> None:
    """Whole or not at all. A full disk must not end this process: its exit code still says how the rank ended."""
    try:
        with open(f"{path}.new", "w") as file:
            file.write(text)
        os.replace(f"{path}.new", path)
    except OSError as error:
        with contextlib.suppress(OSError):  # the log may lie on the same disk
            os.write(2, f"{path}: {error}\n".encode())


if __name__ == "__main__":
    sys.exit(rank(sys.argv[1:]))
