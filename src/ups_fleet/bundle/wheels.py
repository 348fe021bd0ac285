"""Wheels: of this package, fetched by pip, empty for packages that are there already, and slim copies of others."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata, resources
from pathlib import Path, PurePosixPath

from ups.types import ConfigError, DataError
from ups.version import __version__

DISTRIBUTION = "universal-physics-stack"
WINGS = ("ups", "ups_fleet", "ups_bench", "ups_apps")
MOMENT = (1980, 1, 1, 0, 0, 0)  # of every file: the same content gives the same bytes
WHEEL = "Wheel-Version: 1.0\nGenerator: ups\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
# Needed to compile or to check other programs against a package, or to draw its examples; never by its own code.
NOT_RUN = (".pyi", ".a", ".pyx", ".pxd")


def own_distribution() -> metadata.Distribution:
    """This package as it is installed: its requirements and extras."""
    try:
        return metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise ConfigError(
            f"{DISTRIBUTION} runs here without being installed, so nobody knows what it needs; pip install it first."
        ) from None


def write_own_wheel(folder: Path) -> Path:
    """The wheel of this package, of the very files that run now."""
    distribution, source = own_distribution(), Path(str(resources.files("ups"))).parent
    content = {
        path.relative_to(source).as_posix(): path.read_bytes()
        for wing in WINGS
        for path in sorted((source / wing).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    described = re.sub(
        r"(?m)^Version: .*$", f"Version: {__version__}", distribution.read_text("METADATA") or "", count=1
    )
    about = {"METADATA": described, "WHEEL": WHEEL}
    about["entry_points.txt"] = distribution.read_text("entry_points.txt") or ""
    return _write(folder, DISTRIBUTION, __version__, content, about)


def write_stand_in(folder: Path, name: str, version: str) -> Path:
    """An empty wheel with which pip takes a package for found, and fetches neither it nor what it needs."""
    return _write(folder, name, version, {}, {"METADATA": described_as(name, version), "WHEEL": WHEEL})


def described_as(name: str, version: str) -> str:
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"


def _write(folder: Path, name: str, version: str, content: Mapping[str, bytes], about: Mapping[str, str]) -> Path:
    stem = f"{name.replace('-', '_')}-{version}"
    files = {**content, **{f"{stem}.dist-info/{file}": text.encode() for file, text in about.items()}}
    record = f"{stem}.dist-info/RECORD"
    rows = [f"{path},sha256={_digest(raw)},{len(raw)}" for path, raw in files.items()]
    files[record] = "\n".join([*rows, f"{record},,", ""]).encode()
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, raw in files.items():
            wheel.writestr(_entry(file), raw, zipfile.ZIP_DEFLATED, 9)
    return path


def _digest(raw: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(raw).digest()).rstrip(b"=").decode()


def _entry(name: str, mode: int = 0o644) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, MOMENT)
    entry.external_attr = mode << 16
    return entry


def is_run(name: str) -> bool:
    """Whether code of a package may need this file of it: no tests, type stubs, static libraries or sample data.

    Modules of a `tests` folder whose name begins with an underscore stay: what is no test imports some of them.
    """
    path = PurePosixPath(name)
    if "tests" in path.parts[:-1]:
        return path.name.startswith("_") and path.suffix == ".py"
    return path.suffix not in NOT_RUN and "sample_data" not in path.parts and "__pycache__" not in path.parts


def slimmed(wheel: Path, stored: bool, needed: Callable[[str], bool] = is_run) -> None:
    """Write a wheel anew without the files that are not `needed`, and without their rows in its RECORD. `stored`:
    without compression, for an archive that compresses all of them together, and better."""
    method = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
    part = wheel.with_suffix(".part")
    with zipfile.ZipFile(wheel) as old:
        every = [info.filename for info in old.infolist() if not info.is_dir()]
        names = [name for name in every if needed(name)]
        if names == every and not stored:
            return
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(part, "w") as new:
        for name in names:
            raw = old.read(name)
            if name.endswith(".dist-info/RECORD"):
                raw = "\n".join([*_rows_of(raw.decode(), set(names)), ""]).encode()
            mode = old.getinfo(name).external_attr >> 16 & 0o777 or 0o644
            new.writestr(_entry(name, mode), raw, method)
    part.replace(wheel)


def _rows_of(record: str, names: set[str]) -> Iterator[str]:
    """The rows of a RECORD whose file is still there."""
    for row in record.splitlines():
        if row.rsplit(",", 2)[0].strip('"') in names:
            yield row


def name_and_version(wheel: Path) -> tuple[str, str]:
    """Name and version of a wheel, as its file name says them."""
    name, version, *_ = wheel.name.split("-")
    return name.replace("_", "-").lower(), version


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
