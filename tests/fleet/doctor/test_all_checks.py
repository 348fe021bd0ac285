"""The doctor on this machine: green where all is well, and for each thing that is not, one red line with advice."""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import re
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ups_fleet.cli.doctor import doctor
from ups_fleet.doctor import machine_checks
from ups_fleet.doctor.all_checks import guarded, quick_checks
from ups_fleet.doctor.findings import DoctorLine, Finding, State
from ups_fleet.supervise.job import NESTED

NAMES = {
    "packages": ["python", "required", "optional"],
    "machine": [
        "environment",
        "cores",
        "memory",
        "shared memory",
        "disk",
        "file system",
        "open files",
        "clock",
        "ports",
        "network",
    ],
    "ranks": [
        *("devices", "backends", "listening", "shared files", "collectives", "bandwidth"),
        *("ddp training", "fsdp training", "checkpoint", "memory fault", "killed rank"),
    ],
}


def clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in (*NESTED, "OMP_NUM_THREADS")}


@pytest.fixture(scope="module")
def visited(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str, dict[str, Any]]:
    """One visit, shared by the tests: its exit code, what it showed, and its JSON."""
    home = tmp_path_factory.mktemp("visit")
    shown = io.StringIO()
    with contextlib.chdir(home), contextlib.redirect_stdout(shown), pytest.MonkeyPatch.context() as patch:
        for name in {*os.environ} - clean().keys():
            patch.delenv(name)
        code = doctor(device="cpu", json_out=home / "found.json")
    assert sorted(path.name for path in home.iterdir()) == ["found.json"], "nothing else is left behind"
    return code, shown.getvalue(), json.loads((home / "found.json").read_text())


def test_this_machine_and_two_ranks_on_it_are_well(visited: tuple[int, str, dict[str, Any]]) -> None:
    code, shown, found = visited
    assert code == 0, shown
    assert found["passed"] is True
    assert "0 bad" in shown


@pytest.mark.slow
def test_a_visit_as_a_user_makes_it_ends_well_and_has_nothing_to_complain_of(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "from ups.cli.app import main; main()", "doctor", "--device", "cpu"]
    done = subprocess.run(words, check=False, cwd=tmp_path, env=clean(), capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "0 bad" in done.stdout


def test_json_has_every_check_with_all_that_was_found(visited: tuple[int, str, dict[str, Any]]) -> None:
    _, shown, found = visited
    assert found["ranks"] == 2
    checks = found["checks"]
    assert {group: [c["name"] for c in checks if c["group"] == group] for group in NAMES} == NAMES
    assert found["counts"] == {s: sum(c["state"] == s for c in checks) for s in ("good", "doubtful", "bad")}
    for check in checks:
        assert set(check) == {"group", "name", "state", "found", "advice", "seconds", "facts"}
        assert check["found"], check["name"]
        assert bool(check["advice"]) == (check["state"] != "good"), check
        assert check["name"] in shown
    named = {check["name"]: check for check in checks}
    assert named["bandwidth"]["facts"]["bytes_per_second"] > 0
    assert named["fsdp training"]["facts"]["gap"] <= 1e-6
    assert "same bits as ddp" in named["fsdp training"]["found"]
    assert named["killed rank"]["facts"]["detection"] < 60
    assert named["devices"]["facts"]["gloo"] is True


def told(finding: Finding, state: State, *words: str) -> None:
    """A line that is not well has one sentence of advice."""
    assert finding.state == state, finding
    assert finding.advice.endswith(".")
    assert "\n" not in finding.found + finding.advice
    for word in words:
        assert word in f"{finding.found} {finding.advice}"


def test_variables_of_another_launcher_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NESTED:
        monkeypatch.delenv(name, raising=False)
    assert guarded(machine_checks.environment).state == State.GOOD
    monkeypatch.setenv("RANK", "3")
    told(guarded(machine_checks.environment), State.BAD, "RANK=3", "unset RANK")


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        told(guarded(machine_checks.ports, f"localhost:{port}"), State.BAD, str(port), "choose another")
    told(guarded(machine_checks.ports, f"localhost:{port}"), State.DOUBTFUL, "is free", "a network you trust")
    assert guarded(machine_checks.ports).state == State.GOOD
    told(guarded(machine_checks.ports, "nowhere"), State.BAD, "HOST:PORT")


def test_an_interface_that_is_not_there_and_variables_against_nccl_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TORCH_NCCL_BLOCKING_WAIT"):
        monkeypatch.delenv(name, raising=False)
    told(guarded(machine_checks.network, "ib7"), State.BAD, "dist.interface is 'ib7'", "name another")
    assert guarded(machine_checks.network, "lo").state == State.GOOD
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib7")
    told(guarded(machine_checks.network), State.DOUBTFUL, "NCCL_SOCKET_IFNAME is ib7", "unset it")
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "1")
    told(guarded(machine_checks.network), State.DOUBTFUL, "TORCH_NCCL_BLOCKING_WAIT", "unset it")


