"""Artifacts made to harm: a header is not believed further than the weights beside it."""

from __future__ import annotations

import copy
import json
import os
import random
import resource
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from header_mutations import Header, Place, ask, mutated, parts_of, places, simulators
from ups.models import Simulator, artifact
from ups.models.config import CodecConfig, OperatorConfig
from ups.models.header import plan_of
from ups.models.simulator import build
from ups.models.trust import read_trust
from ups.physics import TASKS
from ups.run.load import part_kinds
from ups.types import ConfigError, DataError, UpsError


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Header, dict[str, torch.Tensor]]:
    """Header and weights of a small artifact."""
    path = tmp_path_factory.mktemp("whole") / "simulator.safetensors"
    build([TASKS["burgers1d"]], CodecConfig(dim=8), OperatorConfig(width=16, depth=1, heads=2)).save(path)
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
        return json.loads(file.metadata()["ups"]), tensors


def changed(header: Header, place: Place, value: Any) -> Header:
    result: Any = copy.deepcopy(header)
    node = result
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = value
    return dict(result)


def load(folder: Path, header: Header, tensors: dict[str, torch.Tensor]) -> None:
    """All that is done with an artifact before it predicts."""
    path = folder / "hostile.safetensors"
    save_file(tensors, path, metadata={"ups": json.dumps(header)})
    simulator = Simulator.load(path)
    artifact.strangers(simulator.origins)
    simulator.outside(torch.zeros(1, 1), simulator.tasks[0].name, 0.1)


OPERATOR, CODEC = ("parts", "operator", "config"), ("parts", "codec", "config")
GREEDY: dict[str, tuple[Place, Any]] = {
    "five million layers": ((*OPERATOR, "depth"), 5_000_000),
    "a number of layers beyond any list": ((*OPERATOR, "depth"), 10**15),
    "a width of a billion": ((*OPERATOR, "width"), 2**30),
    "a width beyond 64 bits": ((*OPERATOR, "width"), 10**30),
    "tokens of a trillion numbers": ((*CODEC, "dim"), 10**12),
    "a million blocks": ((*CODEC, "blocks"), 10**6),
    "patches of a billion": ((*CODEC, "patch"), [10**9, 10**9, 10**9]),
    "a billion frames": ((*OPERATOR, "context"), 10**9),
    "a billion modes": ((*OPERATOR, "modes"), 10**9),
    "a negative width": ((*OPERATOR, "width"), -16),
    "half a layer": ((*OPERATOR, "depth"), 1.5),
    "no number": ((*OPERATOR, "growth"), float("nan")),
    "another network": ((*OPERATOR, "core"), "unet"),
}


@pytest.mark.parametrize("greed", GREEDY)
def test_a_header_that_asks_for_more_than_its_weights_is_refused_before_it_is_built(
    whole: tuple[Header, dict[str, torch.Tensor]], greed: str, tmp_path: Path
) -> None:
    header, tensors = whole
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(DataError) as caught:
        load(tmp_path, changed(header, *GREEDY[greed]), tensors)
    assert "\n" not in str(caught.value)
    assert time.process_time() - began < 60
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kB


TASK = ("tasks", 0)
WRONG: dict[str, tuple[Place, Any]] = {
    "a number of copies that is none": (("simulator", "shift_average"), 1e308),
    "images of something else": (("simulator", "symmetry"), "exchange"),
    "images of no task": (("simulator", "symmetry"), {"lake": "both"}),
    "images of a task or not": (("simulator", "symmetry"), {"burgers1d": True}),
    "a box without width": ((*TASK, "bounds"), [[0.0, 0.0]]),
    "a box beyond all numbers": ((*TASK, "bounds"), [[-1e308, 1e308]]),
    "a box of three ends": ((*TASK, "bounds"), [[0.0, 1.0, 2.0]]),
    "a name that is a group": ((*TASK, "name"), {"a": 1}),
    "a number in the place of names": ((*TASK, "dynamics", "advected_by"), 3),
    "a wind that is no parameter": ((*TASK, "dynamics", "advected_by"), ["wind"]),
    "axes that are not there": ((*TASK, "periodic"), [True, False]),
    "words for yes and no": ((*TASK, "periodic"), ["yes"]),
    "a number for yes": ((*TASK, "steady"), 0),
    "one frame": ((*TASK, "frames"), 1),
    "no time": ((*TASK, "end"), 0.0),
    "a grid of more axes": (("shapes", "burgers1d"), [32, 32]),
    "a grid that no machine holds": (("shapes", "burgers1d"), [10**12]),
    "a grid of half a cell": (("shapes", "burgers1d"), [32.5]),
    "the grid of no task": (("shapes", "lake"), [32]),
    "no such equation": ((*TASK, "equation"), "burgers"),
    "another equation": ((*TASK, "equation"), "cfd2d"),
    "a range that ends before it begins": (("ranges", "burgers1d", "nu"), [2.0, 1.0]),
    "a key that nobody knows": (("simulator", "shift"), 1),
    "windows of all that is there": ((*OPERATOR, "windows"), [2**20, 2**20, 2**20]),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_header_is_held_to_types_and_bounds_like_a_config(
    whole: tuple[Header, dict[str, torch.Tensor]], what: str, tmp_path: Path
) -> None:
    header, tensors = whole
    with pytest.raises(DataError) as caught:
        load(tmp_path, changed(header, *WRONG[what]), tensors)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(("cells", "refused"), [(2**20 + 4, True), (33_333, False)])
def test_a_grid_that_a_header_names_takes_no_more_memory_than_a_state_warrants(
    whole: tuple[Header, dict[str, torch.Tensor]], cells: int, refused: bool, tmp_path: Path
) -> None:
    """33333 cells are padded by three, which once took a matrix of 33333 × 33336 numbers."""
    header, tensors = whole
    path = tmp_path / "hostile.safetensors"
    save_file(tensors, path, metadata={"ups": json.dumps(changed(header, ("shapes", "burgers1d"), [cells]))})
    simulator, before = Simulator.load(path), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    u0 = np.sin(2 * np.pi * (np.arange(64) + 0.5) / 64)[:, None]
    if refused:
        with pytest.raises(ConfigError, match="say too little"):
            simulator.rollout(u0, 1, {"nu": 1.0})
    else:
        assert np.isfinite(simulator.rollout(u0, 1, {"nu": 1.0})).all()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Header, dict[str, torch.Tensor]]]:
    """Header and weights of simulators of several kinds."""
    folder = tmp_path_factory.mktemp("kinds")
    return {name: parts_of(sim.save(folder / f"{name}.safetensors")) for name, sim in simulators().items()}


