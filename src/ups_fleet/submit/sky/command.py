"""`ups launch sky`: a run on a cluster that SkyPilot rents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ups.cli.numbers import Whole
from ups.wings import Command
from ups_fleet.cli.launch import ENGINE, Shape, launch_job, usage

if TYPE_CHECKING:
    from ups_fleet.submit.job import Option


def sky(
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)],
    nodes: Whole | None = None,
    gpus: Whole | None = None,
    gpu: str | None = None,
    ranks: Whole | None = None,
    time: str | None = None,
    infra: str | None = None,
    cpus: str | None = None,
    memory: str | None = None,
    disk: Whole | None = None,
    spot: bool = False,
    shared: str | None = None,
    install: str | None = None,
    secret: Annotated[tuple[str, ...], Parameter(consume_multiple=False)] = (),
    price: float | None = None,
    dry_run: bool = False,
) -> int:
    """Run CONFIG on a cluster that SkyPilot rents for it, wherever that is cheapest, and ends afterwards.

    This directory is brought along: config and data must lie in it, or be addresses that the run fetches. The cluster
    and its disk are gone ten minutes after the run; what is to stay must be stored elsewhere by then.

    Parameters
    ----------
    nodes
        Machines; more than one need --shared.
    gpus
        GPUs of each, one rank on each.
    gpu
        Their kind, such as H100; `sky show-gpus` lists them.
    ranks
        Processes of each machine, where no GPUs are asked for.
    time
        The limit: 90m, 12h, 2d or 1-12:00:00. The run saves then.
    infra
        Where, such as aws or gcp/us-central1; the cheapest place by default.
    cpus
        Processors of each machine, such as 8 or 8+.
    memory
        Of each machine in GB, such as 64 or 64+.
    disk
        Of each machine in GB.
    spot
        Machines that may be taken away, at a lower price.
    shared
        A folder that all machines see, for the folder of the run.
    install
        The command that installs ups there; `python -m pip install .` by default.
    secret
        The name of a variable of your environment that the run needs, such as WANDB_API_KEY; again for each.
    price
        Of an hour of each machine, for the estimate of --dry-run.
    dry_run
        Print the task file, and what `ups estimate` says of it; rent nothing.
    """
    own = {"gpu": gpu, "infra": infra, "cpus": cpus, "memory": memory, "disk": disk, "shared": shared}
    own |= {"install": install, "spot": spot or None}
    options: dict[str, Option] = {name: value for name, value in own.items() if value is not None}
    shape: Shape = {"nodes": nodes, "gpus": gpus, "ranks": ranks, "time": time, "variables": secret}
    return launch_job("sky", arguments, shape, options, dry_run=dry_run, price=price)


COMMAND = Command("sky", sky, ENGINE, usage("sky"), "launch")
