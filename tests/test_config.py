"""Configuration: strict, layered, fingerprinted, and errors that help."""

from __future__ import annotations

import dataclasses
import glob
import os
import time
from pathlib import Path

import pytest
import yaml

from ups.config import dump, fingerprint, incidental_keys, load, shown
from ups.physics import TASKS
from ups.run.config import EvalConfig, run_config, without_effect
from ups.types import ConfigError, Dynamics


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def complaint(path: Path | None = None, **overrides: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load(run_config(), path, {key.replace("__", "."): value for key, value in overrides.items()})
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_file_lies_over_its_base_and_flags_lie_over_both(tmp_path: Path) -> None:
    written(tmp_path, "base.yaml", "name: a\nseed: 3\ndata: {b: {task: burgers1d, samples: 5, params: {nu: 0.1}}}\n")
    top = written(tmp_path, "top.yaml", "base: base.yaml\nname: b\ndata: {b: {samples: 7}}\n")
    config = load(run_config(), top, {"data.b.params.nu": "0.2"})
    assert (config.name, config.seed, config.data["b"].samples) == ("b", 3, 7)
    assert config.data["b"].params == {"nu": 0.2}


def test_a_shown_config_loads_to_itself_and_keeps_its_fingerprint(tmp_path: Path) -> None:
    config = load(run_config(), None, {"data.x.task": "kdv1d", "name": "y"})
    again = load(run_config(), written(tmp_path, "shown.yaml", shown(config)))
    assert again == config
    assert fingerprint(again) == fingerprint(config)


def test_how_often_is_logged_and_saved_is_no_part_of_what_a_run_is() -> None:
    config = load(run_config(), None, {"data.a.task": "advection1d"})
    same = {"operator.train.log_every": 7, "operator.train.checkpoint_seconds": 9.0, "codec.workers": 2, "out": "there"}
    assert set(same) <= incidental_keys(config)
    for key, value in same.items():
        assert fingerprint(load(run_config(), None, {"data.a.task": "advection1d", key: value})) == fingerprint(config)
    changes = {"operator.train.drift_every": 7, "operator.batch": 3, "seed": 1, "cache.dtype": "bf16"}
    for key, value in changes.items():
        assert fingerprint(load(run_config(), None, {"data.a.task": "advection1d", key: value})) != fingerprint(config)


def test_the_fingerprint_ignores_order_and_sees_every_value() -> None:
    one = load(run_config(), None, {"data.x.task": "kdv1d", "data.x.seed": 1})
    other = load(run_config(), None, {"data.x.seed": 1, "data.x.task": "kdv1d"})
    changed = load(run_config(), None, {"data.x.seed": 2, "data.x.task": "kdv1d"})
    assert fingerprint(one) == fingerprint(other) != fingerprint(changed)


def test_an_unknown_key_names_its_path_its_file_and_the_nearest_valid_one(tmp_path: Path) -> None:
    path = written(tmp_path, "c.yaml", "data: {b: {task: burgers1d, sampels: 5}}\n")
    text = complaint(path)
    assert str(path) in text
    assert "data.b.sampels" in text
    assert "did you mean 'samples'" in text


def test_relative_paths_of_a_file_count_from_its_folder_and_those_of_flags_from_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, elsewhere = tmp_path / "a [project]", tmp_path / "elsewhere"
    for folder in (project / "configs" / "shared", project / "data", elsewhere):
        folder.mkdir(parents=True)
    written(project / "configs", "wake.yaml", "dims: [sample, time, x]\n")
    written(project / "configs" / "shared", "base.yaml", "data: {a: {file: ../../data/a.npz}}\nsecond_copy: /disk\n")
    text = "base: shared/base.yaml\nstart_from: ../runs/old\ngates: {champion: ../runs/best}\ncache: {folder: c}\n"
    text += "out: results\ndata: {a: {task: wake.yaml}, b: {split: {files: {train: ../data/*.h5, test: [s3://x/y]}}}}\n"
    top = written(project / "configs", "top.yaml", text)
    prints = set()
    for place in (project, project / "configs", elsewhere):
        monkeypatch.chdir(place)
        config = load(run_config(), top, {"data.c.file": os.path.relpath(project / "data" / "c.npz")})
        named = (*config.data["a"].paths, str(config.start_from), str(config.champion), str(config.cache.folder))
        assert [Path(name).resolve().relative_to(project).as_posix() for name in named] == [
            *("data/a.npz", "runs/old", "runs/best", "configs/c")
        ]
        assert config.data["c"].paths == [os.path.relpath(project / "data" / "c.npz")], "as it was given"
        pattern = os.path.join(glob.escape(os.path.relpath(project / "data")), "*.h5")
        assert config.data["b"].words == [pattern, "s3://x/y"]
        assert (config.second_copy, config.out) == ("/disk", "results"), "runs are made from the current folder on"
        prints.add(fingerprint(config))
        kept = written(elsewhere, "kept.yaml", dump(config))
        assert load(run_config(), kept) == config, "a run that is read from any folder"
        assert "start_from: ../runs/old\n" in kept.read_text(), "a project may be moved"
    assert len(prints) == 1, "wherever it is started, it is the same run"


def test_a_file_may_say_from_where_its_paths_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "configs").mkdir()
    path = written(tmp_path / "configs", "c.yaml", "home: ..\ndata: {a: {file: data/a.npz}}\n")
    monkeypatch.chdir(tmp_path)
    assert load(run_config(), path).data["a"].paths == ["data/a.npz"]
    assert load(run_config(), path, {"home": "other"}).data["a"].paths == ["other/data/a.npz"]
    assert "'home': input should be a valid string" in complaint(written(tmp_path, "d.yaml", "home: [a]\n"))


