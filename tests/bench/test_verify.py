"""`ups bench verify`: what a run is held against, and how far seeds may differ."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tiny_rows import FACTS, alone, entry

from ups.run.config import RunConfig
from ups.rundir import RunDir
from ups.types import ConfigError
from ups.verdict import Ending
from ups_bench import verify
from ups_bench.ledger import LedgerEntry, text_of
from ups_bench.rows import ROWS, BenchRow, RowBudget, rows_in
from ups_bench.seeds import SeedSpread, common_spread, further_seed, pairs_expected
from ups_bench.variants import Short
from ups_bench.verify import bench_verify, comparable, compared, digests_of

HOME = Path(__file__).parents[2]


def short(value: float, steps: int = 1000, **changes: object) -> LedgerEntry:
    score = {**FACTS["numbers"][0], "value": value, "low": 0.9 * value, "high": 1.1 * value}  # type: ignore[index,dict-item]
    stages = {"operator": {"steps": steps, "seconds": 20.0}}
    facts = {"kind": "short", "minutes": 0.33, "numbers": [score], "stages": stages, "run": repr((value, changes))}
    return entry(**{**facts, **changes})


def test_short_versions_of_other_minutes_are_not_what_one_is_held_against() -> None:
    hasty, slow = short(9.0, minutes=0.05), short(8.0, steps=100)
    usual = [short(1.0, seed=0, steps=700), short(1.2, seed=1, steps=2200)]
    assert comparable([hasty, usual[0], slow, usual[1]]) == usual[1:], "700 of 2200 steps teach less"
    assert comparable([hasty, usual[1], slow, usual[0]]) == [usual[1]], "whichever was measured last"
    assert comparable([]) == []
    assert comparable([short(1.0, minutes=1 / 3), last := short(1.0, minutes=0.33334)])[-1] == last
    assert len(comparable([short(1.0, minutes=1 / 3), last])) == 2, "the same twenty seconds"


def test_a_worse_row_does_not_pass_because_a_hasty_one_was_worse_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = rows_in(HOME / ROWS)["darcy2d/beta1"]
    known = [short(v, row=row.name, recipe=row.recipe, minutes=m) for v, m in ((9.0, 0.05), (1.0, 0.33), (1.1, 0.33))]
    (tmp_path / "ledger.json").write_text(text_of(known))
    monkeypatch.setattr(verify, "require_room", lambda _: None)

    def verified(value: float) -> tuple[int, str]:
        def entry_of(place: object, row: BenchRow, budget: RowBudget, facts: object) -> LedgerEntry:  # noqa: ARG001
            assert (budget.minutes, budget.steps) == (0.33, {"operator": 1000})
            return short(value, row=row.name)

        said: list[str] = []
        monkeypatch.setattr(verify, "entry_of", entry_of)
        asked = (
            {row.name: row},
            row.name,
            RowBudget(device="cpu", variant=Short()),
            tmp_path / "ledger.json",
            tmp_path / "runs",
            said.append,
        )
        return bench_verify(*asked, lambda *_: Ending.SUCCESS), said[-1]

    assert verified(1.15) == (
        0,
        f"{row.name}: nRMSE 1.15 in its short version; 2 earlier runs had 0.9 – 1.21: as before.",
    )
    assert verified(3.0)[0] == 1
    assert verified(3.0)[1].endswith("2 earlier runs had 0.9 – 1.21: WORSE than before.")


def test_three_seeds_say_how_far_a_further_one_may_lie() -> None:
    """Student's t of two degrees of freedom has 4.3027 at 97.5 %, of three 3.1824 (any table of it)."""
    values = {seed: math.exp(seed) for seed in range(3)}
    reach = 4.3027 * math.sqrt(4 / 3)
    assert further_seed(values.values()) == pytest.approx((math.exp(1 - reach), math.exp(1 + reach)), rel=1e-3)
    reach = 3.1824 * math.sqrt(5 / 3) * math.sqrt(5 / 4)
    assert further_seed([*values.values(), math.exp(3)]) == pytest.approx(
        (math.exp(1.5 - reach), math.exp(1.5 + reach)), rel=1e-3
    )
    assert further_seed([1.0, 2.0]) is None, "two say too little"
    assert further_seed([1.0, 2.0, math.inf]) is None
    seeds = [short(value, seed=seed) for seed, value in values.items()]
    passed, words = compared(short(16.0), seeds)
    assert passed
    assert "3 earlier runs had 0.9 – 8.128: as before, by the spread of their seeds, which reaches 16.26" in words
    assert not compared(short(16.5), seeds)[0], "twice the end of the interval excuses no more, whatever the spread"
    assert not compared(short(16.0), seeds[1:])[0]
    assert not compared(short(16.0), [seeds[1], seeds[2], seeds[2]])[0], "a seed counts once"
    near = [short(value, seed=seed) for seed, value in enumerate((1.0, 1.1, 0.9))]
    assert compared(short(1.5), near)[0]
    assert not compared(short(1.7), near)[0], "beyond what one seed in forty exceeds"
    assert not compared(short(math.nan), seeds)[0]
    close = [short(value, seed=seed) for seed, value in enumerate((1.0, 1.001, 0.999))]
    assert compared(short(1.09), close)[1].endswith("had 0.8991 – 1.101: as before."), "as wide as the intervals"