@pytest.mark.parametrize(
    ("soft", "hard", "ranks", "advice"),
    [
        (64, 1024, 2, "at least 320 are needed; `ulimit -n 1024` before the run."),
        (64, 400, 2, "at least 320 are needed; `ulimit -n 400` before the run."),
        (64, 10**6, 2, "at least 320 are needed; `ulimit -n 4096` before the run."),
        (64, -1, 1000, "at least 32256 are needed; `ulimit -n 32256` before the run."),
        (64, 64, 2, "than the hard limit of 64 here; have that raised to 4096 (LimitNOFILE= of a service,"),
        (1024, 1024, 200, "`ulimit -n` has lowered it), or use at most 24 ranks."),
        (288, 288, 2, "or use at most 1 rank."),
    ],
)
def test_what_raises_the_limit_of_open_files_suffices_and_is_in_force_nowhere(
    soft: int, hard: int, ranks: int, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    finding = machine_checks.descriptors(ranks)
    told(finding, State.BAD, f"{soft} open files", advice)
    offered = [int(n) for n in re.findall(r"ulimit -n (\d+)", finding.advice)]
    assert all(256 + 32 * ranks <= n <= (hard if hard > 0 else n) and n != soft for n in offered)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (-1, -1))
    assert machine_checks.descriptors(ranks).state == State.GOOD


def few_descriptors() -> Finding:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    return machine_checks.descriptors(2)


def test_too_few_open_files_are_named() -> None:
    told(guarded(few_descriptors), State.BAD, "64 open files", "hard limit of 64 here")


def test_a_package_that_is_missing_or_too_old_is_named() -> None:
    told(
        machine_checks.required(lambda name: None if name == "h5py" else machine_checks.installed(name)),
        State.BAD,
        "h5py",
    )
    old = machine_checks.required(lambda name: "2.3.1" if name == "torch" else machine_checks.installed(name))
    told(old, State.BAD, "torch 2.3.1 is not", "pip install 'torch")
    odd = machine_checks.optional(lambda name: "1.0" if name == "neuraloperator" else None)
    told(odd, State.DOUBTFUL, "neuraloperator 1.0")


@pytest.mark.parametrize(
    ("version", "clauses", "holds"),
    [
        ("2.13.0+cpu", ">=2.11,<3", True),
        ("2.9.1", ">=2.11,<3", False),
        ("3.0", "<3,>=2.11", False),
        ("2.11", ">=2.11.0", True),
        ("1.4.2", "~=1.4", True),
        ("2.0", "~=1.4", False),
        ("13.0.0", ">=10.4", True),
        ("1.0rc1", "==1.0", True),
        ("5", "!=5.0", False),
        ("1", "", True),
    ],
)
def test_versions_are_compared_as_numbers(version: str, clauses: str, holds: bool) -> None:
    assert machine_checks.within(version, clauses) is holds


def test_a_disk_without_room_is_named(tmp_path: Path) -> None:
    told(machine_checks.disk(tmp_path, least=2**60), State.BAD, str(tmp_path), "free some space")
    code = (
        "from pathlib import Path; from ups_fleet.doctor import machine_checks\n"
        "from ups_fleet.doctor.all_checks import guarded\n"
        f"f = guarded(machine_checks.disk, Path({str(tmp_path)!r})); print(f.state, '|', f.found, '|', f.advice)"
    )
    words = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=512k none "$0" && exec "$1" -c "$2"']
    words += [str(tmp_path), sys.executable, code]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=600)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr}")
    state, found, advice = done.stdout.strip().split(" | ")
    assert state == "bad"
    assert "No space left on device" in found
    assert "free some space" in advice


