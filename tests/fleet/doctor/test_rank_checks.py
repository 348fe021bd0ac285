"""Checks with real ranks: what goes wrong in them is a red line that names the rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from doctor import sabotage

from ups.rundir import RunDir
from ups_fleet.doctor.findings import State
from ups_fleet.doctor.rank_checks import RankChecks
from ups_fleet.fault_tests.case import CaseResult, FaultCase
from ups_fleet.fault_tests.lab import Lab


def checks(tmp_path: Path) -> RankChecks:
    return RankChecks(2, "cpu", tmp_path, 60)


def test_a_wrong_sum_is_a_red_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ups_fleet.doctor.rank_checks.FunctionName", lambda _, name: getattr(sabotage, name))
    found = checks(tmp_path).collectives()
    assert found.state == State.BAD
    assert "all-reduce of torch.float32 on rank 1" in found.found
    assert "do not train here" in found.advice


def test_what_a_broken_promise_of_the_lab_means_is_a_red_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that end otherwise than their row of the table of faults says: each line names what was not kept."""

    def run(self: Lab, cases: list[FaultCase]) -> list[CaseResult]:  # noqa: ARG001
        return [CaseResult(case.facts(), broken=[f"{case.name} is not kept"]) for case in cases]

    monkeypatch.setattr(Lab, "run", run)
    checked = checks(tmp_path)
    for finding, name, advice in (
        (checked.memory_fault(), "oom backward", "would restart here"),
        (checked.checkpoint(), "resized past a turned bit is not kept", "choose another disk"),
        (checked.killed_rank(), "kill after a save is not kept", "would not survive a lost rank"),
    ):
        assert finding.state == State.BAD
        assert name in finding.found
        assert advice in finding.advice
    checked.close()
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_is_back_with_other_bits_is_no_fault_of_the_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(self: Lab, cases: list[FaultCase]) -> list[CaseResult]:  # noqa: ARG001
        return [CaseResult(case.facts(), ["SUCCESS"], ["its artifact is another"], starts=2) for case in cases]

    monkeypatch.setattr(Lab, "run", run)
    told = checks(tmp_path).killed_rank()
    assert (told.state, "checkpoints cannot be trusted" in told.advice) == (State.BAD, True)


def test_losses_that_are_off_those_of_one_process_and_other_bits_are_red_lines(tmp_path: Path) -> None:
    checked, rows = checks(tmp_path), [{"step": n, "operator/loss": 1.0 / n, "operator/gradient": 2.0} for n in (1, 2)]
    for name in ("single", "ddp", "fsdp"):
        checked.calm[name] = run = RunDir(tmp_path / name)
        run.artifact("simulator").parent.mkdir(parents=True)
        run.artifact("simulator").write_text(name)
        run.metrics.write_text("".join(json.dumps(row) + "\n" for row in [{"step": 0, "operator/lr": 1.0}, *rows]))
    told = checked.training("fsdp")
    assert (told.state, "other bits than with ddp" in told.found) == (State.BAD, True)
    checked.calm["fsdp"].artifact("simulator").write_text("ddp")
    assert "2 steps as in one process" in checked.training("fsdp").found
    checked.calm["ddp"].metrics.write_text(json.dumps(rows[0]) + "\n" + json.dumps(rows[1] | {"operator/loss": 0.6}))
    told = checked.training("ddp")
    assert (told.state, "off those of one process by 2.0e-01" in told.found) == (State.BAD, True)


def test_a_cuda_device_that_is_not_there_is_a_red_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ups_fleet.doctor.rank_checks.FunctionName", lambda _, name: getattr(sabotage, name))
    found = RankChecks(2, "cuda", tmp_path, 60).devices()
    assert found.state == State.BAD
    assert "sees no GPU" in found.found
    assert "--device cpu" in found.advice
