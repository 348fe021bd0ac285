"""The tables beyond that of accuracy: what is divided by what, what misses its bar, and what they say in sentences."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from tiny_rows import FACTS

from ups_bench.beyond import OVER_GRID, OVER_NEIGHBOURS
from ups_bench.beyond_tables import draw, resolution_table, tables_beyond
from ups_bench.ledger import LedgerEntry, sealed
from ups_bench.rows import ROWS, BenchRow
from ups_bench.tables import accuracy_table, beside_table, headline_table

HOME = Path(__file__).parents[2]


def score(metric: str, value: float, split: str = "test", **changes: object) -> dict[str, object]:
    plain = {"task": "burgers1d", "predictor": "ups", "low": 0.9 * value, "high": 1.1 * value, "n": 64}
    return {**plain, "metric": metric, "value": value, "split": split, **changes}


@cache
def recipe_of(name: str) -> str:
    """That of a row as it is today."""
    folder = HOME / "configs" if name.startswith("beyond/") else HOME / ROWS
    return BenchRow(name, folder / f"{name}.yaml").recipe


def measured(row: str, kind: str, numbers: list[dict[str, object]], **changes: object) -> LedgerEntry:
    facts = {
        "recipe": recipe_of(row),
        "row": row,
        "kind": kind,
        "numbers": numbers,
        "run": repr((row, changes)),
        **changes,
    }
    return sealed({**FACTS, **facts})


def on_grid(task: str, *cells: int) -> dict[str, object]:
    return {**FACTS["data"][0], "task": task, "grid": cells}  # type: ignore[index,dict-item]


def test_the_tables_show_ratios_and_what_misses_its_bar(
    table: dict[str, BenchRow], further: dict[str, BenchRow]
) -> None:
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


def test_a_finer_grid_has_the_bar_of_its_cells_whatever_else_was_judged(further: dict[str, BenchRow]) -> None:
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


def drawing(**shares: float) -> dict[str, object]:
    """A stage that drew tasks so often."""
    return {"operator": {"steps": 10, "seconds": 120.0, "drawn": shares}}


def test_one_simulator_for_many_is_held_against_the_budget_nearest_to_what_was_drawn_of_a_set(
    table: dict[str, BenchRow], further: dict[str, BenchRow]
) -> None:
    numbers = [score("nrmse", 0.03, "test, nu = 0.01"), score("nrmse", 0.5, "test, nu = 0.1")]
    numbers.append(score("nrmse", 0.2, "test, 1024 cells, 41 frames"))
    stages = drawing(burgers1d=0.25, advection1d=0.75)
    many = measured("beyond/many-1d", "beyond", numbers, minutes=8.0, stages=stages)
    alone = [
        measured("burgers1d/nu0.01", "full", [score("nrmse", value)], minutes=minutes, started=day, recipe=recipe)
        for day, recipe, minutes, value in (
            ("2025-12-31", "of before", 1.0, 0.9),
            ("2026-01-01", recipe_of("burgers1d/nu0.01"), 1.0, 0.02),
            ("2026-01-02", recipe_of("burgers1d/nu0.01"), 10.0, 0.001),
        )
    ]
    text = tables_beyond(table, further, [many, *alone])["many"]
    (line,) = (line for line in text.splitlines() if "`burgers1d/nu0.01`" in line)
    known = table["burgers1d/nu0.01"].published.best
    assert f"| **3.00e-02** (2.70e-02 – 3.30e-02) | {known:.2e} | 2.00e-02 (1.80e-02 – 2.20e-02) |" in line
    assert "| 1.50 (1.23 – 1.83) |" in line
    assert "12 % of the steps, 1 min; alone 1 min" in line, "two sets share a quarter of eight minutes"
    assert "| – |" in next(line for line in text.splitlines() if "`diffsorp1d`" in line), "never drawn"
    text = tables_beyond(table, further, [measured("beyond/many-1d", "beyond", numbers, minutes=8.0), *alone])["many"]
    assert "12 % of the steps, 0.97 min; alone 1 min" in text, (
        "the mix of the row has 4 of 16.5, where nothing is known"
    )
    assert re.search(r"\*\*5.00e-01\*\* \(4.50e-01 – 5.50e-01\) \| [-.e0-9]+ \| not measured \| – \|", text)


def test_of_a_steady_task_no_other_frames_are_given(table: dict[str, BenchRow], further: dict[str, BenchRow]) -> None:
    steady = [score("nrmse", 0.01, "test, beta = 1", task="darcy2d")]
    many = measured("beyond/many-1d2d", "beyond", steady, minutes=16.0, stages=drawing(darcy2d=1 / 16, cfd2d=15 / 16))
    kind = {"minutes": 1.0, "protocol": "A (steady state)"}
    darcy = measured("darcy2d/beta1", "full", [score("nrmse", 0.02, task="darcy2d")], **kind)
    text = tables_beyond(table, further, [many, darcy])["many"]
    assert "1 row, they have 0.50 times the error.\n" in text
    assert "(other frames given)" not in text


def test_what_is_said_of_one_simulator_for_many_is_what_its_table_has(
    table: dict[str, BenchRow], further: dict[str, BenchRow]
) -> None:
    """The sentence before the table is made with it, so it does not grow old."""
    sets = {"nu0.001": (0.03, 0.01, 4.0), "nu0.01": (0.003, 0.004, 1.0), "nu0.1": (0.001, 0.002, 1.0)}
    names = [f"test, nu = {nu[2:]}" for nu in sets]
    numbers = [score("nrmse", together, name) for name, (together, *_) in zip(names, sets.values(), strict=True)]
    stages = drawing(burgers1d=3 / 16, advection1d=13 / 16)
    many = measured("beyond/many-1d", "beyond", numbers, minutes=16.0, stages=stages)
    alone = [
        measured(f"burgers1d/{nu}", "full", [score("nrmse", value)], minutes=minutes)
        for nu, (_, value, minutes) in sets.items()
    ]
    tables = tables_beyond(table, further, [many, *alone])
    words = (
        "- `beyond/many-1d`, one network of 0.0 million numbers, 16 min of training (10 steps): of 16 rows 3 are judged"
        ", and 2 at or below the published FNO; beside rows alone that were trained as long as their part of the steps,"
        " 2 rows, they have 0.50 to 0.75 times the error.\n"
    )
    assert tables["many"].startswith(words)
    assert tables["many"].count("**") == 2, "one misses the published error"
    others = measured("burgers1d/nu0.1", "full", [score("nrmse", 0.002)], minutes=1.0, protocol="A (5 given)")
    mixed = tables_beyond(table, further, [many, *alone[:2], others])["many"]
    assert "(other frames given)" in mixed
    assert "1 row, they have 0.75 times the error.\n" in mixed, "rows that are given other frames say nothing"
    one = tables_beyond(table, further, [many, alone[0]])["many"]
    assert "at or below the published FNO.\n" in one, "what was trained four times as long says nothing"
    assert "at or below the published FNO.\n" in tables_beyond(table, further, [many])["many"]


def test_the_least_of_several_budgets_is_held_against_what_is_published(
    table: dict[str, BenchRow], further: dict[str, BenchRow]
) -> None:
    best = table["swe2d"].published.best
    assert best is not None
    spent = [(m, {"ups": {"steps": 9, "seconds": 60 * m, "params": 1000}}) for m in (1.0, 4.0)]
    runs = [
        measured("swe2d", "full", [score("nrmse", best / 2 / m)], minutes=m, predictors=seconds) for m, seconds in spent
    ]
    by_steps = measured("swe2d", "full", [score("nrmse", best / 9)], minutes=9.0, by_steps=True, started="2099-01-01")
    tables = tables_beyond(table, further, [*runs, by_steps])
    words = "- `swe2d`: 60 s of training leave 0.50 of the published FNO's error.\n"
    assert tables["compute"].startswith(f"{words}\n| row ")


def test_what_few_trajectories_save_and_what_compute_buys(
    table: dict[str, BenchRow], further: dict[str, BenchRow], tmp_path: Path
) -> None:
    few = {"kind": "few", "minutes": 0.5, "trajectories": 16}
    pair = [
        measured("burgers1d/nu0.01", numbers=[score("nrmse", 0.4)], **few),  # type: ignore[arg-type]
        measured("burgers1d/nu0.01", numbers=[score("nrmse", 0.1)], start_from="known", **few),  # type: ignore[arg-type]
    ]
    line = tables_beyond(table, further, pair)["few"].splitlines()[-1]
    assert "| 16 | 1.00e-01 (9.00e-02 – 1.10e-01) | 4.00e-01 (3.60e-01 – 4.40e-01) | 4.00 (3.27 – 4.89) |" in line
    assert "0.5 min, from `known`" in line
    seeds = [
        measured("burgers1d/nu0.01", numbers=[score("nrmse", 0.2)], seed=1, **few),  # type: ignore[arg-type]
        measured("burgers1d/nu0.01", numbers=[score("nrmse", 0.15)], start_from="other", **few),  # type: ignore[arg-type]
    ]
    lines = tables_beyond(table, further, [*pair, *seeds])["few"].splitlines()[-2:]
    anew = "3.00e-01 (1.80e-01 – 4.40e-01, 2 seeds)"
    assert f"| 1.00e-01 (9.00e-02 – 1.10e-01) | {anew} | 3.00 (1.64 – 4.89) |" in lines[0], "no seed is left out"
    assert f"| 1.50e-01 (1.35e-01 – 1.65e-01) | {anew} | 2.00 (1.09 – 3.26) | 0.5 min, from `other`" in lines[1]
    runs = [measured("swe2d", "full", [score("nrmse", 0.1 / m)], minutes=m) for m in (4.0, 1.0)]
    runs.insert(
        0, measured("swe2d", "full", [score("nrmse", 9.0)], minutes=2.0, recipe="of before", started="2020-01-01")
    )
    text = tables_beyond(table, further, runs)["compute"]
    assert [line.split(" | ")[1] for line in text.splitlines() if line.startswith("| `swe2d`")] == ["1", "4"]
    assert "(images/compute.png)" in text
    draw(tmp_path / "compute.png", runs)
    assert (tmp_path / "compute.png").read_bytes().startswith(b"\x89PNG")
    draw(tmp_path / "none.png", runs[:2])
    assert not (tmp_path / "none.png").exists(), "one budget is no curve"


def test_precisions_are_held_against_fp32_of_the_same_row(
    table: dict[str, BenchRow], further: dict[str, BenchRow]
) -> None:
    kinds = (("fp32", 0, 0.02), ("fp32", 1, 0.04), ("bf16", 0, 0.045))
    runs = [
        measured("burgers1d/nu0.01", "precision", [score("nrmse", value)], precision=p, seed=seed, minutes=0.5)
        for p, seed, value in kinds
    ]
    lines = tables_beyond(table, further, runs)["precision"].splitlines()[2:]
    assert [line.split(" | ")[1:4:2] for line in lines] == [["fp32", "1.00"], ["bf16", "1.50"]]
    assert "--minutes 0.5 --seeds 2 --precision fp32`" in lines[0]
    assert tables_beyond(table, further, [])["precision"].startswith("Not measured yet")


def test_numbers_are_divided_only_by_those_of_the_same_recipe(
    table: dict[str, BenchRow], further: dict[str, BenchRow]
) -> None:
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


def test_numbers_of_other_settings_than_a_row_has_today_are_marked_in_every_table(
    table: dict[str, BenchRow], further: dict[str, BenchRow]
) -> None:
    name, best = "burgers1d/nu0.01", table["burgers1d/nu0.01"].published.best
    assert best is not None

    def texts(**recipe: str) -> dict[str, str]:
        fno = {"fno": {"steps": 9, "seconds": 1.0, "params": 1000}, "ups": {"steps": 9, "seconds": 1.0, "params": 1000}}
        numbers, both = [score("nrmse", best)], [score("nrmse", best), score("nrmse", best, predictor="fno")]
        many = [score("nrmse", 0.01, "test, nu = 0.01"), score(OVER_GRID, 1.4, "test, 512 cells (zero-shot)")]
        grown = [
            score("10x size", 0.97),
            score("10x bounded", 1.0),
            score(OVER_NEIGHBOURS, 1.6, "new, nu = 0.006 (in)"),
        ]
        entries = [
            *(measured(name, "full", both, minutes=m, predictors=fno, **recipe) for m in (1.0, 4.0)),
            measured(name, "few", numbers, trajectories=16, **recipe),
            measured(name, "precision", numbers, precision="fp32", **recipe),
            measured("beyond/many-1d", "beyond", many, **recipe),
            measured("beyond/burgers1d", "beyond", [*many, *grown], data=[on_grid("burgers1d", 256)], **recipe),
        ]
        first = {"accuracy": accuracy_table, "beside": beside_table, "headlines": headline_table}
        return {**tables_beyond(table, further, entries), **{n: make(table, entries) for n, make in first.items()}}

    assert {where for where, text in texts().items() if "older settings" in text} == set()
    past = texts(recipe="another")
    assert {where for where, text in past.items() if "older settings" in text} == set(past)
    assert "`ups bench accuracy burgers1d/nu0.01 --minutes 4 --steps 10 --fno` (older settings) |" in past["accuracy"]
