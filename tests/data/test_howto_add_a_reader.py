"""The reader of docs/howto-add-a-reader.md, taken from the page as it stands, passes the tests of every reader."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

from data import test_every_reader as every
from ups.config import load
from ups.data import READERS, open_source
from ups.data.reduction import Reduction
from ups.data.trajectories import Trajectories
from ups.data.windows import Windows
from ups.physics import TASKS
from ups.run.config import run_config

PAGE = Path(__file__).parents[2] / "docs" / "howto-add-a-reader.md"
BLOCKS = {kind: re.findall(rf"^```{kind}\n(.*?)^```", PAGE.read_text(), re.M | re.S) for kind in ("python", "yaml")}


class Alone:
    rank, world = 0, 1


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> every.Sample:
    """The page's reader, registered, and a folder that the page's own sample writer made."""
    reader, writer = BLOCKS["python"]
    module = types.ModuleType("ups.data.readers.raw")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(reader, str(PAGE), "exec"), module.__dict__)
    names = dict(vars(every))
    exec(compile(writer, str(PAGE), "exec"), names)
    monkeypatch.setitem(READERS, "raw", module.READER)
    monkeypatch.setitem(every.SAMPLES, "raw", {"folder": names["raw_folder"]})
    return every.sample_of("raw", "folder", tmp_path)


def test_the_reader_of_the_page_is_opened_read_and_cut_into_windows(sample: every.Sample) -> None:
    with open_source(sample.path, TASKS) as source:
        assert (source.task.name, source.params, len(source)) == ("burgers1d", {"nu": 0.01}, every.N)
        assert source.grid.bounds == ((pytest.approx(0, abs=1e-6), pytest.approx(1)),)
        part = Trajectories(source, source.ids, Reduction(time=2))
        window = Windows([part], [part], batch=4, context=2, ranks=Alone()).batch(0)
    assert (window.context.shape, window.targets.shape) == ((4, 2, every.X, 1), (4, 1, every.X, 1))
    assert window.params.tolist() == [[pytest.approx(0.01)]] * 4


CHECKS = [
    check
    for name, check in vars(every).items()
    if name.startswith("test_") and "sample" in check.__annotations__ and len(check.__annotations__) == 2
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_reader_of_the_page_keeps_the_contract(sample: every.Sample, check: types.FunctionType) -> None:
    check(sample)


@pytest.mark.parametrize("damage", every.DAMAGES)
def test_a_damaged_folder_is_one_sentence(sample: every.Sample, damage: str) -> None:
    every.test_a_missing_or_damaged_file_is_one_sentence(sample, damage)


def test_a_reader_without_a_sample_fails_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(READERS, "another", READERS["pdebench"])
    with pytest.raises(AssertionError, match=r"another.* has no sample here: add to SAMPLES"):
        every.test_every_reader_brings_a_sample()


def test_the_config_of_the_page_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # paths in a config count from its folder
    (page,) = BLOCKS["yaml"]
    Path("raw.yaml").write_text(page)
    config = load(run_config(), Path("raw.yaml"))
    assert (config.data["burgers"].task, config.data["burgers"].file) == ("burgers1d", "data/burgers")