def test_a_folder_that_cannot_be_written_is_a_red_line_and_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for function in (machine_checks.disk, machine_checks.file_system, machine_checks.clock):
        told(guarded(function, tmp_path / "file"), State.BAD, "repair what is named here")
    assert guarded(machine_checks.file_system, tmp_path / "a" / "b").state == State.GOOD
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "what was made is gone again"


def test_locks_that_do_not_exclude_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_checks.fcntl, "flock", lambda *_: None)
    told(guarded(machine_checks.file_system, tmp_path), State.BAD, "flock", "two processes got the same lock")


def test_a_clock_that_jumps_or_was_never_set_is_named(tmp_path: Path) -> None:
    ticks = iter([0.0, 9.0, 9.0, 9.0])
    told(machine_checks.clock(tmp_path, lambda: next(ticks)), State.DOUBTFUL, "wall clock moved +8")
    told(machine_checks.clock(tmp_path, lambda: time.time() - 3600), State.DOUBTFUL, "3600.0 s off")


def test_more_ranks_than_the_machine_holds_are_named() -> None:
    told(machine_checks.cores(10**4), State.DOUBTFUL, "use at most")
    told(machine_checks.memory(10**6), State.BAD, "end other programs")
    told(machine_checks.shared_memory(10**9), State.BAD, "--shm-size")


def raises() -> Finding:
    raise OSError(5, "Input/output error")


def crashes() -> Finding:
    """With so many modules that their list, which is printed last, is longer than anybody reads of a log."""
    sys.modules.update({f"extension_with_a_long_name_{n}": sys.modules["_thread"] for n in range(1000)})
    ctypes.string_at(0)
    raise AssertionError


def hangs() -> Finding:
    time.sleep(1000)
    raise AssertionError


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (raises, "OSError"),
        (crashes, "a segmentation fault, in string_at"),
        (hangs, "did not answer within 2 s, in hangs"),
    ],
)
def test_a_look_that_fails_crashes_or_hangs_is_a_red_line(function, words: str) -> None:  # type: ignore[no-untyped-def]
    began = time.monotonic()
    told(guarded(function, seconds=2), State.BAD, words)
    assert time.monotonic() - began < 100


def test_a_red_line_makes_the_exit_code_1_and_shows_its_advice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = [
        DoctorLine("machine", "disk", State.BAD, "it is full", "free some space.", 0.1, {}),
        DoctorLine("machine", "clock", State.DOUBTFUL, "it jumps", "hold it.", 0.1, {}),
    ]
    monkeypatch.setattr("ups_fleet.doctor.all_checks.all_checks", lambda *_: iter(lines))
    assert doctor(json_out=tmp_path / "found.json") == 1
    shown = capsys.readouterr().out
    assert re.search(r"✗ disk +it is full", shown)
    assert "→ free some space." in shown
    assert json.loads((tmp_path / "found.json").read_text())["passed"] is False
    monkeypatch.setattr("ups_fleet.doctor.all_checks.all_checks", lambda *_: iter(lines[1:]))
    assert doctor() == 0


def test_help_and_looks_need_no_torch() -> None:
    code = (
        "import sys\nfrom ups.cli.app import app\nfrom pathlib import Path\n"
        "app(['doctor', '--help'], result_action='return_value')\n"
        "from ups_fleet.doctor.all_checks import guarded, quick_checks\n"
        "[guarded(*check[2:]) for check in quick_checks(2, Path('runs'))]\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=600, env=clean())
    assert [check[1] for check in quick_checks(2, Path("runs"))] == NAMES["packages"] + NAMES["machine"]


def test_what_a_killed_doctor_has_left_is_taken_away_and_not_what_one_at_work_has(tmp_path: Path) -> None:
    old, young = tmp_path / ".ups-doctor-0001", tmp_path / ".ups-doctor-0002"
    for path in (old, young):
        path.mkdir()
    os.utime(old, (0, 0))
    with machine_checks.own_folder(tmp_path) as inside:
        assert inside.is_dir()
    assert [path for path in (old, young, inside) if path.exists()] == [young]
