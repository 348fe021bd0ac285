"""The command line as a user meets it: helps, outputs, exit codes, and one sentence for each mistake."""

from __future__ import annotations

import errno
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ups import __version__
from ups.cli.app import app, main

GENERATE = ("data", "generate")
Ups = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ups(capsys: pytest.CaptureFixture[str]) -> Ups:
    """`ups(*words)` gives (exit code, stdout, stderr) of the command."""

    def run(*words: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


@pytest.mark.parametrize(
    "words",
    ["", "data", "data generate", "data info", "data validate", "data split", "config", "bench generate", "demo"],
)
def test_every_help_explains_itself(ups: Ups, words: str) -> None:
    code, out, _ = ups(*words.split(), "--help")
    assert code == 0
    assert "Usage: ups" in out


def test_the_help_lists_every_command_in_the_order_in_which_one_needs_it(ups: Ups) -> None:
    listed = re.findall(r"^│ (\S+) ", ups("--help")[1], re.MULTILINE)
    begin, train = ["demo", "init", "data", "config"], ["estimate", "run", "sweep", "launch"]
    look = ["runs", "show", "watch", "logs", "compare", "leaderboard", "track"]
    use = ["evaluate", "rollout", "play", "serve", "export"]
    check = ["cache", "doctor", "faults", "bundle", "bench"]
    assert listed == [*begin, *train, *look, *use, *check, "--help", "--version"]
    assert sorted(app) == sorted([*listed, "-h"])


@pytest.mark.parametrize("start", [["-m", "ups"], ["-c", "from ups.cli.app import main; main()"]])
def test_a_folder_that_is_gone_ends_every_command_in_one_sentence(start: list[str], tmp_path: Path) -> None:
    """MKL ends a process that stands in none, and paths are FileNotFoundErrors there."""
    commands = [["config", "show"], ["doctor"], ["data", "fetch", "file:///x"], ["init", "x"], ["run", "/c.yaml"], []]
    for number, words in enumerate(commands):
        place = tmp_path / f"{start[0]}{number}"
        place.mkdir()
        leave = "import os, sys; os.chdir(sys.argv[1]); os.rmdir(sys.argv[1]); os.execv(sys.executable, sys.argv[2:])"
        asked = [sys.executable, "-c", leave, str(place), sys.executable, *start, *words]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 2, done.stderr
        assert done.stderr == (
            "ups: the folder that this command was given in is gone (No such file or directory); cd to another.\n"
        )


def test_version_is_the_packages(ups: Ups) -> None:
    assert ups("--version")[1].strip() == __version__


def test_generate_prints_the_path_as_its_last_line_and_does_nothing_the_second_time(ups: Ups, tmp_path: Path) -> None:
    words = (
        "data",
        "generate",
        "advection1d",
        "--samples",
        "3",
        "--resolution",
        "32",
        "--out",
        tmp_path,
        "--beta",
        "1",
    )
    code, out, err = ups(*words)
    path = Path(out.splitlines()[-1])
    assert code == 0
    assert path == tmp_path / "1D_Advection_Sols_beta1.0.hdf5"
    assert "3 of 3" in err
    before = path.stat().st_mtime_ns
    assert ups(*words)[:2] == (0, f"{path}\n")
    assert path.stat().st_mtime_ns == before


def test_what_was_generated_is_described_validated_and_split(ups: Ups, tmp_path: Path) -> None:
    words = ("data", "generate", "burgers1d", "--samples", "10", "--resolution", "64", "--frames", "21", "--nu", "0.1")
    path = ups(*words, "--out", tmp_path)[1].strip()
    assert "1D Burgers (burgers1d)" in ups("data", "info", path)[1]
    assert ups("data", "validate", path)[:2] == (0, f"{path}: nothing wrong found\n")
    code, out, _ = ups("data", "split", path)
    assert (code, out.splitlines()[0]) == (0, "train 8, valid 1, test 1")
    record = json.loads(Path(out.splitlines()[1]).read_text())
    parts = [set(record[part]) for part in ("train", "valid", "test")]
    assert len(set.union(*parts)) == sum(map(len, parts)) == 10


def test_init_and_boundary_may_be_written_in_any_case(ups: Ups, tmp_path: Path) -> None:
    words = ("data", "generate", "cfd1d", "--samples", "1", "--resolution", "32", "--eta", "1e-8", "--zeta", "1e-8")
    code, out, _ = ups(*words, "--init", "shock", "--boundary", "trans", "--out", tmp_path)
    assert code == 0
    assert Path(out.strip()).name == "1D_CFD_Shock_Eta1.e-8_Zeta1.e-8_trans_Train.hdf5"


MISTAKES = {
    "unknown task": ((*GENERATE, "burger1d"), "did you mean 'burgers1d'?"),
    "negative viscosity": ((*GENERATE, "burgers1d", "--nu", "-1"), "nu is -1, but must be above 0"),
    "viscosity in words": ((*GENERATE, "burgers1d", "--nu", "thick"), "must be a finite number"),
    "unknown parameter": ((*GENERATE, "burgers1d", "--mu", "1"), "has no parameter 'mu'; it has nu"),
    "parameter under params": ((*GENERATE, "burgers1d", "--params.nu", "1"), "a flag of its own: --nu VALUE"),
    "no samples": ((*GENERATE, "burgers1d", "--samples", "0"), "greater than or equal to 1"),
    "unknown scheme": ((*GENERATE, "burgers1d", "--scheme", "exact"), "pdebench"),
    "scheme of another task": ((*GENERATE, "ks1d", "--scheme", "pdebench"), "has no scheme 'pdebench'"),
    "closed shock tube": ((*GENERATE, "cfd1d", "--init", "Shock"), "use boundary trans"),
    "unknown device": ((*GENERATE, "burgers1d", "--device", "tpu"), "device"),
    "unwritable folder": ((*GENERATE, "burgers1d", "--out", "/proc/data"), "choose another --out"),
    "missing task": (GENERATE, "--task requires an argument"),
    "unknown command": (("data", "genrate"), 'Did you mean "generate"?'),
    "missing file": (("data", "info", "nowhere.hdf5"), "no such file"),
    "no file": (("data", "validate"), "no file was named"),
    "nothing to fetch": (("data", "fetch"), "nothing was named"),
    "unknown published file": (("data", "fetch", "pdebench:advection1d/beta0.5"), "did you mean 'advection1d/beta0."),
    "neither name nor address": (("data", "fetch", "u:secret@host/x?token=secret"), "'…@host/x' is neither a name"),
    "too many parts": (("data", "fetch", "well:planetswe", "--parts", "64"), "must be from 1 to 32"),
    "unknown store": (("data", "fetch", "ftq://host/a.h5"), "no store is called ftq://"),
    "unknown key": (("config", "show", "--data.b.sampels", "3"), "did you mean 'samples'?"),
    "part of a sample": ((*GENERATE, "burgers1d", "--samples", "1.5"), "'1.5' is not a whole number"),
    "part of a step": (("rollout", "r", "--input", "i", "--out", "o", "--steps", "1.5"), "'1.5' is not a whole number"),
    "caches of nowhere": (("cache", "gc", "nowhere"), "there is no such folder"),
    "flag that is no YAML": (("config", "show", "--seed", "[1"), "is not valid YAML"),
    "flag without value": (("config", "show", "--name"), "is not a flag with a value"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    ups: Ups, mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words, hint = MISTAKES[mistake]
    code, out, err = ups(*words)
    assert code == 2
    assert out == ""
    assert hint in err
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert not list(tmp_path.rglob("*.hdf5"))


def test_a_broken_file_is_one_line_and_exit_code_1_of_validate(ups: Ups, tmp_path: Path) -> None:
    path = tmp_path / "notes.h5"
    path.write_text("not HDF5 at all")
    code, out, err = ups("data", "validate", path)
    assert (code, err) == (1, "")
    assert out.startswith(f"{path}: is not an HDF5 file, nor anything else that can be read (")
    assert out.endswith("or is damaged; check what it is and fetch it again.\n")
    assert out.count("\n") == 1


def test_config_show_and_schema_print_what_can_be_loaded(ups: Ups, tmp_path: Path) -> None:
    code, out, _ = ups("config", "show", "--data.x.task", "kdv1d", "--name", "a")
    assert code == 0
    assert "# fingerprint" in out
    (tmp_path / "c.yaml").write_text(out)
    assert ups("config", "show", tmp_path / "c.yaml")[1] == out
    assert "DataConfig" in json.loads(ups("config", "schema")[1])["$defs"]


def test_the_list_of_tasks_names_schemes_and_files(ups: Ups) -> None:
    out = ups("data", "tasks")[1]
    assert "burgers1d" in out
    assert "1D_Burgers_Sols_Nu{nu}.hdf5" in out


def test_a_read_only_folder_is_one_sentence(ups: Ups, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object, mode: str = "r") -> None:
        raise PermissionError(13, "Permission denied", str(path), mode)

    monkeypatch.setattr("ups.data.write.open", refuse, raising=False)
    code, _, err = ups("data", "generate", "burgers1d", "--samples", "1", "--resolution", "16", "--out", tmp_path)
    assert code == 2
    assert "cannot be written to (Permission denied)" in err


def test_too_little_memory_to_begin_with_is_one_sentence() -> None:
    command = f"ulimit -v 300000; {sys.executable} -m ups data generate advection1d --samples 3 --out nowhere"
    ended = subprocess.run(["sh", "-c", command], check=False, capture_output=True, text=True)
    *before, last = ended.stderr.splitlines()
    assert ended.returncode == 10, ended.stderr
    assert "memory ran out here" in last
    assert all(line.startswith("getting ready to solve advection1d") for line in before)


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (MemoryError(), 10, "memory ran out here"),
        (OSError(errno.EIO, "Input/output error"), 18, "the disk did not take or give"),
        (OSError(errno.EROFS, "Read-only file system"), 18, "the disk did not take or give"),
    ],
)
def test_what_the_machine_does_not_give_is_one_sentence(
    ups: Ups, error: Exception, code: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def job(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("ups.jobs.rollout.rollout", job)
    ended, _, told = ups("rollout", "run", "--input", "file", "--steps", "2", "--out", "out.h5")
    assert (ended, len(told.splitlines())) == (code, 1)
    assert words in told


def test_a_bug_is_not_called_a_want_of_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    def job(*_: object, **__: object) -> None:
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr("ups.jobs.rollout.rollout", job)
    with pytest.raises(RuntimeError, match="shapes"):
        main(["rollout", "run", "--input", "file", "--steps", "2", "--out", "out.h5"])
