"""A lab goes on where it was stopped: no finished case is repeated, none is lost, and the table is the same."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fault_tests.home import ENV, UPS

from ups.cli.app import main
from ups.types import ConfigError, DataError
from ups_fleet.fault_tests.case import CaseResult, FaultCase
from ups_fleet.fault_tests.faults import FAMILIES, draw
from ups_fleet.fault_tests.journal import NAME, FaultJournal, read, request_of
from ups_fleet.fault_tests.lab import Lab
from ups_fleet.fault_tests.privileges import missing
from ups_fleet.fault_tests.table import BEGIN, END, markdown, summary, write_page

PAGE = Path(__file__).parents[3] / "docs" / "faults.md"


def request(**changes: Any) -> dict[str, Any]:
    values = {"faults": 20, "seed": 3, "ranks": [1, 2], "strategies": ["single", "ddp"], "only": []}
    return request_of(**{**values, **changes})


def cases() -> list[FaultCase]:
    return draw(20, 3, (1, 2), ("single", "ddp"))


@dataclass(frozen=True)
class Quick(Lab):
    """A lab whose cases take no time; `tried` has the names of those it was asked for."""

    tried: list[str] = field(default_factory=list)
    interrupt: int = 0

    @property
    def data(self) -> Path:  # type: ignore[override]
        return self.folder

    def undisturbed(self, kind: Any) -> float:  # noqa: ARG002
        return 1.0

    def _try(self, case: FaultCase, folder: Path, data: Path, reference: Path | None, pace: float) -> CaseResult:  # noqa: ARG002
        self.tried.append(folder.name)
        if len(self.tried) == self.interrupt:
            os.kill(os.getpid(), signal.SIGINT)
        return CaseResult(case.facts(), ["SUCCESS"], equal=True, seconds=float(len(case.name)))


def test_the_same_command_goes_on_after_the_last_result_and_makes_the_same_table(tmp_path: Path) -> None:
    whole = FaultJournal(tmp_path / "whole", request())
    undisturbed = Quick(tmp_path / "whole", 1).run(cases(), journal=whole)
    path, first = tmp_path / "cut" / NAME, Quick(tmp_path / "cut", 1)
    journal = FaultJournal(tmp_path / "cut", request())
    first.run(cases(), journal=journal)
    journal.close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:8]) + lines[8][:20])  # as a kill in the middle of a line leaves it
    journal, again = FaultJournal(tmp_path / "cut", request()), Quick(tmp_path / "cut", 1)
    known = set(journal.rows)
    results = again.run(cases(), journal=journal)
    journal.close()
    assert len(known) == 7
    assert not {f"case-{number:04d}" for number in known} & set(again.tried)
    assert summary(results) == summary(undisturbed)
    assert read(path)[1] == read(whole.path)[1]
    assert len(path.read_bytes().splitlines()) == 21


@pytest.mark.parametrize("room", [0, 7], ids=["nothing", "a few bytes"])
def test_a_line_that_a_full_disk_took_a_part_of_spoils_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """The system writes what fits and says how much; only the next write fails."""
    one, *_ = results = [CaseResult(case.facts(), ["SUCCESS"]) for case in cases()]
    journal, write, left = FaultJournal(tmp_path, request()), os.write, [room]

    def write_what_fits(descriptor: int, content: bytes | memoryview) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        size = left[0]
        left[0] = 0
        return write(descriptor, content[:size])

    journal.add(1, one)
    with monkeypatch.context() as full:
        full.setattr(os, "write", write_what_fits)
        with pytest.raises(OSError, match="No space left"):
            journal.add(2, results[1])
    journal.add(3, results[2])
    journal.close()
    assert list(read(journal.path)[1]) == [1, 3]


def test_ctrl_c_finishes_what_is_under_way_and_the_next_command_goes_on(tmp_path: Path) -> None:
    journal, lab, lines = FaultJournal(tmp_path, request()), Quick(tmp_path, 2, interrupt=5), list[str]()
    with pytest.raises(KeyboardInterrupt):
        lab.run(cases(), lines.append, journal)
    journal.close()
    assert any("stopping" in line for line in lines)
    journal = FaultJournal(tmp_path, request())
    finished = {f"case-{number:04d}" for number, row in journal.rows.items() if not row.skipped}
    assert finished == set(lab.tried), "each that was begun has its result"
    rest = Quick(tmp_path, 2)
    assert len(rest.run(cases(), journal=journal)) == 20
    assert not set(rest.tried) & finished
    journal.close()


@pytest.mark.parametrize("change", [{"seed": 4}, {"faults": 21}, {"only": ["F6"]}, {"ranks": [1]}])
def test_another_request_in_the_same_folder_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    FaultJournal(tmp_path, request()).close()
    with pytest.raises(
        ConfigError, match=f"holds results of another request \\({next(iter(change))}: .* → .*another --out"
    ):
        FaultJournal(tmp_path, request(**change))


def test_results_of_other_code_are_refused_and_two_labs_do_not_share_a_folder(tmp_path: Path) -> None:
    FaultJournal(tmp_path, {**request(), "code": "0123456789ab"}).close()
    with pytest.raises(ConfigError, match=r"another request \(code: 0123456789ab → "):
        FaultJournal(tmp_path, request())
    held = FaultJournal(tmp_path / "held", request())
    with pytest.raises(ConfigError, match="another `ups faults` is at work there"):
        FaultJournal(tmp_path / "held", request())
    held.close()


@pytest.mark.parametrize(
    "content", [b"[]\n", b"no json\n", b'{"request": 1}\n', b'{"request": {}, "environment": {}}\n{}\n']
)
def test_a_file_that_is_no_journal_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(DataError, match="is no journal of `ups faults`"):
        FaultJournal(tmp_path, request())


def test_what_a_machine_cannot_do_is_skipped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ups_fleet.fault_tests.privileges.allowed", lambda name: False)  # noqa: ARG005
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    few = [case for case in draw(60, 3, (1, 2), ("single", "ddp")) if case.around.needs]
    results = Quick(tmp_path).run(few)
    assert few
    assert missing(few[0].around.needs) == "root"
    assert {row.skipped for row in results} == {"root"}
    head = {"request": request(), "environment": SURROUNDINGS}
    assert f"{len(few)} skipped: needs root" in markdown(head, results)


SURROUNDINGS = {
    "started": "2026-01-02T03:04:05+0000",
    "versions": {"ups": "1", "torch": "2", "python": "3"},
    "platform": "Linux",
    "cores": 16,
}


def test_the_table_of_a_page_is_what_the_command_makes_of_its_results(tmp_path: Path) -> None:
    """The command finds all results there, runs nothing, and writes just the table of them."""
    out, page = tmp_path / "out", tmp_path / "page.md"
    journal = FaultJournal(out, request(faults=3, only=["F13"]))
    for number, case in enumerate(draw(3, 3, (1, 2), ("single", "ddp"), ["F13"]), 1):
        journal.add(
            number,
            CaseResult(case.facts(), ["SUCCESS"], equal=True, seconds=1.5, skipped="root" if number == 3 else ""),
        )
    journal.close()
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    words = ["faults", "--faults", "3", "--seed", "3", "--ranks", "1,2", "--strategies", "single,ddp", "--only", "F13"]
    with pytest.raises(SystemExit):
        main([*words, "--out", str(out), "--table", str(page)])
    head, rows = read(out / NAME)
    assert page.read_text() == f"before\n{BEGIN}\n{markdown(head, list(rows.values()))}\n{END}\nafter\n"
    assert "| F13 | 2 | 0 | 2/2 | - | - |" in page.read_text()
    assert "0 hung, 0 false successes, 0 samples missing or twice, at most 0 steps made again" in page.read_text()
    command = "`ups faults --faults 3 --seed 3 --ranks 1,2 --strategies single,ddp --only F13`"
    assert f"{command}; 3 cases; 1 skipped: needs root; " in page.read_text()


def test_a_page_without_marks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("no marks")
    with pytest.raises(DataError, match="has no lines"):
        write_page(tmp_path / "page.md", "table")
    with pytest.raises(DataError, match="cannot be read"):
        write_page(tmp_path / "none.md", "table")


def test_the_page_of_the_docs_explains_every_family_and_has_its_marks() -> None:
    text = PAGE.read_text()
    assert BEGIN in text
    assert END in text
    for family in FAMILIES:
        assert f"| {family} |" in text.partition(BEGIN)[0], f"{family} is not in the matrix of the page"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_lab_that_is_killed_leaves_nobody_and_goes_on(tmp_path: Path) -> None:
    words = [*UPS, "faults", "--faults", "6", "--only", "F13,F6", "--ranks", "1,2", "--strategies", "single,ddp"]
    command = [*words, "--jobs", "2", "--out", str(tmp_path)]
    with (tmp_path / "log").open("ab") as log:
        lab = subprocess.Popen(command, stdout=log, stderr=log, env=ENV)
        end = time.monotonic() + 300
        while not (tmp_path / NAME).exists() or (tmp_path / NAME).read_bytes().count(b"\n") < 3:
            assert time.monotonic() < end
            assert lab.poll() is None
            time.sleep(0.05)
        lab.kill()
        lab.wait()
    end = time.monotonic() + 120
    while left := [pid for pid in filter(str.isdigit, os.listdir("/proc")) if works_in(pid, tmp_path)]:
        assert time.monotonic() < end, f"{left} outlived the lab"
        time.sleep(0.1)
    before = (tmp_path / NAME).read_bytes()
    again = subprocess.run(command, check=False, capture_output=True, text=True, env=ENV, timeout=600)
    assert again.returncode == 0, again.stdout + again.stderr
    assert f"{before.count(bytes([10])) - 1} of 6 results are there" in again.stdout
    after = (tmp_path / NAME).read_bytes()
    assert after.startswith(before[: before.rfind(b"\n") + 1])
    numbers = [json.loads(line)["number"] for line in after.splitlines()[1:]]
    assert sorted(numbers) == [1, 2, 3, 4, 5, 6]


def works_in(pid: str, folder: Path) -> bool:
    """Whether a process has a file of the folder open."""
    try:
        names = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return False
    return int(pid) != os.getpid() and any(name.startswith(str(folder)) for name in names)


def test_undisturbed_runs_with_other_settings_have_folders_of_their_own(tmp_path: Path) -> None:
    lab, settings = (
        Lab(tmp_path, 1),
        ((), (("codec.workers", 1),), (("operator.workers", 1),), (("operator.workers", 2),)),
    )
    assert len({lab.plain((4, "fsdp", changes)) for changes in settings}) == len(settings)
