"""Beyond the accuracy table: ratios against arithmetic, rows that belong together, and tables with their bars."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tiny_rows import FACTS, entry, in_this_process
from ups.bench.accuracy import entry_of
from ups.bench.beyond import OVER_GRID, OVER_NEIGHBOURS, over_grid, over_neighbours, trained_values
from ups.bench.beyond_tables import draw, resolution_table, sets_of, tables_beyond
from ups.bench.ledger import Entry, sealed, text_of
from ups.bench.rows import PUBLISHED, ROWS, Budget, Row, beyond, check_budget, chosen, rows_in
from ups.config import load
from ups.data.splits import make_split
from ups.eval.trajectories import PerTrajectory
from ups.run.check import outlines
from ups.run.config import RunConfig, run_config
from ups.rundir import RunDir
from ups.types import ConfigError
from ups.verdict import Ending

HOME = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def table() -> dict[str, Row]:
    return rows_in(HOME / ROWS, HOME / PUBLISHED)


@pytest.fixture(scope="module")
def further() -> dict[str, Row]:
    return beyond(HOME)


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


def test_rows_beyond_are_of_the_rows_that_they_are_held_against(table: dict[str, Row], further: dict[str, Row]) -> None:
    single = {repr(sets_of(row)[0][2]): row for row in table.values()}
    for name, row in further.items():
        assert row.path.read_text().startswith(f"# ups bench accuracy {name}")
        assert (row.beyond, row.config.device, row.kind(Budget())) == (True, "cuda", "beyond")
        if not row.config.evaluation.apart:
            continue
        rows = [single[repr(solved)] for _, _, solved in sets_of(row)]
        assert len(rows) == len({r.name for r in rows})
        known = {repr((o.task.equation, o.grid, o.frames)) for r in rows for o in outlines(r.config.data)}
        own = {repr((o.task.equation, o.grid, o.frames)) for o in outlines(row.config.data)}
        assert own <= known, "the same cells and frames"
    assert len(sets_of(further["beyond/many-1d"])) == 16
    assert sum(map(len, map(sets_of, map(table.get, [n for n in table if "1d" in n])))) == 16  # type: ignore[arg-type]
    three, alone = (row.config.model for row in (further["beyond/three-1d"], table["burgers1d/nu0.01"]))
    alike = replace(three.part("operator"), driven=())  # which says nothing of Burgers
    assert three.model_copy(update={"operator": alike}) == alone, "to start from"
    assert "burgers1d" not in {task for task, _, _ in sets_of(further["beyond/three-1d"])}, "it is new to it"
    assert {row.name for row in chosen({**table, **further}, (), True)} == set(table), "--all is the table"


@pytest.mark.slow
@pytest.mark.parametrize("name", beyond(HOME))
def test_every_row_beyond_can_be_carried_out_in_small(name: str, further: dict[str, Row], tmp_path: Path) -> None:
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
    numbers = entry_of(RunDir(tmp_path / "small"), row, Budget(), {"source": ""}).numbers
    asked = config.evaluation
    ours = {(s.task, s.split, s.metric) for s in numbers if s.predictor == "ups"}
    assert sum(metric == OVER_GRID for *_, metric in ours) == len(asked.zero_shot)
    trained = trained_values(config, *asked.unseen) if asked.unseen else {}
    between = [p for sets in asked.unseen.values() for p in sets for n, v in p.items() if v not in trained[n]]
    assert sum(metric == OVER_NEIGHBOURS for *_, metric in ours) == len(between)
    if asked.apart:
        assert {(task, split, "nrmse") for task, split, _ in sets_of(row)} <= ours
    far = {task for task, _, metric in ours if metric == "10x size"}
    assert far == ({o.task.name for o in outlines(config.data)} - {"darcy2d"} if asked.horizon else set())


def test_a_row_is_trained_on_few_trajectories_and_judged_on_the_same_whatever_their_number(
    table: dict[str, Row],
) -> None:
    row = table["burgers1d/nu0.01"]
    counts = []
    for few in (16, 256):
        budget = Budget(minutes=0.5, trajectories=few, start_from=Path("runs/bench/known"))
        run = row.run(budget, Path("runs"))
        counts += [outline.counts for outline in outlines(run.data)]
        assert (run.start_from, row.kind(budget)) == ("runs/bench/known", "few")
        assert run.name == f"burgers1d-nu0.01-{few}-trajectories-from-known-0.5min-seed0"
    assert counts == [{"train": 16, "valid": 4, "test": 200}, {"train": 256, "valid": 64, "test": 200}]
    for budget, words in (
        (Budget(trajectories=1), "--trajectories is 1"),
        (Budget(trajectories=8, short=True), "--short"),
        (Budget(start_from=Path("x")), "add --trajectories"),
    ):
        with pytest.raises(ConfigError, match=words):
            check_budget(budget, 1)


@pytest.mark.parametrize("name", ["burgers1d/nu0.01", "diffsorp1d", "reacdiff2d", "swe2d"])
def test_few_or_many_trajectories_are_judged_on_those_of_the_same_ids(name: str, table: dict[str, Row]) -> None:
    """Also where PDEBench's own test part is the last one, which is another for every number of them."""
    judged = []
    for few in (16, 64, 256):
        (data,) = table[name].run(Budget(trajectories=few), Path("runs")).data.values()
        ids = [f"{number:06d}" for number in range(data.samples)]
        split = make_split(ids, data.split.convention, data.split.fractions, data.seed)
        assert (len(split.train), len(split.test)) == (few, 200)
        judged.append(split.test)
    assert judged[0] == judged[1] == judged[2]


