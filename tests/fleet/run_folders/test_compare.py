"""Noise is called noise, a real difference is found, and what was judged on other data is not compared."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest

from memory_runs import begun, ended, finished
from ups.cli.app import main
from ups.config import fingerprint, load
from ups.eval import trajectories
from ups.eval.pairs import difference
from ups.run.config import run_config, without_effect, written_once
from ups.types import ConfigError, DataError
from ups.verdict import Ending
from ups_fleet.run_folders.candidate import candidates
from ups_fleet.run_folders.compare import RunComparison, compare, page_of, write_page
from ups_fleet.run_folders.runs import leaderboard, runs_in


def compared(*folders: Path) -> RunComparison:
    return compare(candidates(folders, without_effect(), written_once()))


def test_differences_that_are_noise_are_significant_in_one_of_twenty_cases_at_most() -> None:
    """On few and many trajectories, with normal, heavy-tailed and skewed noise."""
    rng, cases = np.random.default_rng(0), 0
    for n in (6, 9, 12):
        for spread in ("normal", "heavy", "skewed"):
            wrong = 0
            for _ in range(100):
                truth = rng.lognormal(0, 1, n)
                noise = {
                    "normal": lambda n=n: rng.normal(0, 0.3, n),
                    "heavy": lambda n=n: rng.standard_t(2, n),
                    "skewed": lambda n=n: rng.exponential(1, n),
                }[spread]
                wrong += difference(truth * np.exp(noise()), truth * np.exp(noise())).significant
            assert wrong <= 13, f"{spread}, {n} trajectories: {wrong} of 100"  # 5 expected, 13 are beyond 3 sigma
            cases += wrong
    assert 15 <= cases <= 70, "nor may it never dare"


def test_the_interval_of_a_difference_holds_what_it_promises() -> None:
    rng, inside = np.random.default_rng(1), 0
    for _ in range(300):
        ours, theirs = rng.normal(1.0, 0.2, 12), rng.normal(0.9, 0.2, 12)
        d = difference(ours, theirs)
        inside += d.low <= 0.1 <= d.high
        assert (d.p <= 0.05) == d.significant == (d.low > 0 or d.high < 0)
    assert 273 <= inside <= 297  # 285 expected


def test_few_trajectories_and_diverged_ones_decide_nothing_that_they_cannot() -> None:
    assert not difference(np.zeros(5), np.ones(5)).significant
    assert not difference(np.zeros(5), np.ones(5)).decidable
    assert difference(np.zeros(6), np.ones(6)).significant
    assert not difference(np.zeros(6), np.ones(6), comparisons=3).significant
    same = difference(np.ones(9), np.ones(9))
    assert (same.value, same.p, same.significant) == (0.0, 1.0, False)
    lost = np.where(np.arange(8) < 7, np.inf, 1.0)
    assert difference(lost, np.full(8, 0.5)).significant
    assert not difference(np.array([np.inf, 1, 1, 1, 1, 1]), np.array([1, np.inf, 1, 1, 1, 1])).significant
    assert not difference(np.full(6, np.inf), np.full(6, np.inf)).significant


def test_runs_that_differ_by_their_seed_are_noise_whatever_the_trajectories_say(tmp_path: Path) -> None:
    """Simulator b is better on every trajectory, yet it is the same settings."""
    base = np.linspace(0.1, 0.4, 16)
    finished(tmp_path / "a", {"advection1d": base})
    finished(tmp_path / "b", {"advection1d": base * 0.97}, seed=1)
    result = compared(tmp_path / "a", tmp_path / "b")
    assert result.pairs == ()
    (sentence,) = result.sentences()
    assert sentence.startswith("advection1d: no significant difference: the runs differ only by their seed")


@pytest.mark.parametrize("data_seed", range(6))
def test_a_change_that_is_noise_is_not_called_better_and_one_that_is_real_is(tmp_path: Path, data_seed: int) -> None:
    """Three seeds of each: each seed shifts all its errors, as other weights do, by far more than trajectories tell."""
    rng = np.random.default_rng(data_seed)
    base = rng.uniform(0.1, 0.4, 24)
    for name, factor in (("plain", 1.0), ("noise", 1.0), ("good", 0.5)):
        for seed in range(3):
            errors = base * factor * (1 + 0.05 * rng.normal()) + 0.001 * rng.normal(size=24)
            lr = {"plain": 1e-3, "noise": 1.01e-3, "good": 3e-3}[name]
            finished(tmp_path / f"{name}{seed}", {"advection1d": errors}, seed=seed, operator__train__lr=lr)
    result = compared(*(tmp_path / f"{name}{seed}" for name in ("plain", "noise", "good") for seed in range(3)))
    significant = {(p.first.runs[0].name, p.second.runs[0].name): p.gap.significant for p in result.pairs}
    assert significant == {("plain0", "noise0"): False, ("plain0", "good0"): True, ("noise0", "good0"): True}
    sentences = result.sentences()
    assert "no significant difference between" in sentences[0]
    assert "operator.train.lr=0.003 (3 seeds) is better than operator.train.lr=0.001 (3 seeds)" in sentences[1]
    assert sentences[1].endswith("significant over 6 runs.")


def test_a_group_that_one_run_lacks_is_one_row_and_long_values_are_told_apart_to_their_end(tmp_path: Path) -> None:
    base, names = np.linspace(0.1, 0.4, 16), [f"file-{i}" for i in range(20)]
    wave = {"task": "advection1d", "samples": 256, "frames": None}
    finished(tmp_path / "a", {"advection1d": base}, data__wave=wave, files=[*names, "x"])
    finished(tmp_path / "b", {"advection1d": base}, files=[*names, "y"])
    _, group, files = compared(tmp_path / "a", tmp_path / "b").settings_table()
    assert group == ("data.wave", '{"task": "advection1d", "samples": 256}', "–")
    assert files[0] == "files"


def test_one_seed_each_is_said_and_the_settings_that_differ_are_shown(tmp_path: Path) -> None:
    base = np.linspace(0.1, 0.4, 16)
    finished(tmp_path / "a", {"advection1d": base})
    finished(tmp_path / "b", {"advection1d": base * 0.8}, operator__train__lr=2e-3)
    result = compared(tmp_path / "a", tmp_path / "b")
    assert result.settings_table() == (("key", "a", "b"), ("operator.train.lr", "0.001", "0.002"))
    first, second = result.sentences()
    assert first.startswith("advection1d, 16 trajectories: b is better than a, 20% lower (nRMSE 0.2 against 0.25)")
    assert second.startswith("Each of these stands for one seed")
    page = write_page(page_of(result), tmp_path / "page.html").read_text()
    for words in (first, "operator.train.lr", "Learning curves", "data:image/png;base64"):
        assert words in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_what_differs_alike_in_all_sections_is_one_row_and_one_word_in_a_name(tmp_path: Path) -> None:
    """As a sweep over `train.lr` and `model.network.size` leaves it: named by three keys, two settings were one."""
    sizes = written_once()["model.network"]
    for lr in (1e-3, 2e-3):
        for seed in (0, 1):
            settings = {f"{place}.lr".replace(".", "__"): lr for place in written_once()["train"]}
            settings |= {f"{place}.size".replace(".", "__"): str(lr) for place in sizes} | {"codec__train__clip": lr}
            finished(tmp_path / f"{lr}-{seed}", {"advection1d": np.linspace(0.1, lr, 16)}, seed=seed, **settings)
    result = compared(*sorted(tmp_path.iterdir()))
    keys = [key for key, *_ in result.settings_table()]
    assert sorted(keys) == ["codec.train.clip", "key", "model.network.size", "seed", "train.lr"]
    assert "train.lr=0.001" in result.sides[0].name
    assert "train.lr=0.002" in result.sides[1].name


def test_runs_that_were_judged_on_other_data_are_not_paired_and_that_is_said(tmp_path: Path) -> None:
    finished(tmp_path / "a", {"advection1d": np.ones(8)})
    finished(tmp_path / "b", {"advection1d": np.zeros(8)}, exam="y", operator__train__lr=2e-3)
    result = compared(tmp_path / "a", tmp_path / "b")
    assert result.pairs == ()
    assert (
        "were judged on other test data (no trajectory in common), so their errors are NOT compared"
        in (result.sentences()[0])
    )
    rows = [dataclasses.replace(row, protocol="A (2 given)") for row in trajectories.read(tmp_path / "b")]
    trajectories.write(tmp_path / "b", rows)
    said = compared(tmp_path / "a", tmp_path / "b").sentences()[0]
    assert "were judged under different protocols (A, A (2 given)), so their errors are NOT compared" in said
    finished(tmp_path / "c", {"advection1d": np.ones(12) * 2}, operator__train__lr=3e-3)
    result = compared(tmp_path / "a", tmp_path / "c")
    assert [pair.gap.n for pair in result.pairs] == [8]
    assert "compared on the 8 trajectories that both have, of up to 12" in result.sentences()[-1]


def test_more_comparisons_ask_for_more(tmp_path: Path) -> None:
    """A gap that is just significant alone is not among ten."""
    rng = np.random.default_rng(0)
    base = rng.uniform(0.1, 0.4, 7)
    for number in range(5):
        errors = base + (0.01 if number else 0.0)
        finished(tmp_path / f"{number}", {"advection1d": errors}, operator__train__lr=1e-3 * (1 + number))
    assert compared(tmp_path / "0", tmp_path / "1").pairs[0].gap.significant
    result = compared(*(tmp_path / f"{number}" for number in range(5)))
    assert len(result.pairs) == 10
    assert not any(pair.gap.significant for pair in result.pairs)


def test_what_cannot_be_compared_is_one_sentence(tmp_path: Path) -> None:
    finished(tmp_path / "a")
    dead = begun(tmp_path / "dead")
    with pytest.raises(ConfigError, match="two runs or more"):
        compared(tmp_path / "a")
    with pytest.raises(ConfigError, match="is named twice"):
        compared(tmp_path / "a", tmp_path / "." / "a")
    assert "dead: dead, so it has not been judged" in compared(tmp_path / "a", tmp_path / "dead").sentences()[-1]
    old = finished(tmp_path / "old")
    old.trajectories.unlink()
    other = begun(tmp_path / "other")
    ended(other, Ending.OOM, "no memory.")
    with pytest.raises(DataError, match=r"`ups evaluate .*old` writes it"):
        compared(tmp_path / "old", tmp_path / "other")
    dead.config.write_text("{")
    with pytest.raises(DataError, match=r"config\.yaml: cannot be read"):
        compared(tmp_path / "a", tmp_path / "dead")


@pytest.mark.parametrize("content", ["", '{"rows": []}', '{"rows": [{"task": "advection1d"}]}'])
def test_a_run_whose_errors_are_damaged_is_named_with_its_file_and_the_remedy(tmp_path: Path, content: str) -> None:
    finished(tmp_path / "a")
    damaged = finished(tmp_path / "b", operator__train__lr=2e-3)
    damaged.trajectories.write_text(content)
    row = {"task": "advection1d", "metric": "nrmse", "mode": "strict", "axis": "", "predictor": "ups", "protocol": "A"}
    damaged.results.write_text(json.dumps([{**row, "value": 0.1, "low": 0.1, "high": 0.1, "n": 3}]))
    remedy = f"{damaged.trajectories}: is damaged .*; `ups evaluate {damaged.folder}` writes it again."
    (sentence,) = compared(tmp_path / "a", tmp_path / "b").sentences()
    assert re.fullmatch(remedy, sentence)
    rows, (note,) = leaderboard(runs_in(tmp_path))
    assert [row[2] for row in rows[1:]] == ["a"]
    assert re.search(remedy, note)


def test_a_comparison_writes_a_page_only_where_one_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, error in (("a", 0.1), ("b", 0.2)):
        finished(tmp_path / name, {"advection1d": np.full(8, error)})
    before, page = set(tmp_path.rglob("*")), tmp_path / "page.html"
    for words in ((), ("--out", str(page))):
        with pytest.raises(SystemExit) as ended:
            main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), *words])
        assert not ended.value.code
        assert "advection1d" in (said := capsys.readouterr().out)
        assert (str(page) in said) == bool(words)
        assert set(tmp_path.rglob("*")) - before == ({page} if words else set())


def test_runs_that_were_carried_out_in_another_way_have_the_same_settings(tmp_path: Path) -> None:
    """Just where that is no part of the fingerprint either: the config says once which keys these are."""
    ways = {"cache__folder": "/fast", "cache__rebuild": True, "operator__workers": 2, "operator__train__log_every": 7}
    errors = {"advection1d": np.linspace(0.1, 0.2, 8)}
    finished(tmp_path / "one", errors)
    finished(tmp_path / "other", errors, **ways, device="cuda", dist={"ranks": 4}, tracking={"to": ["wandb"]}, seed=1)
    finished(tmp_path / "third", errors, cache__dtype="bf16")
    (alike, apart) = compared(tmp_path / "one", tmp_path / "other", tmp_path / "third").sides
    assert [run.name for run in alike.runs] == ["one", "other"]
    assert [run.name for run in apart.runs] == ["third"]
    plain, flags = load(run_config()), {key.replace("__", "."): value for key, value in ways.items()}
    assert fingerprint(plain) == fingerprint(load(run_config(), None, flags))
    assert fingerprint(plain) != fingerprint(load(run_config(), None, {"cache.dtype": "bf16"}))


def test_a_leaderboard_sets_other_test_data_apart(tmp_path: Path) -> None:
    for number, value in enumerate((0.3, 0.1, 0.2)):
        finished(tmp_path / f"run{number}", {"advection1d": np.full(6, value)})
    finished(tmp_path / "other", {"advection1d": np.full(6, 0.01)}, exam="y")
    rows, notes = leaderboard(runs_in(tmp_path))
    assert [(row[1], row[2], row[-2]) for row in rows[1:]] == [
        ("1", "run1", "A"),
        ("2", "run2", "A"),
        ("3", "run0", "A"),
        ("1", "other", "B"),
    ]
    assert "NOT comparable" in notes[0]
    assert leaderboard(runs_in(tmp_path), top=1)[0][1][2] == "run1"
    with pytest.raises(ConfigError, match="did you mean 'advection1d'"):
        leaderboard(runs_in(tmp_path), task="advection")
