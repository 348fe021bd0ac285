"""A few faults of every kind, in every run of the tests; the whole matrix on purpose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ups.engine.faults import Fault, Plan
from ups.lab.cases import RECIPES, STEPS, Case, draw
from ups.lab.lab import Lab, same_samples, summary, write
from ups.lab.trial import damage

KILLED = Case(
    "F6", "kill", 2, "ddp", (Fault("kill", 1, "backward", 5),), first=("RANK_DIED",), named=1, starts=2
)  # fmt: skip
QUICK = [
    KILLED,
    Case("F1", "oom", 2, "ddp", (Fault("oom", 1, "block", 5),), starts=1),
    Case("F4", "error", 2, "ddp", (Fault("error", 1, "loss", 2),), ("CRASH",), named=1, phase="forward", starts=1),
    Case("F2", "no memory", 2, "ddp", (Fault("oom", 1, "loss", 5, times=99),), ("OOM",), named=1, phase="forward"),
    Case("F10", "no space", 1, "single", (Fault("full", 0, "before shard", 5, times=99),), ("STORAGE",), starts=1),
    Case("F9", "stop", 2, "ddp", (Fault("term", 1, "forward", 5),), ("PREEMPTED",), starts=1),
    Case("F11", "flip", 2, "ddp", (Fault("kill", 0, "forward", 6),), first=("RANK_DIED",), starts=2, damage="flip"),
    Case("F15", "orphans", 2, "ddp", (Fault("orphan", 0, "data", 5),), ("KILLED",)),
    Case("F18", "abort", 2, "ddp", (Fault("abort", 0, "teardown"),), starts=1),
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("lab"))


def test_a_disturbed_run_ends_in_time_truthfully_and_with_the_same_bits(lab: Lab, tmp_path: Path) -> None:
    found = lab.run(QUICK)
    assert [(r.case["name"], r.broken) for r in found if r.broken] == []
    assert same_samples(lab, QUICK) == []
    write(tmp_path / "found.json", found, {"quick": True}, 1.0)
    told = json.loads((tmp_path / "found.json").read_text())
    assert [row["equal bits"] for row in told["summary"]][-1] == f"{len(QUICK)} of {len(QUICK)}"
    assert told["environment"]["versions"]["torch"]


def test_the_lab_notices_what_was_not_promised(lab: Lab) -> None:
    """The same fault, promised to be mended in place, on another rank, with other words: each is seen to be untrue."""
    wrong = Case("F6", "kill", 2, "ddp", KILLED.faults, first=("HANG",), named=0, starts=1, said="never said")
    [found] = lab.run([wrong])
    told = "; ".join(found.broken)
    for words in ("RANK_DIED, not HANG", "rank 1 was named, and it was 0", "2 times, not 1", "nobody said"):
        assert words in told
    assert found.equal


def test_the_same_seed_draws_the_same_faults_and_all_recipes_are_drawn() -> None:
    some, again = (list(draw(200, 3, (1, 2, 4), ("single", "ddp", "fsdp"))) for _ in range(2))
    assert [c.to_dict() for c in some] == [c.to_dict() for c in again]
    assert [c.to_dict() for c in some] != [c.to_dict() for c in draw(200, 4, (1, 2, 4), ("single", "ddp", "fsdp"))]
    assert {family for family, _ in RECIPES} == {f"F{n}" for n in range(1, 19)}
    whole = list(draw(2000, 0, (2,), ("ddp", "fsdp")))
    assert {c.family for c in whole} == {family for family, _ in RECIPES}
    assert {(c.world, c.strategy) for c in some} == {
        (1, "single"),
        (1, "fsdp"),
        *((n, s) for n in (2, 4) for s in ("ddp", "fsdp")),
    }


def test_a_plan_strikes_its_own_rank_and_start_as_often_as_it_says() -> None:
    faults = [
        Fault("error", 1, "data", step=3, times=2),
        Fault("error", 0, "data"),
        Fault("error", 1, "log", attempt=2),
    ]
    plan = Plan(faults, rank=1, attempt=1)
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
    damage(kind, tmp_path)
    assert content(3) == before[3]
    assert content(6) != before[6]


def test_the_table_has_a_row_per_family_and_one_for_all() -> None:
    from ups.lab.trial import Found

    found = [Found(KILLED.to_dict(), ["SUCCESS"], equal=True, detection=0.2, lost=2), Found(QUICK[1].to_dict())]
    head, first, second, whole = summary(found)
    assert (first[0], second[0], whole[0]) == ("F1", "F6", "all")
    assert dict(zip(head, whole, strict=True))["equal bits"] == "1 of 2"
    assert dict(zip(head, second, strict=True))["detected"] == "0.20 s"
    assert max(STEPS.values()) == STEPS["operator"], "a step drawn below the last is one that every late fault can meet"


@pytest.mark.slow
def test_the_whole_matrix_keeps_its_promises(tmp_path: Path) -> None:
    cases = list(draw(220, 1, (1, 2, 4), ("single", "ddp", "fsdp")))
    lab = Lab(tmp_path)
    assert [(r.case["family"], r.case["name"], r.broken) for r in lab.run(cases, print) if r.broken] == []
    assert same_samples(lab, cases) == []
