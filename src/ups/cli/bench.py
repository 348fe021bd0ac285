"""`ups bench`: speed and accuracy, as ratios to a peer measured in the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from ups.cli.bench_speed import bench_speed
from ups.cli.numbers import Whole
from ups.engine.train import Precision
from ups.screen import waiting
from ups.types import ConfigError

bench = App(name="bench", help="Measure accuracy, row by row into a ledger; and speed, as ratios to a peer.")


@bench.command(name="generate")
def bench_generate(
    *,
    task: list[str] | None = None,
    device: str = "auto",
    seconds: float = 5.0,
    json_out: Annotated[Path | None, Parameter(name="--json")] = None,
) -> None:
    """Trajectories per second of every generator, and the ratio to exponax for Burgers where it is installed.

    Parameters
    ----------
    task
        Only these tasks; may be given several times.
    device
        auto, cpu, cuda or cuda:N.
    seconds
        How long to measure each, roughly.
    json_out
        Also write the numbers, with their provenance, to this file.
    """
    from ups.bench.generate import bench_generate as job

    job(task, device, seconds, json_out, say=print)


@bench.command(name="engine")
def bench_engine(
    *,
    rounds: Whole = 20,
    batch: Whole = 32,
    json_out: Annotated[Path | None, Parameter(name="--json")] = None,
) -> None:
    """What the training engine costs on this machine, as four ratios; two cores or more, and nothing else running.

    Its step over that of a bare loop with the same mathematics; every protection on over off, on two ranks; the time a
    save in the background holds the loop up over the whole save; two ranks over twice one rank, each with a core.

    Parameters
    ----------
    rounds
        Blocks of eight steps of each, in turn with its peer. The fastest twentieth of the steps is compared, for
        whoever else is on the machine only ever slows it; the median is told beside it.
    batch
        Samples per rank and step.
    json_out
        Also write the numbers, with their provenance, to this file.
    """
    from ups.bench.engine import bench_engine as job

    job(rounds, batch, json_out, say=print)


@bench.command(name="growth")
def bench_growth(
    *,
    axis: list[str] | None = None,
    core: list[Literal["transformer", "unet"]] | None = None,
    device: str = "auto",
    seconds: float = 60.0,
    rounds: Whole = 2,
    json_out: Annotated[Path | None, Parameter(name="--json")] = None,
    plot: Path | None = None,
) -> None:
    """How the time of a training step grows with tokens, cells, samples, width and tasks, as exponents.

    An operator with attention, in windows where the core is the unet, on random numbers; all else stays as it is while
    one grows. Last, how long a run takes from its command to its first step as the samples on disk grow: the first run
    on a file, and the next. The exponent is fitted to the larger half of the sizes.

    Parameters
    ----------
    axis
        Only tokens, cells, samples, width, tasks or start; may be given several times.
    core
        unet (the default), whose attention is in windows, or transformer; may be given several times.
    device
        auto, cpu, cuda or cuda:N.
    seconds
        How long to train at each size, at most.
    rounds
        How often each size is timed, in turn; the quickest counts.
    json_out
        Also write the numbers, with their provenance, to this file.
    plot
        Also draw them, as a PNG file.
    """
    from ups.bench.growth import bench_growth as job

    job(axis, core or ["unet"], device, seconds, rounds, json_out, plot, say=print)


bench.command(bench_speed, name="speed")


@bench.command(name="cache")
def bench_cache(
    *,
    samples: Whole = 256,
    seconds: float = 3.0,
    dim: Whole = 64,
    device: str = "auto",
    json_out: Annotated[Path | None, Parameter(name="--json")] = None,
) -> None:
    """Random windows per second from the latent cache over those from the raw file, each read by two processes.

    On advection data of 1024 cells made for it; also the memory each process has for itself, how long a training of the
    small operator waits for windows from the cache, and the cost of a window in caches of a thousand to a million.

    Parameters
    ----------
    samples
        Trajectories of the file that is made.
    seconds
        How long to read, each time.
    dim
        Numbers per token of the codec, one token per four cells: 4 keeps the size of the data, 64 is the default model.
    device
        Where the operator is trained: auto, cpu, cuda or cuda:N.
    json_out
        Also write the numbers, with their provenance, to this file.
    """
    from ups.bench.cache import bench_cache as job

    job(samples, seconds, dim, device, json_out, say=print)


@bench.command(name="rollout")
def bench_rollout(
    run: Path,
    *,
    task: str | None = None,
    samples: Whole = 16,
    rounds: Whole = 5,
    device: str = "auto",
    json_out: Annotated[Path | None, Parameter(name="--json")] = None,
) -> None:
    """What laws and draws cost in a rollout, and how fast it is beside an FNO and beside the own solver.

    On fresh trajectories, by the accurate scheme on a grid twice as fine. The solver is given the fewest cells at which
    it is as good as the simulator, the FNO as many parameters as the operator has.

    Parameters
    ----------
    run
        The run folder of a trained simulator.
    task
        One of its tasks; needed where it knows several.
    samples
        Trajectories that go at once.
    rounds
        How often each is timed, in turn; the median counts.
    device
        auto, cpu, cuda or cuda:N.
    json_out
        Also write the numbers, with their provenance, to this file.
    """
    from ups.bench.rollout import bench_rollout as job

    job(run, task, samples, device, rounds, json_out, say=print)


@bench.command(name="accuracy")
def bench_accuracy(
    *names: Annotated[str, Parameter(name="ROW")],
    all_rows: Annotated[bool, Parameter(name="--all")] = False,
    minutes: float | None = None,
    seeds: Whole = 1,
    seed: Whole = 0,
    fno: bool = False,
    uno: bool = False,
    short: bool = False,
    trajectories: Whole | None = None,
    start_from: Path | None = None,
    precision: Precision | None = None,
    ledger: Path | None = None,
    out: Path = Path("runs/bench"),
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
        from ups.bench.accuracy import Request
        from ups.bench.accuracy import bench_accuracy as job
        from ups.bench.ledger import LEDGER
        from ups.bench.rows import Budget, chosen, home, known_rows

    baselines = tuple(name for name, wanted in (("fno", fno), ("uno", uno)) if wanted)
    budget = Budget(minutes, seed, device, baselines, short, {}, trajectories, start_from, precision)
    wanted = chosen(known_rows(rows), names, all_rows)
    place = ledger or home() / LEDGER
    return int(job(Request(wanted, budget, seeds, place, out, overwrite, keep_data, commit, note), say=_say))


@bench.command(name="verify")
def bench_verify(
    row: str,
    *,
    seed: Whole = 0,
    ledger: Path | None = None,
    out: Path = Path("runs/bench"),
    rows: Path | None = None,
    device: str | None = None,
) -> int:
    """Run the short version of a row again, for the steps that it took before, and hold it against the ledger.

    Code 0 where its error is in the interval of earlier short versions, or better; 1 where it is worse; 3 where it did
    not come to its end.

    Parameters
    ----------
    row
        A row, such as darcy2d/beta1.
    seed
        Of the training; the data are the same.
    ledger
        Where earlier short versions are; `benchmarks/accuracy.json` by default.
    out
        Where its run folder is made; it is replaced the next time.
    rows
        Another folder of rows.
    device
        Another device than the row's own: cpu, cuda or cuda:N.
    """
    with waiting("getting ready"):
        from ups.bench.ledger import LEDGER
        from ups.bench.rows import Budget, check_budget, chosen, home, known_rows
        from ups.bench.verify import bench_verify as job

    budget = Budget(seed=seed, device=device)
    check_budget(budget, 1)
    (wanted,) = chosen(known_rows(rows), (row,), False)
    return job(wanted, budget, ledger or home() / LEDGER, out, _say)


@bench.command(name="merge")
def bench_merge(*files: Annotated[Path, Parameter(name="FILE")], ledger: Path | None = None) -> None:
    """Add the entries of other ledgers to the ledger; those that it has already are left out.

    Parameters
    ----------
    files
        Ledgers that `ups bench accuracy --ledger FILE` has written, for example on another machine.
    ledger
        That which they are added to; `benchmarks/accuracy.json` by default.
    """
    from ups.bench.ledger import LEDGER, append, read
    from ups.bench.rows import home

    if not files:
        raise ConfigError("no ledger was named; write `ups bench merge FILE`.")
    place = ledger or home() / LEDGER
    new = append(place, [entry for file in files for entry in read(file, missing=False)])
    for entry in new:
        print(f"new: {entry.label}")
    print(f"{place}: {len(new)} new; `ups bench tables` shows them in the documents.")


@bench.command(name="tables")
def bench_tables(*, check: bool = False) -> int:
    """Write the tables of README.md, docs/benchmarks.md and docs/speed.md anew, from the ledger and from
    benchmarks/engine.json, growth.json and speed.json.

    Parameters
    ----------
    check
        Write nothing; code 1 where a table does not say what was measured.
    """
    from ups.bench.rows import home
    from ups.bench.tables import bench_tables as job

    return job(home(), check, say=print)


def _say(words: str) -> None:
    print(words, flush=True)
