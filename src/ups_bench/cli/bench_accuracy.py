"""`ups bench accuracy` and what belongs to its ledger: verify, merge, tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ups.cli.numbers import Whole
from ups.cli.places import Place
from ups.engine.train import Precision
from ups.screen import say, waiting
from ups.types import ConfigError


def bench_accuracy(
    *names: Annotated[str, Parameter(name="ROW")],
    all_rows: Annotated[bool, Parameter(name="--all")] = False,
    minutes: float | None = None,
    steps: Whole | None = None,
    seeds: Whole = 1,
    seed: Whole = 0,
    fno: bool = False,
    uno: bool = False,
    short: bool = False,
    trajectories: Whole | None = None,
    start_from: Path | None = None,
    precision: Precision | None = None,
    ledger: Path | None = None,
    out: Place = Path("runs/bench"),
    rows: Path | None = None,
    device: str | None = None,
    commit: str | None = None,
    note: str = "",
    overwrite: bool = False,
    keep_data: bool = False,
) -> int:
    """Measure rows of the accuracy table: make the data in PDEBench's scheme, train, judge whole rollouts on its test
    part, and append all of it to the ledger.

    Each is an `ups run` of a config in `configs/rows`, in a folder of its own. The same command given again resumes
    what was stopped, and enters what is finished. The exit code is 0 where every row was measured.

    Parameters
    ----------
    names
        Rows, such as darcy2d/beta1, or of configs/beyond, such as beyond/burgers1d.
    all_rows
        Every row of the table.
    minutes
        Minutes of training, shared among the stages as the row's config shares them; its own by default.
    steps
        Train for so many steps instead, however long they take: what others learnt in these minutes on their card is
        learnt on any, whatever else runs there. Tables show it beside runs of these minutes that took as many.
    seeds
        So many runs of each row, of this seed and those after it, on the same data.
    seed
        The first of them.
    fno
        Beside it, on the same data and for the same time, an FNO of as many parameters, by its library's own recipe.
    uno
        The same with a UNO.
    short
        The short version, for `ups bench verify`: a tenth of the data, 20 s of training unless --minutes says more.
    trajectories
        Train on so many trajectories alone, and judge on 200 others: how well it learns from few.
    start_from
        With --trajectories: the folder of a run whose simulator is trained further, instead of a new one.
    precision
        Train in it instead of the row's own: what bf16 costs in accuracy beside fp32.
    ledger
        Where entries go; `benchmarks/accuracy.json` by default. `ups bench merge` joins several.
    out
        Where run folders are made.
    rows
        Another folder of rows.
    device
        Another device than the row's own: cpu, cuda or cuda:N.
    commit
        The commit of this program, where there is no repository that says it.
    note
        What else to know of these runs, for example that they shared the GPU; it is shown in the table.
    overwrite
        Measure again what is measured.
    keep_data
        Keep the data of a row when it is measured; they can be made again.
    """
    with waiting("getting ready"):
        from ups_bench.accuracy import AccuracyRequest
        from ups_bench.accuracy import bench_accuracy as job
        from ups_bench.ledger import LEDGER
        from ups_bench.rows import RowBudget, chosen, home, known_rows
        from ups_bench.variants import variant_of

    baselines = tuple(name for name, wanted in (("fno", fno), ("uno", uno)) if wanted)
    wanted = chosen(known_rows(rows), names, all_rows)
    variant = variant_of(short, trajectories, start_from, precision)
    budget = RowBudget(minutes=minutes, seed=seed, device=device, baselines=baselines, steps=steps, variant=variant)
    place = ledger or home() / LEDGER
    return int(job(AccuracyRequest(wanted, budget, seeds, place, out, overwrite, keep_data, commit, note), say=say))


def bench_verify(
    row: str,
    *,
    whole: bool = False,
    seed: Whole = 0,
    ledger: Path | None = None,
    out: Place = Path("runs/bench"),
    rows: Path | None = None,
    device: str | None = None,
) -> int:
    """Run the short version of a row again, or the whole row, for the steps that it took before, and hold it against
    the ledger.

    Code 0 where its error is in the interval of earlier runs, or better. Three seeds or more say how far another may
    lie (of a whole row with fewer the seeds of all rows do): up to there, and to twice the interval's end at most, it
    is 0 too. 1 where the error is worse; 3 where the run did not come to its end.

    Parameters
    ----------
    row
        A row, such as darcy2d/beta1.
    whole
        All of its data, for the steps that the accuracy table names, against the interval there.
    seed
        Of the training; the data are the same.
    ledger
        Where earlier runs are; `benchmarks/accuracy.json` by default.
    out
        Where its run folder is made; it is replaced the next time.
    rows
        Another folder of rows.
    device
        Another device than the row's own: cpu, cuda or cuda:N.
    """
    with waiting("getting ready"):
        from ups_bench.ledger import LEDGER
        from ups_bench.rows import RowBudget, home, known_rows
        from ups_bench.variants import variant_of
        from ups_bench.verify import bench_verify as job

    budget = RowBudget(seed=seed, device=device, variant=variant_of(short=not whole))
    return job(known_rows(rows), row, budget, ledger or home() / LEDGER, out, say)


def bench_merge(*files: Annotated[Path, Parameter(name="FILE")], ledger: Path | None = None) -> None:
    """Add the entries of other ledgers to the ledger; those that it has already are left out.

    Parameters
    ----------
    files
        Ledgers that `ups bench accuracy --ledger FILE` has written, for example on another machine.
    ledger
        That which they are added to; `benchmarks/accuracy.json` by default.
    """
    from ups_bench.ledger import LEDGER, append, read
    from ups_bench.rows import home

    if not files:
        raise ConfigError("no ledger was named; write `ups bench merge FILE`.")
    place = ledger or home() / LEDGER
    new = append(place, [entry for file in files for entry in read(file, missing=False)])
    for entry in new:
        print(f"new: {entry.label}")
    print(f"{place}: {len(new)} new; `ups bench tables` shows them in the documents.")


def bench_tables(*, check: bool = False) -> int:
    """Write the tables of README.md, docs/benchmarks.md and docs/speed.md anew, from the ledger and from
    benchmarks/engine.json, growth.json and speed.json.

    Parameters
    ----------
    check
        Write nothing; code 1 where a table does not say what was measured.
    """
    from ups_bench.rows import home
    from ups_bench.tables import bench_tables as job

    return job(home(), check, say=print)