def test_bases_of_bases_end_after_twenty_and_the_first_file_is_blamed(tmp_path: Path) -> None:
    for n in range(3000):
        written(tmp_path, f"{n}.yaml", f"base: {n + 1}.yaml\n")
    began = time.process_time()
    text = complaint(first := tmp_path / "0.yaml")
    assert time.process_time() - began < 60
    assert text == f"{first}: more than 20 base files follow one another from it; lay some of them together."
    written(tmp_path, "20.yaml", "name: last\n")
    assert load(run_config(), first).name == "last", "twenty are few enough"
    written(tmp_path, "20.yaml", "base: 3.yaml\n")
    assert "in a circle" in (circle := complaint(first))
    assert circle.startswith(f"{first}: ")


def test_an_unknown_key_of_a_base_is_blamed_on_the_base(tmp_path: Path) -> None:
    written(tmp_path, "base.yaml", "nmae: a\n")
    text = complaint(written(tmp_path, "top.yaml", "base: base.yaml\n"))
    assert "base.yaml" in text
    assert "did you mean 'name'" in text


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("data__b__samples", "many", "valid integer"),
        ("operator__train__steps", "yes", "is true, but must be a number"),
        ("operator__train__lr", True, "is true, but must be a number"),
        ("model__codec__patch", [True, 4, 2], "is true, but must be a number"),
        ("data__b__samples", 0, "greater than or equal to 1"),
        ("data__b__task", "burger1d", "did you mean 'burgers1d'"),
        ("data__b__scheme", "exact", "'pdebench' or 'accurate'"),
        ("data__b__params__nu", -1.0, "nu is -1, but must be above 0"),
        ("data__b__params__mu", 1.0, "no parameter 'mu'; it has nu"),
        ("data__b__device", "gpu", "match pattern"),
        ("evaluation__baselines", "fno", "must be a list, such as [fno], not 'fno'."),
    ],
)
def test_a_wrong_value_is_one_sentence_with_the_flag_it_came_from(key: str, value: object, words: str) -> None:
    text = complaint(**{"data__b__task": "burgers1d", key: value})
    assert words in text
    assert text.startswith(("--" + key.replace("__", "."), "--data.b", "burgers1d", "there is no task"))


def test_of_a_value_that_is_a_word_or_a_group_it_is_said_what_is_wrong_in_the_group(tmp_path: Path) -> None:
    path = written(tmp_path, "c.yaml", "data: {a: {task: {name: advection1d, advected_by: b}}}\n")
    assert "'data.a.task.advected_by': must be a list, such as [b], not 'b'." in complaint(path)
    assert complaint(path, data__a__task="{advected_by: c}").startswith("--data.a.task: must be a list")
    misspelt = complaint(data__a__task="{advectd_by: [c]}")
    assert misspelt == "--data.a.task is not a known key; did you mean 'advected_by'?"


def test_data_of_nothing_are_asked_what_they_are() -> None:
    assert "neither a `file` nor a `task`" in complaint(data__b__samples=24)


def test_a_scheme_that_a_task_lacks_is_an_impossible_combination() -> None:
    text = complaint(data__b__task="kdv1d", data__b__scheme="pdebench")
    assert "kdv1d has no scheme 'pdebench'" in text


def test_broken_missing_circular_and_foreign_files_are_one_sentence_each(tmp_path: Path) -> None:
    assert "no such config file" in complaint(tmp_path / "absent.yaml")
    assert "not valid YAML at line 2" in complaint(written(tmp_path, "bad.yaml", "a: [1,\n"))
    assert "keys and values" in complaint(written(tmp_path, "list.yaml", "- 1\n"))
    assert "named as base by" in complaint(written(tmp_path, "lost.yaml", "base: nowhere.yaml\n"))
    written(tmp_path, "p.yaml", "base: q.yaml\n")
    assert "in a circle" in complaint(written(tmp_path, "q.yaml", "base: p.yaml\n"))
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x01")
    assert "cannot be read as a text file" in complaint(tmp_path / "binary.yaml")


