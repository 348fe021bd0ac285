"""`ups bench`: speed and accuracy, as ratios to a peer measured in the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from ups.cli.numbers import Whole
from ups_bench.cli.bench_accuracy import bench_accuracy, bench_merge, bench_tables, bench_verify
from ups_bench.cli.bench_speed import bench_speed

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
    from ups_bench.generate import bench_generate as job

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
    from ups_bench.engine import bench_engine as job

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
    from ups_bench.growth import bench_growth as job

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
    from ups_bench.cache import bench_cache as job

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
    from ups_bench.rollout import bench_rollout as job

    job(run, task, samples, device, rounds, json_out, say=print)


bench.command(bench_accuracy, name="accuracy")
bench.command(bench_verify, name="verify")
bench.command(bench_merge, name="merge")
bench.command(bench_tables, name="tables")
