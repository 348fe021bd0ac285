"""The nouns, and the words of sentences about them."""

from __future__ import annotations

import pytest

from ups.data.splits import make_split
from ups.types import DataError, counted, few, same_value


def test_a_noun_agrees_with_its_number() -> None:
    nouns = ("frame", "trajectory", "axis", "process", "GPU", "given frame")
    assert [counted(1, noun) for noun in nouns] == [f"1 {noun}" for noun in nouns]
    many = ["frames", "trajectories", "axes", "processes", "GPUs", "given frames"]
    assert [counted(2, noun) for noun in nouns] == [f"2 {noun}" for noun in many]
    assert counted(0, "sample") == "0 samples"
    with pytest.raises(DataError, match="1 sample is too few"):
        make_split(["a"], "seeded", (0.8, 0.1, 0.1), 0)


def test_a_long_list_says_how_many_are_left_out() -> None:
    assert few("abc") == "a, b, c"
    assert few("abcd") == "a, b, c, d"
    assert few("abcdefgh") == "a, b, c and 5 more"


def test_values_are_the_same_as_words_or_to_five_digits() -> None:
    assert same_value(0.1, 0.1000001)
    assert not same_value(0.1, 0.1001)
    assert same_value("periodic", "periodic")
    assert not same_value("1", 1.0)
    assert not same_value(None, 0.0)