def test_entries_of_before_keep_their_sums() -> None:
    """Keys that came later are not in them, and their sum is what it was then."""
    assert entry().sum == "c9b49bbb93f2b5be109c786f3f372358b89d560d9317a765280f24f296744efb"
    assert not any(f'"{key}"' in text_of([entry()]) for key in ("split", "trajectories", "start_from"))


def score(metric: str, value: float, split: str = "test", **changes: object) -> dict[str, object]:
    plain = {"task": "burgers1d", "predictor": "ups", "low": 0.9 * value, "high": 1.1 * value, "n": 64}
    return {**plain, "metric": metric, "value": value, "split": split, **changes}


def measured(row: str, kind: str, numbers: list[dict[str, object]], **changes: object) -> Entry:
    facts = {"row": row, "kind": kind, "numbers": numbers, "run": repr((row, changes)), **changes}
    return sealed({**FACTS, **facts})


def on_grid(task: str, *cells: int) -> dict[str, object]:
    return {**FACTS["data"][0], "task": task, "grid": cells}  # type: ignore[index,dict-item]


def test_the_tables_show_ratios_and_what_misses_its_bar(table: dict[str, Row], further: dict[str, Row]) -> None:
    empty = tables_beyond(table, further, [])
    for name, text in empty.items():
        assert "not measured yet" in text.lower() or "yet: `ups bench accuracy" in text, name
        assert "`ups bench accuracy" in text, name
    finer = [f"test, {cells} cells (zero-shot)" for cells in (512, 1024)]
    between = "new trajectories, nu = 0.006 (within the trained range)"
    numbers = [score("nrmse", 0.01), *(score("nrmse", 0.02, split) for split in (*finer, between))]
    numbers += [score(OVER_GRID, 1.4, finer[0]), score(OVER_GRID, 2.6, finer[1]), score(OVER_NEIGHBOURS, 1.6, between)]
    numbers += [score("10x size", 0.97), score("10x bounded", 1.0), score("10x law mass", 1e-7)]
    numbers += [score("10x size", 9.0, predictor="fno"), score("10x bounded", 0.5, predictor="fno")]
    one = measured("beyond/burgers1d", "beyond", numbers, minutes=3.0, data=[on_grid("burgers1d", 256)])
    tables = tables_beyond(table, further, [one])
    assert (
        "| test, 512 cells (zero-shot) | 2.00e-02 (1.80e-02 – 2.20e-02) | 1.40 (1.26 – 1.54) | ≤ 1.5 |"
        in tables["resolution"]
    )
    assert "| **2.60** (2.34 – 2.86) | ≤ 2.5 | not run | the same |" in tables["resolution"]
    assert "| nu = 0.006 | 2.00e-02 (1.80e-02 – 2.20e-02) | **1.60** (1.44 – 1.76) | ≤ 1.5 |" in tables["between"]
    assert "| `burgers1d`, 10 times | yes | 0.97 (0.873 – 1.07) | mass 1.0e-07 |" in tables["horizon"]
    assert "| **no**: 50.0 % of 64, 9 (8.1 – 9.9) |" in tables["horizon"], "the FNO's"
    wild = measured("beyond/burgers1d", "beyond", [score("10x bounded", 0.75), score("10x size", 3.0)])
    assert "| **no**: 75.0 % of 64 |" in tables_beyond(table, further, [wild])["horizon"]


