"""A run that could not come to its end is refused before anything is made."""

from __future__ import annotations

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from ups.config import load
from ups.jobs.demo import demo
from ups.models import CodecConfig, OperatorConfig, build
from ups.physics import TASKS
from ups.progress import Screen
from ups.run.check import check
from ups.run.config import RunConfig, run_config
from ups.run.data.data_config import GenerateConfig
from ups.run.data.generate import generate
from ups.run.data.outlines import shares_of
from ups.run.run import Run
from ups.run.run import run_alone as run
from ups.types import ConfigError, DataError, UpsError

TINY = {
    "data.b.task": "burgers1d",
    "data.b.samples": 12,
    "data.b.resolution": 32,
    "data.b.frames": 11,
    "data.b.device": "cpu",
    "model.codec.dim": 8,
    "codec.batch": 4,
    "operator.batch": 4,
    "device": "cpu",
}


def settings(folder: Path, **changed: object) -> RunConfig:
    return load(
        run_config(), None, {**TINY, "out": str(folder), **{k.replace("__", "."): v for k, v in changed.items()}}
    )


def test_a_sound_run_is_known_before_it_is_there(tmp_path: Path) -> None:
    (data,) = check(settings(tmp_path))
    assert (data.shape, data.frames, data.counts) == ((32,), 11, {"train": 10, "valid": 1, "test": 1})
    assert list(tmp_path.iterdir()) == []


def test_images_to_train_on_are_there_or_the_run_is_refused(tmp_path: Path) -> None:
    def counted(task: str, **changed: object) -> int:
        usual = {"data__b__resolution": 16, "data__b__frames": None, "model__simulator__symmetry": "both"}
        (data,) = check(settings(tmp_path, data__b__task=task, **{**usual, **changed}))
        return data.counts["train"]

    assert counted("darcy2d", data__b__reduce__space=2) == 4 * 10, "of all cells, for those left have no mirror images"
    assert counted("darcy2d") == counted("darcy2d", data__b__store__space=2) == 10, "x and y are exchanged at least"
    assert counted("burgers1d", data__b__reduce__space=2) == 10, "it wraps: the same cells, moved"
    assert counted("diffsorp1d", data__b__reduce__space=2, model__simulator__symmetry="rollout") == 10
    with pytest.raises(ConfigError, match="asks for images to train on, and of diffsorp1d there are none"):
        counted("diffsorp1d")
    walls = {"data__b__params__boundary": "trans", "data__b__store__space": 2, "data__b__resolution": 64}
    with pytest.raises(ConfigError, match=r"and of cfd1d there are none: .*between walls \(store\.space\); write off"):
        counted("cfd1d", **walls)