@pytest.mark.parametrize("kind", ["line", "lake", "space", "steady"])
def test_of_thousands_of_changed_headers_each_is_a_simulator_or_one_sentence(
    kinds: dict[str, tuple[Header, dict[str, torch.Tensor]]], kind: str, tmp_path: Path
) -> None:
    """Those that are read are loaded whole, a few of them, and then answer with finite numbers or in one sentence."""
    (header, tensors), draw, held, sentences = kinds[kind], random.Random(kind), [], []
    configs = {name: part.Config for name, part in part_kinds().items()}
    before, path = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, tmp_path / "changed.safetensors"
    for _ in range(520):
        other, words = mutated(header, draw)
        try:
            text = json.dumps(other)
        except (ValueError, RecursionError):
            continue  # what Python cannot write
        try:
            read = artifact.header_of(path, {"ups": text})
            plan = plan_of(read, configs)
            read_trust(read, {task.name: task for task in plan.tasks}, path)
        except UpsError as error:
            sentences.append(str(artifact.damaged(path, error)))
        else:
            held.append((text, words))
    for text, words in held[:5]:
        save_file(tensors, path, metadata={"ups": text})
        try:
            answers = ask(Simulator.load(path, kinds=part_kinds()))
        except UpsError as error:
            sentences.append(str(error))
        else:
            assert all(bool(answer.isfinite().all()) for answer in answers), words
    assert len(sentences) > 300
    assert [sentence for sentence in sentences if "\n" in sentence or len(sentence) > 600] == []
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB


def test_whatever_stands_in_a_header_is_read_or_refused_in_one_sentence(
    whole: tuple[Header, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    header, tensors = whole
    values: list[Any] = [None, True, -1, 0, 10**9, 1.5, float("nan"), float("inf"), "x", [], [1], {}, {"a": 1}]
    cases = [(place, value) for place in places(header) for value in values if place != ("digest",)]
    chosen = np.random.default_rng(0).permutation(len(cases))[:80]
    sentences = []
    for place, value in (cases[i] for i in chosen):
        try:
            load(tmp_path, changed(header, place, value), tensors)
        except DataError as error:
            sentences.append(str(error))
    assert [sentence for sentence in sentences if "\n" in sentence] == []
    assert len(sentences) > 25


def raw(path: Path, header: bytes, length: int | None = None, content: bytes = bytes(64)) -> Path:
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + content)
    return path


ONE = b'{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
RAW = {
    "no end": (b'{"a":', None),
    "longer than the file": (b"{}", 2**40),
    "nothing": (b"", 0),
    "deep": (b"[" * 100_000, None),
    "offsets outside": (b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,1000000]}}', None),
    "offsets backwards": (b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}', None),
    "negative shape": (b'{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}', None),
    "shape beyond 64 bits": (b'{"a":{"dtype":"F32","shape":[4611686018427387904,8],"data_offsets":[0,8]}}', None),
    "the same twice": (b'{"a":%s,"a":%s}' % (ONE, ONE), None),
    "metadata of another": (b'{"__metadata__":{"ups":"[]"}}', None),
    "metadata that is deep": (b'{"__metadata__":{"ups":"' + b"[" * 100_000 + b'"}}', None),
    "metadata twice": (b'{"__metadata__":{"ups":"{\\"format\\":\\"ups-simulator\\",\\"format\\":1}"}}', None),
}


@pytest.mark.parametrize("what", RAW)
def test_a_file_that_is_no_whole_artifact_is_one_sentence(what: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        Simulator.load(raw(tmp_path / "a.safetensors", *RAW[what]))
    assert "\n" not in str(caught.value)


def test_a_device_or_pipe_is_no_simulator(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    for path in (Path("/dev/zero"), tmp_path / "pipe.safetensors"):
        with pytest.raises(DataError, match="is no file"):
            Simulator.load(path)


def test_a_file_with_a_hole_of_terabytes_is_one_sentence(
    tmp_path: Path, whole: tuple[Header, dict[str, torch.Tensor]]
) -> None:
    path, size = tmp_path / "simulator.safetensors", 2**43
    header = {"codec.x": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    words = json.dumps({"__metadata__": {"ups": json.dumps(whole[0])}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(words)) + words)
    try:
        os.truncate(path, 8 + len(words) + size)
    except OSError:
        pytest.skip("this file system has no files that large")
    with pytest.raises(DataError, match="do not fit in the memory"):
        Simulator.load(path)
