"""Rounds with real ranks: what goes wrong in them is a red line that names the rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor import sabotage
from ups.doctor import exercises
from ups.doctor.children import blamed, run
from ups.doctor.lines import State
from ups.doctor.rounds import Rounds


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("crash", "rank 1: ended by a segmentation fault, in string_at"),
        ("raise", "rank 1: ValueError: no"),
        ("hang", "rank 1: did not answer within 8 s"),
        ("leave", "rank 1: left with exit code 0 and without a word"),
    ],
)
def test_a_rank_that_ends_badly_is_named_and_the_others_are_heard(how: str, words: str) -> None:
    results = run(sabotage.misbehave, 2, how, seconds=8 if how == "hang" else 60)
    assert blamed(results).startswith(words)
    assert results[0].value == "2"


def rounds(tmp_path: Path) -> Rounds:
    return Rounds(2, "cpu", tmp_path, 60)


def test_a_wrong_sum_is_a_red_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exercises, "collectives", sabotage.wrong_sum)
    found = rounds(tmp_path).collectives()
    assert found.state == State.BAD
    assert "all-reduce of torch.float32 on rank 1" in found.found
    assert "do not train here" in found.advice


@pytest.mark.slow
def test_weights_that_differ_after_a_fault_are_a_red_line(tmp_path: Path) -> None:
    asked = rounds(tmp_path)
    assert asked.steps("ddp").state == State.GOOD
    asked.known["ddp"]["digests"]["head.weight"] = "other"
    found = asked.fault()
    assert found.state == State.BAD
    assert "not those of a calm run" in found.found
    asked.known["alone"]["rows"][2] = (1.0, 2.0)
    assert "off those of one process" in asked.steps("ddp").found


def test_a_cuda_device_that_is_not_there_is_a_red_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exercises, "devices", sabotage.no_gpu)
    found = Rounds(2, "cuda", tmp_path, 60).devices()
    assert found.state == State.BAD
    assert "sees no GPU" in found.found
    assert "--device cpu" in found.advice
