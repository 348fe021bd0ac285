"""Names of files that are no UTF-8: they work, or one sentence refuses them; nobody sees a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from ups.cli.app import main
from ups.files import no_text, write_atomic
from ups.types import ConfigError, DataError
from ups.verdict import Ending, Failure, Verdict, read_failures

BAD = os.fsdecode(b"bad\xff")
CONFIG = "{name: r, out: OUT, data: {a: {task: advection1d, file: [GLOB]}}, device: cpu, dist: {ranks: 1}}"


def ups(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*words])
    return int(ended.value.code or 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / BAD
    place.mkdir()
    with h5py.File(os.fsencode(place / "1D_Advection_Sols_beta0.4.hdf5"), "w") as file:
        file["tensor"] = np.random.default_rng(0).random((9, 41, 32), np.float32)
        file["x-coordinate"], file["t-coordinate"] = (np.arange(32) + 0.5) / 32, np.linspace(0, 2, 42)
    return place


def test_data_below_a_name_that_is_no_text_is_read_and_written(folder: Path) -> None:
    file = str(folder / "1D_Advection_Sols_beta0.4.hdf5")
    commands = [
        ["info", file],
        ["split", file, "--out", str(folder / "s.json")],
        ["import", file, "--out", f"{folder}/w"],
    ]
    code = "import json, sys\nfrom ups.cli.app import main\nfor words in json.loads(sys.argv[1]):\n"
    code += "    try:\n        main(['data', *words])\n    except SystemExit as end:\n        print('ended', end.code)"
    asked = [sys.executable, "-c", code, json.dumps(commands)]
    done = subprocess.run(asked, check=False, capture_output=True, timeout=600)
    assert done.stdout.count(b"ended 0") == 3, done.stderr
    assert b"Traceback" not in done.stderr
    assert (folder / "s.json").is_file()


@pytest.mark.parametrize("flag", ["--out", "--name", "--data.a.file"])
def test_a_flag_with_bytes_that_are_no_text_is_one_sentence(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ups("config", "show", flag, f"a/{BAD}") == 2
    (sentence,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ups: ")]
    assert sentence.startswith(f"ups: {flag}: 'a/bad\\udcff' has bytes that are no text (UTF-8), which no config may")


@pytest.mark.parametrize("what", ["config", pytest.param("data", marks=pytest.mark.slow)])
def test_a_run_that_would_have_to_write_such_a_name_down_is_one_sentence(
    folder: Path, tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = (folder if what == "config" else tmp_path) / "c.yaml"
    pattern = json.dumps(f"{tmp_path}/*/*.hdf5")
    config.write_text(CONFIG.replace("OUT", str(tmp_path / "runs")).replace("GLOB", pattern))
    assert ups("run", str(config), "--operator.train.steps", "1", "--codec.train.steps", "1") == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert "bad\\udcff" in said
    assert "has bytes that are no text (UTF-8) and cannot be written down; rename that file or folder." in said


def test_how_something_ended_is_written_whatever_bytes_the_names_in_it_have(tmp_path: Path) -> None:
    error = ConfigError(f"{BAD}: is nothing.")
    Failure.of(error, 0, 3, "data").write(tmp_path / "failure.json")
    (record,) = read_failures([tmp_path / "failure.json"])
    assert (record.sentence, record.ending) == (str(error), Ending.USER)
    Verdict(Ending.USER, str(error)).write(tmp_path / "verdict.json")
    assert Verdict.read(tmp_path / "verdict.json").cause == str(error)


def test_a_text_that_cannot_be_written_replaces_nothing_and_is_said_with_the_name_in_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(DataError, match=r"'/b/bad.udcff': has bytes that are no text"):
        write_atomic(path, f'{{"file": "/b/{BAD}", "n": 1}}')
    assert [path.read_text(), len(list(tmp_path.iterdir()))] == ["old", 1]
    no_text(f"x {BAD} y").encode()
