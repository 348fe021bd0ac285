"""Proves a bundle on this machine: `python selftest.py`. Needs no network, installs nothing, and only Python itself."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CONFIG = """
name: tiny
out: {out}
device: {device}
data: {{a: {{task: advection1d, scheme: accurate, samples: 20, resolution: 16, reduce: {{time: 40}}}}}}
model: {{codec: {{dim: 4}}, operator: {{width: 16, depth: 1, heads: 2}}}}
codec: {{batch: 4, train: {{steps: 4}}}}
operator: {{batch: 4, train: {{steps: 8}}}}
"""
ASK = """
import importlib.metadata as m, json, sys
print(json.dumps({d.metadata["Name"].lower().replace("_", "-"): d.version for d in reversed(list(m.distributions()))}))
"""
IMPORTS = "import ups, torch; print(ups.__file__); print(torch.__version__); print(torch.cuda.is_available())"


class FailedError(Exception):
    """The bundle does not work here; in one sentence."""


def require_this_machine(manifest: dict[str, Any]) -> None:
    """Wheels are of one version of Python and one processor."""
    here = ".".join(map(str, sys.version_info[:2]))
    if here != manifest["python"]:
        raise FailedError(f"it was made for Python {manifest['python']}, and this is {here}; start it with that one")
    if platform.machine() != manifest["platform"]:
        raise FailedError(f"it was made for {manifest['platform']}, and this machine is {platform.machine()}")


def require_whole(folder: Path, manifest: dict[str, Any]) -> None:
    """Every wheel is there to the byte."""
    for wheel in manifest["wheels"]:
        path = folder / "wheels" / wheel["file"]
        if not path.is_file():
            raise FailedError(f"{path} is missing; carry the whole folder over again")
        if hashlib.sha256(path.read_bytes()).hexdigest() != wheel["sha256"]:
            raise FailedError(f"{path} is damaged (its SHA-256 is not the one in manifest.json); carry it over again")


def unpacked(folder: Path, manifest: dict[str, Any], into: Path | None) -> Path:
    """The folder to put on the path: made once, from all wheels."""
    mark = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    if into is None:
        into = folder / "site" if os.access(folder, os.W_OK) else Path(tempfile.mkdtemp(prefix="ups-bundle-")) / "site"
    done = into / ".unpacked"
    if done.is_file() and done.read_text() == mark:
        return into
    if into.exists() and (not into.is_dir() or (any(into.iterdir()) and not done.exists())):
        raise FailedError(f"{into} holds something else; name another folder with --unpack")
    part = into.with_name(f"{into.name}.part-{os.getpid()}")
    for wheel in manifest["wheels"]:
        with zipfile.ZipFile(folder / "wheels" / wheel["file"]) as archive:
            archive.extractall(part)
    for data in part.glob("*.data"):
        for library in (data / "purelib", data / "platlib"):
            if library.is_dir():
                shutil.copytree(library, part, dirs_exist_ok=True)
        shutil.rmtree(data)
    (part / ".unpacked").write_text(mark)
    if into.exists():
        shutil.rmtree(into)
    part.rename(into)
    return into


def python(site: Path, words: Sequence[str], home: str, seconds: float = 900) -> str:
    """What a Python with the bundle on its path prints."""
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH", ""))))
    own = {"PYTHONPATH": path, "PYTHONNOUSERSITE": "1", "MPLCONFIGDIR": home, "HOME": os.environ.get("HOME", home)}
    command = [sys.executable, *words]
    try:
        done = subprocess.run(
            command, env={**os.environ, **own}, cwd=home, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise FailedError(f"{' '.join(words[:3])} took more than {seconds:.0f} s") from None
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).strip().splitlines() if line] or ["it said nothing"]
        raise FailedError(f"{' '.join(words[:3])} ended with code {done.returncode}: {lines[-1]}")
    return done.stdout


def require_versions(site: Path, manifest: dict[str, Any], home: str) -> None:
    """The packages that Python finds are those of the bundle, and what it was made without is there."""
    versions = json.loads(python(site, ["-c", ASK], home))
    for wheel in manifest["wheels"]:
        version = versions.get(wheel["name"].replace("_", "-"))
        if version != wheel["version"]:
            raise FailedError(f"{wheel['name']} is {version} and not {wheel['version']} of the bundle")
    for name, least in manifest["without"].items():
        if name not in versions:
            raise FailedError(f"{name} is not installed for {sys.executable}, and the bundle was made without it")
        if _numbers(versions[name]) < _numbers(least):
            raise FailedError(f"{name} is {versions[name]}, and {least} or newer is needed")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall("[0-9]+", version.partition("+")[0])))


def work(site: Path, home: str, device: str) -> tuple[str, float]:
    """Make data, train and judge; the device that torch has, and the error."""
    source, torch, cuda = python(site, ["-c", IMPORTS], home).split()[-3:]
    if Path(source).parent.parent.resolve() != site.resolve():
        raise FailedError(f"Python finds another ups first, in {Path(source).parent}; leave PYTHONPATH empty")
    config = Path(home) / "tiny.yaml"
    config.write_text(CONFIG.format(out=home, device=device))
    python(site, ["-m", "ups", "run", str(config)], home)
    rows = json.loads((Path(home) / "tiny" / "results.json").read_text())
    errors = [row["value"] for row in rows if row.get("metric") == "nrmse" and isinstance(row.get("value"), float)]
    if not errors or not all(map(math.isfinite, errors)):
        raise FailedError("the run has left no error of its simulator, or one that is no number")
    return f"torch {torch}, {'with' if cuda == 'True' else 'without'} a GPU", errors[0]


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--unpack", type=Path, help="folder for the packages; by default `site` beside this file")
    words.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    arguments, folder, began = words.parse_args(), Path(__file__).resolve().parent, time.monotonic()
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        require_this_machine(manifest)
        require_whole(folder, manifest)
        site = unpacked(folder, manifest, arguments.unpack.resolve() if arguments.unpack else None)
        with tempfile.TemporaryDirectory(prefix="ups-selftest-") as home:
            require_versions(site, manifest, home)
            machine, error = work(site, home, arguments.device)
    except (FailedError, OSError, ValueError, KeyError, zipfile.BadZipFile) as failure:
        print(f"ups bundle FAILED: {failure}.")
        return 1
    packages, seconds = len(manifest["wheels"]) - 1, time.monotonic() - began
    print(
        f"ups bundle OK: ups {manifest['ups']} and {packages} packages on Python {manifest['python']}, {machine}: "
        f"data made, trained, judged (nRMSE {error:.3g}) in {seconds:.0f} s. export PYTHONPATH={site}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
