"""A disk that takes no more ends every command with code 18 and one sentence, whatever it was writing."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from memory_runs import finished
from rooms import run_in
from ups.types import ConfigError, DataError
from ups.verdict import Ending, classify

COMMANDS = """
import io, os, sys
from contextlib import redirect_stderr
from pathlib import Path
from ups.cli.app import main

folder, full = Path(sys.argv[1]), Path(sys.argv[2])
with open(full / "filler", "wb", buffering=0) as file:
    try:
        while file.write(b"x" * 1024):
            pass
    except OSError:
        pass
data = str(folder / "1D_Advection_Sols_beta0.4.hdf5")
for words in (
    *([["init", data, "--out", str(full / "c.yaml")]] if sys.argv[3:] else []),
    ["data", "generate", "advection1d", "--samples", "4", "--resolution", "64", "--frames", "9", "--out", str(full)],
    ["data", "import", data, "--out", str(full / "well")],
    ["data", "split", data, "--out", str(full / "split.json")],
    ["data", "fetch", "file://" + data, "--to", str(full)],
    ["compare", str(folder / "a"), str(folder / "b"), "--out", str(full / "page.html")],
    ["rollout", str(folder / "s.safetensors"), "--input", data, "--steps", "3", "--out", str(full / "r.h5")],
    ["bundle", "--out", str(full / "bundle")],
):
    said = io.StringIO()
    with redirect_stderr(said):
        try:
            main(words)
        except SystemExit as ended:
            code = ended.code
    last = [line for line in said.getvalue().splitlines() if line.startswith("ups: ")]
    print(words[0], words[1], code, bool(last), "Traceback" in said.getvalue(), flush=True)
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A file of PDEBench's layout."""
    from ups.models import CodecConfig, OperatorConfig, build
    from ups.physics import TASKS

    path = tmp_path / "1D_Advection_Sols_beta0.4.hdf5"
    with h5py.File(path, "w") as file:
        file["tensor"] = np.random.default_rng(0).random((4, 41, 32), np.float32)
        file["x-coordinate"], file["t-coordinate"] = (np.arange(32) + 0.5) / 32, np.linspace(0, 2, 42)
    for name in "ab":
        finished(tmp_path / name)
    small = OperatorConfig(width=8, depth=1, heads=1)
    build([TASKS["advection1d"]], CodecConfig(dim=4), small, shapes={"advection1d": (32,)}).save(
        tmp_path / "s.safetensors"
    )
    return path


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("init", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_full_disk_ends_every_command_with_its_own_code_and_one_sentence(tmp_path: Path, init: bool) -> None:
    """`ups init` measures this machine for a minute before it writes."""
    full = tmp_path / "full"
    full.mkdir()
    printed = run_in({full: "256k"}, COMMANDS, str(tmp_path), str(full), *["init"] * init, timeout=300)
    lines = [line for line in printed.splitlines() if line.endswith(("True", "False"))]
    assert len(lines) == (8 if init else 7), printed
    assert [line for line in lines if not line.endswith(" 18 True False")] == []


def test_what_hdf5_cannot_write_is_no_crash_of_it(data: Path, tmp_path: Path) -> None:
    """A limit of the size of files is seen by no look at the disk, and HDF5 does not survive it."""
    words = [sys.executable, "-m", "ups", "data", "import", str(data), "--out", str(tmp_path / "well")]
    limit = "from resource import *; setrlimit(RLIMIT_FSIZE, (4096, 4096))"
    limit = f"{limit}; import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    asked = [sys.executable, "-c", limit, *words]
    done = subprocess.run(asked, check=False, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == Ending.STORAGE, done.stderr
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("ups: ")]
    assert "no file that this process writes may be larger than 4.1 kB (ulimit -f)" in sentence
    assert "0x" not in sentence


def wrapped(origin: OSError, kind: type[Exception], cause: OSError | None) -> None:
    try:
        raise origin
    except OSError:
        raise kind("cannot be written") from cause


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("kind", [DataError, ConfigError])
def test_a_sentence_about_a_full_disk_is_of_the_disk_and_not_of_the_user(number: int, kind: type[Exception]) -> None:
    hdf5 = OSError(f"Can't write data (errno = {number}, error message = 'it is full')")
    for origin in (OSError(number, os.strerror(number)), hdf5):
        for cause in (origin, None):
            with pytest.raises(kind) as raised:
                wrapped(origin, kind, cause)
            assert classify(raised.value).ending == Ending.STORAGE
    assert classify(kind("cannot be written")).ending == Ending.USER
