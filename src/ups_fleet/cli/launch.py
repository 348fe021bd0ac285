"""`ups launch`: runs in the background, on a cluster or on a rented machine; asks after jobs, and stops them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Group, Parameter

from ups.cli.numbers import Whole
from ups.screen import table, waiting
from ups.streams import delivered, printable
from ups.types import ConfigError, UpsError, duration

if TYPE_CHECKING:
    from ups.run.config import RunConfig
    from ups_fleet.submit.job import LaunchJob, Option
    from ups_fleet.submit.plan import LaunchRequest

ENGINE = Group("Engines", sort_key=0)
JOB = Group("Jobs that were launched", sort_key=1)
Shape = dict[str, Any]  # nodes, gpus, ranks, time and the names of variables, as the command line has them


def usage(engine: str) -> str:
    """How `ups launch ENGINE` is typed."""
    return f"Usage: ups launch {engine} CONFIG [OPTIONS] [--KEY.OF.CONFIG VALUE ...]"


def launch_job(
    engine: str,
    arguments: tuple[str, ...],
    shape: Shape,
    options: Mapping[str, Option],
    sweep: Mapping[str, Any] | None = None,
    *,
    dry_run: bool,
    price: float | None = None,
    seen: bool = True,
    complete: Callable[[LaunchJob, RunConfig], LaunchJob] | None = None,
    offer: Callable[[LaunchJob], str] | None = None,
) -> int:
    """Check, render and submit a job. `seen`: this machine sees the files that the nodes see. `complete`: adds what the
    config and the command line do not say; `offer`: what the engine would give now, and at what price."""
    from ups.config import file_and_flags, load

    file, flags = file_and_flags(arguments)
    if file is None:
        raise ConfigError(f"no config was named; write `ups launch {engine} CONFIG`.")
    with waiting("getting ready"):
        from ups.run.config import run_config
        from ups_fleet.submit import ENGINES
        from ups_fleet.submit.plan import check_inputs, check_secrets, job_of

        settings = load(run_config(), file, flags)
        job = job_of(settings, file, flags, _request(file, flags, shape, options, sweep or {}), Path.cwd())
        settings = load(run_config(), file, {**dict(job.flags), "dist.nodes": job.nodes, "dist.ranks": job.ranks})
        if seen:
            check_inputs(job)
        if complete is not None:
            job = complete(job, settings)
        carrier = ENGINES[engine]()
        carrier.check(job)
        text = carrier.render(job)
        check_secrets(text, os.environ)
    if dry_run:
        print(text, end="")
        for line in (*_offered(job, offer), *_outlook(settings, job, price)):
            print(printable(f"ups: {line}"), file=sys.stderr)
        return delivered()
    if offer is not None:
        offer(job)  # no key, no money and no machine are said before anything is written down
    return _submit(engine, job, text)


def _submit(engine: str, job: LaunchJob, text: str) -> int:
    from ups_fleet.submit import ENGINES
    from ups_fleet.submit.records import LaunchRecord, forget_if_unknown, note, with_identity

    if job.options.get("front"):
        os.execvp("sh", ["sh", "-c", text])
    record = LaunchRecord.of(job, engine)
    note(record)  # from here on it has perhaps been submitted
    try:
        with_identity(record, ENGINES[engine]().submit(job, text))
    except UpsError as error:
        forget_if_unknown(record, error)
        raise
    print(printable(f"ups: {job.folder} on {engine}; `ups launch status {job.key}` asks after it."), file=sys.stderr)
    print(job.key)
    return delivered()


def _request(
    file: Path,
    flags: Mapping[str, str],
    shape: Shape,
    options: Mapping[str, Option],
    sweep: Mapping[str, Any],
) -> LaunchRequest:
    """The words of the command line; of a sweep with all its points."""
    from ups_fleet.submit.plan import LaunchRequest, seconds_of

    counts = {name: shape.get(name) for name in ("nodes", "gpus", "ranks")}
    for name, count in counts.items():
        if count is not None and count < (0 if name == "gpus" else 1):
            raise ConfigError(f"--{name} is {count}, but must be at least {0 if name == 'gpus' else 1}.")
    seconds = seconds_of(shape.get("time"))
    names = tuple(shape.get("variables") or ())
    request = LaunchRequest(counts["nodes"], counts["gpus"], counts["ranks"], seconds, options, variables=names)
    if not (sweep.get("over") or sweep.get("seeds") or sweep.get("random")):
        return request
    from ups_fleet.sweep import begin

    folder, points = begin.points(begin.SweepRequest(file, flags=flags, **sweep))
    return replace(request, folder=folder, points=points)


def _offered(job: LaunchJob, offer: Callable[[LaunchJob], str] | None) -> list[str]:
    """What the engine would give now; why it cannot say, where it cannot."""
    try:
        return [] if offer is None else [offer(job)]
    except UpsError as error:
        return [f"no price: {error}"]


def _outlook(settings: RunConfig, job: LaunchJob, price: float | None) -> list[str]:
    """What `ups estimate` says of the time and the price of a job, in sentences."""
    from ups.lazy_imports import torch

    if job.gpus and not torch.cuda.is_available():
        return ["no time is known: there is no GPU here to measure on; ask `ups estimate` where there is one."]
    with waiting("estimating"):
        from ups.jobs.estimate.estimate import forecast

        try:
            outlook = forecast(settings, "cuda" if job.gpus else None, price=price)
        except UpsError as error:
            return [f"no estimate: {error}"]
    runs = max(1, len(job.points))
    if outlook.seconds is None:
        return [f"no time is known: there is no {outlook.device} here to measure. {outlook.verdict}"]
    each = f"each of {runs} runs " if runs > 1 else ""
    lines = [f"estimate: {each}{duration(outlook.seconds)} on {outlook.device}, as measured on this machine."]
    if outlook.money is not None:
        lines.append(f"estimate: {outlook.money * job.nodes * runs:.2f} at {price:g} an hour and machine.")
    if job.seconds is not None and outlook.seconds > job.seconds:
        lines.append(f"that is longer than --time ({duration(job.seconds)}): it will have to go on in further jobs.")
    return lines


Words = Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]

launch = App(
    name="launch",
    help="Run a config elsewhere: in the background, on a SLURM cluster, on rented machines; ask after it, stop it.",
)


@launch.command(group=ENGINE, usage=usage("local"))
def local(
    *arguments: Words,
    nodes: Whole | None = None,
    gpus: Whole | None = None,
    ranks: Whole | None = None,
    time: str | None = None,
    node_rank: Whole = 0,
    rendezvous: str = "",
    front: bool = False,
    price: float | None = None,
    dry_run: bool = False,
) -> int:
    """Run CONFIG on this machine, in the background; it goes on when you log out.

    It is `ups run` with its supervisor, begun or, where the run's folder holds it, resumed. Any key of the config is a
    flag, as for `ups run`. The job's name is the last line printed: `ups launch status`, `logs` and `stop` take it.

    Parameters
    ----------
    nodes
        Machines; the same command is given on each, with its own --node-rank.
    gpus
        GPUs of each machine, one rank on each; there must be so many.
    ranks
        Processes of each machine, where no GPUs are asked for.
    time
        The limit: 45s, 90m, 12h, 2d or 1-12:00:00. The run saves then, and the same command goes on.
    node_rank
        Which of the machines this one is, from 0.
    rendezvous
        HOST:PORT of the first machine, where all meet.
    front
        Stay in front: the exit code is the run's.
    price
        Of an hour of each machine, for the estimate of --dry-run.
    dry_run
        Print what would be run, and what `ups estimate` says of it; start nothing.
    """
    options: dict[str, Option] = {"node_rank": node_rank, "rendezvous": rendezvous, "front": front}
    shape: Shape = {"nodes": nodes, "gpus": gpus, "ranks": ranks, "time": time}
    return launch_job("local", arguments, shape, options, dry_run=dry_run, price=price, seen=True)


@launch.command(group=ENGINE, usage=usage("slurm"))
def slurm(
    *arguments: Words,
    nodes: Whole | None = None,
    gpus: Whole | None = None,
    ranks: Whole | None = None,
    cpus: Whole | None = None,
    time: str | None = None,
    partition: str | None = None,
    account: str | None = None,
    qos: str | None = None,
    constraint: str | None = None,
    mem: str | None = None,
    nodelist: str | None = None,
    exclude: str | None = None,
    reservation: str | None = None,
    over: Annotated[tuple[str, ...], Parameter(consume_multiple=False)] = (),
    seeds: Whole | None = None,
    random: Whole | None = None,
    elsewhere: bool = False,
    price: float | None = None,
    dry_run: bool = False,
) -> int:
    """Run CONFIG as a job of a SLURM cluster, or many of it as an array.

    The script runs `ups run` with its supervisor on every node. Before the time limit, and when the job is preempted,
    the run saves, the job is queued again, and goes on to the same bits; it is queued again too when a node fails. A
    run that fails is a failed job, with the run's exit code. Folder, data and Python must be where all nodes see them.

    Parameters
    ----------
    nodes
        Machines.
    gpus
        GPUs of each, one rank on each.
    ranks
        Processes of each, where no GPUs are asked for.
    cpus
        Processors of each; by default one for each rank.
    time
        The limit of each try: 90m, 12h, 2d or 1-12:00:00; the partition's by default.
    partition
        As sbatch takes it; likewise the next seven.
    account
        Who pays.
    qos
        Quality of service.
    constraint
        Features that the nodes must have.
    mem
        Memory of each node.
    nodelist
        These nodes.
    exclude
        Not these nodes.
    reservation
        A reservation.
    over
        A sweep as an array: KEY=VALUE,VALUE, as `ups sweep` takes it, which makes the table afterwards.
    seeds
        Each setting of the sweep with so many seeds.
    random
        So many points at random instead of a grid.
    elsewhere
        The nodes see data that this machine does not: do not look for them here.
    price
        Of an hour of each node, for the estimate of --dry-run.
    dry_run
        Print the script, and what `ups estimate` says of it; submit nothing.
    """
    own = {"partition": partition, "account": account, "qos": qos, "constraint": constraint, "mem": mem}
    own |= {"nodelist": nodelist, "exclude": exclude, "reservation": reservation}
    options: dict[str, Option] = {name: value for name, value in own.items() if value is not None}
    options |= {} if cpus is None else {"cpus": cpus}
    shape: Shape = {"nodes": nodes, "gpus": gpus, "ranks": ranks, "time": time}
    sweep = {"over": over, "seeds": seeds, "random": random}
    return launch_job("slurm", arguments, shape, options, sweep, dry_run=dry_run, price=price, seen=not elsewhere)


@launch.command(group=JOB)
def status(job: str | None = None) -> int:
    """Ask the engine how a job is; without JOB, how all are that were launched from here.

    Parameters
    ----------
    job
        What `ups launch` printed last; or the engine's own number, or the name of the run.
    """
    from ups_fleet.submit.records import all_records, record_of, status_of

    records = all_records() if job is None else [record_of(job)]
    if not records:
        print("no job has been launched from here.")
        return delivered()
    rows = [["job", "engine", "number", "state", ""]]
    for record in records:
        known, now = status_of(record)
        rows.append([known.key, known.engine, known.identity, now.state, now.sentence])
    print(printable(table(rows)))
    return delivered()


@launch.command(group=JOB)
def logs(job: str | None = None) -> int:
    """Print what a job has printed until now; what the environment here holds of keys and passwords is blotted out.

    Parameters
    ----------
    job
        Which; it may be left out where one alone is not over.
    """
    from ups_fleet.submit.records import logs_of, only

    for piece in logs_of(only(job)):
        print(printable(piece), end="")
    return delivered()


@launch.command(group=JOB)
def stop(job: str | None = None) -> int:
    """End a job; its run saves first where the engine gives it the time.

    Parameters
    ----------
    job
        Which; it may be left out where one alone is not over.
    """
    from ups_fleet.submit.records import only, stopped

    record = only(job)
    with waiting(f"stopping {record.key}, which saves first"):
        now = stopped(record)
    print(printable(f"{record.key}: {now.state}: {now.sentence}"))
    return delivered()