def test_rows_of_few_seeds_have_the_spread_of_the_others_and_a_row_that_differs_by_more_has_none() -> None:
    """Student's t of ten degrees of freedom has 2.2281 at 97.5 %. The first rows have a variance of 0.01 each."""
    rows = [[math.exp(level), math.exp(level + 0.1), math.exp(level - 0.1)] for level in range(5)]
    common = common_spread([*rows, [], [3.0], [1.0, math.inf]])
    assert common == (pytest.approx(0.1), 10)
    assert common_spread([*rows, [1.0, 2.0, 4.0]]) == common, "seven times as far apart"
    assert common_spread([[1.0, 2.0, 4.0], *rows]) == common, "in any order"
    assert common_spread(rows[:4]) is None, "eight degrees of freedom say too little"
    reach = 2.2281 * 0.1 * math.sqrt(2)
    assert further_seed([2.0], common) == pytest.approx((2 * math.exp(-reach), 2 * math.exp(reach)), rel=1e-4)
    reach = 2.2281 * 0.1 * math.sqrt(3 / 2)
    assert further_seed([1.0, math.e**0.2], common) == pytest.approx(
        (math.exp(0.1 - reach), math.exp(0.1 + reach)), rel=1e-4
    )
    assert further_seed([1.0, 2.0], common) is None, "a row of its own kind"
    assert further_seed([], common) is None
    assert further_seed(rows[0], SeedSpread(9.0, 10)) == further_seed(rows[0]), "three seeds speak for themselves"
    assert pairs_expected(rows) == (0, 0), "four rows say too little of a fifth"
    six = [*rows, rows[0]]
    assert pairs_expected(six) == (36, 36)
    assert pairs_expected([*six, [1.0, 1.7]]) == (36, 38), "0.53 apart: allowed, but beyond what is expected"
    assert pairs_expected([*six, [1.0, 2.0]]) == (36, 38), "a row of its own kind counts too"
    assert pairs_expected([*six, [1.0, 0.0]]) == (36, 36), "an error of 0 says nothing of a spread"
    last = [short(1.0)]
    assert compared(short(1.3), last, common) == (
        True,
        "tiny/first: nRMSE 1.3 in its short version; an earlier run had 0.9 – 1.1: as before, by the spread of the "
        "seeds of other rows, which reaches 1.37.",
    )
    assert not compared(short(1.4), last, common)[0]
    assert not compared(short(1.3), last)[0]


def test_a_whole_row_is_run_again_for_the_steps_that_its_table_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = rows_in(HOME / ROWS)["darcy2d/beta1"]
    facts = {"kind": "full", "row": row.name, "recipe": row.recipe, "minutes": 2.0}
    seeds = [short(value, seed=seed, steps=500 + seed, **facts) for seed, value in ((0, 1.0), (1, 1.2))]
    others = [
        short(9.0, **{**facts, "minutes": 0.5}),
        short(9.0, **{**facts, "recipe": "another"}),
        short(0.1, row=row.name),
    ]
    (tmp_path / "ledger.json").write_text(text_of([others[0], *seeds, others[2]]))
    (tmp_path / "past.json").write_text(text_of(others[1:2]))
    (tmp_path / "hasty.json").write_text(text_of(others[:1]))
    monkeypatch.setattr(verify, "require_room", lambda _: None)
    monkeypatch.setattr(verify, "entry_of", lambda *_: short(1.3, **facts))
    said: list[str] = []
    configs: list[RunConfig] = []

    def carry(config: RunConfig, way: str) -> Ending:  # noqa: ARG001
        configs.append(config)
        return Ending.SUCCESS

    def verified(file: str) -> int:
        place, out = tmp_path / file, tmp_path / "runs"
        return bench_verify(*alone(row), RowBudget(seed=7, device="cpu"), place, out, said.append, carry)

    assert verified("ledger.json") == 0
    assert said[-1] == f"{row.name}: nRMSE 1.3 after 10 steps; 2 earlier runs had 0.9 – 1.32: as before."
    train, data = configs[0].operator.train, configs[0].data["row"]
    assert (train.steps, train.seconds, configs[0].seed) == (500, None, 7)
    assert data.samples == row.config.data["row"].samples, "all of its data"
    monkeypatch.setattr(verify, "entry_of", lambda *_: short(0.5, **facts))
    assert verified("ledger.json") == 0
    assert said[-1].endswith(
        "better than before. `ups bench accuracy darcy2d/beta1 --minutes 2 --steps 500 --seed 7` records it."
    )
    with pytest.raises(ConfigError, match="holds a whole run of darcy2d/beta1, but by another recipe"):
        verified("past.json")
    with pytest.raises(ConfigError, match="no whole run of darcy2d/beta1 of half its minutes; measure one with"):
        verified("hasty.json")


