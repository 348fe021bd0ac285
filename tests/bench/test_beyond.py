"""Beyond the accuracy table: ratios against arithmetic, rows that belong together, and tables with their bars."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tiny_rows import entry, in_this_process

from ups.config import load
from ups.data.splits import make_split
from ups.eval.trajectories import PerTrajectory
from ups.run.config import RunConfig, run_config
from ups.run.data.outlines import outlines
from ups.rundir import RunDir
from ups.types import ConfigError
from ups.verdict import Ending
from ups_bench.accuracy import entry_of
from ups_bench.beyond import OVER_GRID, OVER_NEIGHBOURS, over_grid, over_neighbours, trained_values
from ups_bench.ledger import text_of
from ups_bench.many import sets_of
from ups_bench.rows import BenchRow, RowBudget, beyond, chosen
from ups_bench.variants import Few, InPrecision, variant_of

HOME = Path(__file__).parents[2]


def config() -> RunConfig:
    data = {"task": "advection1d", "resolution": 64, "params": {"beta": [0.4, 1.0, 2.0]}, "reduce": {"space": 4}}
    asked = {"zero_shot": [2, 4], "unseen": {"advection1d": [{"beta": b} for b in (0.4, 0.7, 1.0, 1.5, 3.0)]}}
    return load(run_config(), overrides={"data.row": data, "evaluation": asked})


def errors(split: str, values: list[float], first: int = 0) -> PerTrajectory:
    ids = tuple(f"{i:06d}" for i in range(first, first + len(values)))
    return PerTrajectory("advection1d", split, "ups", "A", 0.0, 0.0, 0.0, ids, ids, tuple(values))


def test_the_error_on_a_finer_grid_is_divided_by_that_of_the_same_trajectories() -> None:
    rows = [
        errors("test", [1.0, 2.0, 3.0, 4.0]),
        errors("test, 32 cells (zero-shot)", [2.0, 4.0, 6.0, 8.0]),
        errors("new trajectories, 64 cells (zero-shot)", [2.5, 5.0, 10.0]),
        errors("test, 128 cells (zero-shot)", [9.0, 9.0]),
    ]
    paired, strange = (number for _, number in over_grid(config(), rows))
    assert (paired.value, paired.low, paired.high, paired.name) == (2.0, 2.0, 2.0, OVER_GRID), (
        "nothing is left to chance"
    )
    assert strange.value == pytest.approx((17.5 / 3) / 2.5)
    assert strange.low < 0.8 * strange.value < 1.2 * strange.value < strange.high, "other trajectories are"


def test_a_value_between_is_held_against_the_trained_values_next_to_it_on_the_same_states() -> None:
    at = {beta: f"new trajectories, beta = {beta} (within the trained range)" for beta in ("0.4", "0.7", "1", "1.5")}
    rows = [
        errors("test", [100.0, 100.0]),
        errors(at["0.4"], [1.0, 3.0]),
        errors(at["0.7"], [4.0, 8.0]),
        errors(at["1"], [3.0, 5.0]),
        errors(at["1.5"], [7.0, 7.0]),
        errors("new trajectories, beta = 3 (outside the trained range)", [9.0, 9.0]),
    ]
    ((row, number),) = over_neighbours(config(), rows)
    assert row.split == at["0.7"], "of 1.5 a neighbour was not judged, and 3 has none above it"
    assert (number.value, number.low, number.high, number.name) == (2.0, 2.0, 2.0, OVER_NEIGHBOURS)
    moved = [*rows[:3], errors(at["1"], [3.0, 5.0], first=7)]
    assert list(over_neighbours(config(), moved)) == [], "of other states there is no ratio"


def test_the_trained_values_of_a_task_are_those_of_its_name_and_not_of_its_equation() -> None:
    wind, beta = {"name": "wind", "equation": "advection1d"}, {"a": [0.1, 0.4], "b": [1, 4]}
    tasks = {"a": "advection1d", "b": wind}
    sets = {label: {"task": task, "params": {"beta": beta[label]}} for label, task in tasks.items()}
    asked = {"unseen": {"wind": [{"beta": b} for b in (1.0, 2.0, 4.0)]}}
    run = load(run_config(), overrides={"data": sets, "evaluation": asked})
    assert trained_values(run, "wind") == {"beta": [1.0, 4.0]}
    assert trained_values(run, "advection1d") == {"beta": [0.1, 0.4]}
    rows = [
        dataclasses.replace(errors(f"new trajectories, beta = {beta} (within the trained range)", values), task="wind")
        for beta, values in (("1", [1.0, 3.0]), ("2", [4.0, 8.0]), ("4", [3.0, 5.0]))
    ]
    ((row, number),) = over_neighbours(run, rows)
    assert (row.split, number.value) == (rows[1].split, 2.0)


def test_rows_beyond_are_of_the_rows_that_they_are_held_against(
    table: dict[str, BenchRow], further: dict[str, BenchRow]
) -> None:
    single = {repr(sets_of(row)[0][2]): row for row in table.values()}
    for name, row in further.items():
        assert row.path.read_text().startswith(f"# ups bench accuracy {name}")
        assert (row.beyond, row.config.device, row.kind(RowBudget())) == (True, "cuda", "beyond")
        if not row.config.evaluation.apart:
            continue
        rows = [single[repr(solved)] for _, _, solved in sets_of(row)]
        assert len(rows) == len({r.name for r in rows})
        known = {repr((o.task.equation, o.shape, o.frames)) for r in rows for o in outlines(r.config)}
        own = {repr((o.task.equation, o.shape, o.frames)) for o in outlines(row.config)}
        assert own <= known, "the same cells and frames"
    assert len(sets_of(further["beyond/many-1d"])) == 16
    assert sum(map(len, map(sets_of, map(table.get, [n for n in table if "1d" in n])))) == 16  # type: ignore[arg-type]
    three, alone = (row.config.model for row in (further["beyond/three-1d"], table["burgers1d/nu0.01"]))
    assert three == alone, "to start from"
    assert "burgers1d" not in {task for task, _, _ in sets_of(further["beyond/three-1d"])}, "it is new to it"
    assert {row.name for row in chosen({**table, **further}, (), True)} == set(table), "--all is the table"


@pytest.mark.slow
@pytest.mark.parametrize("name", beyond(HOME))
def test_every_row_beyond_can_be_carried_out_in_small(name: str, further: dict[str, BenchRow], tmp_path: Path) -> None:
    """All that it asks for is judged and entered: on coarse grids, with a small network and two steps."""
    row, small = further[name], {"width": 16, "depth": 1, "heads": 2, "modes": 4}
    changes = {"out": str(tmp_path), "name": "small", "device": "cpu", "codec.train.steps": 2, "evaluation.ensemble": 0}
    changes |= {"operator.train.steps": 2, "operator.train.precision": "fp32", "evaluation.samples": 2}
    changes |= {f"model.operator.{key}": value for key, value in small.items()}
    for label, data in row.config.data.items():
        cells = 16 * data.store.space * data.reduce.space
        changes |= {f"data.{label}.device": "cpu", f"data.{label}.samples": 20, f"data.{label}.resolution": cells}
    config = load(run_config(), row.path, changes)
    assert in_this_process(config, "begin") == Ending.SUCCESS
    numbers = entry_of(RunDir(tmp_path / "small"), row, RowBudget(), {"source": ""}).numbers
    asked = config.evaluation
    ours = {(s.task, s.split, s.metric) for s in numbers if s.predictor == "ups"}
    assert sum(metric == OVER_GRID for *_, metric in ours) == len(asked.zero_shot)
    trained = trained_values(config, *asked.unseen) if asked.unseen else {}
    between = [p for sets in asked.unseen.values() for p in sets for n, v in p.items() if v not in trained[n]]
    assert sum(metric == OVER_NEIGHBOURS for *_, metric in ours) == len(between)
    if asked.apart:
        assert {(task, split, "nrmse") for task, split, _ in sets_of(row)} <= ours
    far = {task for task, _, metric in ours if metric == "10x size"}
    assert far == ({o.task.name for o in outlines(config)} - {"darcy2d"} if asked.horizon else set())


def test_a_row_is_trained_on_few_trajectories_and_judged_on_the_same_whatever_their_number(
    table: dict[str, BenchRow],
) -> None:
    row = table["burgers1d/nu0.01"]
    counts = []
    for few in (16, 256):
        budget = RowBudget(minutes=0.5, variant=Few(few, Path("runs/bench/known")))
        run = row.run(budget, Path("runs"))
        counts += [outline.counts for outline in outlines(run)]
        assert (run.start_from, row.kind(budget)) == ("runs/bench/known", "few")
        assert run.name == f"burgers1d-nu0.01-{few}-trajectories-from-known-0.5min-seed0"
    assert counts == [{"train": 16, "valid": 4, "test": 200}, {"train": 256, "valid": 64, "test": 200}]
    flags: tuple[tuple[dict[str, Any], str], ...] = (
        ({"trajectories": 1}, "--trajectories is 1"),
        ({"trajectories": 8, "short": True}, "--short"),
        ({"start_from": Path("x")}, "add --trajectories"),
    )
    for given, words in flags:
        with pytest.raises(ConfigError, match=words):
            variant_of(**given)


@pytest.mark.parametrize("name", ["burgers1d/nu0.01", "diffsorp1d", "reacdiff2d", "swe2d"])
def test_few_or_many_trajectories_are_judged_on_those_of_the_same_ids(name: str, table: dict[str, BenchRow]) -> None:
    """Also where PDEBench's own test part is the last one, which is another for every number of them."""
    judged = []
    for few in (16, 64, 256):
        (data,) = table[name].run(RowBudget(variant=Few(few)), Path("runs")).data.values()
        ids = [f"{number:06d}" for number in range(data.samples)]
        split = make_split(ids, data.split.convention, data.split.fractions, data.seed)
        assert (len(split.train), len(split.test)) == (few, 200)
        judged.append(split.test)
    assert judged[0] == judged[1] == judged[2]


def test_entries_of_before_keep_their_sums() -> None:
    """Keys that came later are not in them, and their sum is what it was then."""
    assert entry().sum == "c9b49bbb93f2b5be109c786f3f372358b89d560d9317a765280f24f296744efb"
    assert not any(f'"{key}"' in text_of([entry()]) for key in ("split", "trajectories", "start_from"))


def test_a_row_in_another_precision_is_a_run_of_its_own(table: dict[str, BenchRow], tmp_path: Path) -> None:
    row, budget = table["burgers1d/nu0.01"], RowBudget(0.5, variant=InPrecision("bf16"))
    run = row.run(budget, tmp_path)
    assert {run.stage(stage).train.precision for stage in run.plan} == {"bf16"}
    assert run.name == "burgers1d-nu0.01-bf16-0.5min-seed0"
    assert row.kind(budget) == "precision"
    with pytest.raises(ConfigError, match="--precision is compared on whole rows"):
        variant_of(short=True, precision="bf16")
