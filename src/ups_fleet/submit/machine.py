"""Whether this machine has what a job on it asks for: GPUs, a place to meet, the right variables."""

from __future__ import annotations

from ups.later import torch
from ups.types import ConfigError, counted
from ups.wire import host_and_port
from ups_fleet.submit.job import LaunchJob
from ups_fleet.supervise.job import refuse_nesting
from ups_fleet.supervise.network import check_interface, local_address, port_taken


def check_here(job: LaunchJob) -> None:
    """A ConfigError for the first thing that is not here."""
    refuse_nesting()
    if job.gpus:
        _check_gpus(job.gpus)
    if job.nodes == 1:
        return
    node, rendezvous = int(job.options.get("node_rank", 0)), str(job.options.get("rendezvous", ""))
    if not 0 <= node < job.nodes:
        raise ConfigError(f"--node-rank is {node}, but nodes are counted from 0 to {job.nodes - 1}.")
    host, _ = host_and_port(rendezvous)
    if job.interface:
        check_interface(job.interface)
    if node == 0 and port_taken(rendezvous):
        raise ConfigError(f"{rendezvous}: somebody listens there already; choose another port, the same on all nodes.")
    if not local_address(rendezvous):
        raise ConfigError(f"{rendezvous}: this machine knows no way to {host}; give an address that all nodes reach.")


def _check_gpus(count: int) -> None:
    """What torch sees, as the ranks will."""
    there = int(torch.cuda.device_count())
    if there < count:
        lacks = "no GPU" if there == 0 else counted(there, "GPU")
        wanted = f"{counted(count, 'GPU')} {'is' if count == 1 else 'are'} wanted"
        raise ConfigError(f"{wanted}, and torch sees {lacks} here; ask for fewer, or try `ups doctor`.")