def test_the_schema_explains_every_key() -> None:
    schema = run_config().model_json_schema()
    for part in (schema, *schema["$defs"].values()):
        for name, key in part["properties"].items():
            # A reference is explained where it points to.
            assert key.get("description") or "$ref" in key, f"{name} says nothing about itself"


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parent.parent / "configs").glob("*.yaml")), ids=lambda p: p.name
)
def test_every_config_states_its_command_and_loads(path: Path) -> None:
    assert "ups run configs/" in "".join(path.read_text().splitlines(keepends=True)[:2])
    train = load(run_config(), path).stage("operator").train
    assert train.seconds or train.steps


def test_the_demo_config_states_its_command_and_loads() -> None:
    path = Path(__file__).parent.parent / "src/ups/configs/demo.yaml"
    assert path.read_text().startswith("# ups demo")
    assert set(load(run_config(), path).data) == set(yaml.safe_load(path.read_text())["data"])


def test_what_goes_on_from_the_demo_has_its_networks(tmp_path: Path) -> None:
    """The demo's second part, and the example of docs/howto-finetune.md."""
    root = Path(__file__).parent.parent
    demo = load(run_config(), root / "src/ups/configs/demo.yaml").model
    example = (root / "docs/howto-finetune.md").read_text().split("```yaml\n")[1].split("```")[0]
    for path in (root / "src/ups/configs/demo-ensemble.yaml", written(tmp_path, "further.yaml", example)):
        config = load(run_config(), path)
        assert config.start_from is not None
        assert Path(config.start_from).resolve() == path.parent / "runs" / "demo"
        assert (config.model.codec, config.model.operator) == (demo.codec, demo.operator)


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("operator: {train: {lr: -1}}", "'operator.train'", "train.lr is -1.0, but must be above 0"),
        ("codec: {train: {ema: 1.5}}", "'codec.train'", "train.ema is 1.5"),
        ("model: {codec: {dim: 0}}", "'model.codec'", "at least 1"),
        ("model: {codec: {patch: [0, 2, 2]}}", "'model.codec'", "at least 1"),
        ("model: {operator: {levels: 31}}", "'model.operator'", "from 0 to 30"),
        ("model: {operator: {depth: -1}}", "'model.operator'", "at least 1"),
        ("mix: {policy: temperature, temperature: 0}", "'mix'", "must be above 0"),
        ("data: {b: {task: burgers1d, reduce: {time: 0}}}", "'data.b.reduce'", "every n-th"),
        ("operator: 3", "'operator'", "must be a group of keys, not 3"),
    ],
)
def test_what_a_part_says_of_itself_is_said_with_its_key_and_its_file(
    tmp_path: Path, text: str, key: str, said: str
) -> None:
    path = written(tmp_path, "c.yaml", text + "\n")
    found = complaint(path)
    assert found.startswith(f"{path}: {key}")
    assert said in found


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("model__simulator__guard", "3", "guard is true, false or names of laws"),
        ("operator__train__lr", "-1", "train.lr is -1.0, but must be above 0"),
        ("data__b__task", "burger1d", "did you mean 'burgers1d'"),
        ("data__b__reduce__time", "0", "every n-th"),
        ("plan", "[codec]", "the plan makes no part 'operator'"),
    ],
)
def test_a_flag_that_makes_a_group_of_the_file_wrong_is_named_and_not_the_file(
    tmp_path: Path, key: str, value: str, words: str
) -> None:
    path = written(tmp_path, "c.yaml", "data: {b: {task: burgers1d}}\noperator: {train: {steps: 3}}\n")
    text = complaint(path, **{"operator__batch": "4", key: value})
    assert text.startswith(f"--{key.replace('__', '.')}: ")
    assert words in text
    broken = written(tmp_path, "d.yaml", "data: {b: {task: burgers1d}}\noperator: {train: {lr: -1}}\n")
    assert complaint(broken, operator__train__steps="3").startswith(f"{broken}: 'operator.train'")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"plan": "[codec, operator, codec]"}, "a plan names at least one stage, and each of them once"),
        ({"plan": "[]"}, "a plan names at least one stage, and each of them once"),
        (
            {"mix.policy": "weights", "mix.weights": "{kdv1d: 1.0, burgers1d: 2.0}"},
            "mix.weights needs a number for each task of the data and no other; look at kdv1d",
        ),
        ({"dist.backend": "nccl", "device": "cpu"}, "dist.backend is nccl, which needs GPUs, and device is cpu"),
        (
            {"dist.strategy": "fsdp", "operator.train.optimizer": "muon"},
            "operator.train.optimizer is muon, which needs whole matrices, and fsdp cuts them",
        ),
        ({"dist.ranks": "4", "codec.batch": "3"}, "codec.batch is 3, which 4 ranks cannot share"),
        ({"dist.launcher": "ssh"}, "there is no launcher 'ssh'"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_before_any_data_are_opened(changes: dict[str, str], words: str) -> None:
    data = {"data.b.task": "burgers1d"}
    assert words in complaint(**{key.replace(".", "__"): value for key, value in (data | changes).items()})


def test_a_plan_needs_what_forecasts_and_has_the_parts_of_what_it_goes_on_from() -> None:
    assert load(run_config(), None, {"plan": "[codec]", "start_from": "runs/demo"}).parts == ("codec", "operator")
    assert load(run_config(), None, {"plan": "[codec, operator, residual]"}).parts == ("codec", "operator", "residual")


def test_what_runs_that_learn_alike_may_differ_in_are_their_names_and_how_they_are_carried_out() -> None:
    assert without_effect() >= {"name", "out", "tracking", "limits", "sync", "dist"}
    assert not without_effect() & {"seed", "data", "evaluation"}


def test_definitions_of_files_are_kept_once_and_the_smallest_batch_is_that_of_any_task() -> None:
    config = load(run_config(), None, {"data.a.task": "kdv1d", "data.b.task": "burgers1d", "data.c.task": "kdv1d"})
    assert config.definitions == [config.data[name].definition.plain() for name in ("a", "b")]
    stage = load(run_config(), None, {"operator.batch": "8", "operator.batches.kdv1d": "2"}).stage("operator")
    assert [stage.batch_of("kdv1d"), stage.batch_of("burgers1d"), stage.least_batch] == [2, 8, 2]


def test_true_frames_before_a_rollout_are_those_that_are_given_or_as_many_as_the_networks_look_back_on() -> None:
    assert [EvalConfig(given=given).given_to(3) for given in (None, 2, 5)] == [3, 3, 5]
    config = load(run_config(), None, {"model.operator.context": "4"})
    told = dataclasses.replace(TASKS["kdv1d"], dynamics=Dynamics(memoryless=True))
    assert (config.context, config.looks_back(TASKS["kdv1d"]), config.looks_back(told)) == (4, 4, 1)


def test_weights_gathered_as_bf16_are_refused_where_no_stage_computes_in_bf16(tmp_path: Path) -> None:
    path = written(tmp_path, "c.yaml", "data: {b: {task: burgers1d}}\ndist: {strategy: fsdp, gather: bf16}\n")
    assert "dist.gather is bf16, which is for stages that compute in bf16, and none of the plan does" in complaint(path)
    assert load(run_config(), path, {"operator.train.precision": "bf16"}).dist.gather == "bf16"
    alone = written(tmp_path, "d.yaml", "data: {b: {task: burgers1d}}\ndist: {gather: bf16}\n")
    assert "dist.gather are for strategy fsdp" in complaint(alone)


def test_a_key_that_stands_twice_is_refused_and_none_of_its_values_is_lost(tmp_path: Path) -> None:
    text = complaint(written(tmp_path, "c.yaml", "data:\n  b: {task: burgers1d}\n  b: {task: kdv1d}\n"))
    assert "'b' stands twice" in text
    assert "line 3" in text


def test_a_flag_that_is_no_yaml_is_one_sentence() -> None:
    assert "--seed: '[1' is not valid YAML" in complaint(seed="[1")


def test_a_run_is_not_named_like_the_folder_above_it() -> None:
    for name in ("..", ".", ".git"):
        assert "--name" in complaint(name=name)


def test_a_part_of_a_stages_training_changes_that_part_alone() -> None:
    plain, faster = load(run_config()), load(run_config(), None, {"operator.train.lr": "0.5"})
    assert faster.operator.train == dataclasses.replace(plain.operator.train, lr=0.5)


def test_a_budget_of_seconds_takes_the_place_of_the_default_steps() -> None:
    plain, timed = load(run_config()), load(run_config(), None, {"codec.train.seconds": "5"})
    assert timed.codec.train == dataclasses.replace(plain.codec.train, steps=None, seconds=5.0)


def test_a_config_of_the_first_version_is_read_with_all_its_keys(tmp_path: Path) -> None:
    said = {"task": "burgers1d", "samples": 8, "resolution": 64, "seed": 3, "scheme": "accurate", "device": "cpu"}
    said |= {"dtype": "float32", "batch": 4, "params": {"nu": 0.02}}
    path = written(tmp_path, "c.yaml", yaml.safe_dump({"name": "old", "out": "there", "seed": 5, "data": {"a": said}}))
    config = load(run_config(), path)
    assert (config.name, config.out, config.seed) == ("old", "there", 5)
    made = config.data["a"].model_dump()
    assert {key: made[key] for key in said} == said
