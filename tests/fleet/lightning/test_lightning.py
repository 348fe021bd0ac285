"""Lightning trains a stage as `ups run` does: the same losses, alone and on two ranks; artifacts go both ways."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from watched_ranks import free_port, run_ranks, values

from small_flows import window
from ups.config import load
from ups.engine.optim import Optimizer
from ups.engine.ranks.dist import Dist
from ups.run.config import RunConfig, run_config
from ups.run.load import load as load_simulator
from ups.run.run import Run
from ups.types import ConfigError, DataError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")

STEPS = 16
# A trainer whose strategy has wrapped its model as FSDP does.
FSDP = SimpleNamespace(strategy=SimpleNamespace(model=SimpleNamespace(clip_grad_norm_=None)))
# Two numbers for four cells: a codec that can be exact has a loss that is round-off, of which two orders of summation
# make two numbers.
TINY = f"""
name: tiny
data:
  a: {{task: advection1d, samples: 20, resolution: 32, device: cpu, reduce: {{time: 40}}}}
  b: {{task: burgers1d, samples: 20, resolution: 32, device: cpu, reduce: {{time: 40}}}}
model: {{codec: {{dim: 2}}, operator: {{width: 16, depth: 1, heads: 2}}}}
codec: {{batch: 5, train: {{steps: {STEPS}, validate_every: 0, log_every: 1}}}}
operator: {{batch: 5, batches: {{burgers1d: 4}}, train: {{steps: {STEPS}, validate_every: 0, log_every: 1}}}}
"""


@pytest.fixture(scope="module", autouse=True)
def lightning() -> None:
    """Imported by the one process that runs these tests, and not by all that read this file: it takes seconds."""
    pytest.importorskip("lightning.pytorch", reason="needs the `lightning` extra")


def settings(folder: Path, **changes: object) -> RunConfig:
    path = folder / f"tiny-{os.getpid()}.yaml"  # ranks of one folder do not write what another is reading
    path.write_text(TINY)
    changes = {"out": str(folder), "device": "cpu", **changes}
    return load(run_config(), path, changes)


def natively_trained(config: RunConfig) -> dict[str, dict[int, float]]:
    """The losses of every step of each stage, by the engine itself."""
    with Run.open(config) as run, run.folder:
        run.prepare()
        with Dist.start(config.device, config.dist) as dist:
            run.train(dist)
        run.folder.succeed()
        rows = [json.loads(line) for line in run.folder.metrics.read_text().splitlines()]
    names = {stage: f"{stage}/loss" for stage in config.plan}
    return {stage: {row["step"]: row[name] for row in rows if name in row} for stage, name in names.items()}


class Native:
    """A run of the engine: its folder and its losses."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.losses = natively_trained(settings(folder))
        self.data = folder / "tiny" / "cache" / "data"


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Native:
    return Native(tmp_path_factory.mktemp("native"))


