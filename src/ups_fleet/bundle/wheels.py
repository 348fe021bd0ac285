"""Writes wheels: of this package, empty ones for packages that are there already, and slim copies of others."""

from __future__ import annotations

import base64
import hashlib
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata, resources
from pathlib import Path, PurePosixPath

from ups.types import ConfigError
from ups.version import __version__

DISTRIBUTION = "universal-physics-stack"
WINGS = ("ups", "ups_fleet", "ups_bench")
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
    """As its file name says them."""
    name, version, *_ = wheel.name.split("-")
    return name.replace("_", "-").lower(), version
