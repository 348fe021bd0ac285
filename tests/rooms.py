"""Small file systems for tests: a program run where some folders are tmpfs of a given size."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

MOUNTED = "mounted\n"


def run_in(sizes: Mapping[Path, str], code: str, *words: str, timeout: float = 120) -> str:
    """What a Python program prints where each folder of `sizes` is a tmpfs of so much; skips where none can be made."""
    mounts = [f"mount -t tmpfs -o size={size} none '{folder}'" for folder, size in sizes.items()]
    script = " && ".join([*mounts, "echo mounted", 'exec "$0" -c "$@"'])
    asked = ["unshare", "-rm", "sh", "-c", script, sys.executable, code, *words]
    try:
        done = subprocess.run(asked, check=False, capture_output=True, text=True, timeout=timeout)
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    if not done.stdout.startswith(MOUNTED):
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    return done.stdout.removeprefix(MOUNTED)