def test_a_finer_grid_has_the_bar_of_its_cells_whatever_else_was_judged(further: dict[str, Row]) -> None:
    name, finer = "beyond/cfd2d", {n: f"test, {n} × {n} cells (zero-shot)" for n in (48, 64, 96, 128)}
    cells = (128, 48, 96)  # 64 could not be judged, and 48 and 96 were not asked for
    numbers = [score(metric, 0.5, finer[n], task="cfd2d") for n in cells for metric in ("nrmse", OVER_GRID)]
    run = measured(name, "beyond", numbers, data=[on_grid("cfd2d", 32, 32)])
    lines = [line.split(" | ")[1:6] for line in resolution_table({name: further[name]}, [run]).splitlines()[2:]]
    error, ratio = "5.00e-01 (4.50e-01 – 5.50e-01)", "0.50 (0.45 – 0.55)"
    assert lines == [
        [finer[128], error, ratio, "≤ 2.5", "not run"],
        [finer[48], error, ratio, "–", "not run"],
        [finer[96], error, ratio, "–", "not run"],
        [finer[64], "not run", "not run", "≤ 1.5", "not run"],
    ]
    data = [on_grid("one", 32, 32), on_grid("two", 64, 64)]
    numbers = [score(OVER_GRID, 0.5, finer[128], task=task) for task in ("one", "two")]
    text = resolution_table({name: further[name]}, [measured(name, "beyond", numbers, data=data)])
    assert f"| `one`, {finer[128]} | not run | {ratio} | ≤ 2.5 |" in text
    assert f"| `two`, {finer[128]} | not run | {ratio} | ≤ 1.5 |" in text, "of its own grid"


def test_one_simulator_for_many_is_held_against_the_budget_nearest_to_its_share(
    table: dict[str, Row], further: dict[str, Row]
) -> None:
    numbers = [score("nrmse", 0.03, "test, nu = 0.01"), score("nrmse", 0.5, "test, nu = 0.1")]
    many = measured("beyond/many-1d", "beyond", numbers, minutes=16.0)
    alone = [
        measured("burgers1d/nu0.01", "full", [score("nrmse", value)], minutes=minutes, started=day, recipe=recipe)
        for day, recipe, minutes, value in (
            ("2025-12-31", "of before", 1.0, 0.9),
            ("2026-01-01", "of now", 1.0, 0.02),
            ("2026-01-02", "of now", 10.0, 0.001),
        )
    ]
    text = tables_beyond(table, further, [many, *alone])["many"]
    (line,) = (line for line in text.splitlines() if "`burgers1d/nu0.01`" in line)
    known = table["burgers1d/nu0.01"].published.best
    assert f"| **3.00e-02** (2.70e-02 – 3.30e-02) | {known:.2e} | 2.00e-02 (1.80e-02 – 2.20e-02) |" in line
    assert "| 1.50 (1.35 – 1.65) |" in line
    assert "1 min a set; alone 1 min" in line
    assert re.search(r"\*\*5.00e-01\*\* \(4.50e-01 – 5.50e-01\) \| [-.e0-9]+ \| not measured \| – \|", text)


