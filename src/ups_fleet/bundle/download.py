"""The wheels that a package needs on another Python and machine, fetched by pip; its failures in one sentence."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

from ups.types import ConfigError, DataError
from ups_fleet.bundle.wheels import DISTRIBUTION, name_and_version, write_stand_in

GLIBC = (5, 12, 17, 24, 26, 27, 28)  # minor versions of the C library whose wheels a machine of 2018 or later runs
OLD_NAMES = ("manylinux1", "manylinux2010", "manylinux2014")
PLATFORMS = ("x86_64", "aarch64")
UNREACHED = re.compile(r"Retrying|Connection|Temporary failure|timed out|Max retries|unreachable", re.IGNORECASE)
# The second is what pip says where a version that is pinned has no wheel: nothing else fits the pin.
MISSING = re.compile(r"No matching distribution found for (\S+)|The user requested \(constraint\) (\S+)")


def pinned(without: Sequence[str]) -> Iterator[str]:
    """The versions that are installed here, as constraints: what was seen to work together."""
    for distribution in metadata.distributions():
        name = str(distribution.metadata["Name"])
        if name.lower() not in {DISTRIBUTION, *without} and "+" not in distribution.version:
            yield f"{name}=={distribution.version}"


def download(
    own: Path,
    extras: Sequence[str],
    python: str,
    platform: str,
    without: Sequence[str],
    out: Path,
    show: Callable[[str], None],
) -> None:
    """All wheels that `own` needs with its extras, into `out`; but for the packages `without`, which are there already,
    and what only they need."""
    if importlib.util.find_spec("pip") is None:
        raise ConfigError("pip fetches the wheels, but is not installed for this Python: python -m ensurepip.")
    with tempfile.TemporaryDirectory(prefix="ups-bundle-") as place:
        stand_ins, constraints = Path(place), Path(place) / "constraints.txt"
        pins = list(pinned(without))
        for name in without:
            version = f"{_version_here(name)}+elsewhere"
            write_stand_in(stand_ins, name, version)
            pins.append(f"{name}=={version}")
        constraints.write_text("\n".join(pins))
        tags = [f"manylinux_2_{minor}_{platform}" for minor in GLIBC] + [f"{old}_{platform}" for old in OLD_NAMES]
        words = [sys.executable, "-m", "pip", "download", "--dest", str(out), "--only-binary=:all:", "--no-input"]
        words += ["--disable-pip-version-check", "--progress-bar=off", "--retries=1", "--timeout=30"]
        # 3.11 alone would be 3.11.0 to pip: too old for packages that need one of its repairs.
        words += ["--implementation=cp", f"--python-version={python}.99", *(f"--platform={tag}" for tag in tags)]
        words += [f"--find-links={stand_ins}", f"--constraint={constraints}"]
        words.append(f"{own}[{','.join(extras)}]" if extras else str(own))
        _run(words, f"Python {python} on {platform}", show)
        for name in without:
            for stand_in in out.glob(f"{name.replace('-', '_')}-*+elsewhere-*.whl"):
                stand_in.unlink()


def _version_here(name: str) -> str:
    try:
        return metadata.version(name).partition("+")[0]
    except metadata.PackageNotFoundError:
        raise ConfigError(
            f"--without {name}: it is not installed here, so no version of it is known to work; leave it out."
        ) from None


def _run(words: Sequence[str], target: str, show: Callable[[str], None]) -> None:
    """Run pip, telling what it is at; a sentence where it fails."""
    lines: list[str] = []
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            lines.append(line.strip())
            if line.startswith("Collecting "):
                show(f"fetching {line.split()[1]}")
    if pip.returncode == 0:
        return
    text = "\n".join(lines)
    if UNREACHED.search(text):
        raise DataError(
            "the package index could not be reached; make the bundle on a machine with a network, and carry it over."
        )
    if missing := MISSING.search(text):
        wheel = missing[1] or missing[2]
        raise ConfigError(
            f"there is no wheel of {wheel} for {target}; ask for another --python or --platform, or leave out the "
            "extra that needs it."
        )
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")]
    raise DataError(f"pip could not fetch the wheels: {(errors or lines or ['it said nothing'])[0]}")


def listed(folder: Path) -> list[tuple[str, str, Path]]:
    """Name, version and file of each wheel of a folder."""
    return [(*name_and_version(path), path) for path in sorted(folder.glob("*.whl"))]