def test_a_task_has_a_batch_of_its_own_which_all_ranks_must_share(tmp_path: Path) -> None:
    config = settings(tmp_path, operator__batches__burgers1d=6, dist__ranks=2)
    (share,) = shares_of(config, "operator", check(config))
    (whole,) = shares_of(config, "operator", check(config), ranks=1)
    (other,) = shares_of(config, "codec", check(config), ranks=1)
    assert (len(share), len(whole), len(other)) == (3, 6, config.stage("codec").batch)
    with pytest.raises(ConfigError, match=r"operator\.batches\.burgers1d is 1, which 2 ranks cannot share"):
        settings(tmp_path, operator__batches__burgers1d=1, dist__ranks=2)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"data__b__split__fractions": "[0.5, 0.5, 0]"}, "data.b: the test part .* is empty"),
        ({"data__b__split__fractions": "[0.5, 0, 0.5]"}, "data.b: the valid part .* is empty"),
        ({"data__b__split__fractions": "[.nan, 0.5, 0.5]"}, "data.b: split fractions .* with sum 1"),
        ({"data__b__samples": 2}, "data.b: 2 samples are too few"),
        ({"operator__unroll": 11}, "too few for 1 frame of context and 11 after them"),
        ({"model__operator__context": 11}, "too few for 11 frames of context"),
        ({"evaluation__given": 11}, "11 frames, all of them among the 11 of evaluation.given"),
        ({"data__b__reduce__space": 5}, "32 cells, which 5 does not divide"),
        ({"model__codec__patch": "[20, 2, 2]"}, "32 cells is too small for patches of 20"),
        ({"data__b__file": "nowhere.h5"}, "nowhere.h5: there is no such file"),
        (
            {"cache__use": True, "cache__folder": "/dev/null/x"},
            "nothing can be written in /dev/null; name another folder",
        ),
        ({"start_from": "nowhere"}, "nowhere: there is no such simulator"),
        (
            {"operator__train__optimizer": "muon", "model__operator__width": 8},
            r"operator\.train\.optimizer is muon, but no weight of the part 'operator' is a matrix of 16 or more",
        ),
        ({"evaluation__unseen": "{kdv1d: [{delta: 0.1}]}"}, "unseen names kdv1d, which no data set holds"),
        (
            {"evaluation__unseen": "{burgers1d: [{nu: 0.1}, {}]}"},
            "a set of parameters of burgers1d is empty; name at least",
        ),
        (
            {"data__c__task": "{name: burgers1d, memoryless: true}"},
            "burgers1d: `memoryless` is False of one of its data sets and True of another; say the same of all",
        ),
        (  # learnt from one frame, it is judged on those after the context all the same
            {"model__operator__context": 300, "data__b__task": "{name: burgers1d, memoryless: true}"},
            "too few for 300 frames of context and 1 after them",
        ),
        (
            {"model__simulator__symmetry": "train", "data__b__task": "advection1d"},
            r"symmetry asks for images to train on, and of advection1d there are none",
        ),
        (
            {"model__simulator__symmetry": "{kdv1d: both}"},
            r"model\.simulator\.symmetry names 'kdv1d', but the tasks are burgers1d",
        ),
        ({"operator__batches__kdv1d": 4}, "operator.batches names kdv1d, which no data set holds; they hold burgers1d"),
    ],
)
def test_what_cannot_be_finished_is_refused_and_leaves_no_folder(
    tmp_path: Path, changed: dict[str, object], said: str
) -> None:
    with pytest.raises(UpsError, match=said):
        Run.open(settings(tmp_path, **changed))
    assert list(tmp_path.iterdir()) == []


def test_a_simulator_of_another_shape_is_refused_before_data_are_made(tmp_path: Path) -> None:
    other = build([TASKS["burgers1d"]], CodecConfig(dim=4), OperatorConfig(), shapes={"burgers1d": (32,)})
    saved = other.save(tmp_path / "other.safetensors")
    with pytest.raises(ConfigError, match=r"model\.codec\.dim is 8, but the simulator to start from has 4"):
        Run.open(settings(tmp_path / "runs", start_from=str(saved)))
    assert not (tmp_path / "runs").exists()


def test_a_demo_that_could_not_be_trained_makes_no_data(tmp_path: Path) -> None:
    config = tmp_path / "demo.yaml"
    config.write_text("data: {b: {task: burgers1d, samples: 12, resolution: 6, device: cpu}}\n")
    with pytest.raises(ConfigError, match="too small for patches"):
        demo(tmp_path / "demo", config, Screen.silent())
    assert list(tmp_path.iterdir()) == [config]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    wanted = {"task": "burgers1d", "samples": 12, "resolution": 32, "frames": 11, "device": "cpu"}
    return generate(load(GenerateConfig, None, wanted), tmp_path_factory.mktemp("data"), lambda _: None)[0]


@pytest.mark.parametrize("sample", range(0, 12, 4))
def test_values_that_are_not_finite_are_named_with_file_and_sample_before_training(
    made: Path, tmp_path: Path, sample: int
) -> None:
    bad = Path(shutil.copy(made, tmp_path))
    with h5py.File(bad, "r+") as file:
        file["tensor"][sample, 3, 5] = np.nan
    with pytest.raises(DataError, match=f"{bad.name}: sample 0000{sample:02d} has values that are not finite"):
        run(settings(tmp_path, name="nan", data__b__file=str(bad)), Screen.silent())
    assert not (tmp_path / "nan" / "checkpoints").exists()


def test_a_file_that_does_not_say_what_its_task_needs_is_refused(made: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="says nowhere what its beta is, which advection1d needs"):
        Run.open(settings(tmp_path, data__b__task="advection1d", data__b__file=str(made)))


def test_a_guard_that_is_no_law_is_told_the_laws_of_the_task(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"names 'foo', which no task here \(burgers1d\) has; their laws are mass"):
        Run.open(settings(tmp_path, model__simulator__guard="foo"))
    with pytest.raises(ConfigError, match=r"guard is true, false or names of laws, .* not 3"):
        settings(tmp_path, model__simulator__guard=3)
    assert settings(tmp_path, model__simulator__guard="mass").model.simulator.guard == ("mass",)
