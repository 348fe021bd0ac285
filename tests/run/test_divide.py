"""What a config asks of a split: which samples are held aside, and of which labels every part has some."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ups.data.splits import PARTS
from ups.run.data.data_config import Between, DataConfig, SplitConfig
from ups.run.data.divide import STRATA, cut_besides, divided, held_aside, strata_of
from ups.types import ConfigError, DataError


class Samples(SimpleNamespace):
    def __len__(self) -> int:
        return len(self.ids)


def samples(params: Sequence[Mapping[str, float | str]], ids: Sequence[str] = (), cells: Sequence[int] = ()) -> Any:
    """Samples of which nothing is known but their parameters, names and grids."""
    names = dict.fromkeys(name for of in params for name in of)
    grids = [SimpleNamespace(shape=(n,)) for n in cells or [8] * len(params)]
    return Samples(
        ids=list(ids) or [f"{i:03d}" for i in range(len(params))],
        task=SimpleNamespace(parameters=[SimpleNamespace(name=name) for name in names]),
        params_of=lambda i: params[i],
        grid_of=lambda i: grids[i],
    )


def held(params: Sequence[Mapping[str, float | str]], **wanted: Any) -> list[int]:
    aside = held_aside(SplitConfig(hold_out=wanted), samples(params))
    return [i for i, out in enumerate(aside) if out]


def test_of_several_parameters_all_must_fit_and_a_range_has_its_ends() -> None:
    both = [{"a": a, "b": b} for a in (1.0, 2.0) for b in (0.1, 0.2, 0.3)]
    assert held(both, a=(2.0,)) == [3, 4, 5]
    assert held(both, a=(2.0,), b=(0.1, 0.3)) == [3, 5]
    assert held(both, b=Between(low=0.1, high=0.2)) == [0, 1, 3, 4]
    assert held([{"kind": "wall"}, {"kind": "ring"}], kind=("ring",)) == [1]


def test_a_value_that_no_sample_has_is_told_the_nearest_there_are() -> None:
    values = [{"a": float(n)} for n in (9, 1, 5, 3, 7)]
    with pytest.raises(ConfigError, match=r"no sample has a = 4\.2; the nearest are 5, 3, 7, 1\."):
        held(values, a=(4.2,))
    with pytest.raises(ConfigError, match=r"no sample has a = 2\.5; there are 3, 1\."):
        held([{"a": 1.0}, {"a": 3.0}], a=(2.5,))


def test_labels_are_grids_and_parameters_of_which_there_are_few_sets() -> None:
    def labels(sets: int, cells: Sequence[int] = ()) -> int:
        return len(set(strata_of(samples([{"a": float(n)} for n in range(sets)], cells=cells))))

    assert labels(STRATA) == STRATA
    assert labels(STRATA + 1) == 1, "each would be a label of its own"
    assert labels(STRATA + 1, [8, 16] * STRATA) == 2, "every part has all grids nevertheless"


def test_folders_called_after_the_parts_are_the_split_unless_another_is_asked_for() -> None:
    ids = [*(f"train/{i}" for i in range(8)), "valid/0", "test/0"]
    given = samples([{"a": 1.0}] * 10, ids)

    def conventions(**split: Any) -> str:
        return divided(DataConfig(task="advection1d", split=SplitConfig(**split)), given)[1].convention

    assert conventions() == "as given"
    assert not cut_besides(divided(DataConfig(task="advection1d"), given)[1])
    assert conventions(files={"train": "a", "valid": "b", "test": "c"}) == "as given"
    assert conventions(fractions=(0.6, 0.2, 0.2)) == "seeded"
    assert conventions(convention="pdebench-last") == "pdebench-last"


def test_what_is_given_for_testing_tests_and_nothing_else_though_no_part_is_given_for_validation() -> None:
    ids = [*(f"train/{i}" for i in range(14)), *(f"test/{i}" for i in range(6))]
    given = samples([{"a": float(i % 2)} for i in range(20)], ids)
    split = divided(DataConfig(task="advection1d"), given)[1]
    assert split.test == tuple(ids[14:])
    assert (len(split.train), len(split.valid)) == (12, 2)
    assert {*split.train, *split.valid} == {*ids[:14]}
    assert {given.params_of(ids.index(name))["a"] for name in split.valid} == {0.0, 1.0}, "both sets of parameters"
    assert cut_besides(split) == (
        "the data bring a split without valid, cut from what is for training: train 12, valid 2, test 6"
    )
    for count, valid in ((59, 11), (60, 6)):
        some = samples([{}] * (count + 2), [*(f"train/{i}" for i in range(count)), "test/0", "test/1"])
        assert len(divided(DataConfig(task="advection1d"), some)[1].valid) == valid, "a fifth of few, else a ninth"
        own = SplitConfig(files={"train": "a", "test": "b"}, fractions=(0.5, 0.25, 0.25))
        assert len(divided(DataConfig(task="advection1d", split=own), some)[1].valid) == count // 3
        for fractions in ((0.0, 0.5, 0.5), (0.0, 0.0, 1.0), (0.9, -0.9, 1.0), (math.nan, 0.1, 0.1)):
            nothing = SplitConfig(files={"train": "a", "test": "b"}, fractions=fractions)
            with pytest.raises(DataError, match=r"a split without valid, and of .* for training none would be left"):
                divided(DataConfig(task="advection1d", split=nothing), some)
    with pytest.raises(DataError, match="of 1 sample for training none would be left beside valid"):
        divided(DataConfig(task="advection1d"), samples([{}] * 2, ["train/0", "test/0"]))
    many = samples([{}] * 130, [f"train/{i}" if i < 90 else f"test/{i}" for i in range(130)])
    assert [len(divided(DataConfig(task="advection1d"), many)[1].part(part)) for part in PARTS] == [80, 10, 40]


def test_a_test_part_that_is_not_given_is_cut_from_training_and_never_from_validation() -> None:
    ids = [*(f"train/{i}" for i in range(18)), "val/0", "val/1"]
    split = divided(DataConfig(task="advection1d"), samples([{}] * 20, ids))[1]
    assert split.valid == ("val/0", "val/1")
    assert (len(split.train), len(split.test)) == (16, 2)
    alone = divided(DataConfig(task="advection1d"), samples([{}] * 20, [f"train/{i}" for i in range(20)]))[1]
    assert [len(alone.part(part)) for part in PARTS] == [16, 2, 2]
