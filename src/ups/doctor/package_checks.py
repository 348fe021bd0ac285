"""Versions: of Python, of what is required, of what is optional, against the ranges the package itself states."""

from __future__ import annotations

import platform
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

import ups
from ups.doctor.findings import Finding, bad, doubtful, good

CHECKOUT = Path(ups.__file__).resolve().parents[2]
NAME = "universal-physics-stack"
EXTRAS = ("baselines", "bench")  # what a user may want; `dev` is for those who change the code
_REQUIREMENT = re.compile(r"^([\w.-]+)\s*([^;]*?)\s*(?:;.*extra == ['\"](\w+)['\"].*)?$")
_CLAUSE = re.compile(r"(>=|<=|==|!=|~=|<|>)\s*([\w.]+)")

Version = Callable[[str], str | None]


def installed(name: str) -> str | None:
    """The version of a package; None where it is not there."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def python() -> Finding:
    """Python against what the package asks for."""
    wanted = stated()[0]
    found = platform.python_version()
    if not within(found, wanted):
        return bad(f"{found}, but {wanted} is needed", f"make an environment with Python {wanted}.", version=found)
    return good(f"{found} ({sys.executable})", version=found)


def required(version: Version = installed) -> Finding:
    """Everything the package cannot do without."""
    wanted = {name: clauses for name, (clauses, extra) in requirements().items() if not extra}
    found = {name: version(name) for name in wanted}
    wrong = [
        f"{name} {there or 'is missing'}{f' is not {clauses}' if there else ''}"
        for name, clauses in wanted.items()
        if (there := found[name]) is None or not within(there, clauses)
    ]
    if wrong:
        spoilt = " ".join(f"'{n}{wanted[n]}'" for n in wanted if not within(found[n] or "0", wanted[n]) or not found[n])
        return bad("; ".join(wrong), f"pip install {spoilt}.", versions=found)
    differ = _other_than_pinned(found)
    main = ", ".join(f"{name} {found[name]}" for name in ("torch", "numpy", "h5py") if found.get(name))
    if differ:
        said = f"{main}; all {len(wanted)} in range, but not as tested: {', '.join(differ)}"
        return doubtful(said, "pip install -c constraints.txt -e . gives the tested versions.", versions=found)
    return good(f"ups {ups.__version__}, {main}; all {len(wanted)} in range", versions=found, ups=ups.__version__)


def optional(version: Version = installed) -> Finding:
    """What only some commands need: missing is well, out of range is not."""
    wanted = {n: (clauses, extra) for n, (clauses, extra) in requirements().items() if extra in EXTRAS}
    found = {name: version(name) for name in wanted}
    wrong = [n for n, (clauses, _) in wanted.items() if (there := found[n]) is not None and not within(there, clauses)]
    if wrong:
        named = ", ".join(f"{n} {found[n]} is not {wanted[n][0]}" for n in wrong)
        again = " ".join(f"'{n}{wanted[n][0]}'" for n in wrong)
        return doubtful(named, f"pip install {again}.", versions=found)
    said = [f"{n} {found[n] or 'not installed'} ({extra})" for n, (_, extra) in wanted.items()]
    return good(", ".join(said) or "none", versions=found)


def requirements() -> dict[str, tuple[str, str]]:
    """What the package asks for: version clauses and extra (or nothing), by name."""
    found = {}
    for text in stated()[1]:
        match = _REQUIREMENT.match(text)
        if match:
            name, clauses, extra = match.groups()
            found[name] = (clauses.strip("() "), extra or "")
    return found


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


def _other_than_pinned(found: Mapping[str, str | None]) -> list[str]:
    """Where the code is a checkout that states the versions it is tested with: those that differ here."""
    pins = CHECKOUT / "constraints.txt"
    if not pins.is_file():
        return []
    stated = dict(line.strip().lower().split("==") for line in pins.read_text().splitlines() if "==" in line)
    pairs = {name: (str(there).partition("+")[0], stated.get(name.lower())) for name, there in found.items()}
    return [f"{name} {a} instead of {b}" for name, (a, b) in pairs.items() if b and a != b]
