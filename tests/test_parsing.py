"""YAML and JSON that nobody vouches for: what is no plain text of a sane size is one sentence, soon."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ups.config import load
from ups.parsing import fields_among, flat, parse_json, threads_wanted
from ups.run.config import run_config
from ups.types import ConfigError

# Twenty lists, each of two of the one before it: a few lines that stand for millions of values.
LAUGHS = "x0: &a0 [lol, lol]\n" + "".join(f"x{i + 1}: &a{i + 1} [*a{i}, *a{i}]\n" for i in range(24))
MERGES = "x0: &a0 {k: 1}\n" + "".join(f"x{i + 1}: &a{i + 1} {{<<: [*a{i}, *a{i}]}}\n" for i in range(24))
HOSTILE = {
    "an object": "seed: !!python/object/apply:os.mkdir [evil]",
    "a module": "seed: !!python/module:antigravity",
    "laughs": LAUGHS,
    "merges that laugh": MERGES,
    "a list in itself": "seed: &a [*a]",
    "a group in itself": "data: &a {b: *a}",
    "brackets": "seed: " + "[" * 100_000,
    "brackets that comments close": "seed: # " + "]" * 20_000 + "\n " + "[" * 20_000,
    "brackets closed one by one": "seed:\n" + " [ # ]\n" * 20_000,
    "a ladder": "".join(f"{' ' * i}a:\n" for i in range(1300)),
    "a number of ten thousand digits": "seed: " + "9" * 10_000,
    "a day that is none": "name: 2024-99-99",
    "a list as a key": "? [a, b]\n: c",
    "a group as a key": "? {a: b}\n: c",
    "numbers as keys": "data: {1: {2: 3}}",
    "NUL": "name: \0",
    "NUL in a word": 'out: "x\\0y"',
    "half a character": 'out: "\\ud800"',
    "bytes": "name: !!binary aGVsbG8=",
    "a set": "data: !!set {a, b}",
    "a list": "[1, 2]",
    "a word": "hello",
    "the same twice": "seed: 1\nseed: 2",
    "an infinite number": "seed: .inf",
    "base of numbers": "base: [1, 2]",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_config_is_one_sentence_soon(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.yaml"
    path.write_text(HOSTILE[what])
    began = time.process_time()
    with pytest.raises(ConfigError) as caught:
        load(run_config(), path)
    assert time.process_time() - began < 60
    assert len(str(caught.value)) < 1000
    assert not (tmp_path / "evil").exists()
    with pytest.raises(ConfigError):
        load(run_config(), None, {"data": HOSTILE[what]})


def test_aliases_of_a_sane_size_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "data:\n  a: &a {task: advection1d, samples: 20}\n  b: {<<: *a, seed: 1}\n"
        "codec: {train: &train {steps: 3}}\noperator: {train: *train}\n"
    )
    config = load(run_config(), path)
    assert (config.data["b"].samples, config.data["b"].seed) == (20, 1)


def test_a_base_that_is_a_circle_a_device_a_pipe_or_a_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "b.yaml").write_text("base: a.yaml")
    for base, words in {
        "a.yaml": "in a circle",
        "b.yaml": "in a circle",
        "/dev/zero": "is no file",
        "pipe": "is no file",
        ".": "is no file",
    }.items():
        path.write_text(f"base: {base}")
        with pytest.raises(ConfigError, match=words):
            load(run_config(), path)


def test_a_config_without_an_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="larger than 1 MB"):
        load(run_config(), Path("/dev/zero"))


NO_JSON = ['{"a": 1, "a": 2}', "[" * 100_000, '{"a": ' * 100_000, "9" * 10_000, "", b"\xff", "{'a': 1}"]


@pytest.mark.parametrize("text", NO_JSON, ids=range(len(NO_JSON)))
def test_json_that_is_none_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        parse_json(text)


def test_a_key_that_stands_twice_among_many_is_found_soon() -> None:
    names = [f'"k{i}": 1' for i in range(100_000)]
    began = time.process_time()
    with pytest.raises(ValueError, match="'k99999' stands twice in it"):
        parse_json("{" + ", ".join([*names, names[-1]]) + "}")
    assert time.process_time() - began < 60


@pytest.mark.parametrize(
    ("text", "count"),
    [("2", 2), ("2,1", 2), (" 3 , 1", 3), ("", 0), ("0", 0), ("-1", 0), ("banana", 0), ("²", 0), ("9" * 9, 0)],
)
def test_threads_are_a_number_or_a_list_of_nested_ones_and_nothing_else(text: str, count: int) -> None:
    assert threads_wanted(text) == count


def test_a_nan_in_json_is_read_where_it_may_stand_and_refused_elsewhere() -> None:
    assert parse_json("[NaN, Infinity]")[1] == float("inf")
    assert parse_json("[Infinity]", nan=False) == [float("inf")]
    with pytest.raises(ValueError, match="NaN"):
        parse_json("[NaN]", nan=False)


def test_nested_groups_are_one_by_dotted_key() -> None:
    assert flat({"a": {"b": 1, 2: {"c": [3]}}, "d": {}}) == {"a.b": 1, "a.2.c": [3], "d": {}}


def test_of_a_record_only_what_is_of_its_type_is_taken() -> None:
    @dataclass
    class Known:
        count: int = 0
        names: list[str] = field(default_factory=list)
        word: str = ""

    values = {"count": True, "names": ["a"], "other": 1}
    assert Known(**fields_among(values, Known())) == Known(names=["a"])
