"""Checks a job of `ups launch`, renders it, prints or submits it, and records it; the same for every engine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import Group

from ups.screen import waiting
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
    from ups_fleet.submit.records import LaunchRecord, note, with_identity
    from ups_fleet.submit.registry import forget_if_unknown

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
    from ups.later import torch

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
