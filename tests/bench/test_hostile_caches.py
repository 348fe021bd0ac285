"""Latent caches made to harm: shards lie in their own folder, and a manifest is not believed beyond its shards."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ups.data.cache import MANIFEST, Latents, read_manifest, verify
from ups.files import sum_of
from ups.physics import TASKS
from ups.types import DataError
from ups_bench.cache import synthetic

Place = tuple[str | int, ...]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return synthetic(tmp_path / "cache", 64)


def change(cache: Path, place: Place, value: Any) -> None:
    """Put a value into the manifest, and sign it anew, as anyone can."""
    manifest = json.loads((cache / MANIFEST).read_text())
    node = manifest
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = value
    (cache / MANIFEST).write_text(json.dumps({**manifest, "sum": sum_of(manifest)}))


def test_a_whole_cache_is_read(cache: Path) -> None:
    assert verify(cache) is None
    use(cache)


def use(cache: Path) -> None:
    """All that a training does with a cache."""
    latents = Latents(cache, read_manifest(cache)["key"], TASKS["burgers1d"])
    latents.window([0, len(latents) - 1], [0, 0], 1, 1)


OUTSIDE = ["../secret", "/etc/passwd", "sub/shard", "..", ".", "", ".hidden", "a\0b", 7, None, ["a"]]


@pytest.mark.parametrize("name", OUTSIDE, ids=map(repr, OUTSIDE))
def test_a_shard_outside_its_folder_is_refused_and_not_read(cache: Path, name: Any) -> None:
    change(cache, ("shards", 0, "file"), name)
    for job in (read_manifest, use):
        with pytest.raises(DataError, match="which is no file of its folder"):
            job(cache)
    assert "which is no file of its folder" in (verify(cache) or "")


def test_a_shard_that_is_a_link_is_refused(cache: Path, tmp_path: Path) -> None:
    shard = cache / read_manifest(cache)["shards"][0]["file"]
    shard.rename(tmp_path / "elsewhere")
    shard.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="is a link"):
        use(cache)


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    if at:
        yield at
    for key, below in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(below, (*at, key))


def test_whatever_stands_in_a_manifest_is_read_or_refused_in_one_sentence(cache: Path) -> None:
    whole = (cache / MANIFEST).read_text()
    values: list[Any] = [None, True, -1, 0, 10**9, 10**30, 1.5, float("nan"), float("inf"), "x", [], [1], {}, {"a": 1}]
    cases = [(place, value) for place in places(json.loads(whole)) for value in values if place != ("sum",)]
    chosen = np.random.default_rng(0).permutation(len(cases))[:400]
    sentences = []
    for place, value in (cases[i] for i in chosen):
        (cache / MANIFEST).write_text(whole)
        change(cache, place, copy.deepcopy(value))
        try:
            use(cache)
        except DataError as error:
            sentences.append(str(error))
    assert [sentence for sentence in sentences if "\n" in sentence] == []
    assert len(sentences) > 100
