"""Makes the bundle: checks everything before any work, builds it beside its place, publishes it as a whole."""

from __future__ import annotations

import json
import platform as machine
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from ups.files import sha256
from ups.types import ConfigError
from ups.version import __version__
from ups_fleet.bundle.wheels import PLATFORMS, download, listed, own_distribution, slimmed, write_own_wheel

READ_ME = """Universal Physics Stack {version}, for Python {python} on {platform}, without {without}.

    python{python} selftest.py        checks, unpacks into site/, and proves that it works; exit code 0 if so
    export PYTHONPATH=$PWD/site       then `python -m ups` is the command, and nothing is installed

or, into an environment: pip install --no-index --find-links wheels universal-physics-stack
"""

# It comes before all that an older Python could not read.
GUARD = """import sys

if "%d.%d" % sys.version_info[:2] != "{python}":
    print("ups bundle FAILED: it was made for Python {python}, and this is %d.%d; start it with that one." % sys.version_info[:2])
    sys.exit(1)
"""  # noqa: E501


def _own_python() -> str:
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


@dataclass(frozen=True)
class BundleRequest:
    """What is asked for. `without`: packages that are on the other machine already. `whole`: wheels as they were
    published, to the byte."""

    python: str = ""
    platform: str = ""
    extras: tuple[str, ...] = ()
    without: tuple[str, ...] = ("torch",)
    out: Path | None = None
    archive: bool = False
    whole: bool = False

    def checked(self) -> BundleRequest:
        """The request with this machine's version and platform for those not named; ConfigError if it cannot be met."""
        python, platform = self.python or _own_python(), self.platform or machine.machine()
        if not re.fullmatch(r"3\.\d{1,2}", python):
            raise ConfigError(f"--python is '{python}', but must be a version such as 3.12.")
        if (least := _least_python()) and tuple(map(int, python.split("."))) < least:
            raise ConfigError(f"--python is {python}, but this package needs {'.'.join(map(str, least))} or newer.")
        if platform not in PLATFORMS:
            raise ConfigError(f"--platform is '{platform}', but must be one of {', '.join(PLATFORMS)} (Linux).")
        extras = own_distribution().metadata.get_all("Provides-Extra") or []
        for extra in self.extras:
            if extra not in extras:
                raise ConfigError(f"--with names '{extra}', which is no extra; there are {', '.join(sorted(extras))}.")
        out = self.out or Path(f"ups-bundle-{__version__}-py{python}-{platform}")
        archive = out.with_name(out.name + ".tar.xz")
        if self.archive and archive.exists():
            raise ConfigError(f"{archive} is there already; give another --out or delete it.")
        if not self.archive and (out.is_file() or (out.is_dir() and any(out.iterdir()))):
            raise ConfigError(f"{out} is not empty; give another --out or empty it.")
        return BundleRequest(python, platform, self.extras, self.without, out, self.archive, self.whole)


def _least_python() -> tuple[int, ...]:
    least = re.search(r">=\s*(\d+)\.(\d+)", own_distribution().metadata["Requires-Python"] or "")
    return tuple(map(int, least.groups())) if least else ()


def make_bundle(request: BundleRequest, show: Callable[[str], None]) -> Path:
    """Make the folder, or the archive of it; `show` is told what is being done."""
    request = request.checked()
    assert request.out is not None
    request.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".ups-bundle-", dir=request.out.parent) as place:
        folder = Path(place) / request.out.name
        wheels = folder / "wheels"
        wheels.mkdir(parents=True)
        own = write_own_wheel(Path(place))
        download(own, request.extras, request.python, request.platform, request.without, wheels, show)
        published = {path.name: sha256(path) for _, _, path in listed(wheels)}
        if not request.whole:
            for name, _, path in listed(wheels):
                show(f"packing {name}")
                slimmed(path, stored=request.archive)
        _describe(request, folder, published)
        if not request.archive:
            if request.out.is_dir():
                request.out.rmdir()  # it is empty
            folder.chmod(0o755)
            return Path(shutil.move(folder, request.out))
        show("compressing all of it")
        archive = request.out.with_name(request.out.name + ".tar.xz")
        part = Path(place) / archive.name
        with tarfile.open(part, "w:xz") as tar:
            tar.add(folder, request.out.name)
        return part.rename(archive)


def _describe(request: BundleRequest, folder: Path, published: dict[str, str]) -> None:
    """The manifest, the self-test and a page to read."""
    wheels = [
        {
            "name": name,
            "version": version,
            "file": path.name,
            "bytes": path.stat().st_size,
            "sha256": sha256(path),
            "published_sha256": published[path.name],
        }
        for name, version, path in listed(folder / "wheels")
    ]
    least = dict(re.findall(r"(?m)^([\w.-]+)[^;\n]*?>=\s*([\d.]+)", "\n".join(own_distribution().requires or [])))
    manifest = {
        "ups": __version__,
        "python": request.python,
        "platform": request.platform,
        "extras": list(request.extras),
        "without": {name: least.get(name, "") for name in request.without},
        "wheels": wheels,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    (folder / "selftest.py").write_text(script(request.python))
    words = {"version": __version__, "python": request.python, "platform": request.platform}
    (folder / "README.txt").write_text(READ_ME.format(**words, without=", ".join(request.without) or "nothing"))


def script(python: str) -> str:
    """The self-test of a bundle for a version of Python: one as old as 3.6, which many clusters have, says so too."""
    text = resources.files("ups_fleet.bundle").joinpath("selftest.py").read_text()
    return text.replace("from __future__ import annotations\n", GUARD.format(python=python), 1)


def summary(path: Path) -> str:
    """What was made, its size, and what is heavy in it."""
    if path.is_file():
        return f"{path.stat().st_size / 2**20:.1f} MiB in one file"
    sizes = sorted(((file.stat().st_size, name) for name, _, file in listed(path / "wheels")), reverse=True)
    heavy = ", ".join(f"{name} {size / 2**20:.1f}" for size, name in sizes[:5])
    return f"{sum(size for size, _ in sizes) / 2**20:.1f} MiB in {len(sizes)} wheels; most of it {heavy}"
