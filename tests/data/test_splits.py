"""Splits: exact, seeded, disjoint, recorded, and refused where they do not belong."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ups.data.splits import CONVENTIONS, IN_TIME, Split, digest, given_split, held_out, make_split, parts_of
from ups.types import ConfigError, DataError

IDS = tuple(f"{i:06d}" for i in range(1000))


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_every_convention_gives_exact_counts_and_disjoint_complete_parts(convention):
    split = make_split(IDS, convention)
    assert (len(split.train), len(split.valid), len(split.test)) == (800, 100, 100)
    assert set(split.train) | set(split.valid) | set(split.test) == set(IDS)
    assert list(split.train) == sorted(split.train)


@given(n=st.integers(3, 300), seed=st.integers(0, 2**32), valid=st.floats(0.01, 0.4), test=st.floats(0.01, 0.4))
def test_any_split_is_disjoint_complete_and_has_no_empty_part(n, seed, valid, test):
    ids = [f"s{i}" for i in range(n)]
    if n - max(1, int(n * valid)) - max(1, int(n * test)) < 2:
        return
    split = make_split(ids, "seeded", (1 - valid - test, valid, test), seed)
    assert sorted(split.train + split.valid + split.test) == sorted(ids)
    assert min(map(len, (split.train, split.valid, split.test))) >= 1


def test_pdebench_first_tests_on_the_first_tenth():
    assert make_split(IDS, "pdebench-first").test == IDS[:100]


def test_pdebench_last_tests_on_the_last_tenth_of_the_sorted_keys():
    keys = [str(i) for i in range(20)]
    assert set(make_split(keys, "pdebench-last").test) == {"8", "9"}
    assert make_split(IDS, "pdebench-last").test == IDS[-100:]


def test_pdebench_own_fractions_leave_nine_tenths_for_training():
    split = make_split(IDS, "pdebench-first", (0.9, 0.0, 0.1))
    assert split.train == IDS[100:]
    with pytest.raises(DataError, match="valid part of this pdebench-first split is empty"):
        split.part("valid")


def test_the_seed_decides_and_the_order_of_ids_does_not():
    assert make_split(IDS, seed=1) == make_split(IDS, seed=1)
    assert make_split(IDS, seed=1).test != make_split(IDS, seed=2).test
    assert set(make_split(IDS[::-1], seed=1).test) == set(make_split(IDS, seed=1).test)


def test_growing_the_data_keeps_almost_every_sample_in_its_part():
    more = tuple(f"{i:06d}" for i in range(1100))
    before, after = make_split(IDS), make_split(more)
    moved = len(set(before.test) - set(after.test))
    assert moved <= 20


def test_rounding_never_costs_a_sample():
    assert len(make_split(IDS[:100], "seeded", (0.42, 0.29, 0.29)).test) == 29


def test_few_samples_give_at_least_one_to_each_part_and_too_few_are_refused():
    split = make_split(IDS[:3])
    assert (len(split.train), len(split.valid), len(split.test)) == (1, 1, 1)
    with pytest.raises(DataError, match="2 samples are too few"):
        make_split(IDS[:2])


def test_bad_requests_are_refused_with_the_remedy():
    with pytest.raises(ConfigError, match="choose one of seeded, pdebench-first, pdebench-last"):
        make_split(IDS, "random")
    with pytest.raises(ConfigError, match="with sum 1"):
        make_split(IDS, "seeded", (0.8, 0.1, 0.2))
    with pytest.raises(ConfigError, match="train, valid or test"):
        make_split(IDS).part("validation")
    with pytest.raises(DataError, match="ids repeat"):
        make_split(["a", "b", "c", "a"])


def test_a_recorded_split_comes_back_the_same(tmp_path):
    split = make_split(IDS, seed=7)
    split.save(tmp_path / "split.json")
    assert Split.load(tmp_path / "split.json", IDS) == split
    assert [p.name for p in tmp_path.iterdir()] == ["split.json"]


def test_a_recorded_split_is_refused_for_other_samples(tmp_path):
    make_split(IDS).save(tmp_path / "split.json")
    with pytest.raises(DataError, match="recorded for 1000 other samples, not for these 999"):
        Split.load(tmp_path / "split.json", IDS[1:])


def test_a_leak_between_train_and_test_is_found(tmp_path):
    path = tmp_path / "split.json"
    make_split(IDS).save(path)
    record = json.loads(path.read_text())
    record["train"].append(record["test"][0])
    path.write_text(json.dumps(record))
    with pytest.raises(DataError, match=r"split\.json: sample \d+ is in the split more than once"):
        Split.load(path, IDS)
    record["train"] = record["train"][:-2]
    path.write_text(json.dumps(record))
    with pytest.raises(DataError, match="not those it was recorded with"):
        Split.load(path, IDS)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"train": 3}', "not json", '{"train": ["a"], "extra": 1}'])
def test_a_file_that_is_no_split_is_refused(tmp_path, text):
    path = tmp_path / "split.json"
    path.write_text(text)
    with pytest.raises(DataError, match="is not a recorded split"):
        Split.load(path, IDS)


def test_a_missing_split_file_and_an_unwritable_folder_are_named(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        Split.load(tmp_path / "none.json", IDS)
    with pytest.raises(DataError, match="cannot be written"):
        make_split(IDS).save(Path("/proc/nowhere/split.json"))


def test_an_initial_state_is_in_one_part_at_every_parameter() -> None:
    """Files of one seed at several values hold the same initial states under the same names."""
    values = ("nu0.01", "nu0.1", "nu1.0")
    ids = [f"{value}/{sample}" for value in values for sample in range(100)]
    split = make_split(ids, strata=[name.partition("/")[0] for name in ids])
    for part in ("train", "valid", "test"):
        by_value = [{name.partition("/")[2] for name in getattr(split, part) if name.startswith(v)} for v in values]
        assert by_value[0] == by_value[1] == by_value[2]
    assert make_split([str(n) for n in range(100)]).test == tuple(n.partition("/")[2] for n in split.test[:10])


def test_folders_named_after_the_parts_are_the_split_and_others_are_none() -> None:
    ids = ["Train/a", "training/b", "VAL/a", "testing/a"]
    assert parts_of(ids) == dict(zip(ids, ("train", "train", "valid", "test"), strict=True))
    assert parts_of(["train/a", "other/a"]) is None
    assert parts_of(["valid/a", "test/a"]) is None, "nothing is for training"


def test_an_empty_part_says_whether_frames_are_too_few_or_its_share_is_none() -> None:
    cut = given_split(["a"], {"a": "train"}, IN_TIME, (0.8, 0.2, 0.0))
    with pytest.raises(DataError, match=r"too few frames for a share of 0\.2; give longer trajectories"):
        cut.part("valid")
    with pytest.raises(DataError, match="give it a fraction above 0"):
        cut.part("test")


def test_labels_of_too_few_samples_are_cut_together_or_with_the_first_that_has_enough() -> None:
    many = [f"a{i}" for i in range(10)]
    one = make_split([*many, "b", "c"], strata=["a"] * 10 + ["b", "c"])
    assert one == make_split([*many, "b", "c"])
    three = make_split([*many, "b", "c", "d"], strata=["a"] * 10 + ["b", "c", "d"])
    rare = [{*"bcd"} & set(three.part(part)) for part in ("train", "valid", "test")]
    assert [len(each) for each in rare] == [1, 1, 1], "each part has one of the three"


def held(*names: str, fractions: tuple[float, float, float] = (0.5, 0.25, 0.25)) -> Split:
    """`x/…` is held out; what stands behind the bar is what a sample begins from."""
    return held_out(names, [n[0] == "x" for n in names], "seeded", fractions, 0, [n.partition("/")[2] for n in names])


def test_what_is_begun_from_on_both_sides_is_tested_or_trained_and_never_both() -> None:
    starts = [str(i) for i in range(20)]
    cut = held(*(f"{side}/{start}" for side in "xy" for start in starts))
    tested, rest = ({n[2:] for n in cut.test}, {n[2:] for n in cut.train + cut.valid})
    assert {n[0] for n in cut.test} == {"x"}
    assert {n[0] for n in cut.train + cut.valid} == {"y"}
    assert len(tested) == 5
    assert tested | rest == set(starts)
    assert not tested & rest
    alone = held("x/other", *(f"y/{start}" for start in starts), fractions=(0.5, 0.5, 0.0))
    assert (alone.test, len(alone.train), len(alone.valid)) == (("x/other",), 10, 10)


def test_values_cannot_be_held_out_where_nothing_is_left_for_a_part() -> None:
    both = [f"{side}/{start}" for side in "xy" for start in range(20)]
    with pytest.raises(ConfigError, match="nothing for testing of starts that all values share"):
        held(*both, fractions=(0.5, 0.5, 0.0))
    with pytest.raises(ConfigError, match="nothing for training"):
        held(*both, fractions=(0.0, 0.0, 1.0))
    with pytest.raises(DataError, match="none of the 2 samples"):
        held("y/a", "y/b")
    with pytest.raises(DataError, match=r"the samples with other values are 1, too few .* train and valid"):
        held("x/a", "y/b")


def test_a_set_of_ids_has_one_digest_in_any_order() -> None:
    assert digest(["a", "b"]) == digest(["b", "a"]) != digest(["a", "c"])
