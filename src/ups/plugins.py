"""Tables that other packages may add to: by an entry point in the group `ups.TABLE`, loaded at its first use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any, Generic, TypeVar, cast

from ups.types import ConfigError

Row = TypeVar("Row")


@cache
def _installed(group: str) -> dict[str, EntryPoint]:
    """What other packages add to a table; ConfigError where two add the same name."""
    rows: dict[str, EntryPoint] = {}
    for point in entry_points(group=f"ups.{group}"):
        other = rows.setdefault(point.name, point)
        if other.value != point.value:
            raise ConfigError(
                f"two installed packages add '{point.name}' to the {group} of ups ({other.value} and {point.value}); "
                "uninstall one of them."
            )
    return rows


def at(place: str) -> Any:
    """What stands at `module:name`."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def is_there(place: str) -> bool:
    """Whether the module of `module:name` is in this copy of the package."""
    module = place.partition(":")[0]
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a package above it
        return False


class Table(MutableMapping[str, Row], Generic[Row]):
    """Rows by name: `ours`, then those of installed packages.

    Args:
        group: the name of the table; entry points of the group `ups.GROUP` are rows of it.
        ours: the rows of this package. A row that is given as text, `module:name`, is imported at its first use, and
            left out where its module was deleted.

    Raises:
        ConfigError: where an installed package adds a name that is there already, or cannot be imported.
    """

    def __init__(self, group: str, ours: Mapping[str, Row | str]) -> None:
        self.group, self._ours = group, ours
        self._changes: dict[str, Row] = {}  # rows that were set since
        self._without: set[str] = set()

    def __getitem__(self, name: str) -> Row:
        if name in self._changes:
            return self._changes[name]
        if name in self._without:
            raise KeyError(name)
        if name in self._ours:
            row = self._ours[name]
            if not isinstance(row, str):
                return row
            if not is_there(row):
                raise KeyError(name)
            return cast("Row", at(row))
        return self._load(_installed(self.group)[name])

    def _load(self, point: EntryPoint) -> Row:
        try:
            return cast("Row", point.load())
        except (ImportError, AttributeError) as error:
            package = point.dist.name if point.dist is not None else point.value
            raise ConfigError(
                f"{package} adds '{point.name}' to the {self.group} of ups, and it cannot be imported ({error}); "
                "mend or uninstall it."
            ) from None

    def __iter__(self) -> Iterator[str]:
        ours = [name for name, row in self._ours.items() if not isinstance(row, str) or is_there(row)]
        theirs = _installed(self.group)
        if clash := next((name for name in theirs if name in self._ours), None):
            raise ConfigError(
                f"{theirs[clash].value} adds '{clash}' to the {self.group} of ups, which has its own; rename or "
                "uninstall it."
            )
        names = dict.fromkeys([*ours, *theirs, *self._changes])
        return (name for name in names if name not in self._without)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __setitem__(self, name: str, row: Row) -> None:
        self._changes[name] = row
        self._without.discard(name)

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        self._changes.pop(name, None)
        if name in self._ours or name in _installed(self.group):
            self._without.add(name)