def fitted(
    config: RunConfig, stage: str, data: Path, resume: str | None = None, **options: Any
) -> tuple[Any, Any, Any]:
    """A stage trained by Lightning: its module, the trainer, and the losses by step."""
    from lightning.pytorch import Callback, Trainer

    from ups_fleet.lightning import StageData, StageModule, trainer_options

    losses: dict[int, float] = {}

    class Listening(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            losses[trainer.global_step] = float(trainer.callback_metrics[f"{module.name}/loss"])

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet |= {"enable_checkpointing": False, "callbacks": [Listening()]}
    trainer = Trainer(**trainer_options(config, stage, **{**quiet, **options}))
    module = StageModule(config, stage)
    safely = {} if resume is None else {"ckpt_path": resume, "weights_only": True}
    trainer.fit(module, StageData(config, stage, data), **safely)
    return module, trainer, losses


def worst(ours: Mapping[int, float], theirs: Mapping[int, float]) -> float:
    """The largest relative difference of two curves over the same steps."""
    assert ours.keys() == theirs.keys()
    return max(abs(ours[step] - theirs[step]) / abs(theirs[step]) for step in theirs)


def same(ours: Any, theirs: Any, prefix: str = "") -> bool:
    a, b = ours.state_dict(), theirs.state_dict()
    return all(torch.equal(a[name], b[name]) for name in b if name.startswith(prefix))


@dataclass(frozen=True)
class TrainedCodec:
    """Stage codec, trained by Lightning: its losses, a checkpoint, and the simulator that it saved."""

    losses: dict[int, float]
    checkpoint: Path
    artifact: Path


@pytest.fixture(scope="module")
def codec(native: Native, tmp_path_factory: pytest.TempPathFactory) -> TrainedCodec:
    folder = tmp_path_factory.mktemp("codec")
    module, trainer, losses = fitted(settings(folder), "codec", native.data)
    trainer.save_checkpoint(folder / "codec.ckpt")
    return TrainedCodec(losses, folder / "codec.ckpt", module.save(folder / "codec.safetensors"))


def test_both_stages_have_the_losses_and_weights_of_the_engine_and_checkpoints_become_artifacts(
    native: Native, codec: TrainedCodec, tmp_path: Path
) -> None:
    from ups_fleet.lightning import simulator_of

    assert worst(codec.losses, native.losses["codec"]) <= 1e-5
    simulator = simulator_of(codec.checkpoint)
    assert same(simulator, load_simulator(native.folder / "tiny"), "codec.")
    assert same(load_simulator(codec.artifact), simulator)
    assert simulator.learnt == {"codec"}
    module, _, losses = fitted(settings(tmp_path, start_from=str(codec.artifact)), "operator", native.data)
    assert worst(losses, native.losses["operator"]) <= 1e-5
    whole = load_simulator(module.save(tmp_path / "whole.safetensors"))
    assert same(whole, load_simulator(native.folder / "tiny"))
    assert whole.learnt == {"codec", "operator"}


def ddp_losses(folder: Path, changes: Mapping[str, Any], data: Path, stage: str) -> dict[int, float]:
    os.environ["NODE_RANK"] = "0"
    _, trainer, losses = fitted(settings(folder, **changes, **{"dist.ranks": 2}), stage, data)
    assert trainer.world_size == 2
    return losses


def both_ddp_losses(folder: Path, artifact: Path, data: Path) -> dict[str, dict[int, float]]:
    """Of stage codec, and of stage operator that starts from a codec."""
    return {
        "codec": ddp_losses(folder, {}, data, "codec"),
        "operator": ddp_losses(folder, {"start_from": str(artifact)}, data, "operator"),
    }


def on_two_ranks(function: Any, *words: Any) -> list[Any]:
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return values(run_ranks(function, 2, *words, env=env))


def test_two_ranks_have_the_losses_of_one_process_of_the_engine(
    native: Native, codec: TrainedCodec, tmp_path: Path
) -> None:
    for losses in on_two_ranks(both_ddp_losses, tmp_path, codec.artifact, native.data):
        assert worst(losses["codec"], native.losses["codec"]) <= 1e-5
        assert worst(losses["operator"], native.losses["operator"]) <= 1e-5


@pytest.mark.slow
def test_a_codec_that_can_be_exact_has_the_same_error_to_the_last_bit_of_a_float(tmp_path: Path) -> None:
    """Its loss is the square of a difference of nearly equal numbers: the root of it, which is an error in deviations
    of the field, is as exact as the field's own float32."""
    exact = {"model.codec.dim": 8}
    losses = natively_trained(settings(tmp_path, **exact))["codec"]
    (ours, *_) = on_two_ranks(ddp_losses, tmp_path, exact, tmp_path / "tiny" / "cache" / "data", "codec")
    assert max(losses.values()) < 1e-3
    roots = {step: math.sqrt(loss) for step, loss in losses.items()}
    assert max(abs(math.sqrt(ours[step]) - root) for step, root in roots.items()) <= torch.finfo(torch.float32).eps


@pytest.mark.slow
def test_a_training_that_goes_on_from_a_checkpoint_is_the_one_that_was_not_stopped(
    native: Native, tmp_path: Path
) -> None:
    config = settings(tmp_path, start_from=str(native.folder / "tiny"))
    known = load_simulator(native.folder / "tiny")
    module, trainer, first = fitted(config, "operator", native.data, max_steps=STEPS // 2)
    assert same(module.simulator, known, "codec."), "what a run has learnt is where it starts"
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    _, _, second = fitted(config, "operator", native.data, resume=str(tmp_path / "half.ckpt"))
    _, _, whole = fitted(config, "operator", native.data)
    assert {**first, **second} == whole


def test_what_lightning_cannot_do_is_one_sentence(tmp_path: Path) -> None:
    from ups_fleet.lightning import StageModule, simulator_of, trainer_options
    from ups_fleet.lightning.stage_module import EngineOptimizer

    with pytest.raises(ConfigError, match="budget of seconds, and Lightning counts steps"):
        StageModule(settings(tmp_path, **{"codec.train.seconds": 5}), "codec")
    with pytest.raises(ConfigError, match="there is no stage 'critic'"):
        StageModule(settings(tmp_path), "critic")
    with pytest.raises(ConfigError, match="stage operator needs the part 'codec'; name as start_from"):
        StageModule(settings(tmp_path), "operator")
    with pytest.raises(ConfigError, match="fsdp, which Lightning has on GPUs alone"):
        trainer_options(settings(tmp_path, **{"dist.strategy": "fsdp"}), "codec")
    moved = {kind: EngineOptimizer(Optimizer(torch.nn.Linear(16, 16), kind)) for kind in ("adamw", "muon")}
    for one, other in (("adamw", "muon"), ("muon", "adamw")):
        with pytest.raises(ConfigError, match="the checkpoint was saved by another optimizer"):
            moved[one].load_state_dict(moved[other].state_dict())
    sharded = StageModule(settings(tmp_path, **{"codec.train.optimizer": "muon"}), "codec")
    sharded.learnt, sharded._trainer = SimpleNamespace(module=None), FSDP  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="muon needs whole matrices, and FSDP cuts them"):
        sharded.configure_optimizers()
    (tmp_path / "no.ckpt").write_bytes(b"nonsense")
    with pytest.raises(DataError, match="no checkpoint of a StageModule"):
        simulator_of(tmp_path / "no.ckpt")


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_one_gpu_has_the_losses_of_the_engine_on_it_sharded_or_not(strategy: str, tmp_path: Path) -> None:
    from ups_fleet.lightning import simulator_of

    natively_trained(settings(tmp_path, device="cuda"))
    # A learning rate at which losses fall: where they grow, so does the round-off between two orders of summation.
    further = {"device": "cuda", "name": "further", "plan": ["operator"], "start_from": str(tmp_path / "tiny")}
    further["operator.train.lr"] = "1e-4"
    losses = natively_trained(settings(tmp_path, **further, **{"operator.train.graph": False}))["operator"]
    config, data = settings(tmp_path, **further, **{"dist.strategy": strategy}), tmp_path / "tiny" / "cache" / "data"
    _, trainer, rows = fitted(config, "operator", data)
    # FSDP moves all weights of a module as one long tensor, whose last bits are rounded in another way.
    apart = " ".join(f"{abs(rows[step] - loss) / abs(loss):.0e}" for step, loss in losses.items())
    assert worst(rows, losses) <= {"ddp": 1e-4, "fsdp": 1e-3}[strategy], apart
    trainer.save_checkpoint(tmp_path / "operator.ckpt")
    u0 = torch.linspace(0, 6.28, 33)[:32].sin().unsqueeze(-1)
    mine, theirs = (
        sim.cpu().rollout(u0, 5, {"nu": 0.01}, task="burgers1d")
        for sim in (simulator_of(tmp_path / "operator.ckpt"), load_simulator(tmp_path / "further"))
    )
    torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-3)


def test_what_fsdp_does_to_a_batch_leaves_a_window_as_it_is() -> None:
    from lightning_utilities.core.apply_func import apply_to_collection

    from ups_fleet.lightning.stage_data import Batch

    batch = Batch(window(2))
    assert apply_to_collection(batch, torch.Tensor, torch.Tensor.half) is batch
