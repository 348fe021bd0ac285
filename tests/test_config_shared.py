"""Keys that are written once for several sections: which value counts, what is shown, and that a run stays the same."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ups.config import Config, dump, fingerprint, giving_way, load, shown
from ups.engine.train import TrainConfig
from ups.run.config import RunConfig, run_config
from ups.stages import STAGES
from ups.stages.codec import CodecStageConfig
from ups.stages.stage import StageConfig
from ups.types import ConfigError

ROOT = Path(__file__).parent.parent
FILES = [
    path
    for folder in ("configs", "src/ups/configs")
    for path in sorted((ROOT / folder).rglob("*.yaml"))
    if not path.name.startswith("base")
]


def loaded(folder: Path, content: dict[str, Any], **flags: Any) -> RunConfig:
    path = folder / "c.yaml"
    path.write_text(json.dumps(content))
    return load(run_config(), path, {key.replace("__", "."): value for key, value in flags.items()})


def rates(config: RunConfig) -> dict[str, float]:
    return {name: config.stage(name).train.lr for name in STAGES}


def test_what_is_written_for_all_counts_before_defaults_and_after_what_a_stage_says(tmp_path: Path) -> None:
    assert rates(load(run_config()))["operator"] == 2e-3  # a default of the stage
    for_all = loaded(tmp_path, {"train": {"lr": 0.5}})
    assert set(rates(for_all).values()) == {0.5}
    but_one = loaded(tmp_path, {"train": {"lr": 0.5}, "steady": {"train": {"lr": 0.25, "clip": 2.0}}})
    assert rates(but_one) == rates(for_all) | {"steady": 0.25}
    assert but_one.codec.train.ema == 0.99  # what nobody writes stays as the stage has it
    networks = loaded(tmp_path, {"model": {"network": {"size": "small", "norm": "token"}, "critic": {"size": "base"}}})
    sizes = {name: networks.model.part(name).size for name in ("operator", "residual", "critic", "steady")}
    assert sizes == {"operator": "small", "residual": "small", "critic": "base", "steady": "small"}
    assert networks.model.operator.norm == "token"
    windows = loaded(tmp_path, {"batch": 8, "batches": {"a": 2, "b": 3}, "codec": {"batch": 4, "batches": {"a": 1}}})
    assert (windows.codec.batch, windows.codec.batches) == (4, {"a": 1})
    assert (windows.steady.batch, windows.steady.batches) == (8, {"a": 2, "b": 3})


def test_a_stage_of_no_steps_is_not_trained_by_a_later_budget_for_all_but_by_its_own(tmp_path: Path) -> None:
    frozen: dict[str, Any] = {"codec": {"train": {"steps": 0}}, "operator": {"train": {"steps": 7}}}

    def budgets(**flags: Any) -> list[tuple[int | None, float | None]]:
        config = loaded(tmp_path, frozen, **flags)
        return [(train.steps, train.seconds) for train in (config.codec.train, config.operator.train)]

    assert budgets(train__seconds=60) == [(0, None), (None, 60.0)]
    assert budgets(train__steps=5, train__lr=0.5) == [(0, None), (5, None)]
    assert loaded(tmp_path, frozen, train__lr=0.5).codec.train.lr == 0.5, "what is no budget counts there too"
    assert budgets(codec__train__steps=5) == [(5, None), (7, None)]
    (tmp_path / "b.yaml").write_text(json.dumps(frozen))
    config = loaded(tmp_path, {"base": "b.yaml", "train": {"seconds": 60}})
    assert (config.codec.train.steps, config.operator.train.seconds) == (0, 60.0)


def test_a_budget_for_all_takes_the_place_of_all_and_one_of_a_stage_of_that(tmp_path: Path) -> None:
    config = loaded(tmp_path, {"train": {"seconds": 9}, "operator": {"train": {"steps": 7}}})
    budgets = {name: (config.stage(name).train.steps, config.stage(name).train.seconds) for name in STAGES}
    assert budgets == dict.fromkeys(STAGES, (None, 9.0)) | {"operator": (7, None)}


def test_what_is_said_later_counts_whether_of_all_or_of_one(tmp_path: Path) -> None:
    own = {"operator": {"train": {"lr": 0.5, "seconds": 5}, "batch": 3}, "model": {"residual": {"modes": 3}}}
    (tmp_path / "base.yaml").write_text(json.dumps(own))
    assert rates(loaded(tmp_path, {"base": "base.yaml", "train": {"lr": 0.25}}))["operator"] == 0.25
    flagged = loaded(tmp_path, own, train__lr="0.125", train__steps="4", batch="6", model__network__modes="9")
    assert set(rates(flagged).values()) == {0.125}
    assert (flagged.operator.train.steps, flagged.operator.train.seconds) == (4, None)
    assert (flagged.operator.batch, flagged.model.residual.modes) == (6, 9)
    both = loaded(tmp_path, own, train__lr="0.125", operator__train__lr="0.75")
    assert rates(both)["operator"] == 0.75
    assert rates(both)["codec"] == 0.125


def test_what_is_proposed_for_one_gives_way_to_what_is_asked_for_all() -> None:
    proposed = {
        "operator.train.lr": 1,
        "operator.train.seconds": 2,
        "codec.train.steps": 0,
        "model.operator.size": "base",
    }
    asked = {"train.steps": 5, "model.network": {"size": "tiny"}}
    assert giving_way(run_config(), proposed, asked) == {"operator.train.lr": 1}


def test_a_config_made_in_python_takes_a_whole_section_for_all() -> None:
    config = run_config().model_validate({"train": TrainConfig(steps=5, lr=0.5), "codec": {"train": {"lr": 0.25}}})
    assert config.stage("steady").train == TrainConfig(steps=5, lr=0.5)
    assert config.stage("codec").train == TrainConfig(steps=5, lr=0.25)
    assert run_config().model_validate(config.model_dump()) == config


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_shown_given_back_as_a_file_is_the_same_run(tmp_path: Path, path: Path) -> None:
    flags = {"train.validate_every": 3, "codec.train.steps": 1, "codec.train.seconds": 2, "model.network.modes": 5}
    for config in (load(run_config(), path), load(run_config(), path, flags)):
        file = tmp_path / "shown.yaml"
        file.write_text(shown(config))
        again = load(run_config(), file)
        assert fingerprint(again) == fingerprint(config)
        assert dump(again) == dump(config)
        assert shown(again) == shown(config)
        file.write_text(dump(config))
        assert fingerprint(load(run_config(), file)) == fingerprint(config)


def test_of_a_section_only_what_differs_is_shown_and_of_budgets_the_one_that_counts(tmp_path: Path) -> None:
    text = yaml.safe_load(
        shown(loaded(tmp_path, {"train": {"lr": 2e-3}, "batch": 8, "codec": {"train": {"steps": 0}}}))
    )
    assert set(text["train"]) == {field.name for field in dataclasses.fields(TrainConfig)}
    assert text["codec"]["train"] == {"steps": 0, "ema": 0.99, "validate_first": True}
    assert not {"train", "batch", "batches", "workers"} & text["operator"].keys()
    assert text["model"]["critic"] == {"norm": "token"}


def test_what_a_run_is_does_not_depend_on_where_its_keys_are_written(tmp_path: Path) -> None:
    once = loaded(tmp_path, {"train": {"lr": 0.5}, "workers": 3, "model": {"network": {"modes": 3}}})
    parts = ("operator", "residual", "critic", "steady")
    each = {name: {"train": {"lr": 0.5}} for name in STAGES} | {"model": {name: {"modes": 3} for name in parts}}
    assert fingerprint(once) == fingerprint(loaded(tmp_path, each))
    assert dump(once).replace("workers: 3", "workers: 0") == dump(loaded(tmp_path, each))


def test_a_recipe_counts_what_is_written_for_all_as_written_for_each(tmp_path: Path) -> None:
    once, each = tmp_path / "once.yaml", tmp_path / "each.yaml"
    once.write_text("train: {lr: 0.5}\nbatch: 4\n")
    each.write_text(json.dumps({name: {"train": {"lr": 0.5}, "batch": 4} for name in STAGES}))
    prints = [fingerprint(load(run_config(), path), path, {"codec.train.clip": 5.0}) for path in (once, each)]
    assert prints[0] == prints[1]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("train: {lrr: 1}", "c.yaml: 'train.lrr' is not a known key; did you mean 'lr'?"),
        ("model: {network: {sise: tiny}}", "c.yaml: 'model.network.sise' is not a known key; did you mean 'size'?"),
        ("train: {lr: -1}", "c.yaml: 'train': train.lr is -1.0, but must be above 0 and finite."),
        ("train: {lr: true}", "c.yaml: 'train.lr' is true, but must be a number."),
        ("train: 4", "c.yaml: 'train' must be a group of keys, not 4."),
        ("train: {steps: null}", "c.yaml: 'train': training has no end: give steps, seconds or both."),
        ("batch: 0", "c.yaml: 'batch': input should be greater than or equal to 1, not 0."),
        ("model: {network: {kernel: 4}}", "c.yaml: 'model.network': network.kernel is 4; a convolution"),
        ("train: {lr: 1}\noperator: {train: 3}", "c.yaml: 'operator.train' must be a group of keys, not 3."),
        ("train: {lr: 1}\noperator: 3", "c.yaml: 'operator' must be a group of keys, not 3."),
    ],
)
def test_what_is_wrong_for_all_is_said_of_the_key_that_was_written(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text + "\n")
    with pytest.raises(ConfigError) as caught:
        load(run_config(), path)
    assert sentence in str(caught.value)


def test_any_config_may_have_keys_for_all_sections_of_a_kind() -> None:
    class Both(Config):
        shared = dict.fromkeys(("train", "batch"), StageConfig)

        train: TrainConfig = TrainConfig(steps=1)
        batch: int = 2
        one: CodecStageConfig = CodecStageConfig()
        other: int = 0

    config = Both.model_validate({"batch": 5, "train": {"steps": 3}})
    assert (config.one.batch, config.one.train.steps, config.one.train.ema) == (5, 3, 0.99)


def leaves(values: Any) -> int:
    return sum(map(leaves, values.values())) if isinstance(values, dict) and values else 1


def test_all_keys_that_are_shown_are_at_most_a_hundred_and_fifty() -> None:
    """With those of the workshop; a list counts as one. Before adding a key, look for what it replaces."""
    assert leaves(yaml.safe_load(shown(load(run_config())))) <= 150
