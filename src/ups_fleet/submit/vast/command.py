"""`ups launch vast` and `ups launch reap`: runs on rented machines, and gives back those that should be gone."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ups.cli.numbers import Whole
from ups.screen import waiting
from ups.streams import delivered, printable
from ups.types import counted
from ups.wings import Command
from ups_fleet.cli.launch import ENGINE, JOB, launch_job, usage

if TYPE_CHECKING:
    from ups.run.config import RunConfig
    from ups_fleet.submit.job import LaunchJob, Option


def vast(
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)],
    time: str | None = None,
    gpus: Whole | None = None,
    nodes: Whole | None = None,
    max_price: float | None = None,
    gpu: str | None = None,
    gpu_ram: float | None = None,
    disk: float | None = None,
    image: str | None = None,
    data: str = "",
    secret: Annotated[tuple[str, ...], Parameter(consume_multiple=False)] = (),
    dry_run: bool = False,
) -> int:
    """Run CONFIG on a machine rented at Vast.ai, which gives itself back when the run is over, whatever its end.

    The cheapest machine that satisfies the needs is rented by Vast's own client (`pipx install vastai`), with its key.
    It gets the code as the last commit that was pushed, installs the pinned packages and runs `ups run` with its
    supervisor. With `sync` in the config the run is in that store, and the machine is destroyed at the end; without, it
    is stopped, and `ups launch reap` copies the run home and destroys it. Docs: howto-launch-vast.md.

    Parameters
    ----------
    time
        The lease: 90m, 12h or 2d after its start the machine is given back, and the run saves before. It must be said.
    gpus
        GPUs of the machine, one rank on each.
    nodes
        Vast rents single machines: 1.
    max_price
        Dollars an hour that it may cost at most; the cheapest is taken in any case.
    gpu
        Only this kind, such as "RTX 4090".
    gpu_ram
        GB that each GPU must have at least.
    disk
        GB of disk; 40 by default.
    image
        A container image with Python 3.11 or later and git. One that sets UPS_PYTHON to a Python in which the packages
        are installed spares their installation.
    data
        What is fetched into `data/` before the run, as `ups data fetch` takes it; several with spaces between.
    secret
        The name of a variable that the run needs, such as WANDB_API_KEY; again for each. Your account at Vast gives it
        to the machine (`vastai create env-var`): its value never passes through here.
    dry_run
        Print the start script, and which machine would be rented at what price; rent nothing.
    """
    own = {"max_price": max_price, "gpu": gpu, "gpu_ram": gpu_ram, "disk": disk, "image": image}
    options: dict[str, Option] = {name: value for name, value in own.items() if value is not None}
    shape = {"nodes": nodes, "gpus": gpus, "ranks": None, "time": time}

    def complete(job: LaunchJob, settings: RunConfig) -> LaunchJob:
        from ups_fleet.keys import fleet_keys
        from ups_fleet.submit.vast.engine import Vast
        from ups_fleet.submit.vast.source import with_source

        Vast().check_shape(job)  # what is wrong with the words is said before git is asked
        return with_source(replace(job, variables=secret), data, fleet_keys(settings).sync or "")

    def offer(job: LaunchJob) -> str:
        from ups_fleet.submit.vast.engine import Vast

        return Vast().quote(job)

    return launch_job("vast", arguments, shape, options, dry_run=dry_run, seen=not data, complete=complete, offer=offer)


def reap(*, dry_run: bool = False, discard: bool = False) -> int:
    """Give back rented machines that should be gone, and say what the others cost. For cron, or by hand.

    Gone should be: what is past its lease, whose job has ended, or what carries our label and has no record here. Logs
    and runs are brought home first. The exit code is 1 where something that should be gone is still there.

    Parameters
    ----------
    dry_run
        Only say what would be done.
    discard
        Destroy also what cannot be brought home.
    """
    from ups_fleet.submit.vast.reap import reap as job

    with waiting("asking Vast"):
        harvest = job(lambda sentence: print(printable(sentence)), dry_run=dry_run, discard=discard)
    for finding in harvest.destroyed:
        print(printable(f"machine {finding.machine.id} of {finding.label.key} is destroyed."))
    for sentence in harvest.stuck:
        print(printable(f"ups: {sentence}"), file=sys.stderr)
    count = len(harvest.in_use)
    print(f"{counted(count, 'machine') if count else 'no machines'} of ours by right, ${harvest.price:.3f}/h.")
    return 1 if harvest.stuck else delivered()


VAST = Command("vast", vast, ENGINE, usage("vast"), "launch")
REAP = Command("reap", reap, JOB, parent="launch")
