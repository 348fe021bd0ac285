"""BASELINES: names that are checked without torch, and entries that are consulted."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from ups.eval.baselines import BASELINES, Baseline, require
from ups.physics import TASKS
from ups.run.config import EvalConfig
from ups.types import ConfigError, TaskSpec


def unmade(task: TaskSpec, context: int, parameters: int) -> None:
    raise AssertionError((task, context, parameters))


def missing() -> None:
    raise ConfigError("cnn needs a package: pip install cnn.")


def test_an_unknown_baseline_is_one_sentence_that_names_the_known() -> None:
    with pytest.raises(ConfigError, match=r"^there is no baseline 'cnn'; the baselines are fno, uno, linear\.$"):
        require(["cnn"])
    with pytest.raises(ValueError, match="there is no baseline 'cnn'; the baselines are fno, uno, linear"):
        EvalConfig(baselines=("cnn",))


def test_a_new_entry_is_known_to_the_config_and_asked_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BASELINES, "cnn", Baseline(unmade, missing))  # type: ignore[arg-type]
    assert EvalConfig(baselines=("cnn",)).baselines == ("cnn",)
    with pytest.raises(ConfigError, match="pip install cnn"):
        require(["cnn"])
    with pytest.raises(ConfigError, match="the baselines are fno, uno, linear, cnn"):
        require(["transformer"])


def test_an_entry_is_made_by_its_seed_and_no_other_random_number_changes() -> None:
    entry, task = Baseline(lambda *_: torch.rand(3), missing), TASKS["burgers1d"]  # type: ignore[arg-type]
    before = torch.get_rng_state()
    first, again, other = (entry.untrained(task, 1, 1, seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)  # type: ignore[arg-type]
    assert not torch.equal(first, other)  # type: ignore[arg-type]
    assert torch.equal(torch.get_rng_state(), before)


def test_names_are_checked_without_torch() -> None:
    code = "import sys, ups.eval.baselines, ups.eval.metrics; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
