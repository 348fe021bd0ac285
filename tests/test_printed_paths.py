"""The last line of the output is the path of what was written: no name that would break that line is written to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from memory_runs import finished
from ups.cli.app import main

ODD = ["a\nb", "a\rb", "a\x1b[2Jb", "a\x7fb", "a\x9bb", "a\u2028b"]
FINE = ["a b", "ä", "a\u00adb", "a'\"$b", os.fsdecode(b"a\xffb")]
NAME = "1D_Advection_Sols_beta0.4.hdf5"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "given" / NAME
    path.parent.mkdir()
    with h5py.File(path, "w") as file:
        file["tensor"] = np.random.default_rng(0).random((9, 41, 32), np.float32)
        file["x-coordinate"], file["t-coordinate"] = (np.arange(32) + 0.5) / 32, np.linspace(0, 2, 42)
    return path


def commands(data: Path, place: Path) -> dict[str, list[str]]:
    """Each command that writes where it is told, and prints that."""
    out, runs = ["--out", str(place)], [str(data.parent / name) for name in "ab"]
    return {
        "generate": ["data", "generate", "advection1d", "--samples", "2", "--resolution", "32", *out],
        "import": ["data", "import", str(data), *out],
        "split": ["data", "split", str(data), *out],
        "fetch": ["data", "fetch", f"file://{data}", "--to", str(place)],
        "init": ["init", str(data), *out],
        "compare": ["compare", *runs, *out],
        "evaluate": ["evaluate", runs[0], *out],
        "rollout": ["rollout", runs[0], "--input", str(data), "--steps", "2", *out],
        "demo": ["demo", *out],
        "bundle": ["bundle", *out],
        "sweep": ["sweep", str(data), "--over", "seed=1,2", *out],
        "run": ["run", str(data.with_name("c.yaml"))],
        "cache": ["cache", "build", runs[0], "--cache.folder", json.dumps(str(place))],
    }


def ups(words: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0)


@pytest.mark.parametrize("command", commands(Path("/a/b"), Path("c")))
def test_a_name_that_breaks_a_line_is_refused_before_anything_is_done(
    command: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "ab":
        finished(data.parent / name)
    before = sorted(tmp_path.rglob("*"))
    for odd in ODD[:2] if command == "run" else ODD:
        if command == "run":
            config = {
                "name": "r",
                "out": str(tmp_path / odd),
                "data": {"a": {"task": "advection1d", "file": str(data)}},
            }
            data.with_name("c.yaml").write_text(json.dumps(config))
            before = sorted(tmp_path.rglob("*"))
        assert ups(commands(data, tmp_path / odd)[command]) == 2
        said = capsys.readouterr().err
        (sentence,) = [line for line in said.split("\n") if line.startswith("ups: ")]
        assert "and could not be printed as a line; choose another name." in sentence, said
        assert sentence.isprintable()
        assert "Traceback" not in said
    assert sorted(tmp_path.rglob("*")) == before


def test_what_lies_beside_an_input_of_such_a_name_is_not_written(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = data.with_name("a\nb.hdf5")
    data.rename(odd)
    assert ups(["data", "split", str(odd), "--task", "advection1d"]) == 2
    assert "choose another name" in capsys.readouterr().err
    assert list(odd.parent.iterdir()) == [odd]
    assert ups(["data", "info", str(odd), "--task", "advection1d"]) == 0, "it is read, and shown without its newline"


def test_the_last_line_is_the_path_to_the_byte(data: Path, tmp_path: Path) -> None:
    """Of commands that are given one after the other."""
    code = "import json, sys\nfrom ups.cli.app import main\nfor words in json.loads(sys.argv[1]):\n"
    code += (
        "    try:\n        main(words)\n    except SystemExit as end:\n        assert not end.code\n    print('---')"
    )
    expected, words = [], []
    for folder in (tmp_path / name for name in FINE):
        places = {"split": folder / "s.json", "fetch": folder, "import": folder / "advection1d"}
        words += [
            commands(data, folder if command == "import" else place)[command] for command, place in places.items()
        ]
        expected += [places["split"], folder / NAME, places["import"]]
    done = subprocess.run([sys.executable, "-c", code, json.dumps(words)], check=True, capture_output=True, timeout=600)
    answers = [piece.splitlines()[-1] for piece in done.stdout.split(b"\n---\n")[:-1]]
    assert answers == [os.fsencode(path) for path in expected]


def test_what_is_neither_text_nor_a_byte_is_printed_as_its_number() -> None:
    said = "print('\\udcff \\ud800 \\u2713', flush=True)"
    code = f"from ups.streams import protect\nprotect()\n{said}"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "utf-8"}
    )
    assert done.stdout == b"\xff \\ud800 \xe2\x9c\x93\n"
