"""Latent caches in a run: the same training to the bit, refused when stale, and the commands around them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ranks import run_ranks, values
from rooms import run_in
from rounding import needs_alike
from ups.cli.app import main
from ups.config import dump, fingerprint, load
from ups.data.cache import Latents, StaleError, check_key, read_manifest, verify
from ups.engine.ranks.dist import Dist
from ups.models import Simulator, build
from ups.physics import TASKS
from ups.progress import Screen
from ups.run.config import RunConfig, run_config
from ups.run.data.caches import identity
from ups.run.data.datasets import opened
from ups.run.run import Run
from ups.run.start import Start
from ups.rundir import RunDir
from ups.types import ConfigError, DataError

TINY = """
name: tiny
data:
  a: {task: advection1d, scheme: accurate, samples: 20, resolution: 32, device: cpu, reduce: {time: 20}}
  d: {task: darcy2d, samples: 10, resolution: 16, device: cpu}
model:
  codec: {dim: 8}
  operator: {width: 16, depth: 1, heads: 2, context: 2}
codec: {batch: 4, train: {steps: 2, log_every: 1}}
operator: {batch: 4, train: {steps: 8, log_every: 1}, unroll: 2}
device: cpu
"""
SCREEN = Screen.silent()


FILES: dict[str, str] = {}


@pytest.fixture(scope="module", autouse=True)
def files(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The data of all runs here, made once."""
    place = tmp_path_factory.mktemp("data")
    (place / "tiny.yaml").write_text(TINY)
    for name, data in load(run_config(), place / "tiny.yaml").data.items():
        with opened(data, place, SCREEN.following) as made:
            FILES[f"data.{name}.file"] = str(made.source.path)


def log_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def settings(folder: Path, **overrides: object) -> RunConfig:
    path = folder / "tiny.yaml"
    path.write_text(TINY)
    given = {"out": str(folder / "runs"), **FILES, **{k.replace("__", "."): v for k, v in overrides.items()}}
    return load(run_config(), path, given)


def trained(config: RunConfig, screen: Screen = SCREEN, resume: bool = False) -> Path:
    """A run without its judging; its folder."""
    run = Run.open(config, screen, start=Start(resume=resume))
    with run.folder, run, Dist.start(config.device, config.dist) as dist:
        run.prepare()
        run.train(dist)
        run.folder.succeed()
    return run.folder.folder


def losses(folder: Path) -> list[float]:
    return [row["operator/loss"] for row in log_of(folder) if "operator/loss" in row]


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    return trained(settings(folder))


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cached")
    return trained(settings(folder, cache__use=True))


@needs_alike
def test_training_from_the_cache_gives_the_losses_and_weights_of_raw_data_to_the_bit(raw: Path, cached: Path) -> None:
    assert losses(raw) == losses(cached)
    assert len(losses(raw)) == 8
    ours, theirs = (load_file(f / "artifacts" / "simulator.safetensors") for f in (raw, cached))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert verify(cached / "cache" / "latents" / "darcy2d" / "train") is None


# Grids, widths and batches as they are used: a GPU picks its kernels by them.
USUAL = """
name: usual
data:
  a: {task: advection1d, scheme: accurate, samples: 50, resolution: 256, device: cuda, reduce: {time: 5}}
  r: {task: reacdiff2d, samples: 20, resolution: 64, frames: 11, device: cuda}
  d: {task: darcy2d, samples: 50, resolution: 64, device: cuda}
model:
  operator: {size: small, context: 3}
codec: {batch: 32, train: {steps: 20, log_every: 1}}
operator: {batch: 5, train: {steps: 30, log_every: 1}, unroll: 2}
device: cuda
"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("loss", ["increment", "latent"])
def test_on_a_gpu_training_from_the_cache_is_the_same_to_the_bit(tmp_path: Path, loss: str) -> None:
    (tmp_path / "usual.yaml").write_text(USUAL)
    weights = {f"operator.loss.{name}": float(name == loss) for name in ("increment", "latent")}
    first, second = (
        trained(
            load(
                run_config(),
                tmp_path / "usual.yaml",
                {**weights, "out": str(tmp_path), "name": name, "cache.use": name == "cached"},
            )
        )
        for name in ("raw", "cached")
    )
    assert losses(first) == losses(second)
    assert len(losses(first)) == 30
    ours, theirs = (load_file(f / "artifacts" / "simulator.safetensors") for f in (first, second))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@needs_alike
def test_the_latent_loss_reads_no_frames_and_is_the_same_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = {"operator__loss__increment": 0.0, "operator__loss__latent": 1.0, "operator__loss__noise": 0.1}
    first = trained(settings(tmp_path, **only))
    second = trained(settings(tmp_path, name="second", cache__use=True, **only))
    assert losses(first) == losses(second)
    seen: list[tuple[int, ...]] = []
    window = Latents.window
    monkeypatch.setattr(Latents, "window", lambda *a: seen.append(tuple((w := window(*a)).targets.shape)) or w)
    trained(settings(tmp_path, name="third", cache__use=True, operator__train__steps=2, **only))
    assert {shape[-1] for shape in seen} == {0}


def on_a_rank(paths: list[Path]) -> list[list[float]]:
    configs = [load(run_config(), path) for path in paths]
    folders = [RunDir(Path(config.out) / config.name) for config in configs]
    with Dist.start("cpu", configs[0].dist) as dist:
        for config, folder in zip(configs, folders, strict=True):
            Run(config, folder, SCREEN).train(dist)
    return [losses(folder.folder) for folder in folders]


@needs_alike
def test_two_ranks_share_the_building_and_train_as_from_raw_data(raw: Path, tmp_path: Path) -> None:
    paths = [tmp_path / "raw.yaml", tmp_path / "cached.yaml"]
    for path in paths:
        use = path.stem == "cached"
        config = settings(
            tmp_path,
            name=path.stem,
            cache__use=use,
            dist__ranks=2,
            operator__train__steps=4,
            operator__train__validate_every=0,
        )
        path.write_text(dump(config))
    ours, theirs = values(run_ranks(on_a_rank, 2, paths))[0]
    assert ours == theirs
    assert len(ours) == 4
    both = Path(load(run_config(), paths[0]).out) / "raw"
    assert proofs(both) == {4: proofs(raw)[4]}, "what two ranks were given is what one was"


def proofs(folder: Path) -> dict[int, str]:
    """By step, the digest of all that was drawn before it."""
    name = "operator/order/digest"
    return {row["step"]: row[name] for row in log_of(folder) if name in row}


SHARED = """
import os, sys, threading, time
sys.path[:0] = [{tests!r}, {tests!r} + "/jobs"]
from pathlib import Path
import test_cache as t
from ups.data.loader import Loader
home, most, sizes = Path({home!r}), [0], []

