"""A config's own model taken apart: whatever harm one part does on ranks, the smallest such part is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from doctor import sabotage

from ups.run.config import run_config
from ups_fleet.doctor.findings import DoctorLine, State
from ups_fleet.doctor.model_checks import model_checks

PART = f"operator.{sabotage.PART}"


def found(change: Callable[[Any], None] | None = None, limit: float = 60, **more: Any) -> list[DoctorLine]:
    config = run_config().model_validate({**sabotage.TINY, **more})
    return list(model_checks(config, 2, "cpu", limit, **({"change": change} if change else {}), stages=("operator",)))


@pytest.mark.slow
def test_a_model_that_is_well_is_the_same_on_one_process_and_on_ranks() -> None:
    lines = found()
    assert [line.name for line in lines] == ["operator, one process", "operator, ddp × 2", "operator, fsdp × 2"]
    for line in lines:
        assert line.state == State.GOOD, line
    assert lines[0].facts["blocks"] == ["operator.core.blocks.0", "operator.core.blocks.1"]
    assert "2 blocks alone too" in lines[2].found


def test_a_part_that_raises_is_named_in_one_process() -> None:
    (line,) = found(sabotage.raising)
    assert line.state == State.BAD
    assert (line.facts["part"], line.facts["kind"], line.facts["phase"]) == (PART, "raise", "forward")
    assert "ValueError: this block does not like its input" in line.found


def test_a_part_that_is_not_finite_is_named() -> None:
    (line,) = found(sabotage.not_finite)
    assert (line.state, line.facts["part"], line.facts["kind"]) == (State.BAD, PART, "finite")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "phase"),
    [
        (sabotage.crashing, "forward"),
        pytest.param(sabotage.crashing_backward, "backward", marks=pytest.mark.slow),
    ],
)
def test_a_part_that_crashes_only_on_ranks_is_named(change: Callable[[Any], None], phase: str) -> None:
    one, *many = found(change)
    assert one.state == State.GOOD
    for line in many:
        assert line.state == State.BAD
        assert (line.facts["part"], line.facts["phase"], line.facts["alone"]) == (PART, phase, True)
        assert "a segmentation fault" in line.found
        assert line.advice


@pytest.mark.slow
def test_a_part_that_differs_between_ranks_is_named() -> None:
    _, *many = found(sabotage.differing)
    for line in many:
        assert (line.state, line.facts["part"], line.facts["kind"]) == (State.BAD, PART, "differs"), line
        assert "on rank 1" in line.found


@pytest.mark.slow
def test_a_part_that_hangs_on_one_rank_is_named() -> None:
    _, *many = found(sabotage.hanging, limit=8)
    for line in many:
        assert (line.state, line.facts["part"], line.facts["kind"]) == (State.BAD, PART, "hang")


COMPILED = {"operator": {"train": {"steps": 10, "compile": True}}}


@pytest.mark.slow
def test_a_block_that_cannot_be_compiled_is_named_and_is_well_without() -> None:
    one, compiled, *many = found(sabotage.no_compiler, **COMPILED)
    assert (one.state, [line.state for line in many]) == (State.GOOD, [State.GOOD] * 2)
    assert (compiled.name, compiled.state) == ("operator, compiled", State.BAD)
    assert (compiled.facts["part"], compiled.facts["kind"]) == ("operator.core.blocks.0", "compile")
    assert "/no/such/compiler" in compiled.found
    assert "train.compile: false" in compiled.advice


@pytest.mark.slow
def test_a_model_that_compiles_is_the_same_as_without() -> None:
    compiled = found(**COMPILED)[1]
    assert (compiled.name, compiled.state) == ("operator, compiled", State.GOOD), compiled


def test_data_that_are_not_there_yet_are_not_needed() -> None:
    data = {"tiny": {**sabotage.TINY["data"]["tiny"], "file": "/nowhere/burgers.hdf5"}}
    assert found(sabotage.raising, data=data)[0].facts["part"] == PART


@pytest.mark.slow
def test_what_a_strategy_refuses_is_said_and_is_no_crash() -> None:
    _, ddp, fsdp = found(sabotage.complex_parameter)
    assert ddp.state == State.GOOD
    assert fsdp.state == State.DOUBTFUL
    assert "cannot cut the parameter 'rotation', which is complex" in fsdp.found