def test_what_few_trajectories_save_and_what_compute_buys(
    table: dict[str, Row], further: dict[str, Row], tmp_path: Path
) -> None:
    few = {"kind": "few", "minutes": 0.5, "trajectories": 16}
    pair = [
        measured("burgers1d/nu0.01", numbers=[score("nrmse", 0.4)], **few),  # type: ignore[arg-type]
        measured("burgers1d/nu0.01", numbers=[score("nrmse", 0.1)], start_from="known", **few),  # type: ignore[arg-type]
    ]
    line = tables_beyond(table, further, pair)["few"].splitlines()[-1]
    assert "| 16 | 1.00e-01 (9.00e-02 – 1.10e-01) | 4.00e-01 (3.60e-01 – 4.40e-01) | 4.00 (3.27 – 4.89) |" in line
    assert "0.5 min, from `known`" in line
    runs = [measured("swe2d", "full", [score("nrmse", 0.1 / m)], minutes=m) for m in (4.0, 1.0)]
    runs.insert(
        0, measured("swe2d", "full", [score("nrmse", 9.0)], minutes=2.0, recipe="of before", started="2020-01-01")
    )
    text = tables_beyond(table, further, runs)["compute"]
    assert [line.split(" | ")[1] for line in text.splitlines()[2:4]] == ["1", "4"]
    assert "(images/compute.png)" in text
    draw(tmp_path / "compute.png", runs)
    assert (tmp_path / "compute.png").read_bytes().startswith(b"\x89PNG")
    draw(tmp_path / "none.png", runs[:2])
    assert not (tmp_path / "none.png").exists(), "one budget is no curve"


def test_precisions_are_held_against_fp32_of_the_same_row(table: dict[str, Row], further: dict[str, Row]) -> None:
    kinds = (("fp32", 0, 0.02), ("fp32", 1, 0.04), ("bf16", 0, 0.045))
    runs = [
        measured("burgers1d/nu0.01", "precision", [score("nrmse", value)], precision=p, seed=seed, minutes=0.5)
        for p, seed, value in kinds
    ]
    lines = tables_beyond(table, further, runs)["precision"].splitlines()[2:]
    assert [line.split(" | ")[1:4:2] for line in lines] == [["fp32", "1.00"], ["bf16", "1.50"]]
    assert "--minutes 0.5 --seeds 2 --precision fp32`" in lines[0]
    assert tables_beyond(table, further, [])["precision"].startswith("Not measured yet")


def test_numbers_are_divided_only_by_those_of_the_same_recipe(table: dict[str, Row], further: dict[str, Row]) -> None:
    """What a change of the recipe has done is not what the table asks; the numbers stay in it."""

    kinds: dict[str, tuple[dict[str, object], dict[str, object]]] = {
        "few": ({"trajectories": 16}, {"trajectories": 16, "start_from": "known"}),
        "precision": ({"precision": "bf16"}, {"precision": "fp32"}),
    }

    def ratio(name: str, cell: int, *facts: dict[str, object]) -> str:
        runs = [
            measured("burgers1d/nu0.01", name, [score("nrmse", value)], minutes=0.5, **own, **changes)
            for value, own, changes in zip((0.4, 0.1), kinds[name], facts, strict=True)
        ]
        text = tables_beyond(table, further, runs)[name]
        assert all(number in text for number in ("4.00e-01 (", "1.00e-01 (")), "both are shown"
        return text.splitlines()[-1].split(" | ")[cell]

    for name, cell, whole in (("few", 4, "4.00 (3.27 – 4.89)"), ("precision", 3, "4.00")):
        assert ratio(name, cell, {}, {}) == whole
        assert ratio(name, cell, {"recipe": "of before"}, {}) == "– (different recipes)"
        assert ratio(name, cell, {"source": "a"}, {"source": "b"}) == f"{whole} (different programs)"
        assert ratio(name, cell, {"commit": "a", "source": "x"}, {"commit": "b", "source": "x"}) == whole
        unlike = ratio(name, cell, {"commit": "a", "hardware": "another"}, {"commit": "b"})
        assert unlike == f"{whole} (different programs and hardware)"


def test_a_row_in_another_precision_is_a_run_of_its_own(table: dict[str, Row], tmp_path: Path) -> None:
    row, budget = table["burgers1d/nu0.01"], Budget(0.5, precision="bf16")
    run = row.run(budget, tmp_path)
    assert {run.stage(stage).train.precision for stage in run.plan} == {"bf16"}
    assert run.name == "burgers1d-nu0.01-bf16-0.5min-seed0"
    assert row.kind(budget) == "precision"
    with pytest.raises(ConfigError, match="--precision is compared on whole rows"):
        check_budget(Budget(0.5, short=True, precision="bf16"), 1)
