"""The rows of the accuracy table: every one of PDEBench's sizes, and what minutes, seeds and mistakes make of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tiny_rows import in_this_process

from ups.config import fingerprint, load, unnamed
from ups.run.config import run_config
from ups.run.data.outlines import Outline, outlines
from ups.rundir import RunDir
from ups.types import ConfigError
from ups.verdict import Ending
from ups_bench.accuracy import entry_of
from ups_bench.rows import (
    DEFAULTS,
    PUBLISHED,
    ROWS,
    BenchRow,
    RowBudget,
    beyond,
    check_budget,
    chosen,
    defaults,
    rows_in,
)
from ups_bench.variants import Few, InPrecision, Short

HOME = Path(__file__).parents[2]
# Of each family: cells, frames, frames that are given, trajectories.
SIZES = {
    "advection1d": ((256,), 41, 10, 10_000),
    "burgers1d": ((256,), 41, 10, 10_000),
    "reacdiff1d": ((256,), 101, 5, 10_000),
    "diffsorp1d": ((1024,), 101, 10, 10_000),
    "cfd1d": ((256,), 21, 10, 10_000),
    "darcy2d": ((64, 64), 1, 1, 10_000),
    "reacdiff2d": ((128, 128), 21, 5, 1000),
    "swe2d": ((128, 128), 21, 5, 1000),
    "cfd2d": ((64, 64), 21, 10, 10_000),
}
OTHERS = {"burgers1d/nu0.001": ((1024,), 41, 10, 10_000), "cfd1d/inviscid-shock": ((256,), 17, 10, 10_000)}
# Keys of stages that no row trains, and keys that change nothing of what is learnt.
IDLE = re.compile(
    r"(model\.)?(residual|consistency|critic|steady)\b.*"
    r"|.*\.(checkpoint_\w+|drift_every|graph|log_every|on_drift|prefetch|straggler|workers)"
)
OWN = {"advection1d": "beta", "burgers1d": "nu", "darcy2d": "beta"}


@pytest.fixture(scope="module")
def rows() -> dict[str, BenchRow]:
    return rows_in(HOME / ROWS, HOME / PUBLISHED)


def test_every_row_is_of_pdebenchs_sizes_and_says_its_command(rows: dict[str, BenchRow]) -> None:
    assert len(rows) == 25
    known: dict[str, Outline] = {}  # rows that differ by numbers of an equation alone are of one size
    for name, row in rows.items():
        assert row.path.read_text().startswith(f"# ups bench accuracy {name}\n")
        assert row.published.retuned is not None, f"{name}: what is published of it is not known"
        task = name.split("/")[0]
        config = row.config
        (data,) = config.data.values()
        key = repr(data.model_copy(update={"params": data.params.get("init")}))
        if key not in known:
            (known[key],) = outlines(config)
        outline, given = known[key], config.evaluation.given_to(config.context)
        images = 2**outline.task.ndim if outline.mirrored else 1
        sizes = (outline.shape, outline.frames, given, data.samples)
        assert outline.counts["train"] == images * (data.samples - 2 * outline.counts["test"]), name
        assert sizes == OTHERS.get(name, SIZES[task]), name
        assert outline.counts["test"] == outline.counts["valid"] == sizes[-1] // 10, name
        assert data.scheme in (None, "pdebench"), f"{name}: is compared with others' data"
        assert data.split.convention == ("pdebench-last" if outline.task.storage.kind == "groups" else "pdebench-first")
        if task in OWN:
            assert float(name.removeprefix(f"{task}/{OWN[task]}")) == data.params[OWN[task]]
        assert (row.minutes, config.device) == (2.0, "cuda")
        assert outline.disk < 16e9, f"{name}: its data would not fit beside others"


@pytest.mark.slow
@pytest.mark.parametrize("name", rows_in(HOME / ROWS))
def test_every_row_can_be_carried_out_in_small(name: str, rows: dict[str, BenchRow], tmp_path: Path) -> None:
    """Its protocol, split, boundary and channels on a coarse grid, with a small network and two steps."""
    row, small = rows[name], {"width": 16, "depth": 1, "heads": 2, "modes": 4}
    cells = 16 * max(data.store.space for data in row.config.data.values())
    changes = {"out": str(tmp_path), "name": "small", "device": "cpu", "codec.train.steps": 2, "evaluation.ensemble": 0}
    changes |= {"data.row.device": "cpu", "data.row.samples": 20, "data.row.resolution": cells}
    changes |= {"operator.train.steps": 2, "operator.train.precision": "fp32"}
    changes |= {f"model.operator.{key}": value for key, value in small.items()}
    config = load(run_config(), row.path, changes)
    assert in_this_process(config, "begin") == Ending.SUCCESS
    entry = entry_of(RunDir(tmp_path / "small"), row, RowBudget(), {"source": ""})
    given, score = row.config.evaluation.given_to(row.config.context), entry.score()
    assert score is not None
    assert score.n == 2
    steady = name.startswith("darcy2d")
    assert entry.protocol == ("A (steady state)" if steady else "A" if given == 10 else "A (5 given, to the end)")


def test_minutes_are_shared_among_the_stages_as_the_row_shares_them(tmp_path: Path) -> None:
    (tmp_path / "twice.yaml").write_text(
        "plan: [codec, operator, steady]\n"
        "data: {row: {task: darcy2d, samples: 4000, resolution: 16, scheme: accurate}}\n"
        "codec: {train: {steps: 7}}\noperator: {train: {seconds: 30}}\nsteady: {train: {seconds: 10}}\n"
    )
    (row,) = rows_in(tmp_path).values()
    config = row.run(RowBudget(minutes=2, seed=3), tmp_path)
    assert [config.stage(s).train.seconds for s in config.plan] == [None, 90.0, 30.0]
    assert (config.seed, config.name, config.stage("codec").train.steps) == (3, "twice-2min-seed3", 7)
    short = row.run(RowBudget(baselines=("fno",), variant=Short()), tmp_path)
    assert [short.stage(s).train.seconds for s in short.plan] == [None, 15.0, 5.0]
    assert (short.data["row"].samples, short.evaluation.baselines) == (400, ("fno",))
    again = row.run(RowBudget(steps={"operator": 11}, variant=Short()), tmp_path).stage("operator").train
    assert (again.steps, again.seconds) == (11, None)
    text, recipe = row.path.read_text(), row.recipe
    assert recipe == rows_in(tmp_path)["twice"].recipe
    for same, changed in ((False, text.replace("30", "31")), (True, text.replace("seconds: 30", "seconds: 3.0e1"))):
        row.path.write_text(changed)
        assert (rows_in(tmp_path)["twice"].recipe == recipe) == same
    row.path.write_text(text.replace("30}}", "30, lr: 2.0e-3}}"))  # as it is by default, but said
    assert rows_in(tmp_path)["twice"].recipe != recipe, "what a file says holds when a default changes"
    row.path.write_text(text)
    (tmp_path / "twice.yaml").write_text(row.path.read_text().replace("seconds", "steps"))
    with pytest.raises(ConfigError, match="no stage has a budget in seconds"):
        rows_in(tmp_path)["twice"].run(RowBudget(minutes=1), tmp_path)


def test_runs_keep_the_names_of_their_folders(rows: dict[str, BenchRow]) -> None:
    """By which they are resumed: a name that changes has what was measured measured again."""
    row, far = rows["burgers1d/nu0.01"], beyond(HOME)["beyond/burgers1d"]
    known = Path("runs/bench/known")
    for which, budget, kind, name in (
        (row, RowBudget(), "full", "burgers1d-nu0.01-2min-seed0"),
        (row, RowBudget(2.5, 3), "full", "burgers1d-nu0.01-2.5min-seed3"),
        (row, RowBudget(2, steps=700), "full", "burgers1d-nu0.01-2min-700steps-seed0"),
        (far, RowBudget(1, baselines=("fno", "uno")), "beyond", "beyond-burgers1d-fno-uno-1min-seed0"),
        (row, RowBudget(variant=Short()), "short", "burgers1d-nu0.01-short-0.333333min-seed0"),
        (row, RowBudget(1, baselines=("fno",), variant=Short()), "short", "burgers1d-nu0.01-fno-short-1min-seed0"),
        (
            row,
            RowBudget(steps={"operator": 11}, variant=Short()),
            "short",
            "burgers1d-nu0.01-short-0.333333min-11steps-seed0",
        ),
        (row, RowBudget(variant=Few(16)), "few", "burgers1d-nu0.01-16-trajectories-2min-seed0"),
        (
            row,
            RowBudget(0.5, baselines=("fno",), variant=Few(16, known)),
            "few",
            "burgers1d-nu0.01-fno-16-trajectories-from-known-0.5min-seed0",
        ),
        (row, RowBudget(0.5, variant=InPrecision("bf16")), "precision", "burgers1d-nu0.01-bf16-0.5min-seed0"),
        (far, RowBudget(seed=2, variant=InPrecision("tf32")), "precision", "beyond-burgers1d-tf32-3min-seed2"),
    ):
        assert (which.kind(budget), which.folder_name(budget)) == (kind, name)


def test_what_is_no_row_or_no_budget_is_one_sentence(rows: dict[str, BenchRow], tmp_path: Path) -> None:
    assert [row.name for row in chosen(rows, ("swe2d", "darcy2d/beta1", "swe2d"), False)] == ["swe2d", "darcy2d/beta1"]
    assert len(chosen(rows, (), True)) == 25
    with pytest.raises(ConfigError, match=r"there is no row 'darcy2d/beta2'; did you mean 'darcy2d/beta\d+'\?"):
        chosen(rows, ("darcy2d/beta2",), False)
    with pytest.raises(ConfigError, match=r"no row was named; .*--all: advection1d/beta0.1"):
        chosen(rows, (), False)
    with pytest.raises(ConfigError, match="leave one of both out"):
        chosen(rows, ("swe2d",), True)
    for minutes in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match=r"--minutes is .*, but must be above 0"):
            check_budget(RowBudget(minutes=minutes), 1)
    with pytest.raises(ConfigError, match="--seeds is 0"):
        check_budget(RowBudget(), 0)
    with pytest.raises(ConfigError, match="--seed is -1"):
        check_budget(RowBudget(seed=-1), 1)
    with pytest.raises(ConfigError, match="no such folder of rows"):
        rows_in(tmp_path / "none")
    with pytest.raises(ConfigError, match="holds no row"):
        rows_in(tmp_path)


def test_a_default_that_becomes_another_changes_a_recipe_and_a_new_key_does_not(rows: dict[str, BenchRow]) -> None:
    row, known, key = rows["swe2d"], defaults(), "model.operator.levels"
    assert key in unnamed(row.config, row.path)
    before, later = {**known, key: 3}, {name: value for name, value in known.items() if name != key}
    assert fingerprint(row.config, row.path, before) != row.recipe
    assert fingerprint(row.config, row.path, later) == row.recipe, "it was not there yet"
    assert "operator.train.lr" not in unnamed(row.config, row.path)
    assert fingerprint(row.config, row.path, {**known, "operator.train.lr": 9}) == row.recipe, "the row names it"


def test_every_default_that_rows_take_is_recorded(rows: dict[str, BenchRow]) -> None:
    """One that is not could become another, and the tables would not say that numbers are of older settings."""
    taken = {key: value for row in rows.values() for key, value in unnamed(row.config, row.path).items()}
    missing = {key: value for key, value in taken.items() if key not in defaults() and not IDLE.fullmatch(key)}
    assert not missing, f"add to {DEFAULTS.name} the values by which these change nothing: {json.dumps(missing)}"