def used():
    room = os.statvfs("/dev/shm")
    return (room.f_blocks - room.f_bfree) * room.f_frsize

def watch():
    while True:
        most[0] = max(most[0], used())
        time.sleep(0.01)

threading.Thread(target=watch, daemon=True).start()
t.FILES.update({files!r})
window = Loader.batch
Loader.batch = lambda *a: sizes.append((w := window(*a)).tokens.nbytes) or w
t.trained(t.settings(home, cache__use=True, operator__workers=2, operator__batch=700, operator__train__steps=2))
print(os.statvfs("/dev/shm").f_blocks * 4096, most[0], max(sizes), t.verify(home / {latents!r}))
"""


@pytest.mark.slow
def test_building_and_training_with_workers_need_a_megabyte_of_shared_memory_at_most(tmp_path: Path) -> None:
    """Windows of more than all of /dev/shm arrive; what is used of it are the locks of queues."""
    latents = "runs/tiny/cache/latents/advection1d/train"
    told = {"tests": str(Path(__file__).parent.parent), "home": str(tmp_path), "files": FILES, "latents": latents}
    room, used, window, wrong = run_in({Path("/dev/shm"): "1m"}, SHARED.format(**told)).split()
    assert (int(room), wrong) == (2**20, "None")
    assert int(window) > 2**20
    assert int(used) <= 2**17


def test_half_precision_trains_to_nearly_the_same_losses(raw: Path, tmp_path: Path) -> None:
    folder = trained(settings(tmp_path, cache__use=True, cache__dtype="bf16"))
    assert losses(folder) != losses(raw)
    # To within the rounding of two frames, that before a step and that after it: of what is carried along, hardly more
    # is left to learn.
    assert losses(folder) == pytest.approx(losses(raw), rel=0.05, abs=2**-8)
    rounding = read_manifest(folder / "cache" / "latents" / "advection1d" / "train")["rounding"]["relative"]
    assert 2**-11 < rounding < 2**-8


def test_order_shares_and_digests_are_logged_per_epoch(raw: Path) -> None:
    rows = log_of(raw)
    epochs = [row for row in rows if "operator/epoch/darcy2d" in row]
    assert [row["operator/epoch/darcy2d"] for row in epochs] == sorted(
        {row["operator/epoch/darcy2d"] for row in epochs}
    )
    assert epochs
    assert all(len(row["operator/digest/darcy2d"]) == 64 for row in epochs)
    assert epochs[-1]["operator/share/darcy2d"] == pytest.approx(0.5, abs=0.1)


def test_a_stale_cache_is_refused_naming_the_change_and_rebuilt_when_told(cached: Path, tmp_path: Path) -> None:
    place = tmp_path / "latents"
    shutil.copytree(cached / "cache" / "latents", place)
    other = {"cache__use": True, "cache__folder": str(place), "seed": 1}
    with pytest.raises(DataError, match=r"advection1d/train: was made of something else, for its codec weights \("):
        trained(settings(tmp_path, **other))
    folder = trained(settings(tmp_path, **other, cache__rebuild=True), resume=True)
    assert not (folder / "cache" / "latents").exists()
    assert verify(place / "advection1d" / "train") is None


def test_one_ulp_of_the_encoder_or_of_the_normalisation_is_another_key_and_is_named(raw: Path, cached: Path) -> None:
    folder = cached / "cache" / "latents" / "advection1d" / "train"
    made = read_manifest(folder)
    codec = Simulator.load(raw / "artifacts" / "simulator.safetensors").codec
    before = identity(codec, "advection1d")
    changed = {"codec weights": codec.encoder.blocks[0], "normalisation": codec.statistics_of("advection1d")}
    for name, module in changed.items():
        value = next(iter(module.state_dict().values())).view(-1)
        kept = value[0].clone()
        value[0] = torch.nextafter(value[0], torch.tensor(torch.inf))
        after = identity(codec, "advection1d")
        assert [n for n in before if before[n] != after[n]] == [name]
        with pytest.raises(StaleError, match=rf"was made of something else, for its {name} \([^,]* changed; build it"):
            check_key(folder, made, {**made["key"], **after})
        value[0] = kept
    assert identity(codec, "advection1d") == before
    check_key(folder, made, {**made["key"], **before})


def test_a_cache_says_of_its_codec_what_earlier_programs_said() -> None:
    codec = build([TASKS["advection1d"]], shapes={"advection1d": (32,)}).codec
    words = "CodecConfig(dim=64, patch=(4, 4, 2), halo=2, blocks=1, width=32, heads=2, encoder='grid') (32,) "
    assert identity(codec, "advection1d")["codec"] == words


def test_where_the_cache_lies_and_whether_it_is_rebuilt_is_no_part_of_what_a_run_is(tmp_path: Path) -> None:
    base = fingerprint(settings(tmp_path))
    assert fingerprint(settings(tmp_path, cache__folder="/elsewhere", cache__rebuild=True)) == base
    assert fingerprint(settings(tmp_path, cache__dtype="bf16")) != base
    assert fingerprint(settings(tmp_path, mix__policy="proportional")) != base


# What other policies draw at a step follows from the step alone (tests/data/test_sequences.py): on purpose only.
@pytest.mark.parametrize("policy", ["error", pytest.param("proportional", marks=pytest.mark.slow)])
def test_a_run_drawn_by_another_policy_resumes_to_the_same_losses(tmp_path: Path, policy: str) -> None:
    from ups.data import sampler

    steps = {"mix__policy": policy, "operator__train__steps": 18, "operator__train__validate_every": 4}
    steps["operator__train__checkpoint_steps"] = 6
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler, "LEAD", 4)
        whole = trained(settings(tmp_path, **steps))
        broken = settings(tmp_path, name="broken", **steps)

        def stop(progress: object) -> None:
            if getattr(progress, "stage", "") == "operator" and getattr(progress, "step", 0) == 10:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            trained(broken, Screen(SCREEN.say, SCREEN.following, stop))
        folder = trained(broken, resume=True)
    assert losses(folder)[-8:] == losses(whole)[-8:]
    ours, theirs = (load_file(f / "artifacts" / "simulator.safetensors") for f in (whole, folder))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_mix_that_cannot_be_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sum to zero"):
        settings(tmp_path, mix__policy="weights", mix__weights={"advection1d": 0, "darcy2d": 0})
    with pytest.raises(ConfigError, match="a number for each task"):
        settings(tmp_path, mix__policy="weights", mix__weights={"advection1d": 1})


def command(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["cache", *words])
    return int(left.value.code or 0)


def test_the_commands_build_check_list_and_clear(cached: Path, raw: Path, capfd: pytest.CaptureFixture[str]) -> None:
    place = raw / "cache" / "latents"
    assert command("info", str(raw)) == 2
    assert "holds no latent cache" in capfd.readouterr().err
    assert command("build", str(raw)) == 0
    said = capfd.readouterr().out
    assert "GB are free" in said
    assert said.splitlines()[-1] == str(place / "darcy2d" / "valid")
    shard = (place / "advection1d" / "train" / "shard-00000.safetensors").read_bytes()
    assert (cached / "cache" / "latents" / "advection1d" / "train" / "shard-00000.safetensors").read_bytes() == shard
    assert command("verify", str(raw)) == 0
    assert command("info", str(place)) == 0
    assert "fp32" in capfd.readouterr().out
    path = place / "darcy2d" / "train" / "shard-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    assert command("verify", str(raw)) == 1
    assert command("build", str(raw)) == 2
    assert "is not what was written" in capfd.readouterr().err
    assert command("build", str(raw), "--rebuild") == 0
    assert command("verify", str(raw)) == 0
    (place / "darcy2d" / ".train.0123.draft").mkdir()
    manifest = json.loads((place / "advection1d" / "train" / "manifest.json").read_text())
    assert manifest["key"]["dtype"] == "fp32"
    os.utime(FILES["data.a.file"])
    assert command("gc", str(raw)) == 0
    assert capfd.readouterr().out.count("deleted") == 1
    assert command("build", str(raw / "nothing")) == 2
