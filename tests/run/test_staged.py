"""How a stage of a run begins: sharded or not, on any number of ranks, from the weights that one process draws."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from ranks import run_ranks, values
from ups.config import dump, load
from ups.engine.ranks.dist import Dist
from ups.engine.ranks.parallelize import parallelize
from ups.progress import Screen
from ups.run.config import RunConfig, run_config
from ups.run.run import Run
from ups.rundir import RunDir

TINY = """
name: tiny
data:
  a: {task: advection1d, scheme: accurate, samples: 20, resolution: 32, device: cpu, reduce: {time: 20}}
  d: {task: darcy2d, samples: 10, resolution: 16, device: cpu}
model:
  codec: {dim: 8}
  operator: {width: 16, depth: 2, heads: 2}
codec: {batch: 4, train: {steps: 2}}
operator: {batch: 4, train: {steps: 2}}
device: cpu
"""
Weights = dict[str, Tensor]
# Every rank but the first begins as the second of two does: on purpose only.
FOUR = pytest.param("fsdp", 4, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the config, whose data are there."""
    folder = tmp_path_factory.mktemp("staged")
    (folder / "tiny.yaml").write_text(TINY)
    made = load(run_config(), folder / "tiny.yaml", {"out": str(folder), "name": "made"})
    with run_of(made) as run:
        files = {f"data.{name}.file": str(s.first.source.path) for name, s in zip(made.data, run.sets, strict=True)}
    (folder / "tiny.yaml").write_text(dump(load(run_config(), folder / "tiny.yaml", {**files, "out": str(folder)})))
    return folder


def run_of(config: RunConfig) -> Run:
    folder = Path(config.out) / config.name
    folder.mkdir(parents=True, exist_ok=True)
    return Run(config, RunDir(folder), Screen.silent())


def whole(config: RunConfig) -> Weights:
    """What one process would begin with, all parts together."""
    with run_of(config) as run:
        return run.untrained(Dist()).state_dict()


def begun(path: Path) -> dict[str, tuple[Weights, list[str]]]:
    """Per stage: the weights and buffers this rank begins with, gathered; and what had no memory before that."""
    config = load(run_config(), path)
    first: dict[str, tuple[Weights, list[str]]] = {}
    with run_of(config) as run, Dist.start("cpu", config.dist) as dist:
        simulator = run.untrained(dist)
        for name, kind in config.stages.items():
            stage = kind(simulator, config.stage(name))
            empty = [n for n, t in stage.module.state_dict().items() if t.is_meta]
            parallel = parallelize(stage.module, config.stage(name).train, dist)
            weights = {n: parallel.full(n, p).detach().clone() for n, p in parallel.parameters.items()}
            first[name] = weights | dict(stage.module.named_buffers()), empty
    return first


@pytest.mark.parametrize(("strategy", "world"), [("ddp", 2), ("fsdp", 1), ("fsdp", 2), FOUR])
def test_every_rank_begins_with_the_weights_of_one_process_to_the_bit(
    place: Path, tmp_path: Path, strategy: str, world: int
) -> None:
    path = tmp_path / "ranks.yaml"
    config = load(run_config(), place / "tiny.yaml", {"dist.ranks": world, "dist.strategy": strategy})
    path.write_text(dump(config))
    expected = whole(config)
    for rank, stages in enumerate(values(run_ranks(begun, world, path))):
        for name, (weights, empty) in stages.items():
            truth = {n.removeprefix(f"{name}."): v for n, v in expected.items() if n.startswith(f"{name}.")}
            assert truth.keys() <= weights.keys(), "no name changes"
            assert [n for n, v in truth.items() if not torch.equal(v, weights[n])] == []
            assert set(empty) == (set(truth) if strategy == "fsdp" and rank else set()), "whole on one rank alone"


def on_a_rank(path: Path) -> None:
    config = load(run_config(), path)
    with run_of(config) as run, Dist.start("cpu", config.dist) as dist:
        run.train(dist)


def test_a_run_that_began_on_meta_ends_with_the_artifact_of_one_that_did_not(place: Path, tmp_path: Path) -> None:
    artifacts = []
    for strategy in ("ddp", "fsdp"):
        changes = {"dist.ranks": 2, "dist.strategy": strategy, "name": strategy, "out": str(tmp_path)}
        path = tmp_path / f"{strategy}.yaml"
        path.write_text(dump(load(run_config(), place / "tiny.yaml", changes)))
        values(run_ranks(on_a_rank, 2, path))
        artifacts.append(load_file(RunDir(tmp_path / strategy).artifact("simulator")))
    assert [n for n, value in artifacts[0].items() if not torch.equal(value, artifacts[1][n])] == []