def test_a_run_of_several_tasks_passes_where_none_is_worse_than_the_same_task_was() -> None:
    def both(*values: float) -> LedgerEntry:
        (plain,) = FACTS["numbers"]  # type: ignore[misc]
        pairs = zip("ab", values, strict=True)
        return short(1.0, numbers=[{**plain, "task": t, "value": v, "low": 0.9 * v, "high": 1.1 * v} for t, v in pairs])

    before = [both(1.0, 5.0)]
    start = "tiny/first, {}: nRMSE {} in its short version; an earlier run had {}"
    a, b = start.format("a", 1, "0.9 – 1.1: as before."), start.format("b", 5, "4.5 – 5.5: as before.")
    assert compared(both(1.0, 5.0), before) == (True, f"{a} {b}")
    assert not compared(both(1.0, 6.0), before)[0]
    assert not compared(both(2.0, 5.0), before)[0]
    passed, words = compared(both(0.5, 5.0), before)
    assert passed
    assert "better than before. tiny/first, b:" in words


def test_a_short_version_is_run_anew_without_baselines_and_its_data_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = rows_in(HOME / ROWS)["darcy2d/beta1"]
    (data,) = FACTS["data"]  # type: ignore[misc]
    whole = short(9.0, row=row.name, recipe=row.recipe, kind="full")
    (tmp_path / "ledger.json").write_text(text_of([short(1.0, row=row.name, recipe=row.recipe), whole]))
    other = short(1.0, row=row.name, data=[{**data, "sha256": {"f": "11"}}])
    monkeypatch.setattr(verify, "require_room", lambda _: None)
    monkeypatch.setattr(verify, "entry_of", lambda *_: other)
    said, ways, endings = list[str](), list[tuple[object, ...]](), [Ending.CRASH, Ending.SUCCESS]

    def carry(config: RunConfig, way: str) -> Ending:
        place = RunDir(Path(config.out) / config.name)
        place.cache("data").mkdir(parents=True, exist_ok=True)
        place.environment.write_text('{"fingerprint": "f00d"}')
        ways.append((way, config.evaluation.baselines))
        return endings.pop(0)

    def verified(device: str) -> int:
        budget = RowBudget(device=device, variant=Short(), baselines=("linear",))
        return bench_verify(*alone(row), budget, tmp_path / "ledger.json", tmp_path / "runs", said.append, carry)

    assert verified("cpu") == 3
    assert said[-1] == f"{row.name}: its short version did not come to its end (CRASH), so nothing is known of it."
    assert verified("cpu") == 0
    assert ways == [("begin", ()), ("overwrite", ())]
    assert said[-2:] == [
        f"{row.name}: its data are not those of the entry to the bit, as of another device or version.",
        f"{row.name}: nRMSE 1 in its short version; an earlier run had 0.9 – 1.1: as before.",
    ]
    assert list((tmp_path / "runs").glob("*/cache/data")) == []
    monkeypatch.setattr("ups_bench.accuracy.has_gpu", lambda: False)
    with pytest.raises(ConfigError, match="there is no GPU here; use cpu"):
        verified("cuda")


def test_a_whole_run_is_of_half_the_minutes_of_its_row_at_least(tmp_path: Path) -> None:
    row = rows_in(HOME / ROWS)["darcy2d/beta1"]
    runs = [short(1.0, row=row.name, recipe=row.recipe, kind="full", minutes=row.minutes * part) for part in (0.4, 0.6)]
    (tmp_path / "ledger.json").write_text(text_of(runs))
    assert verify.earlier(row, RowBudget(), tmp_path / "ledger.json") == (runs[1], runs[1:])


def test_data_are_the_same_whether_an_entry_has_their_files_by_task_or_all_at_each() -> None:
    (data,) = FACTS["data"]  # type: ignore[misc]
    files = {"a": "00", "b": "11"}
    old = short(1.0, data=[{**data, "task": task, "sha256": files} for task in ("one", "two")])
    new = short(1.0, data=[{**data, "task": name, "sha256": {name: digest}} for name, digest in files.items()])
    assert digests_of(old) == digests_of(new) == files
