"""Too few open files: every command says so, and what to do."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ups.open_files import require, spent
from ups.types import ConfigError, DataError

LIMITED = "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({0}, {1})); "
RUN = "from ups.cli.app import main; main(sys.argv[1:])"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    np.savez(tmp_path / "a.npz", u=np.random.default_rng(0).random((4, 5, 16)))
    (tmp_path / "task.yaml").write_text("name: flow\ndims: [sample, time, x]\nfields: {u: [u]}\n")
    (tmp_path / "config.yaml").write_text("data: {flow: {file: a.npz, task: task.yaml}}\n")
    return tmp_path


@pytest.mark.parametrize(("limit", "most"), [(8, 8), (16, 16), (16, 4096)])
def test_a_run_that_may_open_few_files_says_so_before_it_begins(limit: int, most: int, config: Path) -> None:
    words = [sys.executable, "-c", LIMITED.format(limit, most) + RUN, "run", "config.yaml"]
    done = subprocess.run(words, check=False, cwd=config, capture_output=True, text=True, timeout=600)
    last = done.stderr.strip().splitlines()[-1]
    assert (done.returncode, done.stdout) == (2, "")
    assert last.startswith(f"ups: {limit} open files allowed per process, too few for the run; `ulimit -n")
    assert ("`ulimit -n 4096` before the run" in last) is (most > limit)
    assert not (config / "runs").exists()


def test_what_comes_of_too_many_open_files_is_told_so_whatever_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (16, 4096))
    try:
        try:
            raise OSError(errno.EMFILE, "Too many open files", "u/0.0")
        except OSError:
            raise DataError("a.zarr: its metadata cannot be read, the file is damaged; fetch it again.") from None
    except DataError as error:
        sentence = spent(error)
    assert sentence.startswith("u/0.0: cannot be opened: 16 open files allowed per process, too few here; `ulimit -n ")
    assert spent(RuntimeError("unable to mmap: Too many open files (24)")).startswith("a file cannot be opened: 16")
    assert spent(DataError("a.npz: is truncated; fetch it again.")) == ""
    with pytest.raises(ConfigError, match=r"16 open files allowed per process, too few for the run; `ulimit -n 4096`"):
        require("the run")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (-1, -1))
    require("the run")
