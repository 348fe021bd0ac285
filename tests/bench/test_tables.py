"""The tables of the documents are what was measured, to the letter."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from tiny_rows import FACTS

from ups.types import DataError
from ups_bench.cells import circumstances, commits, runs_shown, score_cell
from ups_bench.ledger import LEDGER, LedgerEntry, append, sealed
from ups_bench.rows import BEYOND, PUBLISHED, ROWS, BenchRow, rows_in
from ups_bench.tables import DOCUMENTS, ENGINE, GROWTH, SPEED, bench_tables, filled, shown, tables_of

HOME = Path(__file__).parents[2]


def test_every_table_of_the_documents_says_what_was_measured() -> None:
    """`ups bench tables` writes them anew."""
    tables = tables_of(HOME)
    for name in DOCUMENTS:
        text = (HOME / name).read_text()
        assert "<!-- table " in text
        assert filled(HOME / name, text, tables) == text, f"{name}: run `ups bench tables`"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The documents and what they are made from, to be changed."""
    shutil.copytree(HOME / ROWS, tmp_path / ROWS)
    shutil.copytree(HOME / BEYOND, tmp_path / BEYOND)
    for name in (*DOCUMENTS, ENGINE, GROWTH, SPEED, PUBLISHED, LEDGER, Path("configs/base-h200.yaml")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        if (HOME / name).exists():
            shutil.copy(HOME / name, tmp_path / name)
    return tmp_path


def measured(row: BenchRow, value: float = 1.2e-2, **changes: object) -> LedgerEntry:
    score = {**FACTS["numbers"][0], "value": value, "low": 0.9 * value, "high": 1.1 * value}  # type: ignore[index,dict-item]
    facts = {"row": row.name, "recipe": row.recipe, "numbers": [score], "run": repr(changes), **changes}
    return sealed({**FACTS, **facts})


def test_a_document_or_a_number_that_was_changed_is_found(copy: Path) -> None:
    said: list[str] = []
    page = copy / "docs/benchmarks.md"
    page.write_text(page.read_text().replace("| `diffsorp1d` | ", "| `diffsorp1d` | 1.0e-9 ", 1))
    assert bench_tables(copy, True, said.append) == 1
    assert said[-1].startswith("docs/benchmarks.md: a table is not what was measured")
    assert bench_tables(copy, False, said.append) == 0
    assert page.read_text() == (HOME / "docs/benchmarks.md").read_text(), "it is written anew"
    (copy / ENGINE).write_text("{}")
    with pytest.raises(DataError, match=r"engine\.json: is not what `ups bench engine"):
        bench_tables(copy, True, said.append)
    numbers = json.loads((HOME / ENGINE).read_text())
    numbers["ratios"][1]["ratio"] = 1.5
    (copy / ENGINE).write_text(json.dumps(numbers))
    numbers = json.loads((copy / GROWTH).read_text())
    numbers["growth"][0]["exponent"] = 2.0
    (copy / GROWTH).write_text(json.dumps(numbers))
    assert bench_tables(copy, True, said.append) == 1
    assert "**2.00**" in tables_of(copy)["growth"], "what misses its bar is bold"


def test_a_measured_row_is_in_the_table_with_its_command(copy: Path) -> None:
    rows = rows_in(copy / ROWS, copy / PUBLISHED)
    row = rows["darcy2d/beta1"]
    seeds = [measured(row, value, seed=seed, started=f"2099-01-0{seed + 1}") for seed, value in enumerate((1e-2, 2e-2))]
    append(copy / LEDGER, seeds)
    bench_tables(copy, False, str)
    assert "1.50e-02 (9.00e-03 – 2.20e-02, 2 seeds)" in (copy / DOCUMENTS[1]).read_text()
    line = next(li for li in (copy / DOCUMENTS[1]).read_text().splitlines() if li.startswith("| `darcy2d/beta1`"))
    assert "| 2.77e-02 | 0.54 |" in line, "of the re-tuned FNO's error"
    assert "`ups bench accuracy darcy2d/beta1 --minutes 2 --steps 10 --seeds 2`" in line
    assert "| 1.50e-02 (9.00e-03 – 2.20e-02, 2 seeds) | – | 2.77e-02 |" in line, "further apart than in other rows"
    append(copy / LEDGER, [measured(row, 4e-2, seed=2, started="2099-01-03")])
    line = next(li for li in tables_of(copy)["accuracy"].splitlines() if li.startswith("| `darcy2d/beta1`"))
    reach = 4.3027 * math.log(2) * math.sqrt(4 / 3)  # Student's t of two degrees of freedom; each seed twice the last
    low, high = (2e-2 * math.exp(sign * reach) for sign in (-1, 1))
    assert f"(9.00e-03 – 4.40e-02, 3 seeds) | {low:.2e} – {high:.2e} | 2.77e-02 |" in line
    spent = {"ups": {"steps": 25, "seconds": 60.0, "params": 1000}}
    append(copy / LEDGER, [measured(row, 4e-2, seed=2, started="2099-01-04", predictors=spent)])
    assert "| 120 s, 10 – 25 steps, 0.00 M parameters |" in tables_of(copy)["accuracy"], "not those of one seed"


def test_the_headlines_count_the_rows_that_halve_and_quarter_the_published_error(copy: Path) -> None:
    rows = rows_in(copy / ROWS, copy / PUBLISHED)
    (copy / LEDGER).unlink()
    append(copy / LEDGER, [measured(rows["darcy2d/beta1"], 1.3e-2), measured(rows["swe2d"], 1e-4)])
    append(copy / LEDGER, [measured(rows["diffsorp1d"], 1.0), measured(rows["darcy2d/beta100"], 6.4e-3)])
    tables = tables_of(copy)
    assert tables["headlines"].startswith(
        "Of 4 rows 2 have at most half of the published FNO's error, 1 at most a quarter.\n\n| row "
    )
    for name in ("headlines", "accuracy"):
        assert "| 9.50e-03 (paper 6.40e-03) | 1.00 |" in tables[name], "the ratio is to the number in brackets"


def test_the_headlines_show_of_each_family_the_row_that_does_worst_beside_what_is_published(copy: Path) -> None:
    rows = rows_in(copy / ROWS, copy / PUBLISHED)
    lines = tables_of(copy)["headlines"].splitlines()[4:]
    families = [line.split("`")[1].split("/")[0] for line in lines]
    assert families == list(dict.fromkeys(name.split("/")[0] for name in rows))
    append(copy / LEDGER, [measured(rows["darcy2d/beta1"], 4e-2, minutes=9.0, started="2099-01-01")])
    bench_tables(copy, False, str)
    text = (copy / DOCUMENTS[0]).read_text()
    assert "| `darcy2d/beta1` | 9 min | 4.00e-02 (3.60e-02 – 4.40e-02) | 2.77e-02 | 1.44 |" in text
    assert "`darcy2d/beta100`" not in text


def test_an_fno_stays_beside_a_row_that_was_measured_again_without_one(copy: Path) -> None:
    rows = rows_in(copy / ROWS, copy / PUBLISHED)
    (copy / LEDGER).unlink()
    assert tables_of(copy)["beside"] == "No row in the ledger has an FNO beside it yet.\n"
    ours = {**FACTS["numbers"][0], "value": 1e-2}  # type: ignore[index,dict-item]
    spent = {"ups": {"steps": 10, "seconds": 60.0, "params": 1000}, "fno": {"steps": 7, "seconds": 61.0, "params": 999}}
    pair = [ours, {**ours, "predictor": "fno", "value": 4e-2}]
    row = rows["swe2d"]
    append(copy / LEDGER, [measured(row, started="2099-01-01", numbers=pair, predictors=spent)])
    append(copy / LEDGER, [measured(row, 2e-3, started="2099-02-01"), measured(rows["diffsorp1d"], 1.0)])
    line = tables_of(copy)["beside"].splitlines()[2]
    assert line.startswith("| `swe2d` | 1.00e-02 ")
    assert "| 0.25 | 60 s, 10 steps, 0.00 M parameters | 61 s, 7 steps, 0.00 M parameters |" in line
    assert "--fno" in line
    assert "stands beside 1 of them, of 1 families: ours has 0.25 to 0.25 of its error." in tables_of(copy)["headlines"]


def test_most_seeds_then_the_longest_then_the_newest_are_shown_and_not_the_best() -> None:
    row = rows_in(HOME / ROWS)["swe2d"]
    old = measured(row, 1e-4, started="2099-01-01")
    new = [measured(row, 1e-2, seed=seed, started=f"2099-02-0{seed + 1}", minutes=4.0) for seed in (0, 1)]
    again = measured(row, 3e-2, seed=0, started="2099-03-01", minutes=4.0)
    short = measured(row, 1e-5, kind="short", started="2099-04-01")
    assert runs_shown([again, old, *new, short], row) == [again, new[1]]
    longer = measured(row, 1e-6, seed=0, started="2099-02-03", minutes=6.0)
    assert runs_shown([again, *new, longer], row) == [again, new[1]]
    assert runs_shown([longer, again], row) == [longer]
    assert runs_shown([short], row) == []
    hasty = measured(row, 1e-1, started="2099-05-01", minutes=0.4 * row.minutes)  # for a plot
    assert shown([hasty], row) == []
    assert runs_shown([hasty], row) == [hasty]


def test_a_run_for_so_many_steps_stands_beside_runs_by_the_clock_that_took_as_many_and_no_others() -> None:
    row = rows_in(HOME / ROWS)["swe2d"]

    def run(seed: int, steps: int, **changes: object) -> LedgerEntry:
        stages = {"operator": {"steps": steps, "seconds": 120.0}}
        facts = {"stages": stages, "started": f"2099-01-0{seed + 1}", "minutes": 2.0, "by_steps": True}
        return measured(row, seed=seed, **{**facts, **changes})

    clock = run(0, 1000, by_steps=False)
    seeds = [run(1, 1040), run(2, 1100), run(3, 100), run(4, 1000, hardware="another"), run(5, 1000, minutes=4.0)]
    assert shown([clock, *seeds], row) == [clock, seeds[0]]
    assert shown([clock, run(0, 1010)], row) == [clock], "a repetition does not replace it"
    assert shown(seeds[:3], row) == [seeds[2]], "without a clock the newest says how many"
    false_start = [run(0, 100), run(1, 1000), run(2, 1010), run(3, 100)]
    assert shown(false_start[:3], row) == false_start[1:3], "as most of them took"
    moved = [run(0, 1000, hardware="another"), run(1, 1000), run(2, 1000)]
    assert shown(moved, row) == moved[1:], "on the hardware of the newest"


def test_runs_on_other_hardware_than_the_newest_are_not_shown_beside_it() -> None:
    row = rows_in(HOME / ROWS)["swe2d"]
    new = [measured(row, seed=seed, started=f"2099-02-0{seed + 1}") for seed in (0, 1)]
    old = [measured(row, seed=seed, started=f"2099-01-0{seed + 1}", hardware="another") for seed in (0, 1, 2)]
    assert runs_shown([*new, *old], row) == new


def test_a_cell_is_the_mean_of_its_seeds_from_their_least_to_their_greatest_end_and_bold_beyond_its_bar() -> None:
    row = rows_in(HOME / ROWS)["swe2d"]
    scores = [measured(row, value).scores()[0] for value in (1.0, 3.0)]
    assert score_cell(scores, ".1f", 2.0) == "2.0 (0.9 – 3.3, 2 seeds)"
    assert score_cell(scores[:1], ".1f", 0.5) == "**1.0** (0.9 – 1.1)"
    without = scores[0].model_copy(update={"low": math.nan, "high": math.nan})
    assert (score_cell([without], ".1f"), score_cell([])) == ("1.0", "not run")


def test_seeds_of_one_recipe_belong_together_whatever_ran_beside_them_and_the_versions_are_named() -> None:
    row = rows_in(HOME / ROWS)["swe2d"]
    facts = ("aaa", "one", "alone"), ("bbb", "one", "beside two"), ("bbb", "two", "alone")
    runs = [
        measured(row, seed=seed, started=f"2099-01-0{seed + 1}", commit=commit, source=source, note=note)
        for seed, (commit, source, note) in enumerate(facts)
    ]
    assert runs_shown(runs, row) == runs
    assert commits(runs) == "commits aaa, bbb"
    assert circumstances(runs) == "alone, beside two"
    notes = ("beside three other runs on the GPU", "a small disk", "beside one other run on the GPU")
    several = [measured(row, seed=seed, note=note) for seed, note in enumerate(notes)]
    assert circumstances(several) == "beside three or one other runs on the GPU, a small disk"
    assert circumstances(several[2:]) == notes[2]
    other = measured(row, seed=3, started="2099-02-01", recipe="another")
    assert runs_shown([*runs, other], row) == [other]


def test_how_often_a_seed_lies_in_the_interval_of_another_is_counted(copy: Path) -> None:
    row = rows_in(copy / ROWS, copy / PUBLISHED)["swe2d"]
    (copy / LEDGER).unlink()
    append(copy / LEDGER, [measured(row, 1.0, seed=0)])
    assert "Run again" not in tables_of(copy)["accuracy"]
    append(copy / LEDGER, [measured(row, 1.05, seed=1), measured(row, 2.0, seed=2)])  # each plus and minus a tenth
    assert tables_of(copy)["accuracy"].endswith(
        "Run again: of 1 row of more than one seed, each seed against the interval of every other, "
        "2 of 6 numbers lie in it, 4 do not.\n"
    )


def test_a_mark_that_cannot_be_filled_is_named() -> None:
    with pytest.raises(DataError, match="asks for a table 'speed'"):
        filled(Path("x.md"), "<!-- table speed -->\n<!-- end of table -->\n", {"engine": ""})
    with pytest.raises(DataError, match="has no '<!-- end of table -->' behind it"):
        filled(Path("x.md"), "<!-- table engine -->\n| 1 |\n", {"engine": ""})
