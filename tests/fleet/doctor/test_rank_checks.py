"""Checks with real ranks: what goes wrong in them is a red line that names the rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from doctor import sabotage

from ups_fleet.doctor.findings import State
from ups_fleet.doctor.rank_checks import RankChecks


def checks(tmp_path: Path) -> RankChecks:
    return RankChecks(2, "cpu", tmp_path, 60)


def test_a_wrong_sum_is_a_red_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ups_fleet.doctor.rank_checks.exercise", lambda name: getattr(sabotage, name))
    found = checks(tmp_path).collectives()
    assert found.state == State.BAD
    assert "all-reduce of torch.float32 on rank 1" in found.found
    assert "do not train here" in found.advice


@pytest.mark.slow
def test_weights_that_differ_after_a_fault_are_a_red_line(tmp_path: Path) -> None:
    checked = checks(tmp_path)
    assert checked.training("ddp").state == State.GOOD
    checked.trainings["ddp"]["digests"]["head.weight"] = "other"
    found = checked.memory_fault()
    assert found.state == State.BAD
    assert "not those of a calm run" in found.found
    checked.trainings["alone"]["rows"][2] = (1.0, 2.0)
    assert "off those of one process" in checked.training("ddp").found


def test_a_cuda_device_that_is_not_there_is_a_red_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ups_fleet.doctor.rank_checks.exercise", lambda name: getattr(sabotage, name))
    found = RankChecks(2, "cuda", tmp_path, 60).devices()
    assert found.state == State.BAD
    assert "sees no GPU" in found.found
    assert "--device cpu" in found.advice
