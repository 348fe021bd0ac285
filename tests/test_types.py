"""The nouns, and the words of sentences about them."""

from __future__ import annotations

import pytest

from ups.data.splits import make_split
from ups.types import DataError, counted


def test_a_noun_agrees_with_its_number() -> None:
    nouns = ("frame", "trajectory", "axis", "process", "GPU", "given frame")
    assert [counted(1, noun) for noun in nouns] == [f"1 {noun}" for noun in nouns]
    many = ["frames", "trajectories", "axes", "processes", "GPUs", "given frames"]
    assert [counted(2, noun) for noun in nouns] == [f"2 {noun}" for noun in many]
    assert counted(0, "sample") == "0 samples"
    with pytest.raises(DataError, match="1 sample is too few"):
        make_split(["a"], "seeded", (0.8, 0.1, 0.1), 0)
