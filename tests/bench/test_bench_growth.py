"""`ups bench growth`: exponents of known laws, and sizes of which one alone grows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from ups.cli.app import main
from ups.engine.memory import training_work
from ups.jobs.estimate.timing import Timed
from ups.run.check import new_simulator
from ups.run.config import run_config
from ups.run.data.outlines import outlines
from ups.stages import OperatorStage
from ups_bench import growth
from ups_bench.growth import AXES, GrowthAxis, Measured, settings_of


def test_a_power_law_has_its_exponent_whatever_the_small_sizes_cost() -> None:
    sizes = (1.0, 2.0, 4.0, 8.0, 16.0)
    assert Measured("a", "unet", sizes, tuple(3 * n**1.5 for n in sizes)).exponent == pytest.approx(1.5)
    started = tuple(max(20.0, n**2) for n in sizes)
    assert Measured("a", "unet", sizes, started).exponent == pytest.approx(1.8, abs=0.3)
    assert Measured("a", "unet", (1.0, 2.0), (5.0, 5.0)).exponent == pytest.approx(0.0, abs=1e-9)


def axis_of(name: str) -> GrowthAxis:
    return next(axis for axis in AXES if axis.name == name)


def work(core: str, **settings: object) -> int:
    """Operations of a step of the operator on one sample."""
    config = run_config().model_validate({**settings_of(core, **settings), "device": "cpu"})  # type: ignore[arg-type]
    (data,) = outlines(config)
    stage = OperatorStage(new_simulator(config, [data]), config.stage("operator"))  # type: ignore[arg-type]
    return training_work(stage.loss, data.window(1, config.context, 1), "cpu", config.stage("operator").train).flops


def test_windows_keep_the_work_proportional_to_tokens_and_full_attention_does_not() -> None:
    few, many = (axis_of("tokens").settings(n) for n in (256, 1024))
    assert work("unet", **many) / work("unet", **few) == pytest.approx(4, rel=0.03)
    assert work("transformer", **many) / work("transformer", **few) > 4.5


def test_cells_grow_in_as_many_tokens() -> None:
    for n in axis_of("cells").values["cpu"]:
        asked = axis_of("cells").settings(n)
        assert asked["cells"] // asked["patch"] == growth.TOKENS


def test_the_command_prints_writes_and_draws_what_it_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def timed(config: object, *_: object) -> Timed:
        return Timed(1e-3 * config.operator.batch**0.5, 0, 0)  # type: ignore[attr-defined]

    monkeypatch.setattr(growth, "timed_stage", timed)
    picture, numbers = tmp_path / "g.png", tmp_path / "g.json"
    words = ["bench", "growth", "--axis", "samples", "--device", "cpu", "--json", str(numbers), "--plot", str(picture)]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    assert "0.50   to reach ≤ 1.1" in capsys.readouterr().out
    (row,) = json.loads(numbers.read_text())["growth"]
    assert (row["core"], row["sizes"]) == ("unet", [8, 16, 32, 64])
    assert row["exponent"] == pytest.approx(0.5)
    assert Image.open(picture).size[0] > 500


def test_a_size_that_could_not_be_timed_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(growth, "timed_stage", lambda *arguments: Timed(arguments[3], 0, 0))
    with pytest.raises(SystemExit) as ended:
        main(["bench", "growth", "--axis", "samples", "--device", "cpu", "--seconds", "3"])
    assert ended.value.code != 0
    assert "steps of 8 samples take longer than --seconds 3; give more" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["--axis", "ranks"], "nothing grows along 'ranks'"), (["--rounds", "0"], "measure nothing")],
)
def test_what_cannot_be_measured_is_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "growth", *words])
    assert ended.value.code != 0
    assert sentence in capsys.readouterr().err
