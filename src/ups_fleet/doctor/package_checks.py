"""Checks of versions: Python, required and optional packages against the ranges that the package states."""

from __future__ import annotations

import platform
import re
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from ups.provenance import installed
from ups.version import __version__
from ups_fleet.doctor.findings import Finding, bad, doubtful, good

CHECKOUT = Path(__file__).resolve().parents[3]
NAME = "universal-physics-stack"
EXTRAS = ("baselines", "bench")  # what a user may want; `dev` is for those who change the code
_REQUIREMENT = re.compile(r"^([\w.-]+)\s*([^;]*?)\s*(?:;.*extra == ['\"](\w+)['\"].*)?$")
_CLAUSE = re.compile(r"(>=|<=|==|!=|~=|<|>)\s*([\w.]+)")

Version = Callable[[str], str | None]


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
