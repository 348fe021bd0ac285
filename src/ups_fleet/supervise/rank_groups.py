"""The process groups of a start's ranks and all their descendants; the kernel ends them when this process dies."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ups_fleet.supervise.proc import alive, children, descendants, group_of, variables_of
from ups_fleet.supervise.rank_parent import DeathSwitch


class RankGroups:
    """What the launcher has started, followed through every session and group that its descendants make.

    Made before the launcher starts: the processes that are there then are not its own, nor are those that come later
    without the token of the start.
    """

    def __init__(self, token: str) -> None:
        self._token = token
        self._others = set(children(os.getpid()))
        self._switches: dict[int, DeathSwitch] = {}
        self.roots: list[int] = []
        self.problem = ""  # why some group could not be covered

    def begin(self) -> None:
        """To be called when the launcher has started."""
        self.roots = [pid for pid in children(os.getpid()) if pid not in self._others]
        self._others.update(self.roots)
        self.cover()

    def cover(self) -> None:
        """Find new groups, and forget those that are gone."""
        ours = os.getpgrp()
        present = set(children(os.getpid()))
        self.roots = [pid for pid in self.roots if pid in present]  # the number of one that is gone may be anybody's
        self._others &= present
        self.roots += [pid for pid in present - self._others if variables_of(pid).get("UPS_TOKEN") == self._token]
        self._others.update(self.roots)
        pids = [pid for root in self.roots for pid in (root, *descendants(root))]
        groups = {group for pid in pids if (group := group_of(pid)) not in (0, ours)}
        for group in groups - self._switches.keys():
            try:
                self._switches[group] = DeathSwitch(group)
            except ProcessLookupError:  # it has just ended
                continue
            except OSError as error:
                self.problem = str(error)
        for group in [group for group in self._switches if group not in groups and not _exists(group)]:
            self._switches.pop(group).disarm()

    def childless(self, ranks: Iterable[int]) -> list[int]:
        """What the launcher has started and is there, but has no rank below it."""
        known = set(ranks)
        return [root for root in self.roots if alive(root) and not known & set(descendants(root))]

    def kill(self) -> None:
        """SIGKILL to every group that was ever found and still exists."""
        self.cover()
        for switch in self._switches.values():
            switch.fire()
        self._switches.clear()


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
