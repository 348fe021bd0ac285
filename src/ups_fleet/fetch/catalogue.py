"""The catalogue: published files of PDEBench and The Well by name, as catalogue.csv lists them."""

from __future__ import annotations

import csv
import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from ups.types import ConfigError, check_known

ROOTS = {
    "pdebench": "https://darus.uni-stuttgart.de/api/access/datafile/",
    "well": "https://sdsc-users.flatironinstitute.org/~polymathic/data/the_well/datasets/",
}


@dataclass(frozen=True)
class PublishedFile:
    """A published file: its name here, its path below the folder it is fetched to, its address, its MD5 or nothing."""

    name: str
    path: str
    url: str
    md5: str = ""

    @property
    def group(self) -> str:
        """The task of a PDEBench file, the data set of one of The Well."""
        return self.name.partition("/")[0]


@cache
def catalogue() -> tuple[PublishedFile, ...]:
    """All published files."""
    rows = _rows("catalogue.csv")
    roots = [ROOTS[row["name"].partition(":")[0]] for row in rows]
    return tuple(
        PublishedFile(row["name"], row["path"], root + (row["address"] or row["path"]), row["md5"])
        for row, root in zip(rows, roots, strict=True)
    )


@cache
def groups() -> dict[str, tuple[PublishedFile, ...]]:
    """The files by group, in the order of the catalogue."""
    by_group: dict[str, list[PublishedFile]] = {}
    for file in catalogue():
        by_group.setdefault(file.group, []).append(file)
    return {group: tuple(members) for group, members in by_group.items()}


@cache
def published_sizes() -> dict[str, float]:
    """Gigabytes of a group, as its authors say; not of all groups."""
    return {row["group"]: float(row["gigabytes"]) for row in _rows("published_sizes.csv")}


def lookup(name: str) -> tuple[PublishedFile, ...]:
    """The files of a name: of one file, of a group, of a split of The Well, or of a pattern; a published file name
    serves too. ConfigError where there is none."""
    source, _, word = name.partition(":")
    inside = [file for file in catalogue() if file.name.startswith(f"{source}:")]
    whole, folded = name.rstrip("/"), word.rstrip("/").lower()
    if any(character in word for character in "*?["):
        matches = [file for file in inside if fnmatch.fnmatchcase(file.name.lower(), whole.lower())]
    else:
        names = (whole.lower(), folded)
        matches = [f for f in inside if f.name.lower() in names or f.path.rpartition("/")[2].lower() == folded]
        matches = matches or [f for f in inside if f.name.lower().startswith(f"{whole.lower()}/")]
    if not matches:
        known = [file.name.partition(":")[2] for file in inside]
        close = [*(group.partition(":")[2] for group in groups() if group.startswith(f"{source}:")), *known]
        try:
            check_known(f"file of {source}", (word,), close if word else close[:0])
        except ConfigError as error:
            text = str(error)
            short = text if "did you mean" in text else f"{source}: publishes nothing called '{word}';"
            raise ConfigError(f"{short} `ups data fetch --list {source}` shows all.") from None
    return tuple(matches)


def listing(words: tuple[str, ...]) -> list[list[str]]:
    """Rows of a table: the groups, or the files of what the words name."""
    if not words or set(words) <= set(ROOTS):
        wanted = [group for group in groups() if not words or group.partition(":")[0] in words]
        rows = [["name", "files", "GB, as published", "MD5"]]
        return rows + [[group, *_facts(group)] for group in wanted]
    rows = [["name", "file", "MD5"]]
    return rows + [[f.name, f.path, f.md5 or "not published"] for word in words for f in lookup(word)]


def _facts(group: str) -> Iterator[str]:
    members, size = groups()[group], published_sizes().get(group)
    yield str(len(members))
    yield f"{size:g}" if size else "?"
    yield "published" if all(file.md5 for file in members) else "not published"


def _rows(name: str) -> list[dict[str, str]]:
    with files("ups_fleet.fetch").joinpath(name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))
