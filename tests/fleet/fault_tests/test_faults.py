"""A few faults of every kind, in every run of the tests; the whole matrix on purpose."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ups.cli.app import main
from ups.rundir import RunDir
from ups.verdict import classify
from ups_fleet.fault_tests.case import STEPS, CaseDir, CaseResult, Disturbance, FaultCase, Strategy
from ups_fleet.fault_tests.case_run import compare, judge
from ups_fleet.fault_tests.damage import Damaged, damage
from ups_fleet.fault_tests.disturbances import ADDRESS, Cap, CappedMemory, WrongClock, shift_clock
from ups_fleet.fault_tests.faults import FAMILIES, FAULTS, ROWS, draw
from ups_fleet.fault_tests.lab import Lab, same_samples
from ups_fleet.fault_tests.strangers import Strangers
from ups_fleet.fault_tests.table import summary, write_json
from ups_fleet.supervise.fault_plan import Fault, FaultPlan
from ups_fleet.supervise.forked_functions import run_copy

KINDS: tuple[Strategy, ...] = ("single", "ddp", "fsdp")
FLIPPED = FaultCase("F11", "flip", 2, "ddp", (Fault("kill", 0, "forward", 6),), named=0, around=Damaged("flip"))
OOM, CAPPED = Fault("oom", 1, "block", 5), "memory capped"
# What surrounds a run is put together with what strikes it: the promises of both must hold.
QUICK = [
    FaultCase(
        "F1",
        "oom, capped",
        2,
        "ddp",
        (OOM, Fault("abort", 0, "teardown")),
        starts=1,
        around=CappedMemory(0, 3, python=False),
    ),
    FaultCase("F9", "stop", 2, "ddp", (Fault("term", 1, "forward", 5),), ("PREEMPTED",), around=WrongClock(0, "jumps")),
    FaultCase(
        "F10",
        "no space",
        2,
        "ddp",
        (Fault("full", 0, "before shard", 5, times=99),),
        ("STORAGE",),
        starts=1,
        output="2 times in a row",
    ),
    FaultCase("F19", "strangers", 2, "ddp", around=Strangers("user", "pickle", 2)),
]
# A kill of rank 1 that is mended by a second start, promised to be everything else.
WRONG = FaultCase(
    "F6", "wrong", 2, "ddp", (Fault("kill", 1, "backward", 5),), first=("HANG",), named=0, starts=1, output="never said"
)  # fmt: skip
# What takes longer: a run in pulses, uneven shares compared with one process and with the other strategy; and what
# tests of the supervisor and of checkpoints see in less time.
LONG = [
    FLIPPED,
    FaultCase("F4", "error", 2, "ddp", (Fault("error", 1, "loss", 2),), ("CRASH",), named=1, phase="forward", starts=1),
    FaultCase("F15", "orphans", 2, "ddp", (Fault("orphan", 0, "data", 5),), ("KILLED",), around=ADDRESS),
    FaultCase("F2", "no memory", 2, "ddp", (Fault("oom", 1, "loss", 5, times=99),), ("OOM",), named=1, phase="forward"),
    *(FAULTS["F7", name].case(random.Random(1), 2, "ddp") for name in ("pulses rank", "pulses supervisor", "crowded")),
    *(FAULTS["F8", "uneven shares"].case(random.Random(1), *kind) for kind in ((2, "ddp"), (2, "fsdp"), (4, "ddp"))),
    *(FAULTS["F15", name].case(random.Random(1), 2, "ddp") for name in ("clock of supervisor", "stale")),
    *(
        FAULTS[row].case(random.Random(1), 2, "fsdp")
        for row in (("F1", "memory capped"), ("F3", "memory capped for good"))
    ),
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("lab"))


@pytest.fixture(scope="module")
def quick(lab: Lab) -> list[CaseResult]:
    return lab.run(QUICK)


def test_a_disturbed_run_ends_in_time_truthfully_and_with_the_same_bits(
    lab: Lab, quick: list[CaseResult], tmp_path: Path
) -> None:
    assert [(r.case["name"], r.broken) for r in quick if r.broken] == []
    assert same_samples(lab, QUICK) == []
    write_json(tmp_path / "results.json", {"request": {"quick": True}}, quick, 1.0)
    values = json.loads((tmp_path / "results.json").read_text())
    assert [row["equal bits"] for row in values["summary"]][-1] == f"{len(QUICK)} of {len(QUICK)}"
    assert values["request"] == {"quick": True}


def test_the_lab_notices_what_was_not_promised(tmp_path: Path) -> None:
    """A fault promised to be mended in place, on another rank, with other words: each is seen to be untrue, no more."""
    result, attempt = CaseResult(WRONG.facts(), ["SUCCESS"], starts=2), {"verdict": "RANK_DIED", "rank": 1}
    judge(WRONG, result, {"attempts": [attempt, {"verdict": "SUCCESS"}]}, CaseDir(tmp_path, tmp_path))
    words = ("2 times, not 1", "RANK_DIED, not HANG", "rank 1 was named, and it was 0", "nobody said")
    assert [w in told for w, told in zip(words, result.broken, strict=True)] == [True] * 4, result.broken


def test_the_lab_notices_losses_that_are_off_by_more_than_rounding(tmp_path: Path) -> None:
    """Weights that are equal prove nothing of the steps before: each loss and gradient is held to the promise."""
    case = FaultCase("F12", "resized", 2, "fsdp", bits=False, close=True)
    place, reference = CaseDir(tmp_path / "case", tmp_path), RunDir(tmp_path / "plain" / "run")
    for run in (place.run, reference):
        run.artifact("simulator").parent.mkdir(parents=True)
        save_file({"w": torch.ones(3)}, run.artifact("simulator"))
    for gap, seen in ((2e-7, False), (3e-6, True)):
        for run, loss in ((reference, 0.5), (place.run, 0.5 * (1 + gap))):
            run.metrics.write_text(json.dumps({"step": 1, "operator/loss": loss, "operator/gradient": 2.0}) + "\n")
        result = CaseResult(case.facts(), ["PREEMPTED", "SUCCESS"])
        compare(case, result, place, reference)
        assert any("off the undisturbed run's by 3" in words for words in result.broken) is seen, result.broken


def test_the_same_seed_draws_the_same_faults_and_all_worlds_are_drawn() -> None:
    some, again = (draw(200, 3, (1, 2, 4), ("single", "ddp", "fsdp")) for _ in range(2))
    assert some == again
    assert some != draw(200, 4, (1, 2, 4), ("single", "ddp", "fsdp"))
    assert [f"F{n}" for n in range(1, 29)] == FAMILIES
    assert {(c.world, c.strategy) for c in some if c.family != "F14"} == {
        (1, "single"),
        (1, "fsdp"),
        *((n, s) for n in (2, 4) for s in ("ddp", "fsdp")),
    }


def test_every_row_of_the_table_is_a_fault_of_its_own_on_some_ranks() -> None:
    assert len(FAULTS) == len(ROWS)
    kinds: tuple[tuple[int, Strategy], ...] = ((1, "single"), (2, "ddp"), (2, "fsdp"))
    for fault in ROWS:
        case = next(case for kind in kinds if (case := fault.case(random.Random(0), *kind)) is not None)
        disturbed = case.faults or case.around != Disturbance() or case.changes
        assert disturbed or case.name == "undisturbed", fault.name


def test_every_family_is_drawn_as_often_as_any_other_and_every_row_of_it_in_turn() -> None:
    counts = Counter(case.family for case in draw(1000, 0, (1, 2, 4), ("single", "ddp", "fsdp")))
    assert counts.keys() == set(FAMILIES)
    assert max(counts.values()) - min(counts.values()) <= 1
    files = Counter(case.name.rpartition(" for ")[2] for case in draw(22 * 6, 0, (1, 2, 4), KINDS, ["F25"]))
    assert set(files.values()) == {6}, "each of 22 files on each of 6 kinds of world"
    assert draw(5, 0, (2,), ("single",)) == []


def test_each_family_that_is_named_is_run_however_few_faults_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn: list[str] = []

    def noted(self: Lab, cases: list[FaultCase], *_: object) -> list[CaseResult]:  # noqa: ARG001
        drawn.extend(case.family for case in cases)
        return []

    monkeypatch.setattr(Lab, "run", noted)
    monkeypatch.setattr("ups_fleet.fault_tests.lab.same_samples", lambda lab, cases: [])  # noqa: ARG005
    with pytest.raises(SystemExit) as ended:
        main(["faults", "--only", "F6, f9", "--faults", "1", "--out", str(tmp_path)])
    assert ended.value.code == 0
    assert sorted(drawn) == ["F6", "F9"]
    with pytest.raises(SystemExit) as ended:
        main(["faults", "--only", "F99", "--out", str(tmp_path)])
    assert ended.value.code == 2
    assert "there is no fault 'F99'" in capsys.readouterr().err


def test_a_plan_strikes_its_own_rank_and_start_as_often_as_it_says() -> None:
    faults = [
        Fault("error", 1, "data", step=3, times=2),
        Fault("error", 0, "data"),
        Fault("error", 1, "log", attempt=2),
    ]
    plan = FaultPlan(faults, rank=1, attempt=1)
    plan("data", 2)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="a planned fault in phase 'data'"):
            plan("data", 3)
    plan("data", 3)
    plan("log", 3)


@pytest.mark.parametrize("kind", ["flip", "truncate", "missing", "foreign", "manifest"])
def test_damage_changes_the_newest_checkpoint_and_no_other(tmp_path: Path, kind: str) -> None:
    for step in (3, 6):
        folder = tmp_path / "checkpoints" / "operator" / f"step-{step:09d}"
        folder.mkdir(parents=True)
        (folder / "shard").write_bytes(bytes(100))
        (folder / "manifest.json").write_text("[]")

    def content(step: int) -> dict[str, bytes]:
        folder = tmp_path / "checkpoints" / "operator" / f"step-{step:09d}"
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    before: dict[int, Any] = {step: content(step) for step in (3, 6)}
    damage(kind, RunDir(tmp_path))
    assert content(3) == before[3]
    assert content(6) != before[6]


def test_the_table_has_a_row_per_family_and_one_for_all() -> None:
    found = [
        CaseResult(FLIPPED.facts(), ["SUCCESS"], equal=True, detection=0.2, lost=2),
        CaseResult(QUICK[0].facts()),
        CaseResult(QUICK[0].facts(), skipped="root"),
    ]
    head, first, second, whole = summary(found)
    assert (first[0], second[0], whole[0]) == ("F1", "F11", "all")
    assert dict(zip(head, whole, strict=True))["equal bits"] == "1 of 2"
    assert dict(zip(head, whole, strict=True))["skipped"] == "1"
    assert dict(zip(head, second, strict=True))["detected"] == "0.20 s"
    assert max(STEPS.values()) == STEPS["operator"], "a step drawn below the last is one that every late fault can meet"


def clocks() -> list[float]:
    """What clocks that are ahead, behind and jumping say, against the steady one: seconds off, twice each."""
    true, found = time.time, []
    for how in ("ahead", "behind", "jumps"):
        time.time = true
        shift_clock(how)
        found += [time.time() - true() for _ in range(2)]
    return found


def test_a_clock_is_hours_off_or_jumps() -> None:
    result = run_copy(clocks, seconds=100)
    assert result.value == pytest.approx([10800, 10800, -10800, -10800, 10800, -10800], abs=60)


def refusals(python: bool, most: int) -> list[str]:
    """What came of asking for memory: before its step, at it with 4 samples, again, and then with 2."""
    cap, found = Cap(3, python, most), []
    for step, samples in ((2, 4), (3, 4), (3, 4), (3, 2)):
        try:
            cap(step, samples)
            found.append("taken")
        except (MemoryError, RuntimeError) as error:
            found.append(classify(error).ending.name)
    return found


@pytest.mark.parametrize("python", [False, True])
@pytest.mark.parametrize(("most", "second"), [(0, "taken"), (4, "OOM")])
def test_memory_that_is_capped_is_really_refused_as_out_of_memory(python: bool, most: int, second: str) -> None:
    result = run_copy(refusals, python, most, seconds=100)
    assert result.value == ["taken", "OOM", second, "taken"], result


@pytest.mark.slow
def test_slow_crowded_uneven_and_capped_runs_keep_their_promises(tmp_path: Path) -> None:
    lab, cases = Lab(tmp_path), [case for case in LONG if case is not None]
    assert [(r.case["family"], r.case["name"], r.broken) for r in lab.run(cases, print) if r.broken] == []
    assert same_samples(lab, cases) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_whole_matrix_keeps_its_promises(tmp_path: Path) -> None:
    cases = draw(220, 1, (1, 2, 4), KINDS)
    lab = Lab(tmp_path)
    assert [(r.case["family"], r.case["name"], r.broken) for r in lab.run(cases, print) if r.broken] == []
    assert same_samples(lab, cases) == []
