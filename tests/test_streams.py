"""Printing decides no exit code: every command ends the same into a file, a full disk, a gone reader and nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import h5py
import pytest
from cyclopts import App

from broken_streams import STREAMS, code_of, codes_of, started
from planted_secrets import PLANTED, leaks
from ups.cli.app import app, main

GENERATE = ("data", "generate", "advection1d", "--samples", "4", "--resolution", "16", "--frames", "3")
RUN = """
name: {name}
out: {out}
data: {{a: {{task: advection1d, scheme: accurate, samples: 8, resolution: 16, device: cpu, reduce: {{time: 50}}}}}}
model: {{codec: {{dim: 4}}, operator: {{width: 8, depth: 1, heads: 1}}}}
codec: {{batch: 4, train: {{steps: 1}}}}
operator: {{batch: 4, train: {{steps: 1}}}}
device: cpu
"""
# Words that make each command end, in little time: with its work where that is quick, else with a mistake.
WORDS = {
    "data generate": (*GENERATE, "--out", "{folder}"),
    "data tasks": ("data", "tasks"),
    "data info": ("data", "info", "{file}"),
    "data validate": ("data", "validate", "{bad}"),
    "data fetch": ("data", "fetch", "pdebench:nothing", "--to", "{folder}"),
    "data import": ("data", "import", "{file}", "--out", "{folder}/well", "--overwrite"),
    "data split": ("data", "split", "{file}"),
    "config show": ("config", "show"),
    "config schema": ("config", "schema"),
    "cache build": ("cache", "build", "{folder}/nowhere"),
    "cache verify": ("cache", "verify", "{folder}"),
    "cache info": ("cache", "info", "{folder}"),
    "cache gc": ("cache", "gc", "{folder}"),
    "bench generate": ("bench", "generate", "--task", "nothing"),
    "bench engine": ("bench", "engine", "--rounds", "few"),
    "bench cache": ("bench", "cache", "--samples", "few"),
    "bench growth": ("bench", "growth", "--rounds", "few"),
    "bench speed": ("bench", "speed", "--part", "nothing"),
    "bench accuracy": ("bench", "accuracy", "nothing"),
    "bench verify": ("bench", "verify", "nothing"),
    "bench merge": ("bench", "merge", "{folder}/nowhere.json"),
    "bench tables": ("bench", "tables", "few"),
    "bench rollout": ("bench", "rollout", "{folder}/nowhere"),
    "init": ("init", "{bad}", "--out", "{folder}/config.yaml"),
    "run": ("run", "{folder}/nowhere.yaml"),
    "sweep": ("sweep", "{folder}/nowhere.yaml", "--seeds", "2"),
    "launch local": ("launch", "local", "{folder}/nowhere.yaml"),
    "launch slurm": ("launch", "slurm", "{folder}/nowhere.yaml"),
    "launch sky": ("launch", "sky", "{folder}/nowhere.yaml"),
    "launch vast": ("launch", "vast", "{folder}/nowhere.yaml"),
    "launch reap": ("launch", "reap", "--dry-run"),
    "launch status": ("launch", "status", "nothing"),
    "launch logs": ("launch", "logs", "nothing"),
    "launch stop": ("launch", "stop", "nothing"),
    "runs": ("runs", "{folder}"),
    "show": ("show", "{folder}"),
    "logs": ("logs", "{folder}"),
    "watch": ("watch", "{folder}"),
    "leaderboard": ("leaderboard", "{folder}"),
    "compare": ("compare", "{folder}", "{folder}"),
    "track": ("track", "{folder}/nowhere"),
    "faults": ("faults", "--ranks", "few"),
    "bundle": ("bundle", "--python", "2.7"),
    "doctor": ("doctor", "--limit", "0"),
    "estimate": ("estimate", "{folder}/nowhere.yaml"),
    "demo": ("demo", "--config", "{folder}/nowhere.yaml"),
    "evaluate": ("evaluate", "{folder}/nowhere"),
    "rollout": ("rollout", "{folder}/nowhere", "--input", "{file}", "--steps", "1", "--out", "{folder}/out.h5"),
    "play": ("play", "{folder}/nowhere"),
    "serve": ("serve", "{folder}/nowhere"),
    "export": ("export", "{folder}/nowhere", "--to", "pt2"),
}
# These make nothing but text: that a disk did not take it is worth an exit code. A reader that left has had enough.
TEXTS = {"data tasks", "data info", "config show", "config schema", "runs", "leaderboard"}
EXPECTED = {"data validate": 1, **dict.fromkeys((*TEXTS, "data generate", "data import", "data split", "cache gc"), 0)}
# A text, data, a verdict on data, a mistake before any work, and what the parser prints itself.
ONE_OF_EACH_SORT = ("data tasks", "data generate", "data validate", "run", "--help")
MOST_DIFFERENT = ("output to a full disk", "both closed")


def leaves(of: App, above: tuple[str, ...] = ()) -> Iterator[str]:
    """The words of every command of the tree."""
    for name in of:
        if name.startswith("-"):
            continue
        if of[name].default_command is not None:
            yield " ".join((*above, name))
        yield from leaves(of[name], (*above, name))


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("streams")
    with pytest.raises(SystemExit):
        main([*GENERATE, "--out", str(folder)])
    (file,) = folder.glob("*.hdf5")
    (folder / "bad.h5").write_text("not HDF5 at all")
    return {"folder": str(folder), "file": str(file), "bad": str(folder / "bad.h5")}


@pytest.mark.parametrize("all_pairs", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_command_ends_with_the_same_exit_code_whatever_stands_at_its_streams(
    places: dict[str, str], tmp_path: Path, all_pairs: bool
) -> None:
    """One command of each sort at every kind of streams, the others at the two that differ most; slow: all of them,
    which takes three times as long and repeats what the streams do for all commands alike."""
    assert set(leaves(app)) == WORDS.keys(), "give a new command its words above"
    words = {**WORDS, "--help": ("--help",), "--version": ("--version",), "data --help": ("data", "--help")}
    kinds = {c: STREAMS if all_pairs or c in ONE_OF_EACH_SORT else dict.fromkeys(MOST_DIFFERENT) for c in words}
    names = [(command, name) for command in words for name in kinds[command]]
    cases = [([word.format(**places) for word in words[command]], {}, STREAMS[name]) for command, name in names]
    codes = dict(zip(names, codes_of(cases, tmp_path / "printed"), strict=True))
    wrong = []
    for (command, name), code in codes.items():
        expected = EXPECTED.get(command, 0 if "-" in command else 2)
        if command in TEXTS and STREAMS[name][0] == "full":
            expected = 1
        if code != expected:
            wrong.append(f"{command}, {name}: {code}")
    assert wrong == []


@pytest.mark.slow
def test_the_interpreters_own_last_flush_decides_no_exit_code_either(places: dict[str, str]) -> None:
    """The same as above in processes of their own, where Python ends with 120 if its streams cannot be flushed."""
    words = [sys.executable, "-m", "ups", "data", "validate", places["bad"]]
    for streams in ("> /dev/full", "2>&- | true"):
        shell = ["bash", "-c", f'set -o pipefail; "$@" {streams}', "bash", *words]
        assert subprocess.run(shell, check=False, capture_output=True).returncode == 1, streams


def test_what_a_full_disk_did_not_take_is_said_once_on_standard_error(places: dict[str, str], tmp_path: Path) -> None:
    words = [["config", "schema"], ["data", "validate", *[places["bad"]] * 300]]
    assert codes_of([(w, {}, ("full", "file")) for w in words], tmp_path / "printed") == [1, 1]
    for number in range(2):
        text = (tmp_path / "printed" / f"{number}.2").read_text()
        assert text.count("standard output could not be written (No space left on device)") == 1
        assert text.count("\n") == 1


def test_a_run_ends_with_the_code_of_its_verdict_whatever_stands_at_its_streams(tmp_path: Path) -> None:
    """A failed run into `head -1` and into nothing; a run that succeeded, into a full disk."""
    fault = json.dumps([{"rank": 0, "phase": "forward", "step": 0, "kind": "error"}])
    failing = ["output to a pipe nobody reads", "both closed"]
    cases = []
    for number, (env, name) in enumerate(
        [*(({"UPS_FAULTS": fault}, n) for n in failing), ({}, "output to a full disk")]
    ):
        config = tmp_path / f"{number}.yaml"
        config.write_text(RUN.format(name=f"run-{number}", out=tmp_path))
        cases.append((["run", str(config)], {**PLANTED, **env}, STREAMS[name]))
    codes = codes_of(cases, tmp_path / "printed")
    assert list(leaks(tmp_path)) == [], "what is in the environment is in nothing that a run leaves or prints"
    verdicts = [json.loads((tmp_path / f"run-{n}" / "verdict.json").read_text())["verdict"] for n in range(len(cases))]
    assert verdicts == [*["CRASH"] * len(failing), "SUCCESS"]
    assert codes == [*[1] * len(failing), 0]
    told = (tmp_path / "printed" / f"{len(failing)}.2").read_text()
    assert told.count("standard output could not be written (No space left on device)") == 1


def test_a_closed_descriptor_is_never_given_to_a_file(tmp_path: Path) -> None:
    """Otherwise what a library prints would be written into it."""
    code = (
        "import os, sys\nfrom ups.streams import protect\nprotect()\n"
        f"file = open({str(tmp_path / 'file')!r}, 'w')\n"
        "os.write(1, b'noise')\nos.write(2, b'noise')\nprint('noise')\nprint('noise', file=sys.stderr)\n"
        "file.write('content')\n"
    )
    done = subprocess.run(["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, code], check=False)
    assert done.returncode == 0
    assert (tmp_path / "file").read_text() == "content"


def test_a_character_that_the_encoding_lacks_is_printed_as_its_number(places: dict[str, str]) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    words = [sys.executable, "-m", "ups", "data", "info", places["folder"] + "/n\u00fcrgends"]
    done = subprocess.run(words, env=environment, capture_output=True, check=False)
    assert done.returncode == 2
    assert b"n\\xfcrgends: there is no such file" in done.stderr


def test_a_pipe_that_does_not_block_and_is_full_is_waited_for() -> None:
    code = (
        "import os, threading, time\nfrom ups.streams import protect\nprotect()\n"
        "os.set_blocking(1, False)\nprint('x' * 1_000_000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert len(process.stdout.read()) == 1_000_001
    assert process.returncode == 0


def test_what_a_file_says_commands_no_terminal(places: dict[str, str], tmp_path: Path) -> None:
    """A title that would rename the window, clear the screen or type for the user is printed letter by letter."""
    path = tmp_path / "1D_Advection_Sols_beta0.4.hdf5"
    path.write_bytes(Path(places["file"]).read_bytes())
    with h5py.File(path, "a") as file:
        file.attrs["ups_device"] = "\x1b]0;mine\x07\x1b[2J"
    words = [["data", "info", str(path)], ["data", "info", f"{tmp_path}/\x1b[2J"]]
    assert codes_of([(w, {}, ("file", "file")) for w in words], tmp_path / "printed") == [0, 2]
    texts = [(tmp_path / "printed" / name).read_text() for name in ("0.1", "1.2")]
    assert all("\\x1b[2J" in text and "\x1b" not in text for text in texts)


def test_a_run_whose_terminal_is_closed_is_preempted_and_says_so_by_its_code(tmp_path: Path) -> None:
    """The terminal's end comes as a signal and as a stream that is gone; only the signal counts."""
    config = tmp_path / "long.yaml"
    config.write_text(RUN.format(name="long", out=tmp_path))
    terminal, other_end = os.openpty()
    words, device = ["run", str(config), "--operator.train.steps", "100000000"], os.ttyname(other_end)
    command = started(words, (device, device), tmp_path / "printed")
    run, printed, end = tmp_path / "long", b"", time.monotonic() + 120
    while b"operator:" not in printed and time.monotonic() < end:  # the stage that goes on for ever has begun
        printed += os.read(terminal, 4096)
    os.close(other_end)
    os.close(terminal)
    code = code_of(command)
    assert json.loads((run / "verdict.json").read_text())["verdict"] == "PREEMPTED"
    assert code == 15
